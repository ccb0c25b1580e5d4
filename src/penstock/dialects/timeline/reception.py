"""The reception: who may come in as producer or consumer, where else it could go, and what the cluster hears of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.timeline.wire import Kind
from penstock.clock import MILLISECOND
from penstock.dialects.timeline.choices import TimelineChoices
from penstock.dialects.timeline.config import TimelineConfig
from penstock.dialects.timeline.consume import Consumer
from penstock.dialects.timeline.errors import Fault, of_refusal
from penstock.dialects.timeline.names import MEMBER_BYTES_MAX, TOPIC_BYTES_MAX, check_cluster, check_name
from penstock.dialects.timeline.report import Report
from penstock.dialects.timeline.sessions import Role, Session, Sessions
from penstock.dialects.timeline.timeline import Timeline
from penstock.dialects.timeline.topics import Topics
from penstock.errors import Refusal
from penstock.node.membership import Membership, Preferred
from penstock.offers import Stream
from penstock.registry.answer import Answer
from penstock.registry.embedded import EmbeddedRegistry

if TYPE_CHECKING:
    from penstock.node.node import Node

_log = logging.getLogger("penstock.timeline")


class Reception:
    """Clients of timelines on one node."""

    def __init__(
        self,
        node: Node,
        config: TimelineConfig,
        topics: Topics,
        sessions: Sessions,
        membership: Membership,
        report: Report,
    ) -> None:
        self.node = node
        self.config = config
        self.topics = topics
        self.sessions = sessions
        self.report = report
        self._membership = membership
        membership.suggested.append(self._suggest)
        membership.changed.append(self._grant_all)
        sessions.on_over = self._session_over

    def close(self) -> Answer[None]:
        """Let everybody go, and tell the cluster; answered once it knows."""
        self.sessions.stop()
        goodbye = self._membership.close()
        goodbye.then(_told)
        return goodbye.settled()

    # --- who comes ------------------------------------------------------------------------------------------------

    def greet_producer(self, caller: Caller, asked: wire.ProducerHandshake) -> Answer[wire.Session]:
        """Let a producer in."""
        check_name("a producer group", asked.producer_group_id, MEMBER_BYTES_MAX)
        check_name("the id of a producer", asked.producer_id, MEMBER_BYTES_MAX)

        def found(timeline: Timeline) -> wire.Session:
            session = Session("producer", asked.topic_id, asked.producer_id, group=asked.producer_group_id)
            entry = self._membership.overseer.find(asked.topic_id)
            told = self._let_in(session)
            # A registry that nobody else has would be told in vain, and each word is a sync.
            is_told = not isinstance(self.node.registry, EmbeddedRegistry)
            said = self._membership.join("producer", entry, session.member, group=session.group, is_told=is_told)
            said.then(_told)
            return told

        return self._greeted(caller, "publish", asked, found)

    def greet_consumer(self, caller: Caller, asked: wire.ConsumerHandshake) -> Answer[wire.Session]:
        """Let a consumer in; it gets nothing before it opens its stream."""
        check_name("the id of a consumer", asked.consumer_id, MEMBER_BYTES_MAX)
        if asked.rack_id:
            check_name("the id of a rack", asked.rack_id, MEMBER_BYTES_MAX)

        def found(timeline: Timeline) -> wire.Session:
            most = timeline.choices.max_seconds_lease
            if asked.lease_timeout_ms < 1:
                raise Fault(Kind.PROTOCOL, "a lease lasts 1 ms or more")
            if asked.lease_timeout_ms > most * 1000:
                raise Fault(Kind.LEASE_TOO_LONG, f"a lease of {asked.lease_timeout_ms} ms; {most} s are allowed here")
            lease_ns = asked.lease_timeout_ms * MILLISECOND
            session = Session("consumer", asked.topic_id, asked.consumer_id, lease_ns=lease_ns, rack=asked.rack_id)
            return self._let_in(session)

        return self._greeted(caller, "receive", asked, found)

    def _greeted(
        self,
        caller: Caller,
        right: Literal["publish", "receive"],
        asked: wire.ProducerHandshake | wire.ConsumerHandshake,
        found: Callable[[Timeline], wire.Session],
    ) -> Answer[wire.Session]:
        check_cluster(asked.cluster, self.config.cluster)
        ident = asked.topic_id
        check_name("the id of a topic", ident, TOPIC_BYTES_MAX)
        caller.check(right, ident)
        self.report.check("greet")

        def greet(timeline: Timeline) -> wire.Session:
            choices = timeline.choices
            for what, version, least in (
                ("protocol", asked.protocol_version, choices.min_protocol_version),
                ("driver", asked.driver_version, choices.min_driver_version),
            ):
                if version < least:
                    raise Fault(Kind.PROTOCOL, f"{what} version {version} is too old: topic {ident} asks for {least}")
            return found(timeline)

        try:
            return Answer.of(greet(self.topics.find(ident)))
        except Refusal as refusal:
            if of_refusal(refusal).kind != Kind.TOPIC_NOT_FOUND or not self.config.auto_create:
                raise
        made = self.topics.make(caller, ident, TimelineChoices())
        return made.then_make(lambda _: greet(self.topics.find(ident)))

    def _let_in(self, session: Session) -> wire.Session:
        brokers = self.preference(session.role, session.topic)
        self.sessions.open(session)
        return wire.Session(session_id=session.token, brokers=brokers)

    def preference(self, role: Role, topic: str) -> list[wire.Broker]:
        """Return the brokers that a client should try, in order."""
        return [self._shown(each) for each in self._membership.preference(role, topic)]

    def _shown(self, broker: Preferred) -> wire.Broker:
        address = "" if broker.broker == self._membership.overseer.broker else broker.address
        return wire.Broker(id=broker.broker, address=address, weight=broker.weight, over_capacity=broker.over_capacity)

    def _session_over(self, session: Session) -> None:
        if session.role == "producer":
            self.node.health.producer_left(session.token)
            self._membership.leave("producer", session.topic, session.member).then(_told)

    def _suggest(self, role: Role, topic: str, ident: str, target: Preferred) -> None:
        """Pass on to a consumer that another broker has more room for it."""
        timeline = self.topics.by_name.get(topic)
        consumer = timeline.consumers.get(ident) if timeline is not None and role == "consumer" else None
        if timeline is not None and consumer is not None:
            window = timeline.now_ms() // timeline.choices.time_window_ms + 1
            consumer.say(wire.Down(switch=wire.Switch(broker=self._shown(target), window=window)))

    def unsubscribe(self, caller: Caller, asked: wire.Unsubscribe) -> Answer[wire.Done]:
        """End a session; what a consumer holds stays on lease until that ends."""
        session = self.sessions.find(asked.session_id)
        self.sessions.close(session, "it was unsubscribed")
        return Answer.of(wire.Done())

    # --- who receives ---------------------------------------------------------------------------------------------

    def consume(self, caller: Caller, raw: bytes, stream: Stream) -> Consumer:
        """Open the stream of a consumer."""
        return Consumer(self, caller, stream)

    def hydrated(self, consumer: Consumer) -> None:
        """Hear that a consumer has what it had before, and takes part from now on."""
        session = consumer.session
        if session is not None:
            entry = self._membership.overseer.find(session.topic)
            self._membership.join("consumer", entry, session.member, rack=session.rack).then(_told)

    def left(self, consumer: Consumer) -> None:
        """Hear that a consumer's stream is closed."""
        session = consumer.session
        if session is not None:
            self._membership.leave("consumer", session.topic, session.member).then(_told)
            self._grant_all(session.topic)

    def heard(self, consumer: Consumer) -> None:
        """Hear whether a consumer is busy; others may go on, or have to wait, if most are."""
        session = consumer.session
        if session is not None:
            health = self.node.health
            before = health.may_push(session.topic)
            health.consumer(session.topic, session.member, is_busy=consumer.is_busy)
            if health.may_push(session.topic) != before:
                self._grant_all(session.topic)

    def ponged(self, consumer: Consumer, pong: wire.Pong) -> None:
        """Hear what time it is for a consumer."""
        session = consumer.session
        if session is not None:
            self._membership.ponged(
                "consumer",
                session.topic,
                session.member,
                pong.local_ts_ms,
                float(pong.partner_ts_ms),
                consumer.caller.voice,
            )

    def _grant_all(self, topic: str = "") -> None:
        """Let consumers have what they may have now."""
        for timeline in self.topics.all():
            if topic in ("", timeline.topic.name):
                for consumer in list(timeline.consumers.values()):
                    consumer.grant()

    def room(self, consumer: Consumer, room: int) -> int:
        """Return how much a consumer with this much room may be pushed now."""
        session = consumer.session
        return room if session is not None and self.node.health.may_push(session.topic) else 0


def _told(_: None, error: Exception | None) -> None:
    if error is not None:
        _log.warning("what the cluster is told of a client is not in the registry: %s", error)
