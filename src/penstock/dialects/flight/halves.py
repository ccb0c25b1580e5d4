"""Messages that have not come whole: what gRPC holds of them, which it tells nobody.

gRPC hands over whole messages, of any size, and pyarrow's server takes no setting of it. So what it holds is reckoned:
what the kernel counts of a connection, less what came out of its calls, less what else a client sends. That errs on
the side of less: an honest client is never cut off for it. What is reckoned is held in the node's memory for bodies,
like half of a body on any other listener, with its limit, its rate and its time; whoever gives way is hung up on.
Calls say what they hear on Flight's threads; the rest is on the loop, but for the one thread that asks the kernel.
Invariant: no connection has much more than one message on its way for each of its streams.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from functools import partial
from threading import Event, Lock, Thread
from threading import enumerate as enumerate_threads
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from penstock.budget import Wait
from penstock.clock import SECOND
from penstock.dialects.flight.places import Reads, hang_up, plain
from penstock.errors import Refusal
from penstock.wire.traffic import Traffic, families, traffic

if TYPE_CHECKING:
    from penstock.dialects.flight.service import Service

#: The kernel is asked so often while nobody is connected, while somebody is, and while somebody has much on its way.
IDLE_S, QUIET_S, BUSY_S = 0.5, 0.25, 0.05

#: Less is not counted: gRPC reads ahead, and what is reckoned is not exact.
COUNTED_BYTES = 256 * 1024
#: A message may be so much larger than the largest batch.
SPARE_BYTES = 1 << 20

#: A connection of which nothing whole ever came is hung up on after this: each call on it has a thread of gRPC's, which
#: waits for the first message before anybody hears of the call.
UNHEARD_NS = 30 * SECOND
#: So many threads may wait like that; where there are more, connections without a known call are hung up on at once.
UNHEARD_MAX = 256
#: What gRPC calls the threads of its server, of which the kernel keeps 15 letters: each call has one, and so many more
#: wait for calls.
CALL_THREAD, SPARE_THREADS = b"grpcpp_sync_ser", 2

#: What is said beside a batch, or in a command, an action or a ticket: 30 ms of reading at most.
WORDS_BYTES_MAX = 2 << 20

#: What a message costs beside its content, with 17 columns at most 2 KB; its columns' padding; what a call costs with
#: its headers; what is sent for each byte that is read, and now and then to show life.
MESSAGE_BYTES = 4096
PADDING = 4
CALL_BYTES = 8192
READ_PART = 128
ALIVE_BYTES = 64

_log = logging.getLogger("penstock.flight")


class _Flow:
    """One connection. What calls change is behind the lock of all."""

    __slots__ = ("credit", "is_heard", "is_known", "owed", "since_ns", "streams", "told", "wait", "works")

    def __init__(self, since_ns: int = 0) -> None:
        #: When it came, and whether a call on it was ever heard of.
        self.since_ns = since_ns
        self.is_known = False
        #: What came out of calls since the kernel was asked, and whether anything did.
        self.credit = 0
        self.is_heard = False
        #: Calls at work, and those that wait for their client's next message.
        self.works = self.streams = 0
        #: What the kernel said last, and what is reckoned of it.
        self.told: Traffic = Traffic(0, 0)
        self.owed = 0
        self.wait: Wait | None = None


class Halves:
    """What is on its way on all connections."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._flows: dict[str, _Flow] = {}
        self._cut: deque[str] = deque()
        self._wake = Event()
        self._ended = False
        self._told_ns = 0
        self._pause_s = IDLE_S
        self._port = 0

    # --- calls, on their threads ----------------------------------------------------------------------------------

    def begin(self, peer: str, size: int) -> None:
        """Know a call, which said so much: it is at work."""
        with self._lock:
            flow = self._flow(peer)
            flow.works += 1
            flow.credit += size + CALL_BYTES
            flow.is_heard = flow.is_known = True

    def end(self, peer: str) -> None:
        """Know it no more."""
        with self._lock:
            self._flow(peer).works -= 1

    def heard(self, peer: str, size: int) -> None:
        """Know that a whole message came."""
        with self._lock:
            flow = self._flow(peer)
            flow.credit += size + size // PADDING + MESSAGE_BYTES
            flow.is_heard = True

    def reader(self, peer: str, reader: Reads) -> Reads:
        """Return a stream whose messages are heard of."""
        return _Heard(self, peer, reader)

    def waits(self, peer: str, more: int) -> None:
        """Know that a call waits for its client, or does not any more."""
        with self._lock:
            flow = self._flow(peer)
            flow.works -= more
            flow.streams += more

    def _flow(self, peer: str) -> _Flow:
        return self._flows.setdefault(plain(peer), _Flow())

    # --- the thread that asks -------------------------------------------------------------------------------------

    def watch(self, port: int) -> None:
        """Look at the connections to a port from now on."""
        self._port = port
        Thread(target=self._run, name="flight-halves", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._ended = True
        self._wake.set()

    def _run(self) -> None:
        try:
            of, threads = families(self._port), _Threads()
            while not self._ended:
                self._service.bridge.tell(partial(self.told, traffic(self._port, of), threads.count()))
                self._wake.wait(self._pause_s)
                self._wake.clear()
                if self._cut:
                    hang_up(self._port, *(self._cut.popleft() for _ in range(len(self._cut))))
        except OSError as error:
            _log.warning("what is half sent over Flight is not bounded: %s", error)

    # --- on the loop ----------------------------------------------------------------------------------------------

    def told(self, found: dict[str, Traffic], threads: int) -> None:
        """Reckon what each connection has on its way, and which has threads that wait for nothing."""
        now_ns = self._service.node.clock.monotonic()
        alive = ALIVE_BYTES * (now_ns - self._told_ns) // SECOND
        self._told_ns = now_ns
        with self._lock:
            away = [(key, flow) for key, flow in self._flows.items() if key not in found]
            # One that was heard of since the kernel was asked may have come after that.
            left = [self._flows.pop(key) for key, it in away if not (it.works or it.streams or it.is_heard)]
            for _, flow in away:
                flow.is_heard = False
            looked_at = []
            waiting = threads - sum(flow.works + flow.streams for flow in self._flows.values())
            for key, said in found.items():
                flow = self._flows.setdefault(key, _Flow(now_ns))
                credit, flow.credit = flow.credit + alive + (said.sent - flow.told.sent) // READ_PART, 0
                flow.owed = max(flow.owed + said.taken - flow.told.taken - credit, 0)
                flow.told = said
                looked_at.append((key, flow, flow.is_heard, flow.works > 0, flow.streams))
                flow.is_heard = False
        for flow in left:
            self._count(flow, "", 0)
        self._end_silent({key: flow for key, flow, _, works, streams in looked_at if not (works or streams)}, waiting)
        for key, flow, is_heard, works, streams in looked_at:
            self._judge(key, flow, is_heard=is_heard, works=works, streams=streams)
        busy = any(flow.owed >= COUNTED_BYTES for _, flow, *_ in looked_at)
        self._pause_s = BUSY_S if busy else QUIET_S if found else IDLE_S

    def _end_silent(self, silent: dict[str, _Flow], waiting: int) -> None:
        """Hang up on connections without a known call: those that never had one in time, or take too many threads."""
        now_ns, reading = self._service.node.clock.monotonic(), Counter(self._service.gets.peers())
        # What is half a message has a time already.
        silent = {key: flow for key, flow in silent.items() if flow.owed < COUNTED_BYTES and key not in reading}
        strange = sorted((flow.since_ns, key) for key, flow in silent.items() if not flow.is_known)
        late = [key for since_ns, key in strange if now_ns - since_ns >= UNHEARD_NS]
        for key in late:
            self._hang_up(key, Refusal("too_slow", f"nothing whole came of it in {UNHEARD_NS // SECOND} s"))
        over = waiting - reading.total() - SPARE_THREADS - UNHEARD_MAX - len(late)
        if over > 0:
            why = Refusal("too_many_connections", f"{over + UNHEARD_MAX} threads wait for calls that say nothing")
            others = [key for _, key in strange[len(late) :]]
            # One connection may have many such calls: without strangers it is one of those that had a call before.
            for key in others[:over] or [key for key, flow in silent.items() if flow.is_known]:
                self._hang_up(key, why)

    def _judge(self, key: str, flow: _Flow, *, is_heard: bool, works: bool, streams: int) -> None:
        batch = self._service.batch_bytes_max
        if flow.owed > (batch + batch // PADDING + SPARE_BYTES) * max(streams, 1):
            self._count(flow, key, 0)
            text = f"a message of more than {flow.owed} bytes is over the limit of flight.max_batch_size"
            self._hang_up(key, Refusal("message_too_big", text))
            return
        self._count(flow, key, flow.owed if flow.owed >= COUNTED_BYTES else 0, fresh=is_heard, paced=not works)

    def _count(self, flow: _Flow, key: str, size: int, *, fresh: bool = False, paced: bool = True) -> None:
        bodies, cut = self._service.node.budget.body, partial(self._hang_up, key)
        flow.wait = bodies.keep(flow.wait, size, key.rpartition(":")[0], cut, fresh=fresh, paced=paced)

    def _hang_up(self, key: str, why: Refusal) -> None:
        self._service.node.count_fault("flight", why.code, f"a message did not come whole: {why}", key)
        self._cut.append(key)
        self._wake.set()


class _Heard:
    """A reader that says what it reads."""

    def __init__(self, halves: Halves, peer: str, reader: Reads) -> None:
        self._halves = halves
        self._peer = peer
        self._reader = reader

    @property
    def schema(self) -> pa.Schema:
        """Of the batches."""
        return self._reader.schema

    def read_chunk(self) -> flight.FlightStreamChunk:
        """Wait for what the client sends next."""
        self._halves.waits(self._peer, 1)
        try:
            chunk = self._reader.read_chunk()
        finally:
            self._halves.waits(self._peer, -1)
        data, said = chunk.data, chunk.app_metadata.size if chunk.app_metadata is not None else 0
        self._halves.heard(self._peer, said + (data.nbytes if data is not None else 0))
        check_words(said)
        return chunk


class _Threads:
    """The threads of gRPC's calls. Other libraries have threads, too: librdkafka six for each producer, at any time."""

    def __init__(self) -> None:
        #: Whether they are gRPC's, of those that were there at the last look.
        self._known: dict[str, bool] = {}

    def count(self) -> int:
        """Return how many there are; 10 µs for each thread that is new."""
        known = self._known
        there = os.listdir("/proc/self/task")
        self._known = {each: known[each] if each in known else _is_of_calls(each) for each in there}
        # What Python began on one of them is called the same; `Dummy-` is what it calls one that it did not begin.
        ours = {str(each.native_id) for each in enumerate_threads() if not each.name.startswith("Dummy-")}
        return sum(is_of_calls and each not in ours for each, is_of_calls in self._known.items())


def _is_of_calls(thread: str) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/comm", "rb", buffering=0) as name:
            return name.read().rstrip() == CALL_THREAD
    except OSError:  # it has ended
        return False


def check_words(size: int) -> None:
    """Refuse words that would take long to read: whoever reads JSON lets nobody else run meanwhile."""
    if size > WORDS_BYTES_MAX:
        text = f"{size} bytes of JSON are over the limit of {WORDS_BYTES_MAX}; send less at once"
        raise Refusal("message_too_big", text)
