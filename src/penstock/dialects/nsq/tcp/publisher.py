"""The publishing half of one NSQ connection: PUB and its family.

Owns which topic a publish goes to, what its header says there, and which reply it gets. Rows go to `Topic.publish`;
the order of replies is `Replies`' affair.
Invariant: each command gets one reply, and nothing of a command that is refused is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from penstock.callers.account import SLOW_NS, Account
from penstock.clock import MILLISECOND
from penstock.columns import SMALL, Buffer, Column
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.codec import ANY, OK, SOURCE, error, is_name, partition_of, quoted, traced
from penstock.dialects.nsq.codec.runs import Headers
from penstock.dialects.nsq.places import places as places_of
from penstock.dialects.nsq.tcp.replies import Reply
from penstock.dialects.nsq.topics import topic_settings
from penstock.errors import Refusal
from penstock.filters.header import BadHeader, BadTrace, only_reserved
from penstock.intake.gather import content_bytes
from penstock.intake.limits import check_due
from penstock.intake.receipt import PartRefusal, Receipt
from penstock.message import Rows
from penstock.peers.far import FarTopic, Target, target
from penstock.peers.line import Line

if TYPE_CHECKING:
    from penstock.dialects.nsq.tcp.session import Session

#: Makes the replies to rows that were stored.
Answer = Callable[[Receipt], Buffer]

#: Codes of those who may not, whatever they ask for.
FORBIDDEN = ("unauthorized", "forbidden")

#: Refusals that have a word of their own.
CODES = {"not_found": "E_TOPIC_NOT_EXIST", "too_many_connections": "E_TOO_MANY_CONNECTIONS"}

_NOT_KEPT = ("headers", "tag")


class Publisher:
    """What one connection publishes."""

    __slots__ = ("__weakref__", "_meter", "_metered", "_node", "_service", "_session", "_topics", "counts", "replies")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._service = session.service
        self._node = session.service.node
        self.replies = session.replies
        self._topics: dict[str, Target] = {}
        #: Whose rate counts what is published, if somebody's; topics are here then and not above: each is looked at.
        self._meter: Account | None = None
        self._metered: dict[str, Target] = {}
        #: Messages published to each topic, for stats.
        self.counts: dict[str, int] = {}

    # --- commands -------------------------------------------------------------------------------------------------

    def pub(self, topic: str, rows: Rows, replies: int, shard: int) -> None:
        """Publish a run of single messages, one OK each."""
        found = self._topics.get(topic)
        if found is None or found.deleted or shard != ANY:
            found = self._metered.get(topic)
            if found is None or found.deleted or shard != ANY:
                found = self._topic("PUB", topic, shard, replies)
            if found is not None:
                self._publish("PUB", found, rows, shard, replies)
            return
        # As `_publish`, without its choices: this is the way of most messages.
        promise = Promise(self, "PUB", found, rows, replies)
        self.replies.promised.append(promise)
        found.publish(rows, self, promise.stored)

    def mpub(self, topic: str, rows: Rows, shard: int) -> None:
        """Publish several messages with one OK."""
        found = self._topic("MPUB", topic, shard)
        if found is not None:
            self._publish("MPUB", found, rows, shard, 1)

    def dpub(self, topic: str, rows: Rows, delay_ms: int) -> None:
        """Publish a message that is due later."""
        if delay_ms:
            rows.columns = {"due": [self._node.clock.now() + delay_ms * MILLISECOND]}
        found = self._topic("DPUB", topic, ANY)
        if found is not None:
            self._publish("DPUB", found, rows, ANY, 1)

    def pub_ext(self, topic: str, rows: Rows, headers: Headers, shard: int) -> None:
        """Publish a run of single messages with headers; each is refused or stored by itself."""
        found = self._topic("PUB_EXT", topic, shard, rows.count, extend=True)
        if found is None:
            return
        refused = self._read(found, rows, headers)
        if refused is None:
            self._publish("PUB_EXT", found, rows, shard, rows.count, self._each(found, rows))
        elif rows.count == 1:
            self._refuse("PUB_EXT", *refused)
        else:
            self._publish_each(found, rows, headers, shard)

    def mpub_ext(self, topic: str, rows: Rows, headers: Headers, shard: int) -> None:
        """Publish several messages with or without headers, all or none, with one OK."""
        found = self._topic("MPUB_EXT", topic, shard, extend=True)
        if found is None:
            return
        refused = self._read(found, rows, headers)
        if refused is None:
            self._publish("MPUB_EXT", found, rows, shard, 1)
        else:
            self._refuse("MPUB_EXT", *refused)

    def pub_trace(self, topic: str, rows: Rows, shard: int) -> None:
        """Publish a run of single messages under trace ids, and tell where each went."""
        found = self._topic("PUB_TRACE", topic, shard, rows.count)
        if found is not None:
            self._publish("PUB_TRACE", found, rows, shard, rows.count, self._each(found, rows))

    def mpub_trace(self, topic: str, rows: Rows, shard: int) -> None:
        """Publish several messages under trace ids, and tell where the first went and what all weigh."""
        found = self._topic("MPUB_TRACE", topic, shard)
        if found is None or isinstance(found, FarTopic):
            return

        def answer(receipt: Receipt) -> bytes:
            places = places_of(found, receipt)
            size = sum(where.raw_size for where in places)
            return traced(receipt.ids()[0], 0, places[0].queue_offset, min(size, 0xFFFFFFFF))

        self._publish("MPUB_TRACE", found, rows, shard, 1, answer)

    def internal_create_topic(self, args: list[bytes]) -> None:
        """Make a topic that has at least this partition."""
        if len(args) < 2:
            self._session.fail("E_INVALID", "INTERNAL_CREATE_TOPIC insufficient number of parameters")
            return
        name, partition, flag = args[0], partition_of(args[1]), args[2].lower() if len(args) > 2 else b"false"
        if not is_name(name):
            self._session.fail("E_BAD_TOPIC", f"INTERNAL_CREATE_TOPIC topic name {quoted(name)} is not valid")
        elif partition is None or partition < 0:
            self._session.fail("E_BAD_PARTITION", f"INTERNAL_CREATE_TOPIC partition {quoted(args[1])} is not valid")
        elif flag not in (b"true", b"false"):
            self._session.fail("E_BAD_EXT", f"INTERNAL_CREATE_TOPIC ext {quoted(args[2])} is not a boolean")
        else:
            self._create(name.decode("ascii"), partition + 1, extend=flag == b"true")

    def _create(self, name: str, shards: int, *, extend: bool) -> None:
        try:
            caller = self._session.login.caller
            caller.check("create", name)
            caller.enter()
            topic = self._node.find(name)
            if topic is None:
                settings = topic_settings(self._node.config, name, extend=extend)
                made = self._node.make_for(caller, name, msgspec.structs.replace(settings, shards=shards))
                topic = self._session.need(made, partial(self._not_created, name))
            if topic is not None and len(topic.shards) < shards:
                caller.check("change", name)
                found = topic
                more = topic.update(msgspec.structs.replace(topic.settings, shards=shards))
                topic = self._session.need(more.then_make(lambda _: found), partial(self._not_created, name))
            if topic is None:
                return
        except Refusal as refusal:
            self._not_created(name, refusal)
            return
        self.replies.send(OK)

    def _not_created(self, name: str, why: Exception) -> None:
        if isinstance(why, Refusal) and why.code in FORBIDDEN:
            self._session.login.refuse("INTERNAL_CREATE_TOPIC", name, "", why)
            return
        if isinstance(why, Refusal) and why.code == "too_many_connections":
            self._session.fail("E_TOO_MANY_CONNECTIONS", f"INTERNAL_CREATE_TOPIC failed {why}")
            return
        self._refuse("INTERNAL_CREATE_TOPIC", "E_CREATE_TOPIC_FAILED", str(why))

    def hold_back(self, line: Line) -> None:
        """Read nothing more until the way to another node has room; a consumer's acks come the same way, too."""
        if self._session.receiver.seat is None:
            self._session.wait_for(line)

    def forget(self) -> None:
        """Ask anew for every topic: who publishes may do other things now."""
        self._topics.clear()
        self._metered.clear()
        self._meter = None

    # --- on the way in --------------------------------------------------------------------------------------------

    def _topic(self, word: str, name: str, shard: int, replies: int = 1, *, extend: bool = False) -> Target | None:
        topic = self._topics.get(name) if self._meter is None else self._metered.get(name)
        if topic is not None and not topic.deleted and shard < len(topic.shards):
            return topic
        no_topic = partial(self._no_topic, word, name, replies)
        try:
            caller = self._session.login.caller
            asked = self._service.topic(caller, "publish", name, extend=extend, partition=shard)
            topic = self._session.need(target(self._node, asked), no_topic)
            if isinstance(topic, FarTopic) and word.endswith("_TRACE"):
                text = f"topic {name} is on node {topic.owner}, and only that node tells where a message went"
                raise Refusal("limit_reached", text)
        except Refusal as refusal:
            no_topic(refusal)
            return None
        if topic is not None:
            self._meter = caller.meter
            known = self._topics if self._meter is None else self._metered
            known[name] = topic
        return topic

    def _no_topic(self, word: str, name: str, replies: int, why: Exception) -> None:
        if isinstance(why, Refusal) and why.code in FORBIDDEN:
            self._session.login.refuse(word, name, "", why)
            return
        if isinstance(why, Refusal) and why.code == "limit_reached":  # other topics may be published to
            self._node.count_fault("nsq", failed(word), str(why), self._session.name)
            self.replies.send(error(failed(word), f"{word} failed {why}") * replies)
            return
        code = CODES.get(why.code, failed(word)) if isinstance(why, Refusal) else failed(word)
        self._session.fail(code, f"{word} failed {why}")

    def _publish(
        self, word: str, topic: Target, rows: Rows, shard: int, replies: int, answer: Answer | None = None
    ) -> None:
        promise = Promise(self, word, topic, rows, replies, answer)
        self.replies.promised.append(promise)
        if self._meter is not None:
            # At the rate of its quota: nothing is read for a moment, and what is too much is refused. A consumer's acks
            # come the same way, so it is not made to wait.
            session, now_ns = self._session, self._node.clock.monotonic()
            size, slow_ns = len(rows.body), SLOW_NS if session.receiver.seat is None else 0
            try:
                wait_ns = self._meter.take(rows.count, content_bytes(rows) if rows.columns else size, now_ns, slow_ns)
            except Refusal as refusal:
                topic.intake.refuse(refusal, rows.count, promise.stored)
                return
            if wait_ns:
                session.rest_until(now_ns + wait_ns)
        topic.publish(rows, self, promise.stored, shard if shard != ANY else None)

    def failed(self, promise: Promise, why: BaseException | None) -> None:
        """Answer a publish that was not stored; what may succeed later does not cost the connection."""
        # One frame per command, so that the client's count of replies stays right.
        self.replies.keep(promise, error(failed(promise.word), f"{promise.word} failed {why}") * promise.replies)
        if not (isinstance(why, Refusal) and why.reason.retry):
            self._session.hang_up()

    def failed_in_part(self, promise: Promise, why: PartRefusal) -> None:
        """Answer a run of single messages of which some are stored, each by itself."""
        word, topic, rows, stored = promise.word, promise.topic, promise.rows, sorted(why.ids)
        self.counts[topic.name] = self.counts.get(topic.name, 0) + len(stored)
        replies = [error(failed(word), f"{word} failed {why}")] * rows.count
        traces = (None if isinstance(topic, FarTopic) else _traces(rows)) or [None] * rows.count
        receipt = Receipt(0, 0, None, {place: why.ids[row] for place, row in enumerate(stored)})
        for row, reply in zip(stored, _told(topic, [traces[row] for row in stored], receipt), strict=True):
            replies[row] = reply
        self.replies.keep(promise, b"".join(replies))
        if not why.reason.retry:
            self._session.hang_up()

    # --- headers --------------------------------------------------------------------------------------------------

    def _read(self, topic: Target, rows: Rows, headers: Headers) -> tuple[str, str] | None:
        """Give rows the columns that their headers fill; return code and text where one is refused."""
        try:
            columns: dict[str, Column] = self._service.headers(topic).columns(headers)
        except BadTrace as bad:
            return "INVALID_TRACE_ID", str(bad)
        except BadHeader as bad:
            return "E_INVALID_JSON_HEADER", str(bad)
        if topic.chosen.of(NsqChoices).extend == "off" and "headers" in columns:
            given = headers.unique().to_pylist() if isinstance(headers, pa.Array) else headers
            if not self._service.config.allow_ext_compatible or not all(only_reserved(h) for h in given if h):
                return "E_EXT_NOT_SUPPORT", f"topic {topic.name} takes no headers"
            # What else the producer asked for by its header holds.
            columns = {name: column for name, column in columns.items() if name not in _NOT_KEPT}
        if "due" in columns:
            try:
                check_due(topic.name, columns["due"], topic.settings.max_due_ns, self._node.clock.now())
            except Refusal as refusal:
                return "E_INVALID", str(refusal)
        rows.columns = columns
        return None

    def _publish_each(self, topic: Target, rows: Rows, headers: Headers, shard: int) -> None:
        """Publish those of a run that may be, in order with the errors of the others."""
        whole = bytes(memoryview(rows.body))
        listed: list[bytes | None] = headers.to_pylist() if isinstance(headers, pa.Array) else headers
        good: list[bytes] = []
        first = 0

        def flush(stop: int) -> None:
            if good:
                part = Rows.of(good, SOURCE)
                some = listed[first:stop]
                self._read(topic, part, some if len(some) <= SMALL else pa.array(some, pa.binary()))
                self._publish("PUB_EXT", topic, part, shard, part.count, self._each(topic, part))
                good.clear()

        for row, header in enumerate(listed):
            lone = Rows(1, [0, 1], b"x", SOURCE)
            refused = self._read(topic, lone, [header])
            if refused is None:
                good.append(whole[int(rows.cuts[row]) : int(rows.cuts[row + 1])])
                continue
            flush(row)
            first = row + 1
            self._refuse("PUB_EXT", *refused)
        flush(rows.count)

    def _each(self, topic: Target, rows: Rows) -> Answer | None:
        """Return what makes a reply per row: OK, or for one with a trace id where it went."""
        traces = _traces(rows)
        if isinstance(topic, FarTopic):  # which tells no place
            return None
        return None if traces is None else lambda receipt: b"".join(_told(topic, traces, receipt))

    def _refuse(self, word: str, code: str, text: str) -> None:
        """Tell what is wrong with a command; the connection lives on."""
        self._node.count_fault("nsq", code, text, self._session.name)
        self.replies.send(error(code, f"{word} {text}"))


class Promise(Reply):
    """The reply to a publish: it hears what became of the rows."""

    publisher: Publisher
    word: str
    topic: Target
    rows: Rows
    replies: int
    answer: Answer | None = None

    def stored(self, receipt: Receipt | None, refusal: BaseException | None) -> None:
        """Answer as many commands as the rows came with."""
        publisher = self.publisher
        if receipt is None:
            if self.replies > 1 and isinstance(refusal, PartRefusal):
                publisher.failed_in_part(self, refusal)
            else:
                publisher.failed(self, refusal)
            return
        name, counts = self.topic.name, publisher.counts
        counts[name] = counts.get(name, 0) + self.rows.count
        if self.answer is not None:
            publisher.replies.keep(self, self.answer(receipt))
        else:
            publisher.replies.keep(self, OK if self.replies == 1 else OK * self.replies)


def _traces(rows: Rows) -> list[int | None] | None:
    column = rows.columns.get("trace")
    return column.to_pylist() if isinstance(column, pa.Array) else column  # type: ignore[return-value]


def _told(topic: Target, traces: list[int | None], receipt: Receipt) -> list[bytes]:
    """Return the reply to each row that is stored."""
    if isinstance(topic, FarTopic):
        return [OK] * len(traces)
    places = zip(receipt.ids(), traces, places_of(topic, receipt), strict=True)
    return [OK if trace is None else traced(id_, trace, *where) for id_, trace, where in places]


def failed(word: str) -> str:
    """Return the code for a publish that could not be carried out."""
    return "E_MPUB_FAILED" if word.startswith("M") else "E_DPUB_FAILED" if word == "DPUB" else "E_PUB_FAILED"
