"""Exceptions that are not bugs of the program, and so get no traceback."""

# Exit status of an interrupted run, which the same command continues; "temporary
# failure" in sysexits.h.
EXIT_RESUMABLE = 75


class UserError(Exception):
    """An error in the user's input: a flag, a config field, a file.

    The message is one line that says what is wrong, where, and what to do. Entry points
    print it without a traceback.

    Attributes:
      in_all_processes: Whether all processes of the run raise it, in the same call.
    """

    def __init__(self, message: str, *, in_all_processes: bool = False):
        super().__init__(message)
        self.in_all_processes = in_all_processes


class Unavailable(Exception):
    """An outage outside of the run, such as of a store or a network, that may end.

    It is printed as one line without a traceback, like a `UserError`, but with the exit
    status of a crash, so that the launcher restarts the run.
    """


class Interrupted(Exception):
    """The end of a run that was asked to stop, and that the same command continues.

    All processes of a run raise it, after the same step.
    """

    in_all_processes = True
