"""The one exception type for what the user can mend, and the exit codes of the command."""

EXIT_OK = 0
EXIT_CELL_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NOTHING_MEASURED = 3
EXIT_REGRESSION = 4
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """Something the user can mend. The message names what is wrong and what would be right, in one or two lines.

    The command line prints it and exits with code 2; everything that is not a `UserError` may crash loudly.
    """
