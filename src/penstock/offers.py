"""What a dialect lets the native protocol carry for it: actions, and exchanges in both directions.

Owns the seam alone. A dialect that starts puts its offer among the node's, and takes it out when it closes; Flight,
which knows no other dialect, finds it there under `<dialect>.<name>`. Everything here is called on the loop.
Invariant: a talk hears `closed` once, and nothing after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.callers import Action as Right
    from penstock.callers import Caller


class Stream(Protocol):
    """The way down to one client."""

    @property
    def unsent_bytes(self) -> int:
        """How much of what was sent is not on its way yet."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be sent for now: the talk hears `drained` later."""

    def send(self, batch: pa.RecordBatch | None, metadata: bytes = b"") -> None:
        """Send rows of the opening's schema, or words, or both; after the end nothing is sent."""

    def end(self, why: str = "") -> None:
        """Tell the client that it is over, after what was sent; the talk hears `closed` before this returns."""

    def needs(self, right: Right, topic: str) -> None:
        """Refuse a caller without a right now, and end the stream once it has lost it."""


class Talk(Protocol):
    """The dialect's side of one exchange."""

    def received(self, batch: pa.RecordBatch | None, metadata: bytes) -> Answer[None] | None:
        """Take what the client sent; with an answer, nothing more is read before it is given. A Refusal ends it."""

    def drained(self) -> None:
        """Hear that the client has read most of what filled the stream."""

    def closed(self) -> None:
        """Hear that it is over, whoever ended it."""


#: Takes who asks and a JSON document, answers with one.
Action: TypeAlias = "Callable[[Caller, bytes], Answer[bytes]]"


class Opening(NamedTuple):
    """One kind of exchange."""

    #: Of the rows that go down.
    schema: pa.Schema
    #: Begins one: who asks, its JSON document, and the way down. Words may be sent at once.
    open: Callable[[Caller, bytes, Stream], Talk]


class Offer(NamedTuple):
    """All that is carried for one dialect, by the name after the dot."""

    actions: Mapping[str, Action]
    exchanges: Mapping[str, Opening]
