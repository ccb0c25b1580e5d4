"""A consumer of a subscription over one exchange, kept up over restarts of the node, and when its topic moves.

A thread reads what the node hands out into a queue; orders are written by whoever gives them. Leases die with a
connection: after a new one the node hands out again what was not acked. What was acked in vain, because the connection
broke before the node wrote it down, is acked when it comes again, and not shown twice.
Invariant: no more than `credit` messages are in the queue and with the program together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from penstock.client import wire
from penstock.client.connection import Connection, Unreachable, refusal_of
from penstock.client.incoming import Batch, Verb
from penstock.client.nodes import Nodes
from penstock.client.retry import RetryPolicy
from penstock.errors import PenstockError

#: Acks not known to be written down before the node is asked about them.
UNSURE_MAX = 10_000
#: What was acked in vain comes again soon after the new connection; later it is a new delivery, by a seek for one.
DOUBT_S = 60.0
#: How long closing waits until the node wrote the last acks down.
CLOSE_S = 2.0

#: Told in the reader's thread: a batch, or the error that ended the subscription, or None at its end.
Told: TypeAlias = Callable[["Batch | PenstockError | None"], None]


class Consumer:
    """One consumer; its messages go to `told`."""

    def __init__(self, nodes: Nodes, what: wire.Subscribe, credit: int, patience_s: float, told: Told) -> None:
        self._nodes = nodes.shared()
        self._what = what
        self._credit = credit
        self._patience_s = patience_s
        self._told = told
        self._lock = threading.Lock()
        self._writer: flight.FlightStreamWriter | None = None
        self._pings = count(1)
        #: Acked ids by the ping that will confirm them, in order; the last group has none yet.
        self._unsure: dict[int, set[int]] = {}
        self._fresh: set[int] = set()
        #: Acked over a connection that broke, and until when they may come again for that.
        self._doubtful: set[int] = set()
        self._doubt_until = 0.0
        self._confirmed = threading.Event()
        self._closing = threading.Event()
        self._joined = threading.Event()
        #: Why the node never let it in.
        self.refusal: PenstockError | None = None
        #: Ids that came back to somebody else before they were acked.
        self.refused = 0
        self._end_beats = nodes.on_beat(self._beat)
        self._thread = threading.Thread(target=self._run, name=f"penstock {what.subscription}", daemon=True)

    def start(self) -> None:
        """Begin to consume; `wait` returns once it has."""
        self._thread.start()

    def wait(self) -> None:
        """Return once the node knows of this consumer, or it ended, or patience did: later messages are its own."""
        self._joined.wait(self._patience_s)

    def settle(self, verb: Verb, ids: list[int], span_ms: int | None) -> None:
        """Carry out what a program decided; while there is no connection, acks are kept and the rest is moot."""
        ranges = wire.ranges_of(sorted(ids))
        with self._lock:
            if verb == "ack":
                self._fresh.update(ids)
                order = wire.Order(ack=ranges, ping=self._next_ping() if len(self._fresh) >= UNSURE_MAX else None)
            elif verb == "extend":
                order = wire.Order(extend=ranges, lease_ms=span_ms)
            else:
                order = wire.Order(release=ranges, delay_ms=span_ms or 0)
            self._write(order)

    def set_credit(self, credit: int) -> None:
        """Let the node hand out this many messages at a time from now on."""
        with self._lock:
            self._credit = credit
            self._write(wire.Order(credit=credit))

    def close(self) -> None:
        """Let the node write the last acks down, and leave."""
        with self._lock:
            self._closing.set()
            waits = bool(self._fresh or self._unsure)
            self._write(wire.Order(credit=0, ping=self._next_ping() if waits else None))
            if not waits:
                self._hang_up()
        if waits:
            self._confirmed.wait(CLOSE_S)
            with self._lock:
                self._hang_up()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    def _beat(self) -> None:
        """Ask for a word: a node that does not answer any more is missed by that."""
        with self._lock:
            if self._writer is not None and not self._closing.is_set():
                self._write(wire.Order(ping=self._next_ping()))

    # --- with the lock held ---------------------------------------------------------------------------------------

    def _next_ping(self) -> int:
        number = next(self._pings)
        self._unsure[number], self._fresh = self._fresh, set()
        self._confirmed.clear()
        return number

    def _write(self, order: wire.Order) -> None:
        if self._writer is not None:
            # A broken connection shows in the reader's thread, which makes a new one.
            with suppress(pa.ArrowException, OSError):
                self._writer.write_metadata(wire.encoded(order))

    def _hang_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(pa.ArrowException, OSError):
                writer.done_writing()

    # --- the reader's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        way = self._nodes.way(self._what.topic, RetryPolicy(self._patience_s, self._closing.wait))
        while not self._closing.is_set():
            connection = self._nodes.to(self._what.topic)
            try:
                for _ in self._follow(connection):
                    way.renew()
            except PenstockError as error:
                try:
                    way.failed(connection, error)
                except PenstockError:
                    self._end(None if self._closing.is_set() else error)
                    return
        self._end(None)

    def _end(self, error: PenstockError | None) -> None:
        with self._lock:
            self._writer = None
        self._confirmed.set()
        if not self._joined.is_set():
            self.refusal = error
        self._joined.set()
        self._end_beats()
        self._nodes.close()
        self._told(error)

    def _follow(self, connection: Connection) -> Iterator[None]:
        """Take what the node sends until it ends; yields after each piece."""
        writer, reader = connection.exchange(self._what)
        try:
            with connection.told():
                _ = reader.schema  # comes once the consumer is there
        except PenstockError:
            with suppress(pa.ArrowException, OSError):
                writer.close()
            raise
        with self._lock:
            self._doubtful = self._fresh.union(*self._unsure.values())
            self._doubt_until = time.monotonic() + DOUBT_S
            self._fresh = set()
            self._unsure.clear()
            self._writer = writer
            self._write(wire.Order(credit=0 if self._closing.is_set() else self._credit))
        self._joined.set()
        try:
            while True:
                with connection.told():
                    try:
                        chunk = reader.read_chunk()
                    except StopIteration:
                        break
                if chunk.data is not None and len(chunk.data):
                    self._take(chunk.data)
                if chunk.app_metadata is not None:
                    self._hear(wire.decoded(chunk.app_metadata.to_pybytes(), wire.Notice))
                yield
        finally:
            with self._lock:
                self._writer = None
            with suppress(pa.ArrowException, OSError):
                writer.close()
        if not self._closing.is_set():
            raise Unreachable(f"{connection.access.url} ended the exchange")

    def _take(self, batch: pa.RecordBatch) -> None:
        """Show what is new; what was acked already is acked again, because the node does not know of it."""
        with self._lock:
            if self._doubtful and time.monotonic() > self._doubt_until:
                self._doubtful.clear()
            again = self._doubtful.intersection(batch.column("id").to_pylist()) if self._doubtful else set()
            if again:
                self._doubtful -= again
                self._fresh |= again
                self._write(wire.Order(ack=wire.ranges_of(sorted(again))))
                batch = batch.filter(pc.invert(pc.is_in(batch.column("id"), pa.array(sorted(again), pa.int64()))))
        if len(batch):
            self._told(Batch(batch, self.settle))

    def _hear(self, notice: wire.Notice) -> None:
        if notice.refused:
            self.refused += sum(rows for _, rows in notice.refused)
        if notice.pong is not None:
            with self._lock:
                for number in [number for number in self._unsure if number <= notice.pong]:
                    del self._unsure[number]
                if not self._unsure:
                    self._confirmed.set()
        if notice.end is not None:
            raise refusal_of(notice.end)
