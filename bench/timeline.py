"""Clients of timelines as load, and the same work in Redis: create, lease and delete, wait.

Python runs once a batch on either side: ours are Arrow batches, Redis gets commands that were put together before the
clock started and gives replies whose lengths are known. Knows nothing of how a server is started.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
import uvloop

from bench.generator import LoadFailed, Run
from penstock.client.connection import Access, Connection
from penstock.client.timeline import wire
from penstock.client.timeline.link import act
from penstock.client.wire import decoded, encoded

Times: TypeAlias = "npt.NDArray[np.uint64]"
#: In milliseconds.
Lateness: TypeAlias = "npt.NDArray[np.int64]"

BATCH = 1_000
BODY_BYTES = 100
ID_BYTES = 12
#: Requests that the server may owe an answer for.
AHEAD = 8
#: What a consumer says it has room for, and how much of it is used before it says so again.
ROOM = 20_000
ASK_AGAIN = 10_000
#: Not what is measured here.
MANY_REQUESTS = 1_000_000
YEAR_MS = 365 * 86_400_000
PATIENCE_S = 60.0


def ids(first: int, count: int) -> npt.NDArray[np.uint8]:
    """Return so many ids, twelve digits each."""
    numbers = np.arange(first, first + count, dtype=np.int64)[:, None]
    return (numbers // 10 ** np.arange(ID_BYTES - 1, -1, -1) % 10 + ord("0")).astype(np.uint8)


def created(first: int, due_ms: Times) -> pa.RecordBatch:
    """Return a batch of messages to create."""
    count = len(due_ms)
    return pa.record_batch(
        [_binary(ids(first, count)), pa.array(due_ms), _binary(np.full((count, BODY_BYTES), ord("x"), np.uint8))],
        schema=wire.CREATED,
    )


def _binary(cells: npt.NDArray[np.uint8]) -> pa.Array:
    rows, width = cells.shape
    cuts = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(cuts), pa.py_buffer(cells)])


class Ours:
    """A node's timeline."""

    def __init__(self, port: int, topic: str, **settings: int) -> None:
        self.topic = topic
        self._connection = Connection(Access(f"grpc://127.0.0.1:{port}"))
        asked = wire.TimelineCreate(id=topic, rqs_limit_per_client=MANY_REQUESTS, **settings)  # type: ignore[arg-type]
        act(self._connection, "create", asked, wire.Done)

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def create(self, batches: list[pa.RecordBatch]) -> Run:
        """Create messages, several requests under way; the clock stops with the last answer."""
        asked = wire.ProducerHandshake(topic_id=self.topic, producer_group_id="g", producer_id="p")
        session = act(self._connection, "producer-handshake", asked, wire.Session).session_id
        with self._asking("create-messages", wire.CREATED) as asking:
            began = time.perf_counter()
            for batch in batches:
                asking.send(batch, wire.CreateMessages(session_id=session))
            asking.finish()
            took = time.perf_counter() - began
        return Run(sum(len(batch) for batch in batches), took)

    def consume(self, count: int) -> tuple[Run, Lateness]:
        """Lease, take and delete so many messages; return also how late each was, in milliseconds."""
        asked = wire.ConsumerHandshake(topic_id=self.topic, consumer_id="c")
        session = act(self._connection, "consumer-handshake", asked, wire.Session).session_id
        status = wire.ConsumerStatus(session_id=session, max_buffer_size=ROOM, available_buffer_size=ROOM)
        room = encoded(wire.Up(status=status))
        late: list[Lateness] = []
        seen = since = 0
        with self._asking("change", wire.CHANGED) as deleting:
            writer, reader = self._connection.talk("timeline.consume")
            nothing = wire.ConsumerStatus(session_id=session, max_buffer_size=ROOM, available_buffer_size=0)
            writer.write_metadata(encoded(wire.Up(status=nothing)))
            self._dealt(reader)
            began = time.perf_counter()
            writer.write_metadata(room)
            while seen < count:
                chunk = reader.read_chunk()
                if chunk.data is None:
                    said = decoded(chunk.app_metadata.to_pybytes(), wire.Down)
                    if said.error is not None or said.end is not None:
                        raise LoadFailed(f"the node ended the stream: {said}")
                    continue
                now_ms = time.time_ns() // 1_000_000
                late.append(now_ms - np.asarray(chunk.data.column("timestamp_ms")).astype(np.int64))
                self._delete(deleting, session, chunk.data)
                seen += len(chunk.data)
                since += len(chunk.data)
                if since >= ASK_AGAIN:
                    writer.write_metadata(room)
                    since = 0
            deleting.finish()
            took = time.perf_counter() - began
            writer.close()
        return Run(seen, took), np.concatenate(late)

    def _dealt(self, reader: flight.FlightStreamReader) -> None:
        """Wait until a consumer has its buckets: the third window after the one in which it came."""
        window = 0
        while True:
            chunk = reader.read_chunk()
            status = decoded(chunk.app_metadata.to_pybytes(), wire.Down).status if chunk.app_metadata else None
            if status is not None:
                window = window or status.window
                if status.window > window + 2:
                    return

    def _delete(self, deleting: _Asking, session: str, pushed: pa.RecordBatch) -> None:
        names = ("message_id", "version", "bucket_id")
        columns = [pushed.column(name) for name in names]
        batch = pa.record_batch([*columns, pa.nulls(len(pushed), pa.uint64())], schema=wire.CHANGED)
        for at in range(0, len(batch), ASK_AGAIN):
            deleting.send(batch.slice(at, ASK_AGAIN), wire.Change(session_id=session, command="delete"))

    def first(self) -> None:
        """Return once a first message is there."""
        asked = wire.ConsumerHandshake(topic_id=self.topic, consumer_id="first")
        session = act(self._connection, "consumer-handshake", asked, wire.Session).session_id
        writer, reader = self._connection.talk("timeline.consume")
        status = wire.ConsumerStatus(session_id=session, max_buffer_size=1, available_buffer_size=1)
        writer.write_metadata(encoded(wire.Up(status=status)))
        while reader.read_chunk().data is None:
            pass
        writer.close()

    @contextmanager
    def _asking(self, name: str, schema: pa.Schema) -> Iterator[_Asking]:
        asking = _Asking(self._connection, name, schema)
        yield asking
        asking.close()


class _Asking:
    """Requests with answers in order, some of them under way."""

    def __init__(self, connection: Connection, name: str, schema: pa.Schema) -> None:
        self._writer, self._reader = connection.talk(f"timeline.{name}")
        self._writer.begin(schema)
        self._owed = 0

    def send(self, batch: pa.RecordBatch, words: wire.CreateMessages | wire.Change) -> None:
        self._writer.write_with_metadata(batch, encoded(words))
        self._owed += 1
        if self._owed > AHEAD:
            self._answer()

    def finish(self) -> None:
        while self._owed:
            self._answer()

    def _answer(self) -> None:
        chunk = self._reader.read_chunk()
        self._owed -= 1
        if chunk.data is None or pc.max(chunk.data.column("kind")).as_py():
            said = chunk.app_metadata.to_pybytes() if chunk.data is None else chunk.data.slice(0, 3).to_pylist()
            raise LoadFailed(f"the node refused something: {said!r}")

    def close(self) -> None:
        self._writer.close()


#: Leases up to ARGV[3] messages that are due: their ends move, their versions grow, and they have a holder.
LEASE = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
local out = {}
for _, id in ipairs(due) do
  local found = redis.call('HMGET', 'm' .. id, 'v', 'b')
  local version = found[1] + 1
  redis.call('ZADD', KEYS[1], ARGV[2], id)
  redis.call('HSET', 'm' .. id, 'v', version, 'h', ARGV[4])
  out[#out + 1] = id
  out[#out + 1] = tostring(version)
  out[#out + 1] = found[2]
end
return out
"""
#: Deletes messages of a holder, by id and version.
DELETE = """
local done = 0
for at = 2, #ARGV, 2 do
  local found = redis.call('HMGET', 'm' .. ARGV[at], 'h', 'v')
  if found[1] == ARGV[1] and found[2] == ARGV[at + 1] then
    redis.call('ZREM', KEYS[1], ARGV[at])
    redis.call('DEL', 'm' .. ARGV[at])
    done = done + 1
  end
end
return done
"""


class Theirs:
    """The same in Redis: a sorted set by due time, and a hash for each message."""

    def __init__(self, port: int, topic: str) -> None:
        self._key = topic.encode()
        self._line = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""

    def __enter__(self) -> Theirs:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def commands(self, first: int, due_ms: Times) -> bytes:
        """Return what creates a batch of messages."""
        body = b"x" * BODY_BYTES
        out = []
        for id_, due in zip(ids(first, len(due_ms)), due_ms.tolist(), strict=True):
            name = id_.tobytes()
            out.append(_command(b"ZADD", self._key, b"%d" % due, name))
            out.append(_command(b"HSET", b"m" + name, b"v", b"1", b"g", b"g", b"b", body))
        return b"".join(out)

    def create(self, blocks: list[bytes], count: int) -> Run:
        """Create messages, several blocks under way; the clock stops with the last reply."""
        replies = 2 * count // len(blocks)
        began = time.perf_counter()
        owed = 0
        for block in blocks:
            self._line.sendall(block)
            owed += 1
            if owed > AHEAD:
                self._lines(replies)
                owed -= 1
        self._lines(replies * owed)
        return Run(count, time.perf_counter() - began)

    def consume(self, count: int) -> Run:
        """Lease, take and delete so many messages, some of both under way."""
        lease, delete = self._script(LEASE), self._script(DELETE)
        now_ms = time.time_ns() // 1_000_000
        words = [b"EVALSHA", lease, b"1", self._key, b"%d" % now_ms, b"%d" % (now_ms + 60_000), b"%d" % BATCH, b"c"]
        asks = _command(*words)
        # *3000, then an id, a version and a body, each with its length.
        each = len(b"$12\r\n\r\n$1\r\n\r\n$100\r\n\r\n") + ID_BYTES + 1 + BODY_BYTES
        size = len(b"*%d\r\n" % (3 * BATCH)) + BATCH * each
        turns = count // BATCH
        began = time.perf_counter()
        for _ in range(min(AHEAD, turns)):
            self._line.sendall(asks)
        for turn in range(turns):
            if turn >= AHEAD:
                self._all_deleted()
            parts = self._exactly(size).split(b"\r\n")
            pairs = [part for pair in zip(parts[2::6], parts[4::6], strict=False) for part in pair]
            more = asks if turn + AHEAD < turns else b""
            self._line.sendall(_command(b"EVALSHA", delete, b"1", self._key, b"c", *pairs) + more)
        for _ in range(min(AHEAD, turns)):
            self._all_deleted()
        return Run(turns * BATCH, time.perf_counter() - began)

    def _all_deleted(self) -> None:
        (said,) = self._lines(1)
        if said != b":%d" % BATCH:
            raise LoadFailed(f"Redis deleted {said!r} of {BATCH}")

    def _script(self, text: str) -> bytes:
        self._line.sendall(_command(b"SCRIPT", b"LOAD", text.encode()))
        return self._lines(2)[1]

    def _lines(self, count: int) -> list[bytes]:
        """Return so many lines of replies; an error is raised."""
        found = self._left
        while found.count(b"\r\n") < count:
            more = self._line.recv(1 << 20)
            if not more:
                raise LoadFailed("Redis hung up")
            found += more
        parts = found.split(b"\r\n", count)
        self._left = parts.pop()
        for part in parts:
            if part.startswith(b"-"):
                raise LoadFailed(f"Redis refused something: {part.decode()}")
        return parts

    def _exactly(self, size: int) -> bytes:
        parts, have = [self._left], len(self._left)
        while have < size:
            parts.append(self._line.recv(1 << 20))
            have += len(parts[-1])
            if not parts[-1]:
                raise LoadFailed("Redis hung up")
        whole = b"".join(parts)
        self._left = whole[size:]
        return whole[:size]


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def timer_p99_ms(seconds: float = 1.0) -> float:
    """Return how late a bare loop's timers are on this machine now, one a millisecond."""

    async def late() -> list[float]:
        loop = asyncio.get_running_loop()
        found: list[float] = []
        done = loop.create_future()
        end = loop.time() + seconds

        def tick(due: float) -> None:
            now = loop.time()
            found.append((now - due) * 1000)
            if now >= end:
                done.set_result(None)
            else:
                loop.call_at(now + 0.001, tick, now + 0.001)

        tick(loop.time())
        await done
        return found

    return float(np.percentile(uvloop.run(late()), 99))
