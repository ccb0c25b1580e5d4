"""Couriers bring what is published to HTTP endpoints: one for each subscription, from its outbox.

An outbox is a topic of the node's own with one subscription. A row in it is a request: its body, and its headers as
HTTP has them. A courier has a seat there, so what an endpoint did not take is still there after `kill -9`; when it is
tried again is the core's affair. An endpoint that failed gets one request at a time until it takes one, so those that
are slow or gone hold next to nothing of what all couriers may have under way together.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby
from ssl import SSLContext
from typing import NamedTuple

import msgspec

from penstock.callers import Caller
from penstock.clock import MILLISECOND, SECOND, Timer
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.dialects.sqs.sns import retries
from penstock.dialects.sqs.sns.endpoints import Allowed
from penstock.dialects.sqs.sns.record import OUTBOX, Member
from penstock.dialects.sqs.sns.topics import Topics, dead_letters
from penstock.message import Batch
from penstock.moves.letters import LEFT_BEHIND, as_letters
from penstock.moves.move import Origin, Piece, move
from penstock.node.node import Change
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.settings import SubscriptionSettings
from penstock.wire.dial import LoopDialler
from penstock.wire.fetch import post
from penstock.wire.tls import client_context

#: The subscription of an outbox.
ENDPOINT = "endpoint"
#: An endpoint has this long to answer, as Amazon's documentation says.
ANSWER_S = 15.0
#: Under way at once: to one endpoint, and to all of them.
REQUESTS_MAX = 8
ALL_REQUESTS_MAX = 256
#: Longer than a request takes, and than one waits for its turn.
LEASE_NS = 120 * SECOND
#: While an endpoint fails, what is older than this is given up, or its outbox would grow without end. It is longer than
#: any policy takes: an hour of pauses, Amazon's limit, and a hundred requests that are not answered.
WAIT_NS = 2 * 3600 * SECOND
#: Rows that are given up together.
OLD_MAX = 256
#: Subscriptions that nobody confirmed, and outboxes that nobody needs, are looked for this often.
SWEEP_NS = 3600 * SECOND
#: Outboxes that come together, with a slot of a cluster, are looked at together.
LOOK_NS = 100 * MILLISECOND

#: Requests say so in this header.
TYPE = "x-amz-sns-message-type"
NOTIFICATION = "Notification"

_AGENT = {"User-Agent": "Amazon Simple Notification Service Agent"}

_log = logging.getLogger("penstock.sqs.sns")


class Parcel(NamedTuple):
    """One row on its way."""

    id: int
    attempts: int
    shard: int
    batch: Batch
    row: int


class Couriers:
    """All couriers of a node."""

    def __init__(self, topics: Topics, allowed: Allowed) -> None:
        self.topics = topics
        self.node = topics.node
        self.allowed = allowed
        self.sent = 0
        self.failed = 0
        self._loop = LoopDialler()
        self._by_id: dict[str, Courier] = {}
        self._waiting: deque[tuple[Courier, Parcel]] = deque()
        self._under_way = 0
        self._timer: Timer | None = None
        self._looking: Timer | None = None
        self._closed = False

    def start(self) -> None:
        """Go on with what the registry tells of, also with outboxes that come later, and tidy up now and then."""
        self.node.watchers.append(self._heard)
        self._look()
        self._sweep()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def waiting(self) -> int:
        """How many requests are under way, or wait for their turn."""
        return self._under_way + len(self._waiting)

    @cached_property
    def _secure(self) -> SSLContext:
        return client_context()

    def stop(self) -> None:
        """Begin nothing more."""
        self._closed = True
        self._waiting.clear()
        if self._heard in self.node.watchers:
            self.node.watchers.remove(self._heard)
        for timer in (self._timer, self._looking):
            if timer is not None:
                timer.cancel()
        for courier in list(self._by_id.values()):
            courier.close()

    async def close(self) -> None:
        """End what is under way; it comes again."""
        self.stop()
        await self._loop.close()

    # --- outboxes -------------------------------------------------------------------------------------------------

    def outbox(self, id_: str, caller: Caller | None = None) -> Answer[Topic]:
        """Answer with the outbox of a subscription, made if there is none; it counts in the quota of whoever asked."""
        settings = msgspec.structs.replace(
            self.node.config.topic.settings(), shards=1, retention_age_ns=0, rate=0, ordered=False, dialects={}
        )
        name = OUTBOX + id_
        made = self.node.obtain(name, settings) if caller is None else self.node.make_for(caller, name, settings)
        subscribed = SubscriptionSettings(lease_ns=LEASE_NS)
        return made.then_ask(lambda topic: topic.subscribe(ENDPOINT, subscribed).then_make(lambda _: topic))

    def attend(self, name: str, id_: str, member: Member) -> None:
        """Let somebody bring what is in an outbox."""
        topic = self.node.topics.get(OUTBOX + id_)
        subscription = topic.subscriptions.get(ENDPOINT) if topic is not None else None
        if topic is None or subscription is None or id_ in self._by_id or self._closed or self.node.stopping:
            return
        self._by_id[id_] = Courier(self, name, id_, member.endpoint, topic, subscription)

    def empty(self, id_: str) -> None:
        """Forget what an endpoint did not get yet."""
        topic = self.node.topics.get(OUTBOX + id_)
        subscription = topic.subscriptions.get(ENDPOINT) if topic is not None else None
        if subscription is not None:
            subscription.empty()

    def dismiss(self, id_: str) -> None:
        """End a courier, with its outbox."""
        courier = self._by_id.get(id_)
        if courier is not None:
            courier.close()
        if OUTBOX + id_ in self.node.topics:
            self.node.delete_topic(OUTBOX + id_)  # if it is refused, the next sweep tries again

    def gone(self, id_: str) -> None:
        """Hear that a courier ended."""
        self._by_id.pop(id_, None)

    def _heard(self, event: Change, topic: Topic, _: Subscription | None) -> None:
        """Look in a moment at an outbox that came: opened at last, or from another node."""
        if event == "created" and topic.name.startswith(OUTBOX) and self._looking is None:
            clock = self.node.clock
            self._looking = clock.call_at(clock.monotonic() + LOOK_NS, self._look)

    def _look(self) -> None:
        """Attend to every outbox that is here."""
        self._looking = None
        for name in self.node.fanouts.names():
            for id_, member in self.topics.record(name).members.items():
                if member.endpoint:
                    self.attend(name, id_, member)

    def _sweep(self) -> None:
        """Let go of what nobody confirmed in time, and of outboxes whose subscriptions are no more."""
        clock = self.node.clock
        self._timer = clock.call_at(clock.monotonic() + SWEEP_NS, self._sweep)
        known = set()
        for name in self.node.fanouts.names():
            old = []
            for id_, member in self.topics.record(name).members.items():
                if member.state != "confirmed" and member.until_ns <= clock.now():
                    old.append(id_)
                elif member.endpoint:
                    known.add(id_)
            if old:
                self.topics.change(name, lambda record, old=old: record.lacking(*old))  # type: ignore[misc]
        if not self.node.fanouts.is_whole:
            return  # one that cannot be read may need any outbox
        for topic in [each for each in self.node.topics if each.startswith(OUTBOX)]:
            if topic.removeprefix(OUTBOX) not in known:
                self.dismiss(topic.removeprefix(OUTBOX))

    # --- requests -------------------------------------------------------------------------------------------------

    def send(self, courier: Courier, parcel: Parcel) -> None:
        """Post a row, in turn if there are too many."""
        self._waiting.append((courier, parcel))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._under_way < ALL_REQUESTS_MAX and not self._closed:
            courier, parcel = self._waiting.popleft()
            if courier.has(parcel):  # it may have waited for too long
                self._under_way += 1
                self._loop.start(self._post(courier, parcel))

    async def _post(self, courier: Courier, parcel: Parcel) -> None:
        status, why = 0, ""
        try:
            body, headers = parcel.batch.row_body(parcel.row), courier.headers(parcel)
            status = await post(courier.endpoint, ANSWER_S, headers, body, self.allowed.takes, self._secure)
        except TimeoutError:
            why = f"it did not answer for {ANSWER_S:g} s"
        except (OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        except Exception as error:  # of one endpoint, not of the others
            self.node.report_bug(f"sns endpoint {courier.endpoint}", error)
            why = "the node failed inside"
        finally:
            self._under_way -= 1
        courier.answered(parcel, status, why or f"it answered with status {status}")
        self._go_on()


class Courier:
    """Brings what is in one outbox to its endpoint."""

    def __init__(
        self, couriers: Couriers, name: str, id_: str, endpoint: str, topic: Topic, subscription: Subscription
    ) -> None:
        self.endpoint = endpoint
        self._couriers = couriers
        self._name = name
        self._id = id_
        self._topic = topic
        self._subscription = subscription
        self._trouble = ""
        #: What is to be given up in a moment.
        self._old: list[Parcel] = []
        self._seat = topic.attach(subscription, self._take, name=endpoint, evict=self.close)
        self._seat.set_credit(REQUESTS_MAX)

    def close(self) -> None:
        """Take no more; what is out comes again."""
        self._couriers.gone(self._id)
        self._seat.close()

    def has(self, parcel: Parcel) -> bool:
        """Tell whether a row is still its to bring."""
        return not self._seat.gone and self._seat.has(parcel.id) is True

    def headers(self, parcel: Parcel) -> dict[str, str]:
        """Return the headers of a request."""
        kind = self._policy().request_policy.header_content_type
        return {**_AGENT, "Content-Type": kind, **_own_headers(parcel)}

    def answered(self, parcel: Parcel, status: int, why: str) -> None:
        """Go by what an endpoint said of a row: finish it, bring it again later, or give it up."""
        if not self.has(parcel):
            return
        couriers, node = self._couriers, self._couriers.node
        if 200 <= status < 300:
            couriers.sent += 1
            if self._trouble:
                _log.info("SNS endpoint %s takes messages again", self.endpoint)
            self._trouble = ""
            self._finish([parcel])
            return
        couriers.failed += 1
        if not self._trouble:  # said once, not at every attempt
            _log.warning("SNS endpoint %s did not take a message: %s", self.endpoint, why)
        self._trouble = why
        self._seat.set_credit(1)
        # Amazon's rule: what the endpoint is to blame for, or asks for, is tried again; the rest would fail again.
        delay_s = None
        if not status or status == 429 or status >= 500:
            delay_s = self._policy().healthy_retry_policy.delay_s(parcel.attempts)
        if delay_s is not None:
            self._seat.release([parcel.id], int(delay_s * SECOND))
        else:
            why = f"{parcel.attempts} attempts failed, the last: {why}"
            node.clock.call_soon(partial(self._give_up, [parcel], why))

    # --- inside ---------------------------------------------------------------------------------------------------

    def _take(self, deliveries: list[Delivery]) -> None:
        oldest_ns = self._couriers.node.clock.now() - WAIT_NS
        for parcel in _parcels(deliveries):
            # Not before an attempt has failed: after the node was away for long, all it has is old.
            if self._trouble and parcel.batch.row_time(parcel.row) <= oldest_ns:
                self._set_aside(parcel)
            else:
                self._couriers.send(self, parcel)

    def _set_aside(self, parcel: Parcel) -> None:
        """Give a row up in a moment, with those behind it: there is room for one more until one is not old."""
        if not self._old:
            self._couriers.node.clock.call_soon(self._give_up_old)
        self._old.append(parcel._replace(attempts=parcel.attempts - 1))
        if self._seat.in_flight < OLD_MAX:
            self._seat.set_credit(self._seat.in_flight + 1)

    def _give_up_old(self) -> None:
        old, self._old = self._old, []
        why = f"it waited for more than {WAIT_NS // (3600 * SECOND)} hours while the endpoint failed: {self._trouble}"
        for _, parcels in groupby(old, lambda parcel: id(parcel.batch)):
            self._give_up(list(parcels), why)

    def _member(self) -> Member | None:
        return self._couriers.topics.record(self._name).members.get(self._id)

    def _policy(self) -> retries.Effective:
        record = self._couriers.topics.record(self._name)
        member = record.members.get(self._id)
        own = member.attributes.get("DeliveryPolicy", "") if member is not None else ""
        return retries.effective(record.attributes.get("DeliveryPolicy", ""), own)

    def _finish(self, parcels: Sequence[Parcel]) -> None:
        done = [parcel.id for parcel in parcels if self.has(parcel)]
        if not done:
            return
        self._seat.set_credit(1 if self._trouble else REQUESTS_MAX)
        self._seat.ack(done)
        member, subscription = self._member(), self._subscription
        if (member is None or member.state == "left") and not any(
            (subscription.depth(), subscription.in_flight(), subscription.waiting())
        ):
            self._couriers.dismiss(self._id)

    def _give_up(self, parcels: Sequence[Parcel], why: str) -> None:
        """Take rows of a batch to the dead letters of their subscription; where there are none, they are gone."""
        node, queues, member = self._couriers.node, self._couriers.topics.queues, self._member()
        queue = dead_letters(member.attributes, queues.names) if member is not None else None
        found = queues.reach(queue) if queue is not None else None
        kept: list[Parcel] = []
        lost: list[Parcel] = []
        for parcel in [each for each in parcels if self.has(each)]:
            is_kept = found is not None and _own_headers(parcel).get(TYPE) == NOTIFICATION
            (kept if is_kept else lost).append(parcel)
        if lost:
            node.ledger.add("undelivered", self._topic.name, len(lost), node.clock.now(), why)
            self._finish(lost)
        if not kept or found is None:
            return
        origin = Origin(self._topic.name, self._topic.incarnation, ENDPOINT)
        piece = Piece(origin, kept[0].shard, kept[0].batch, [parcel.row for parcel in kept])
        letters = piece.copies(as_letters(piece, [parcel.attempts for parcel in kept], why), LEFT_BEHIND)

        def finish() -> None:
            node.ledger.add("dead_letter", self._topic.name, len(kept), node.clock.now(), why)
            self._finish(kept)

        def done(error: BaseException | None) -> None:
            again = [parcel.id for parcel in kept if self.has(parcel)]
            if error is not None and again:  # the queue refuses them: they wait, and nothing is lost
                self._seat.release(again, 20 * SECOND)

        move(letters, [found], node, finish, done)


def _parcels(deliveries: list[Delivery]) -> Iterator[Parcel]:
    for delivery in deliveries:
        for id_, attempts, row in delivery.each():
            yield Parcel(id_, attempts, delivery.shard, delivery.batch, row)


def _own_headers(parcel: Parcel) -> dict[str, str]:
    raw = parcel.batch.row_value("headers", parcel.row)
    try:
        return msgspec.json.decode(raw, type=dict[str, str]) if isinstance(raw, bytes) else {}
    except msgspec.MsgspecError:
        return {}
