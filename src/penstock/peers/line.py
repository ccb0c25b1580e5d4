"""One long connection to another node's door for batches: many publishers' batches, and their answers as they come.

Owns what was sent and is not answered. Invariant: each `done` hears once; what was sent and not answered before the
connection broke is refused as unavailable, its outcome unknown, and never said to be stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from penstock.callers.carried import Carried
from penstock.columns import Buffer
from penstock.errors import Refusal
from penstock.intake.gather import bytes_of
from penstock.intake.receipt import Published
from penstock.message import Rows
from penstock.peers.publish import DOOR
from penstock.peers.rows import BadFrame, Frames, Head, told, written

if TYPE_CHECKING:
    from penstock.peers.peers import Peers

#: Publishers that can wait are held back while this much is not answered.
WINDOW_BYTES = 8 << 20


class _Sent(NamedTuple):
    done: Published
    size: int


class Line(asyncio.Protocol):
    """Batches to one node."""

    def __init__(self, peers: Peers, to: str) -> None:
        self.to = to
        self._peers = peers
        self._node = peers.node
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._number = 0
        self._sent: dict[int, _Sent] = {}
        self._held = 0
        self._out: list[Buffer] = []
        self._waiting: list[Callable[[], None]] = []
        self.is_over = False
        caller = Carried(address=peers.name, listener="cluster.port")
        peers.connect(to, DOOR, caller, b"", self, self._failed)

    @property
    def is_full(self) -> bool:
        """Whether publishers that can wait should."""
        return self._held > WINDOW_BYTES

    def when_free(self, call: Callable[[], None]) -> None:
        """Call once there is room again, or the connection is gone."""
        self._waiting.append(call)

    def publish(self, head: Head, rows: Rows, done: Published) -> None:
        """Send a batch."""
        size, memory = bytes_of(rows), self._node.budget.input
        if not memory.take(size):
            text = f"input not yet stored fills its {memory.bytes_max} bytes: publish again in a moment"
            done(None, Refusal("memory_full", text))
            return
        head.number = self._number = (self._number + 1) & 0xFFFFFFFF
        try:
            parts = written(head, rows)
        except Refusal as refusal:
            memory.give(size)
            done(None, refusal)
            return
        self._held += size
        self._sent[head.number] = _Sent(done, size)
        if not self._out and self._transport is not None:
            self._node.clock.call_soon(self._flush)
        self._out += parts

    # --- the transport calls these --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what waits."""
        self._transport = cast(asyncio.Transport, transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Tell publishers what became of their batches."""
        try:
            answers = [told(frame) for frame in self._frames.feed(data)]
        except BadFrame as bad:
            self._node.count_fault("peers", "bad_request", str(bad), self.to)
            if self._transport is not None:
                self._transport.abort()
            return
        for number, receipt, error in answers:
            sent = self._sent.pop(number, None)
            if sent is not None:
                self._give(sent.size)
                self._tell(sent.done, receipt, error)
        self._free()

    def connection_lost(self, exc: Exception | None) -> None:
        """Refuse what was not answered."""
        self._end(f"node {self.to} hung up before it had answered; whether it was stored is not known")

    # --- inside ---------------------------------------------------------------------------------------------------

    def _failed(self, why: Refusal) -> None:
        self._end(f"{why}; nothing was stored, publish again")

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.writelines(out)

    def _end(self, why: str) -> None:
        self.is_over, self._transport = True, None
        sent, self._sent, self._out = self._sent, {}, []
        for each in sent.values():
            self._give(each.size)
            self._tell(each.done, None, Refusal("unavailable", why))
        self._free()

    def _tell(self, done: Published, receipt: object, error: Refusal | None) -> None:
        try:
            done(receipt, error)  # type: ignore[arg-type]
        except Exception as failure:  # a bug of one publisher must not cost the others
            self._node.report_bug(f"answer of node {self.to}", failure)

    def _give(self, size: int) -> None:
        self._held -= size
        self._node.budget.input.give(size)

    def _free(self) -> None:
        if self._waiting and (self.is_over or self._held <= WINDOW_BYTES // 2):
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()
