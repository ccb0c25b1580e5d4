"""A consumer of a timeline: leases pushed to it ahead of time, handed out when they are due.

One thread reads what the node pushes; one says every so often what there is room for, sends deletes and extends leases.
A session outlives a connection: what the program has is still its own after a new one. Several threads may take.
Invariant: nothing is handed out before it is due, nor once its lease may be over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client import wire as native
from penstock.client.connection import Connection, Unreachable, refusal_of
from penstock.client.incoming import Span, milliseconds
from penstock.client.outgoing import Moment
from penstock.client.timeline import wire
from penstock.client.timeline.asking import Asking, Piece
from penstock.client.timeline.drift import Drift, Sample
from penstock.client.timeline.error import TimelineError, check
from penstock.client.timeline.leases import Lease, Leases, leases_of
from penstock.client.timeline.link import Link, SessionRetry
from penstock.client.timeline.outgoing import time_of
from penstock.client.timeline.producer import refused_in
from penstock.client.timeline.wire import Error, Kind
from penstock.errors import PenstockError

#: Deletes wait so long for company.
DELETE_S = 1.0
#: How often the thread that says things looks whether there is something to say.
LOOK_S = 0.1
#: How long closing waits for the threads.
CLOSE_S = 5.0

T = TypeVar("T")
#: Milliseconds since 1970, by the clock here.
Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a consumer goes about it."""

    buffer: int = 100
    status_tick_ms: int = 1000
    lease_ms: int = 60_000
    #: Leases of what the program has are extended before they end.
    auto_extend: bool = False
    delete_batch: int = 100
    #: Messages after which it is over; None = never.
    stop_after: int | None = None
    #: Go to another node when that is suggested.
    follow: bool = True
    on_status: Callable[[wire.TopicStatus], object] | None = None
    #: Told how many milliseconds the node's clock is ahead, when that is too much, and when it is not any more.
    on_drift: Callable[[float], object] | None = None
    clock: Clock | None = None


class Message:
    """One message on lease; to be deleted, released, or it comes again when its lease ends."""

    __slots__ = ("_consumer", "_lease")

    def __init__(self, consumer: Consumer, lease: Lease) -> None:
        self._consumer = consumer
        self._lease = lease

    def __repr__(self) -> str:
        return f"<Message {self.id.decode('utf-8', 'backslashreplace')}, {len(self.body)} bytes, due {self.due_ms}>"

    @property
    def id(self) -> bytes:
        """What it is called in its topic."""
        return self._lease.message_id

    @property
    def body(self) -> bytes:
        """What was sent."""
        return self._lease.body

    @property
    def due_ms(self) -> int:
        """When it was due."""
        return self._lease.due_ms

    @property
    def expires_ms(self) -> int:
        """When the lease ends, by the clock of the node."""
        return self._lease.expires_ms

    @property
    def version(self) -> int:
        """Grows with each lease, extend and release."""
        return self._lease.version

    @property
    def bucket(self) -> int:
        """Which of the topic's buckets it is in."""
        return self._lease.bucket

    @property
    def producer_group(self) -> bytes:
        """Who owns it."""
        return self._lease.group

    def delete(self) -> None:
        """Finish it; sent with others, after a second at the latest."""
        self._consumer.delete(self)

    def extend(self, lease: Span) -> None:
        """Hold it this much longer, from now; returns once that is so."""
        self._consumer.extend(self, lease)

    def release(self, due: Moment | None = None) -> None:
        """Give it back, to be due again at a time, or at once."""
        self._consumer.release(self, due)


class Voice:
    """What a consumer says on the stream that is open, from whatever thread; nothing where none is."""

    def __init__(self) -> None:
        self._writer: flight.FlightStreamWriter | None = None
        self._lock = threading.Lock()

    def begin(self, writer: flight.FlightStreamWriter) -> None:
        """Speak on a stream from now on."""
        with self._lock:
            self._writer = writer

    def say(self, words: wire.Up) -> None:
        """Say something; a broken connection shows in the reader's thread."""
        with self._lock, suppress(pa.ArrowException, OSError):
            if self._writer is not None:
                self._writer.write_metadata(native.encoded(words))

    def hang_up(self) -> None:
        """Say nothing more on this stream."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(pa.ArrowException, OSError):
                writer.done_writing()


class Pings:
    """When the node was asked what time it is there, and whether it said so the last time."""

    def __init__(self) -> None:
        self._asked: dict[int, float] = {}
        self._last = 0
        #: The last one was answered.
        self.settled = threading.Event()

    def ask(self, now_ms: float) -> wire.Ping:
        """Return one more."""
        self._last = max(self._last + 1, int(now_ms))
        self._asked[self._last] = now_ms
        return wire.Ping(local_ts_ms=self._last)

    def answered(self, pong: wire.Pong) -> float | None:
        """Return when it was asked for this; None where it was not, or before it was forgotten."""
        if pong.local_ts_ms == self._last:
            self.settled.set()
        return self._asked.pop(pong.local_ts_ms, None)

    def forget(self) -> None:
        """Wait for no answer to those that were asked."""
        self._asked.clear()


class Consumer:
    """Takes messages of one timeline under one name."""

    def __init__(self, link: Link, habits: Habits) -> None:
        self._link = link
        self._habits = habits
        self._clock = habits.clock or steady()
        self._changing = Asking(link, "change", wire.CHANGED)
        self._changed = threading.Condition()
        self._leases = Leases()
        self._drift = Drift()
        self._was_drifting = False
        self._pings = Pings()
        self._deletes: list[Lease] = []
        self._deleted_s = 0.0
        self._taken = 0
        #: Deletes that came too late: the message was somebody else's, or will be.
        self.refused = 0
        self._voice = Voice()
        #: What the node was last told there is room for, less what it pushed since.
        self._told_room = 0
        self._said_s = 0.0
        self._switch: wire.Switch | None = None
        self._window = 0
        #: Of the stream that is open.
        self._session = ""
        self._was_open = False
        self._joined = threading.Event()
        self._leaving = False
        self._closing = threading.Event()
        #: What went wrong for good; the program hears of it once it took what was there before.
        self._failure: BaseException | None = None
        #: It was the connection or the node: there is nobody to be asked for anything.
        self._is_lost = False
        self._ended = False
        self._threads = [
            threading.Thread(target=self._read, name="penstock timeline", daemon=True),
            threading.Thread(target=self._say, name="penstock timeline status", daemon=True),
        ]

    def start(self) -> None:
        """Begin; returns once the node knows of this consumer, raises where it will not."""
        for thread in self._threads:
            thread.start()
        self._joined.wait(self._link.patience_s)
        # One that cannot be had says so now. Later errors come with the messages that are there before them.
        if self._failure is not None and not self._was_open:
            self._ended = True
            self.close()
            raise self._failure

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        while (message := self.take()) is not None:
            yield message

    @property
    def drift_ms(self) -> float:
        """How far the node's clock is ahead of the one here."""
        return self._drift.offset_ms

    @property
    def expired(self) -> int:
        """How many leases ended before anybody took them."""
        return self._leases.expired

    # --- what the program does ------------------------------------------------------------------------------------

    def take(self, timeout: Span | None = None) -> Message | None:
        """Return the next message once it is due; None at the end, or if nothing was due in time."""
        end_s = None if timeout is None else time.monotonic() + milliseconds(timeout) / 1000
        with self._changed:
            while True:
                lease = self._next()
                if lease is not None:
                    break
                if self._is_over():
                    if self._failure is not None and not self._ended:
                        self._ended = True
                        raise self._failure
                    return None
                wait_s = self._until_due_s()
                if end_s is not None:
                    left_s = end_s - time.monotonic()
                    if left_s <= 0:
                        return None
                    wait_s = left_s if wait_s is None else min(wait_s, left_s)
                self._changed.wait(wait_s)
            self._taken += 1
            room = self._room()
            starved = not self._leaving and room - self._told_room >= max(self._habits.buffer // 2, 1)
        if starved:  # not only every so often: a fast program would wait for the next word
            self._send_status()
        return Message(self, lease)

    def _next(self) -> Lease | None:
        if self._stopped() or self._leaving or not self._drift.is_known:
            return None
        now_ms = self._clock()
        return self._leases.take(self._drift.earliest(now_ms), self._drift.latest(now_ms))

    def _stopped(self) -> bool:
        most = self._habits.stop_after
        return most is not None and self._taken >= most

    def _is_over(self) -> bool:
        return self._stopped() or self._leaving or self._failure is not None

    def _until_due_s(self) -> float | None:
        due_ms = self._leases.next_due_ms
        if due_ms is None or not self._drift.is_known:
            return None
        now_ms = self._clock()
        return max(self._drift.local(due_ms, now_ms) - now_ms, 0.0) / 1000

    def give_back(self, message: Message) -> None:
        """Let a message that nobody looked at be taken again."""
        with self._changed:
            self._taken -= 1
            self._leases.give_back(message._lease)
            self._changed.notify_all()

    def delete(self, message: Message) -> None:
        """Finish a message."""
        lease = message._lease
        with self._changed:
            self._leases.delete(lease)
            if not self._deletes:
                self._deleted_s = time.monotonic()
            self._deletes.append(lease)
            full = len(self._deletes) >= self._habits.delete_batch
        if full:
            self.flush()

    def flush(self) -> None:
        """Send the deletes that wait, and return once they are done."""
        with self._changed:
            leases, self._deletes = self._deletes, []
        step = self._habits.delete_batch
        pieces = (_piece("delete", leases[at : at + step], first=at) for at in range(0, len(leases), step))
        try:
            for piece, replies in self._changing.ask(pieces):
                # One that is gone was deleted by an earlier try.
                self.refused += len(refused_in(piece, replies, (Kind.NONE, Kind.MESSAGE_NOT_FOUND)))
        finally:
            with self._changed:
                self._leases.deleted(leases)

    def extend(self, message: Message, lease: Span) -> None:
        """Hold a message longer."""
        self._extend([message._lease], milliseconds(lease))

    def _extend(self, leases: list[Lease], span_ms: int) -> None:
        self._change(_piece("extend-lease", leases, [span_ms] * len(leases), relative=True), leases)

    def _change(self, piece: Piece, leases: list[Lease]) -> None:
        """Have leases changed; raises what the first of those that were refused was refused for."""
        for _, replies in self._changing.ask(iter([piece])):
            self._renewed(leases, replies)
            refused = refused_in(piece, replies, (Kind.NONE,))
            if refused:
                raise TimelineError(Error(kind=refused[0].kind, op="change", message=refused[0].text))

    def _renewed(self, leases: list[Lease], replies: pa.RecordBatch) -> None:
        columns = [replies.column(name).to_pylist() for name in ("kind", "expiration_ts_ms", "version")]
        with self._changed:
            for lease, kind, expires_ms, version in zip(leases, *columns, strict=True):
                if kind == Kind.NONE:
                    lease.expires_ms, lease.version = expires_ms or lease.expires_ms, version or lease.version
                elif kind != Kind.TIME_OUT_OF_RANGE:
                    self._leases.done(lease.message_id)

    def release(self, message: Message, due: Moment | None = None) -> None:
        """Give a message back."""
        time_ms, relative = (0, True) if due is None else time_of(due, "due")
        lease = message._lease
        self._change(_piece("release", [lease], [time_ms], relative=relative), [lease])
        with self._changed:
            self._leases.done(lease.message_id)

    def close(self) -> None:
        """Send the deletes that wait, give back what nobody took, and leave."""
        with self._changed:
            if self._leaving:
                return
            self._leaving = True
            self._changed.notify_all()
        try:
            with suppress(PenstockError):  # leases end by themselves
                if self._was_open and not self._is_lost:
                    self._leave()
        finally:
            self._closing.set()
            self._voice.hang_up()
            for thread in self._threads:
                if thread.ident is not None and thread is not threading.current_thread():
                    thread.join(CLOSE_S)
            self._changing.close()
            self._link.close()

    def _leave(self) -> None:
        if self._failure is None:  # else its stream is over
            self._pings.settled.clear()
            self._send_status(ping=True, room=0)
        self.flush()
        self._pings.settled.wait(CLOSE_S)  # whatever was pushed before the node knew is here by then
        with self._changed:
            left = self._leases.left()
        if left:
            for _ in self._changing.ask(iter([_piece("release", left, [lease.due_ms for lease in left])])):
                pass

    # --- the thread that says things ------------------------------------------------------------------------------

    def _say(self) -> None:
        while not self._closing.wait(LOOK_S):
            try:
                if not self._leaving:
                    self._say_some()
            except PenstockError as error:
                if not isinstance(error, Unreachable):
                    self._fail(error, is_lost=True)
            except BaseException as error:
                self._fail(error)
                return

    def _say_some(self) -> None:
        now_s = time.monotonic()
        with self._changed:
            latest_ms = self._drift.latest(self._clock())
            ending: list[Lease] = []
            if self._drift.is_known:
                self._leases.drop_expired(latest_ms)
            if self._habits.auto_extend:
                ending = self._leases.ending(latest_ms + self._habits.lease_ms / 3)
            due = bool(self._deletes) and now_s - self._deleted_s >= DELETE_S
        if now_s - self._said_s >= self._habits.status_tick_ms / 1000:
            self._send_status(ping=True)
        if due:
            self.flush()
        if ending:
            with suppress(TimelineError):  # the program hears of it when it deletes
                self._extend(ending, self._habits.lease_ms)

    def _room(self) -> int:
        most = self._habits.buffer
        if self._habits.stop_after is not None:
            most = min(most, self._habits.stop_after - self._taken)
        return max(most - len(self._leases), 0)

    def _send_status(self, *, ping: bool = False, room: int | None = None) -> None:
        """Say what there is room for."""
        with self._changed:
            self._said_s = time.monotonic()
            now_ms = self._clock()
            room = self._room() if room is None else room
            self._told_room = room
            due_ms = self._leases.next_due_ms
            lag_ms = 0 if due_ms is None else max(int(self._drift.earliest(now_ms) - due_ms), 0)
            status = wire.ConsumerStatus(
                session_id=self._session,
                max_buffer_size=self._habits.buffer,
                available_buffer_size=room,
                lag_ms=min(lag_ms, 0xFFFFFFFF),
                lag_no_messages=len(self._leases) if lag_ms else 0,
            )
            asked = None
            if ping:
                asked = self._pings.ask(now_ms)
        self._voice.say(wire.Up(status=status, ping=asked))

    # --- the thread that reads ------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            self._read_streams()
        except BaseException as error:  # whoever takes would wait for a thread that is gone
            self._fail(error)

    def _read_streams(self) -> None:
        retry = SessionRetry(self._link.patience_s)
        while not self._closing.is_set() and self._failure is None:
            try:
                self._link.keep_pause()
                self._stream(retry)
            except PenstockError as error:
                if self._closing.is_set():
                    return
                self._link.trouble(error)
                try:
                    retry.rest(error, lambda: self._link.forget(self._session))
                except PenstockError as final:
                    self._fail(final, is_lost=True)
                    return

    def _stream(self, retry: SessionRetry) -> None:
        """Read one stream until it breaks, the node ends it, or another node is to be asked."""
        self._session = self._link.session()
        connection = self._link.connection()
        writer, reader = connection.talk("timeline.consume")
        self._voice.begin(writer)
        self._drift.clear()
        self._pings.forget()
        self._send_status(ping=True)
        opened = False
        try:
            for chunk in _chunks(connection, reader):
                if chunk.data is not None and len(chunk.data):
                    self._push(leases_of(chunk.data))
                if chunk.app_metadata is not None:
                    words = native.decoded(chunk.app_metadata.to_pybytes(), wire.Down)
                    self._hear(words, opened)
                    if self._failure is not None:
                        return
                    if words.hydrated or words.status is not None:
                        opened = self._was_open = True
                        retry.renew()
                        self._joined.set()
                if self._moves():
                    return
        finally:
            self._voice.hang_up()
            with suppress(pa.ArrowException, OSError):
                reader.cancel()
                writer.close()
        if not self._closing.is_set() and self._failure is None:
            raise Unreachable(f"{self._link.url} ended the exchange")

    def _push(self, leases: list[Lease]) -> None:
        with self._changed:
            for lease in leases:
                self._leases.push(lease)
            self._told_room -= len(leases)
            self._changed.notify_all()

    def _hear(self, words: wire.Down, opened: bool) -> None:
        if words.pong is not None:
            self._take_pong(words.pong)
        if words.ping is not None:
            pong = wire.Pong(local_ts_ms=words.ping.local_ts_ms, partner_ts_ms=int(self._clock()))
            self._voice.say(wire.Up(pong=pong))
        if words.switch is not None:
            self._switch = words.switch
        if words.status is not None:
            self._window = words.status.window
            self._tell(self._habits.on_status, words.status)
        error = words.error
        if error is not None and error.message:
            if opened and error.kind == Kind.UNKNOWN_SESSION:
                # A session with a stream does not end by itself: somebody else goes by this name now, or ended it.
                raise refusal_of(f"gone: {error.message}")
            check(error)
        if words.end is not None:
            raise refusal_of(words.end)

    def _take_pong(self, pong: wire.Pong) -> None:
        sent_ms = self._pings.answered(pong)
        if sent_ms is None:
            return
        with self._changed:
            self._drift.add(Sample(sent_ms, pong.partner_ts_ms, self._clock()))
            drifts, told = self._drift.is_active, self._was_drifting
            self._was_drifting = drifts
            self._changed.notify_all()
        if drifts != told:
            self._tell(self._habits.on_drift, self._drift.offset_ms)

    def _tell(self, callback: Callable[[T], object] | None, value: T) -> None:
        """Tell the program something; what it raises is no trouble of the connection's, and ends the consumer."""
        if callback is not None:
            try:
                callback(value)
            except BaseException as error:
                self._fail(error)

    def _moves(self) -> bool:
        """Go to the node that was suggested once its window is there; True if the stream is to be left."""
        switch = self._switch
        if switch is None or not self._habits.follow or self._window < switch.window:
            return False
        self._switch = None
        if switch.broker.address:
            self._link.move(switch.broker.address)
        return bool(switch.broker.address)

    def _fail(self, error: BaseException, *, is_lost: bool = False) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._is_lost |= is_lost
            self._changed.notify_all()
        self._joined.set()
        self._pings.settled.set()  # no answer comes any more


def steady() -> Clock:
    """Return a clock that runs on whatever the one of this machine is set to."""
    began_ms, began_s = time.time() * 1000, time.monotonic()
    return lambda: began_ms + (time.monotonic() - began_s) * 1000


def _chunks(connection: Connection, reader: flight.FlightStreamReader) -> Iterator[flight.FlightStreamChunk]:
    while True:
        with connection.told():
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
        yield chunk


def _piece(
    command: str, leases: list[Lease], times: list[int] | None = None, *, relative: bool = False, first: int = 0
) -> Piece:
    def words(session: str, number: int) -> wire.Change:
        return wire.Change(session_id=session, command=command, number=number, relative=relative)

    batch = pa.record_batch(
        [
            pa.array([lease.message_id for lease in leases], pa.binary()),
            pa.array([lease.version for lease in leases], pa.uint16()),
            pa.array([lease.bucket for lease in leases], pa.uint16()),
            pa.array(times, pa.uint64()) if times is not None else pa.nulls(len(leases), pa.uint64()),
        ],
        schema=wire.CHANGED,
    )
    return Piece(words, batch, first)
