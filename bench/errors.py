"""The one exception type for what the user can mend, and the exit codes of the command."""

from collections.abc import Sequence

EXIT_OK = 0
EXIT_CELL_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NOTHING_MEASURED = 3
EXIT_REGRESSION = 4
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """Something the user can mend. The message names what is wrong and what would be right, in one or two lines.

    The command line prints it and exits with code 2; everything that is not a `UserError` may crash loudly. `keys` are
    those of a matrix that the message is about: where they stand in a file, the message is given file and line.
    """

    def __init__(self, message: str, *, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)
