"""Exceptions that are no mistakes of the program, and so get no traceback."""

# Exit status of a run that was asked to stop, and that the same command continues;
# "temporary failure" in sysexits.h.
EXIT_CONTINUE = 75


class UserError(Exception):
    """Something the user gave cannot work: a flag, a config field, a file.

    The message is one line that says what is wrong, where, and what would be right.
    Entrypoints print it without a traceback; an internal mistake keeps its own.

    Attributes:
      everywhere: Whether all processes of the run raise it, in the same call.
    """

    everywhere = False


class Unavailable(Exception):
    """Something outside the run does not answer now, and may later: a store, a network.

    One line without a traceback, like a `UserError`, but with the exit status of a
    crash, so that whatever launched the run starts it again.
    """


class Interrupted(Exception):
    """A run was asked to stop, and saved itself; the same command continues it.

    All processes of a run raise it, after the same step.
    """

    everywhere = True
