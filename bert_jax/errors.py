"""The one exception that stands for a mistake of the user, not of the program."""


class UserError(Exception):
    """Something the user gave cannot work: a flag, a config field, a file.

    The message is one line that says what is wrong, where, and what would be right.
    Entrypoints print it without a traceback; every other exception keeps its own.
    """
