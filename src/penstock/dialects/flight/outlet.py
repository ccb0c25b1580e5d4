"""What goes down an exchange: a queue that the loop fills, and a thread of the call that empties it.

Owns that thread, the order, and the count of bytes that a client has not read, which are the node's memory for output.
Knows nothing of what is sent. Invariant: what is put goes out in its order, and who filled it hears when there is room.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.budget import Wait
from penstock.dialects.flight.faults import GONE, OURS
from penstock.dialects.flight.places import Reads
from penstock.dialects.flight.put import chunks
from penstock.dialects.flight.service import Service
from penstock.errors import Refusal

#: Bytes on their way to a client that does not read; beyond it, nothing more is made for it.
UNREAD_BYTES_MAX = 16 << 20
#: From so many on they are counted in memory.output_bytes; fewer are gone before anybody could look.
COUNTED_BYTES = 256 << 10
#: So many rows go out in one write, if they are there.
GATHERED_ROWS = 4096

Item = TypeVar("Item")


class End(Protocol):
    """Ends an exchange."""

    def __call__(self, why: str) -> None:
        """Tell its client why."""


class Outlet(Generic[Item]):
    """The way down to one client. `put`, `leave` and what is called back run on the loop."""

    def __init__(self, service: Service, address: str, drained: Callable[[], None], end: End) -> None:
        self._service = service
        self._address = address
        self._drained = drained
        self._end = end
        self._queue: SimpleQueue[tuple[Item, int, int] | None] = SimpleQueue()
        #: Bytes put and bytes written; one is the loop's to change, the other the writer's.
        self._put_bytes = 0
        self._written_bytes = 0
        self._wait: Wait | None = None
        #: More than there is room for; stays until most of it is read.
        self.is_full = False

    @property
    def unsent_bytes(self) -> int:
        """How many bytes are not on their way yet."""
        return self._put_bytes - self._written_bytes

    def put(self, item: Item, size: int = 0, rows: int = 0) -> None:
        """Let something go out."""
        self._put_bytes += size
        self._queue.put((item, size, rows))
        unsent = self.unsent_bytes
        if unsent > COUNTED_BYTES:
            self.is_full = self.is_full or unsent > UNREAD_BYTES_MAX
            if self._wait is None:
                self._wait = self._service.node.budget.output.begin(self._address, self._cut)
            self._count()  # the writer may have caught up just now

    def close(self) -> None:
        """Let the thread end once all is written; for any thread."""
        self._queue.put(None)

    def leave(self) -> None:
        """Count nothing any more, and know nobody to call back: those two know each other."""
        self.is_full = False
        self._drained, self._end = _nothing, _nothing
        if self._wait is not None:
            self._service.node.budget.output.end(self._wait)
            self._wait = None

    def _count(self) -> None:
        """Say how much is held now; tell whoever waits for room."""
        output, unsent = self._service.node.budget.output, self.unsent_bytes
        if self._wait is not None and (unsent < self._wait.bytes or unsent <= COUNTED_BYTES):
            output.end(self._wait)  # it reads: time runs anew
            self._wait = output.begin(self._address, self._cut) if unsent > COUNTED_BYTES else None
        if self._wait is not None:
            output.hold(self._wait, unsent)
        if self.is_full and unsent <= UNREAD_BYTES_MAX // 2:
            self.is_full = False
            if not self._service.node.stopping:
                self._service.node.clock.call_soon(self._drained)

    def _cut(self, why: Refusal) -> None:
        """Drop what a client does not read, and end it."""
        self._wait = None
        try:
            while True:
                dropped = self._queue.get_nowait()
                if dropped is None:  # it ends already
                    self._queue.put(None)
                    return
                self._put_bytes -= dropped[1]
        except Empty:
            self._end(f"{why.code}: {why}")

    # --- on the threads of the call -------------------------------------------------------------------------------

    def converse(
        self,
        schema: pa.Schema,
        reader: Reads,
        writer: flight.MetadataRecordBatchWriter,
        *,
        write: Callable[[list[Item]], None],
        heard: Callable[[flight.FlightStreamChunk], None],
        leave: Callable[[], None],
    ) -> None:
        """Serve an exchange until its client ends it: this thread hears, another one writes."""
        thread = Thread(target=self.run, args=(write,), name="flight-exchange", daemon=True)
        try:
            writer.begin(schema)
            thread.start()
            for chunk in chunks(reader):
                heard(chunk)
                del chunk  # the next one may be long in coming
        finally:
            self._service.bridge.tell(leave)
            self.close()
            if thread.ident is not None:
                thread.join()

    def run(self, write: Callable[[list[Item]], None]) -> None:
        """Write what is put until it is closed."""
        bridge = self._service.bridge
        try:
            while self._write_some(write):
                if self._wait is not None or self.is_full:
                    bridge.tell(self._count)
        except GONE:
            return  # the client is gone; the other thread hears of it too
        except Exception as error:
            bridge.tell(partial(self._service.node.report_bug, "flight exchange", error))
            bridge.tell(partial(self._end, OURS))

    def _write_some(self, write: Callable[[list[Item]], None]) -> bool:
        """Write the next item and those that follow it at once; False at the end."""
        entry = self._queue.get()
        items: list[Item] = []
        size = rows = 0
        while entry is not None:
            items.append(entry[0])
            size += entry[1]
            rows += entry[2]
            if rows >= GATHERED_ROWS:
                break
            try:
                entry = self._queue.get_nowait()
            except Empty:
                break
        if items:
            write(items)
        self._written_bytes += size
        return entry is not None


def _nothing(*_: object, **__: object) -> None:
    """Hear it in vain."""
