"""Why a command ended without doing what it was asked to, and the exit code that says so to a script."""

from __future__ import annotations

from penstock.errors import PenstockError

OK = 0
#: The node, or a check, said no.
REFUSED = 1
#: The command line, the configuration, a port or a directory cannot be used.
USAGE = 2
#: Nobody answers at that address.
UNREACHABLE = 3


class Failure(PenstockError):
    """One line for standard error that names the thing, the reason and the way out, and an exit code."""

    def __init__(self, text: str, code: int = REFUSED) -> None:
        super().__init__(text)
        self.code = code


class Refused(Failure):
    """The node answered, and said no; `reason` is its code for why."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, REFUSED)
        self.reason = reason
