"""Messages over HTTP without a subscription: publishing in batches of NDJSON, and reading the log as it is.

Reading here leases nothing and leaves no trace; who wants messages handed out asks `leases`.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.api.endpoint import PREFIX, Call, Endpoint
from penstock.errors import Refusal
from penstock.intake.receipt import Receipt
from penstock.log.shard import Shard
from penstock.message import Batch, Rows
from penstock.node import admission
from penstock.node.since import since
from penstock.node.topic import Topic
from penstock.rest.record import Ids, Reading, Shown, Writing, shown
from penstock.units import times

SOURCE = "api"
PEEK_ROWS_MAX = 1000
#: One answer holds about this much, and always at least one message.
PEEK_BYTES_MAX = 8 << 20
WAIT_NS_MAX = 60 * times.SECOND_NS
#: Reading back from a slow disk may take this long before the client is told to try again.
FETCH_S_MAX = 30.0


class PublishQuery(msgspec.Struct):
    """Where to publish: to a shard by number, or as keys and connection say. `create` makes a missing topic."""

    shard: Annotated[int, Meta(ge=0)] | None = None
    create: bool = False


class Published(msgspec.Struct):
    """The messages are stored as the topic's durability promises; ids in the order of the lines."""

    count: int
    #: How many of them repeat an earlier message by their dedup key, and have its id.
    duplicates: int
    ids: Ids


class PeekQuery(msgspec.Struct):
    """Where to read: `offset` is a number, "earliest" or "latest"; `time` wins. `wait` waits for something new."""

    shard: Annotated[int, Meta(ge=0)] = 0
    offset: str = "earliest"
    time: str = ""
    limit: Annotated[int, Meta(ge=1, le=PEEK_ROWS_MAX)] = 10
    wait: str = "0"


class Peeked(msgspec.Struct):
    """Messages of one shard; go on at `next`. Offsets from start to end - 1 are kept, and some may be holes."""

    messages: list[Shown]
    next: int
    start: int
    end: int


async def publish(call: Call[PublishQuery, bytes]) -> Published:
    """Publish messages, one JSON object a line: all of them, or none."""
    node, context = call.node, call.context
    name = call.names["topic"]
    shard = call.query.shard
    # Whoever may not publish here is told that and nothing of the body; and a body that is refused makes no topic.
    if call.query.create:
        node.check_obtainable(call.caller, "publish", name)
    else:
        _shard(node.reach(call.caller, "publish", name), shard)
    rows = await _read(call)
    if rows.count == 0:
        raise Refusal("bad_request", 'the body holds no message; send one JSON object a line, like {"body": "hello"}')
    # Anew, as reading a large body takes a while.
    topic = await node.make_for(call.caller, name) if call.query.create else node.topic(name)
    _shard(topic, shard)
    stored: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

    def done(receipt: Receipt | None, error: BaseException | None) -> None:
        if stored.done():
            return  # the server ended meanwhile
        if receipt is not None:
            stored.set_result(receipt)
        else:
            stored.set_exception(error or Refusal("gone", f"topic {topic.name} went away"))

    call.let_go()
    admission.publish(topic, call.caller, rows, context.publisher(call.client), done, shard)
    del rows
    receipt = await stored
    writing = Writing(receipt.ids())
    if not writing.step():
        await node.slices.do(writing.step)
    return Published(writing.count, receipt.repeated, writing.json())


def _shard(topic: Topic, shard: int | None) -> None:
    """Refuse a shard that the topic does not have."""
    if shard is not None:
        topic.shard(shard)


async def _read(call: Call[PublishQuery, bytes]) -> Rows:
    """Return the messages of a body; what is read of a large one is counted, like the body itself."""
    node, memory = call.node, call.node.budget.input
    reading = Reading(call.body, node.routing.mapping, node.clock.now(), call.context.message_bytes_max, SOURCE)
    if not reading.step():
        # Rows are about as large as the text; what could never be free beside it is not asked for.
        size = max(min(len(call.body), memory.bytes_max - len(call.body)), 0)
        if not memory.take(size):
            raise Refusal("memory_full", f"input not yet stored fills its {memory.bytes_max} bytes; try again")
        try:
            await node.slices.do(reading.step)
        finally:
            memory.give(size)
    return reading.rows()


async def peek(call: Call[PeekQuery, None]) -> Peeked:
    """Read messages from the log; with `wait`, the first that come."""
    topic, query = call.topic(), call.query
    shard = topic.shard(query.shard)
    patience_ns = times.duration(query.wait, "wait", WAIT_NS_MAX)
    offset = await _place(topic, shard, query, call.node.clock.now())
    if offset >= shard.readable_end and patience_ns:
        await _news(call, topic, shard, offset, patience_ns / times.SECOND_NS)
    messages: list[Shown] = []
    size = 0
    while offset < shard.readable_end and len(messages) < query.limit and size < PEEK_BYTES_MAX:
        batch = await _batch(call, shard, offset)
        if batch is None:  # nothing is stored, or nothing can be read, from here on
            offset = shard.readable_end
            break
        offset = max(offset, batch.first)
        stop = min(batch.end, shard.readable_end, offset + query.limit - len(messages))
        while offset < stop and size < PEEK_BYTES_MAX:
            row = offset - batch.first
            messages.append(shown(shard.number, batch, row, call.node.routing.mapping))
            size += int(batch.cuts[row + 1]) - int(batch.cuts[row])
            offset += 1
    return Peeked(messages, offset, shard.start, shard.readable_end)


async def _place(topic: Topic, shard: Shard, query: PeekQuery, now_ns: int) -> int:
    if query.time:
        return (await since(topic, [shard.number], times.past(query.time, now_ns, "time")))[0][1]
    if query.offset in ("earliest", "latest"):
        return shard.start if query.offset == "earliest" else shard.readable_end
    digits = query.offset.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise Refusal("bad_offset", f"{query.offset!r} is no offset; write a number, earliest or latest")
    offset = int(query.offset)
    if not shard.start <= offset <= max(shard.readable_end, shard.start):
        raise Refusal(
            "bad_offset",
            f"offset {offset} of shard {shard.number} is not kept; choose one from {shard.start} "
            f"to {shard.readable_end}",
        )
    return offset


async def _news(call: Call[PeekQuery, None], topic: Topic, shard: Shard, offset: int, seconds: float) -> None:
    """Wait until something can be read at an offset."""
    there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told() -> None:
        if not there.done() and (topic.deleted or shard.readable_end > offset):
            there.set_result(None)

    end = topic.follow(told)
    try:
        await call.wait(there, seconds)
    finally:
        end()
    if topic.deleted:
        raise Refusal("gone", f"topic {topic.name} was deleted")


async def _batch(call: Call[PeekQuery, None], shard: Shard, offset: int) -> Batch | None:
    batch = shard.read(offset)
    if batch is None:
        there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fetched() -> None:
            if not there.done():
                there.set_result(None)

        shard.fetch(offset, fetched)
        if not await call.wait(there, FETCH_S_MAX):
            raise Refusal("stopping", f"offset {offset} could not be read in time; try again")
        batch = shard.read(offset)
    return batch


_PATH = PREFIX + "/topics/{topic}/messages"
ENDPOINTS = (
    Endpoint("POST", _PATH, publish, "Publish messages, one JSON object a line", Published, PublishQuery, bytes),
    Endpoint("GET", _PATH, peek, "Read the log without a subscription", Peeked, PeekQuery, action="read"),
)
