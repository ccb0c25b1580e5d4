"""What Dory's status pages ask a relay, whichever there is. None knows of this: it has the answers, or it has not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from penstock.dialect import Sample

#: What happens to messages of one topic: (stage, topic, times of producers in ms, keys, bodies).
Watch = Callable[
    [Literal["receive", "send", "got_ack"], str, Sequence[int], Sequence[bytes | None], Sequence[bytes]], None
]


class Queue(NamedTuple):
    """How many messages of one topic a relay holds, by what they wait for."""

    topic: str
    #: For a batch to be complete.
    batch: int
    #: To be sent.
    send_wait: int
    #: To be acknowledged.
    ack_wait: int


class MetadataTimes(NamedTuple):
    """When a relay last asked what there is on the other side, and when that was news; 0 = never."""

    updated_ms: int
    modified_ms: int


@runtime_checkable
class Forwarder(Protocol):
    """A relay that routes by what it learns from the other side."""

    #: Told of messages that were accepted, sent whole, and acknowledged without an error; None = nobody listens.
    watch: Watch | None

    def samples(self) -> Iterable[Sample]:
        """Return its figures."""

    def queues(self) -> Iterable[tuple[str, int, int, int]]:
        """Return the topics of which it holds messages, each as a `Queue` has it."""

    def waiting(self) -> int:
        """Return how many messages it has not looked at yet."""

    def metadata_times(self) -> tuple[int, int]:
        """Return when it learned what it knows, as `MetadataTimes`."""

    def update_metadata(self) -> None:
        """Ask the other side again, soon."""
