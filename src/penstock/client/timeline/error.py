"""What a node refused of a timeline: a whole request, or rows of it."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.timeline.wire import Error, Kind
from penstock.errors import PenstockError


class TimelineError(PenstockError):
    """A request was refused; `kind` is one of `Kind`, `error` has all that the node said."""

    def __init__(self, error: Error) -> None:
        super().__init__(f"{error.message} (kind {error.kind})")
        self.error = error
        self.kind = error.kind

    @property
    def is_stale(self) -> bool:
        """Whether shaking hands anew may help."""
        return self.kind == Kind.UNKNOWN_SESSION or self.error.should_sync


class RefusedRow(NamedTuple):
    """One message of several that was refused."""

    #: Where it stood in what was given.
    row: int
    message_id: bytes
    kind: int
    text: str


class RefusedRows(PenstockError):
    """Some messages of several were refused; the others are done."""

    def __init__(self, what: str, refused: list[RefusedRow], count: int) -> None:
        first = refused[0]
        shown = first.message_id.decode("utf-8", "backslashreplace")
        others = f", and {len(refused) - 1} others" if len(refused) > 1 else ""
        reason = f"was refused: {first.text} (kind {first.kind}){others}"
        super().__init__(f"{what}: row {first.row} of {count} (message {shown}) {reason}")
        self.refused = refused


def check(error: Error | None) -> None:
    """Raise what a reply says went wrong; one without a message says that all is well."""
    if error is not None and error.message:
        raise TimelineError(error)
