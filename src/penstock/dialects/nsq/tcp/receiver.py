"""The consuming half of one NSQ connection: SUB and its family, RDY, FIN, REQ, TOUCH, CLS, and what goes out.

A channel is a subscription, RDY is credit, FIN / REQ / TOUCH are ack / release / extend. Owns what one client may
subscribe to and in which form it gets its messages; who gets which message is delivery's affair.
Invariant: the form of ids and frames is fixed at SUB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from penstock.clock import MILLISECOND
from penstock.columns import OFFSET_BITS, Buffer, Cuts, Offsets
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.wanted import wanted
from penstock.dialect import Chosen
from penstock.dialects.nsq import codec
from penstock.dialects.nsq.choices import Extend, NsqChoices
from penstock.dialects.nsq.codec import (
    ANY,
    CLOSE_WAIT,
    OK,
    PLAIN,
    Form,
    error,
    extended,
    is_name,
    number_of,
    quoted,
    shown,
)
from penstock.dialects.nsq.places import edges
from penstock.dialects.nsq.start import Start
from penstock.dialects.nsq.tcp.gatherer import Gatherer, joined
from penstock.dialects.nsq.tcp.publisher import CODES, FORBIDDEN
from penstock.dialects.nsq.topics import channel_settings
from penstock.errors import Elsewhere, Refusal
from penstock.filters.sample import percent_of
from penstock.intake.limits import check_delay
from penstock.message import Batch
from penstock.node.topic import Topic

if TYPE_CHECKING:
    from penstock.dialects.nsq.tcp.session import Session

#: Rows picked out of a batch are encoded alone once, unless they are a good part of it; who deals by tags
#: comes more often, and cuts its rows out of frames that are made once.
PICKS_MAX = 1
PICKED_PART = 8

#: What is sent may be a part of frames of this size for all consumers; of larger ones it is a copy, unless it is most
#: of them. The budget counts what a client has not read, and not what that is a part of.
SHARED_BYTES_MAX = 1 << 20

#: Clients read the count as a signed number of 16 bits; Youzan's counts no further than this.
ATTEMPTS_MAX = 4000

_NEED = "E_SUB_EXTEND_NEED"
#: How often rows were picked out of a batch.
_PICKS = "nsq picks"


class Place:
    """What a SUB command asks for, checked as far as its words go."""

    __slots__ = ("channel", "line", "partition", "start", "topic")

    def __init__(self, line: bytes, topic: str, channel: str, partition: int, start: Start | None) -> None:
        #: The command as it was sent.
        self.line = line
        self.topic = topic
        self.channel = channel
        self.partition = partition
        self.start = start


class Receiver:
    """What one connection consumes."""

    __slots__ = (
        "_config",
        "_fragile",
        "_gatherer",
        "_node",
        "_replies",
        "_send",
        "_service",
        "_session",
        "form",
        "seat",
        "topic",
    )

    def __init__(self, session: Session) -> None:
        self._session = session
        self._service = session.service
        self._config = session.service.config
        self._node = session.service.node
        self._replies = session.replies
        #: The client knows no headers and its topic has none: it must go if that changes.
        #: What the topic was like when a client that takes no headers came; None for others.
        self._fragile: Chosen | None = None
        #: Holds message frames back, where the client asked for that.
        self._gatherer: Gatherer | None = None
        self._send: Callable[[Buffer], None] = session.replies.send
        self.form = PLAIN
        self.topic: Topic | None = None
        self.seat: Seat | None = None

    # --- subscribing ----------------------------------------------------------------------------------------------

    def sub(self, args: list[bytes]) -> None:
        """Join a channel."""
        self._sub("SUB", args)

    def sub_advanced(self, args: list[bytes]) -> None:
        """Join a channel, perhaps at another place, and be told where each message stands."""
        self._sub("SUB_ADVANCED", args)

    def sub_ordered(self, args: list[bytes]) -> None:
        """Join a channel that gives one message at a time, in order."""
        if self._session.agreed.sample_rate:
            self._session.fail("E_INVALID", "SUB_ORDERED cannot be used with sample_rate")
        else:
            self._sub("SUB_ORDERED", args)

    def _sub(self, word: str, args: list[bytes]) -> None:
        place = self._checked(word, args)
        if place is None:
            return
        agreed = self._session.agreed
        try:
            caller, headers = self._session.login.caller, agreed.extend_support
            asked = self._service.topic(caller, "receive", place.topic, extend=headers, partition=place.partition)
            topic = self._session.need(asked, partial(self._not_joined, word, place))
            if topic is None:
                return
            extend = topic.chosen.of(NsqChoices).extend
            refused = _refused(extend, agreed.extend_support, self._config.allow_sub_ext_compatible)
            if topic.settings.ordered and word != "SUB_ORDERED":
                refused = "E_SUB_ORDER_IS_MUST", "keeps its order; use SUB_ORDERED"
            if place.channel not in topic.subscriptions and self._config.auto_create == "off":
                refused = "E_SUB_CHANNEL_NOT_REGISTERED", f"has no channel {place.channel}; make it first"
            if refused is not None:
                self._session.fail(refused[0], f"{word} {place.topic} {refused[1]}")
                return
            self._join(word, topic, place)
        except Refusal as refusal:
            self._not_joined(word, place, refusal)

    def _not_joined(self, word: str, place: Place, why: Exception) -> None:
        if isinstance(why, Elsewhere) and self._session.splice(why, place.line):
            return
        if isinstance(why, Refusal) and why.code in FORBIDDEN:
            self._session.login.refuse(word, place.topic, place.channel, why)
            return
        code = CODES.get(why.code, "E_SUB_FAILED") if isinstance(why, Refusal) else "E_SUB_FAILED"
        self._session.fail(code, f"{word} failed {why}")

    def _checked(self, word: str, args: list[bytes]) -> Place | None:
        fail = self._session.fail
        partition: int | None = ANY
        start: Start | None = None
        if self._session.state != "init":
            fail("E_INVALID", f"cannot {word} in current state")
        elif not self._session.agreed.heartbeat_ns:
            fail("E_INVALID", f"cannot {word} with heartbeats disabled")
        elif len(args) < (3 if word == "SUB_ORDERED" else 2):
            fail("E_INVALID", f"{word} insufficient number of parameters")
        elif not is_name(args[0]):
            fail("E_BAD_TOPIC", f"{word} topic name {quoted(args[0])} is not valid")
        elif not is_name(args[1]):
            fail("E_BAD_CHANNEL", f"{word} channel name {quoted(args[1])} is not valid")
        elif len(args) > 2 and (partition := codec.partition_of(args[2])) is None:
            fail("E_BAD_PARTITION", f"{word} partition {quoted(args[2])} is not valid")
        elif word == "SUB_ADVANCED" and len(args) > 3 and (start := Start.of(args[3].decode("latin-1"))) is None:
            fail("E_INVALID", f"{word} start {quoted(args[3])} is not valid")
        else:
            assert partition is not None
            line = b" ".join((word.encode(), *args)) + b"\n"
            return Place(line, args[0].decode("ascii"), args[1].decode("ascii"), partition, start)
        return None

    def _join(self, word: str, topic: Topic, place: Place) -> None:
        agreed = self._session.agreed
        headers = topic.chosen.of(NsqChoices).extend != "off"
        settings = channel_settings(self._node.config, place.channel)
        if word == "SUB_ORDERED":
            settings = msgspec.structs.replace(settings, order="shard")
        not_joined = partial(self._not_joined, word, place)
        if place.channel not in topic.subscriptions:
            self._node.gate.granted(
                self._session.login.caller, "create", topic.name, f"channel {place.channel}, by {word}"
            )
        subscription = self._session.need(topic.subscribe(place.channel, settings), not_joined)
        if subscription is None:
            return
        most = self._config.max_channel_consumers
        if most and len(subscription.seats) >= most:
            raise Refusal("conflict", f"consumers for {place.topic}:{place.channel} exceeds limit of {most}")
        if subscription.settings.order != settings.order and word == "SUB_ORDERED":
            if subscription.seats:
                raise Refusal("conflict", f"channel {place.channel} is in use without order")
            changed = msgspec.structs.replace(subscription.settings, order="shard")
            subscription = self._session.need(topic.update_subscription(place.channel, changed), not_joined)
            if subscription is None:
                return
        self.seat = topic.attach(
            subscription,
            self.deliver,
            lease_ns=agreed.lease_ns,
            name=agreed.client_id or self._session.name,
            tag=agreed.desired_tag if headers else "",
            keep=wanted(agreed.header_filter if headers else None, percent_of(agreed.sample_rate)),
            shard=place.partition if place.partition >= 0 else None,
            evict=self._session.hang_up,
            rack="/".join(filter(None, (agreed.topology_region, agreed.topology_zone))),
        )
        self.topic = topic
        self._fragile = topic.chosen if not headers and not self._config.allow_sub_ext_compatible else None
        details = word != "SUB"
        form = Form(agreed.extend_support or details, agreed.extend_support and headers, details)
        self.form = form if any(form) else PLAIN
        self._session.subscribed(self.seat, raw_ids=self.form.raw)
        if agreed.gather_ns:
            self._gatherer = self._session.gathered(agreed.output_buffer_size, agreed.gather_ns)
            self._send = self._gather
        if place.start is not None and len(subscription.seats) == 1:
            self._begin_at(place.start, place.partition)
        else:
            self._replies.send(OK)

    def _begin_at(self, start: Start, partition: int) -> None:
        """Move the channel to where its only client wants it, and only then let it have messages."""
        topic, subscription = self._topic, self._seat.subscription
        numbers = [partition] if partition != ANY else range(len(topic.shards))

        def found(places: Sequence[tuple[int, int]]) -> None:
            if self._session.closed:
                return
            for shard, offset in places:
                subscription.seek(shard, offset)
            subscription.keeping.wait(kept)

        def kept(error: BaseException | None) -> None:
            if self._session.closed:
                return
            if error is not None:
                self._session.fail("E_INVALID", f"SUB_ADVANCED failed {error}")
                return
            self._replies.send(OK)
            self._session.resume()

        def failed(error: Exception) -> None:
            if not self._session.closed:
                self._session.fail("E_INVALID", f"SUB_ADVANCED failed {error}")

        self._session.wait()
        try:
            subscription.check_seek()
            start.find(topic, numbers, found, failed)
        except Refusal as refusal:
            failed(refusal)

    def leave(self) -> None:
        """Take no more part in the channel: a connection that is hung up on would only burn attempts."""
        seat, self.topic, self.seat = self.seat, None, None
        self._send = self._replies.send
        if seat is not None:
            seat.close()
        if self._gatherer is not None:  # others get these now
            self._gatherer.forget()

    # --- credit and acks ------------------------------------------------------------------------------------------

    def rdy(self, args: list[bytes]) -> None:
        """Set the credit."""
        if self._session.state == "closing":
            return
        if self._session.state != "subscribed":
            self._session.fail("E_INVALID", "cannot RDY in current state")
            return
        count = number_of(args[0]) if args else 1
        most = self._config.max_rdy_count
        if count is None:
            self._session.fail("E_INVALID", f"RDY could not parse count {shown(args[0])}")
        elif count > most:
            self._session.fail("E_INVALID", f"RDY count {count} out of range 0-{most}")
        else:
            self._seat.set_credit(count)
            if self._gatherer is not None and self._seat.room <= 0:
                self._gatherer.flush()

    def fin(self, ids: list[int] | Offsets | list[bytes]) -> None:
        """Ack."""
        if self._session.state == "init":
            self._session.fail("E_INVALID", "cannot FIN in current state")
            return
        if isinstance(ids, list) and (not ids or isinstance(ids[0], bytes)):  # a line that was not an id
            if ids:
                self._bad_id("FIN", ids[0])  # type: ignore[arg-type]
            else:
                self._session.fail("E_INVALID", "FIN insufficient number of params")
            return
        for id_ in self.seat.ack(ids):  # type: ignore[union-attr]
            self._not_mine("FIN", id_)

    def req(self, args: list[bytes]) -> None:
        """Release, at once or after a delay."""
        id_ = self._id("REQ", args, 2)
        if id_ is None:
            return
        delay_ms = number_of(args[1])
        if delay_ms is None:
            self._session.fail("E_INVALID", f"REQ could not parse timeout {shown(args[1])}")
            return
        delay_ns = min(delay_ms * MILLISECOND, self._config.max_req_timeout_ns)
        try:
            check_delay(self._topic.name, delay_ns, self._topic.settings.max_due_ns)
        except Refusal as refusal:
            self._node.count_fault("nsq", "E_REQ_FAILED", str(refusal), self._session.name)
            self._replies.send(error("E_REQ_FAILED", f"REQ {args[0].decode('latin-1')} failed {refusal}"))
            return
        if self._seat.release([id_], delay_ns):
            self._not_mine("REQ", id_)

    def touch(self, args: list[bytes]) -> None:
        """Extend."""
        id_ = self._id("TOUCH", args, 1)
        if id_ is None:
            return
        if self._seat.extend([id_], self._session.agreed.lease_ns):
            self._not_mine("TOUCH", id_)

    def cls(self, args: list[bytes]) -> None:
        """Get no more; what is out may still be acked."""
        if self._session.state != "subscribed":
            self._session.fail("E_INVALID", "cannot CLS in current state")
            return
        self._seat.set_closing()
        self._session.state = "closing"
        self._replies.send(CLOSE_WAIT)

    def _not_mine(self, word: str, id_: int) -> None:
        """Tell that a lease is gone; the connection lives on."""
        text = f"{word} %016x failed " % (id_ & (1 << 64) - 1)
        owner = self._seat.has(id_)
        why = "ID not in flight" if owner is None else "client does not own message"
        self._node.count_fault("nsq", f"E_{word}_FAILED", text + why, self._session.name)
        self._replies.send(error(f"E_{word}_FAILED", text + why))

    def _bad_id(self, word: str, text: bytes) -> None:
        if len(text) != 16:
            self._session.fail("E_INVALID", "invalid message ID")
        else:
            self._replies.send(error(f"E_{word}_FAILED", f"{word} {shown(text)} failed ID not in flight"))

    def _id(self, word: str, args: list[bytes], words: int) -> int | None:
        if self._session.state == "init":
            self._session.fail("E_INVALID", f"cannot {word} in current state")
        elif len(args) < words:
            self._session.fail("E_INVALID", f"{word} insufficient number of params")
        else:
            read: Callable[[bytes], int | None] = codec.raw_id if self.form.raw else codec.hex_id
            id_ = read(args[0]) if len(args[0]) == 16 else None
            if id_ is not None:
                return id_
            self._bad_id(word, args[0])
        return None

    # --- out ------------------------------------------------------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send message frames; a slice of a batch shares its frames with all other subscriptions."""
        fragile = self._fragile
        if fragile is not None and fragile is not self.topic.chosen and self._has_outgrown():  # type: ignore[union-attr]
            # Not from inside the look for rows that found these; until then they stay leased to this client.
            self._node.clock.call_soon(self._outgrown)
            return
        form = self.form
        if len(deliveries) == 1 and form is PLAIN:
            delivery = deliveries[0]
            batch = delivery.batch
            if batch.count == 1 and delivery.attempts == 1 and type(batch.body) is bytes:
                found = batch.wire.get(codec.SOURCE)
                if found is None:
                    time = batch.timestamp if type(batch.timestamp) is int else batch.row_time(0)
                    wire = codec.lone((delivery.shard << OFFSET_BITS) + 1 + batch.first, time, batch.body)
                    found = batch.wire[codec.SOURCE] = wire, [0, len(wire)]
                self._send(found[0])
                return
        several: list[Buffer] | None = [] if len(deliveries) > 1 else None
        for delivery in deliveries:
            batch = delivery.batch
            first_id = (delivery.shard << OFFSET_BITS) + 1 + batch.first
            if isinstance(delivery.rows, slice):
                frames, cuts = self._whole(form, first_id, delivery)
                if delivery.rows.stop - delivery.rows.start != batch.count:
                    frames = _part(frames, int(cuts[delivery.rows.start]), int(cuts[delivery.rows.stop]))
            else:
                frames = self._picked(form, first_id, delivery)
            if several is None:
                self._send(frames)
            else:
                several.append(frames)
        if several is not None:  # a layer seals every write by itself, so many small ones cost
            for piece in joined(several, self._session.agreed.output_buffer_size):
                self._send(piece)

    def _gather(self, frames: Buffer) -> None:
        """Send message frames of a client that rather waits than gets them one by one."""
        assert self._gatherer is not None
        if self._replies.waiting:
            self._replies.send(frames)
            return
        self._gatherer.gather(frames)
        if self._seat.room <= 0:  # it gets nothing more before it was given these
            self._gatherer.flush()

    def _picked(self, form: Form, first_id: int, delivery: Delivery) -> Buffer:
        batch, rows = delivery.batch, delivery.rows
        assert not isinstance(rows, slice)
        many = delivery.attempts
        if isinstance(many, int) and many == 1:
            picks = batch.wire[_PICKS] = batch.wire.get(_PICKS, 0) + 1
            if picks > PICKS_MAX or len(rows) * PICKED_PART >= batch.count:
                return codec.gathered(self._whole(form, first_id, delivery), rows)
        attempts = min(many, ATTEMPTS_MAX) if isinstance(many, int) else np.minimum(many, ATTEMPTS_MAX)
        if form is PLAIN:
            return codec.picked(rows + first_id, rows, batch.timestamp, attempts, batch.cuts, batch.body)
        return extended.some(form, first_id, batch, rows, attempts, self._edges(delivery.shard, batch))

    def _whole(self, form: Form, first_id: int, delivery: Delivery) -> tuple[Buffer, Cuts]:
        """Return the first-delivery frames of a batch, made once for all its consumers."""
        batch = delivery.batch
        key = codec.SOURCE if form is PLAIN else form
        whole = batch.wire.get(key)
        if whole is None:
            if form is PLAIN:
                whole = codec.messages(first_id, batch.count, batch.timestamp, 1, batch.cuts, batch.body)
            else:
                whole = extended.whole(form, first_id, batch, self._edges(delivery.shard, batch))
            batch.wire[key] = whole
        return whole

    def _edges(self, shard: int, batch: Batch) -> Offsets | None:
        return edges(self._topic, shard, batch) if self.form.detailed else None

    def _has_outgrown(self) -> bool:
        """Tell whether a topic that was changed takes headers now."""
        self._fragile = self._topic.chosen
        return self._fragile.of(NsqChoices).extend == "on"

    def _outgrown(self) -> None:
        if not self._session.closed:
            self._session.fail(_NEED, f"topic {self._topic.name} takes headers now; subscribe with extend_support")

    @property
    def _topic(self) -> Topic:
        assert self.topic is not None
        return self.topic

    @property
    def _seat(self) -> Seat:
        assert self.seat is not None
        return self.seat


def _part(frames: Buffer, start: int, stop: int) -> Buffer:
    """Return some of many frames; a copy where a client that does not read would keep all of them for little."""
    part = memoryview(frames)[start:stop]
    return bytes(part) if len(frames) > SHARED_BYTES_MAX and 2 * len(part) < len(frames) else part


def _refused(extend: Extend, supported: bool, compatible: bool) -> tuple[str, str] | None:
    """Return why a client may not subscribe to such a topic, None if it may (spec 3.2)."""
    if extend == "on" and not supported and not compatible:
        return _NEED, "takes headers; identify with extend_support"
    if extend == "off" and supported:
        return "E_SUB_EXTEND_FORBIDDON", "takes no headers; identify without extend_support"
    return None
