"""The answers of one DoPut: where the rows of each batch are, in the order of the batches.

Owns that order. What is stored is answered at once; where a sync is awaited, several batches wait together and a
thread of the call answers them, while the call reads on.
Invariant: after an error nothing more is answered, and a client that only waits is woken.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.flight as flight

from penstock.client.wire import Stored, encoded
from penstock.columns import place_of
from penstock.dialects.flight.faults import GONE
from penstock.intake.receipt import Receipt

#: Batches of one call that may wait for a sync, and their bytes.
WAITING_MAX = 16
WAITING_BYTES_MAX = 32 << 20

#: Where rows are: (topic, their ids, where they stood).
Place: TypeAlias = tuple[str, Receipt, "npt.NDArray[np.int64] | None"]


class Answers:
    """Answers batches in order: at once where nothing is waited for, else from a thread of its own."""

    def __init__(self, writer: flight.FlightMetadataWriter) -> None:
        self._writer = writer
        self._waiting: deque[tuple[list[Future[list[Place]]], int]] = deque()
        self._waiting_bytes = 0
        self._changed = Condition()
        self._thread: Thread | None = None
        self._ended = False
        self._failure: BaseException | None = None

    def add(self, stored: list[Future[list[Place]]], size: int) -> None:
        """Answer a batch of this many bytes, or let it wait for its sync."""
        if self._thread is None:
            if all(future.done() for future in stored):
                self._answer(stored)
                return
            self._thread = Thread(target=self._run, name="flight-answers", daemon=True)
            self._thread.start()
        with self._changed:
            while self._is_full() and self._failure is None:
                self._changed.wait()
            self.check()
            self._waiting.append((stored, size))
            self._waiting_bytes += size
            self._changed.notify_all()

    def _is_full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX or self._waiting_bytes >= WAITING_BYTES_MAX

    def check(self) -> None:
        """Raise what went wrong with an earlier batch."""
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Answer what is left."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._waiting and not self._ended:
                        self._changed.wait()
                    if not self._waiting:
                        return
                    stored, size = self._waiting[0]
                self._answer(stored)
                with self._changed:
                    self._waiting.popleft()
                    self._waiting_bytes -= size
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            self._wake()

    def _wake(self) -> None:
        """Tell a client that only waits that its stream has failed: an answer without bytes."""
        try:
            self._writer.write(b"")
        except GONE:
            return  # it is gone

    def _answer(self, stored: list[Future[list[Place]]]) -> None:
        places: list[list[Any]] = []
        repeated = 0
        for future in stored:
            found = future.result()
            places += _runs(found)
            repeated += sum(receipt.repeated for _, receipt, _ in found)
        try:
            self._writer.write(encoded(Stored(places=places, repeated=repeated)))
        except GONE:  # what it sent is stored all the same, and no fault of anybody
            raise flight.FlightCancelledError("the client is gone") from None


def _runs(found: list[Place]) -> list[list[Any]]:
    """Return [topic, shard, first offset, count] of runs of rows, in the order of the rows."""
    if len(found) == 1:
        topic, receipt, _ = found[0]
        if not receipt.elsewhere:
            return [[topic, *place_of(receipt.first_id), receipt.count]] if receipt.count else []
        ids = receipt.column()
        names = np.zeros(len(ids), np.int64)
    else:
        count = sum(len(rows) for _, _, rows in found if rows is not None)
        ids, names = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for number, (_, receipt, rows) in enumerate(found):
            assert rows is not None
            ids[rows] = receipt.column()
            names[rows] = number
    cuts = np.flatnonzero((np.diff(ids) != 1) | (np.diff(names) != 0)) + 1
    starts = [0, *cuts.tolist()]
    sizes = np.diff([*starts, len(ids)]).tolist()
    return [
        [found[int(names[start])][0], *place_of(int(ids[start])), size]
        for start, size in zip(starts, sizes, strict=True)
    ]
