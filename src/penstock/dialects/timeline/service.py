"""The commands of timelines, one method each, whoever carries them: Flight, HTTP, a test. No sockets.

A command takes a document (and rows) and answers with one; what goes wrong is an `Error` in it. Topics come and go by
the overseer; messages of those that are here are the timelines' affair.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

import penstock
from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.timeline.wire import Kind
from penstock.client.wire import decoded, encoded
from penstock.clock import MILLISECOND
from penstock.cluster.health import Op
from penstock.cluster.overseer import Entry, Overseer
from penstock.dealing.table import Table
from penstock.dialects.timeline import leases
from penstock.dialects.timeline.choices import TimelineChoices
from penstock.dialects.timeline.config import TimelineConfig
from penstock.dialects.timeline.consume import Consumer
from penstock.dialects.timeline.errors import Fault, of_refusal
from penstock.dialects.timeline.names import MEMBER_BYTES_MAX, TOPIC_BYTES_MAX, check_name
from penstock.dialects.timeline.report import Report
from penstock.dialects.timeline.sessions import Role, Session, Sessions
from penstock.dialects.timeline.storage import Storage
from penstock.dialects.timeline.talks import change_talk, create_talk, replied, whole
from penstock.dialects.timeline.timeline import NAME, Created, Status, Timeline
from penstock.errors import Refusal
from penstock.node.membership import Habits, Membership, Preferred
from penstock.offers import Action, Offer, Opening, Stream
from penstock.registry.answer import Answer
from penstock.registry.embedded import EmbeddedRegistry

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.delivery.subscription import Subscription
    from penstock.node.node import Change, Node
    from penstock.node.topic import Topic

_log = logging.getLogger("penstock.timeline")

#: What clients call a setting: its name here. 0 means the default, but for those below.
_SETTINGS = {
    "replica_count": "replica_count",
    "max_seconds_future_allowed": "max_seconds_future",
    "max_seconds_lease": "max_seconds_lease",
    "checksum_bodies": "checksum_bodies",
    "max_body_size_bytes": "max_body_bytes",
    "rqs_limit_per_client": "rqs_limit_per_client",
    "minimum_protocol_version": "min_protocol_version",
    "minimum_driver_version": "min_driver_version",
    "bucket_count": "bucket_count",
    "time_window_ms": "time_window_ms",
    "prefetch_max_ms": "prefetch_max_ms",
    "prefetch_max_count": "prefetch_max_count",
    "dealer": "dealer",
}
_MAY_BE_0 = ("max_seconds_future_allowed", "prefetch_max_ms")


_OPS: Mapping[str, Op] = {"delete": "delete", "extend-lease": "extend", "release": "release"}


class _Named(msgspec.Struct):
    topic_id: str = ""
    id: str = ""


class Service:
    """Timelines on one node."""

    def __init__(self, node: Node, config: Config) -> None:
        self.node = node
        self.config = config.of(TimelineConfig)
        self.broker = self.config.broker or socket.gethostname()
        self.sessions = Sessions(node.clock, self.config.max_sessions)
        self.storage = Storage(node)
        random = Random(secrets.randbits(64))
        self.overseer = Overseer(node.registry, node.clock, random, self.config.cluster, self.broker, self.storage)
        #: What the node is to other brokers, and what it counts.
        habits = Habits(self.config.clients_preferred, self.config.clients_most, self.config.clients_strict)
        self.membership = Membership(node, self.overseer, penstock.__version__, self._address, habits)
        self.membership.suggested.append(self._suggest)
        self.membership.changed.append(self._grant_all)
        self.membership.tables.watch(self._table_holds)
        self.report = Report(self, self.membership)
        self.sessions.on_over = self._session_over
        self._timelines: dict[str, Timeline] = {}
        self.commands: Mapping[str, tuple[type, Callable[[Caller, Any], Answer[Any]]]] = {
            "create": (wire.TimelineCreate, self.create),
            "delete": (wire.TimelineDeleteTopic, self.delete),
            "producer-handshake": (wire.ProducerHandshake, self.greet_producer),
            "consumer-handshake": (wire.ConsumerHandshake, self.greet_consumer),
            "info": (wire.Info, self.info),
            "ping": (wire.Ping, self.ping),
            "count": (wire.Count, self.count),
            "unsubscribe": (wire.Unsubscribe, self.unsubscribe),
        }
        node.watchers.append(self._heard)
        self._unwatch = self.overseer.watch(self._topic_changed)
        for entry in self.overseer.topics():
            self._topic_changed("live" if entry.state == "live" else "gone", entry)

    def offer(self) -> Offer:
        """Return what Flight carries."""
        actions = {name: self._action(name) for name in self.commands}
        exchanges = {
            "create-messages": Opening(wire.REPLIED, lambda caller, raw, way: create_talk(self, caller, raw, way)),
            "change": Opening(wire.REPLIED, lambda caller, raw, way: change_talk(self, caller, raw, way)),
            "consume": Opening(wire.PUSHED, self.consume),
        }
        return Offer(actions, exchanges)

    def close(self) -> None:
        """Serve nobody any more."""
        self.sessions.stop()
        self._unwatch()
        self.membership.close().then(_told)
        if self._heard in self.node.watchers:
            self.node.watchers.remove(self._heard)
        for timeline in self._timelines.values():
            timeline.close()

    def now_ms(self) -> int:
        """Return the time, as clients count it."""
        return self.node.clock.now() // MILLISECOND

    def fault_of(self, error: BaseException) -> Fault:
        """Return what went wrong, in words of timelines; what should not exist is counted."""
        if isinstance(error, Fault):
            return error
        if isinstance(error, Refusal):
            return of_refusal(error)
        self.node.report_bug("timeline", error)
        return Fault(Kind.STORAGE, "the node failed at this; its log says how")

    def _action(self, name: str) -> Action:
        return lambda caller, raw: self.act(name, caller, raw).then_make(encoded)

    def act(self, name: str, caller: Caller, raw: bytes) -> Answer[Any]:
        """Carry out a command by its name; the answer is always one of its documents."""
        known = self.commands.get(name)
        if known is None:
            fault = Fault(Kind.UNKNOWN_COMMAND, f"there is no command {name!r}; there are {', '.join(self.commands)}")
            return Answer.of(wire.Done(error=fault.error(name)))
        takes, method = known
        reply = wire.ACTIONS[name][1]
        try:
            asked = method(caller, decoded(raw, takes))
        except Exception as error:
            asked = Answer.refused(error)
        answer: Answer[Any] = Answer()
        topic = self._topic_in(raw)

        def told(value: Any, error: Exception | None) -> None:
            is_known = topic in self.by_name or (error is None and name in ("create", "delete"))
            self.report.command(name, topic if is_known else "", is_well=error is None)
            if error is None:
                answer.give(value)
                return
            said = self.fault_of(error).error(name)
            given = {"local_ts_ms": 0, "partner_ts_ms": self.now_ms()} if reply is wire.Pong else {}
            answer.give(reply(error=said, **given))

        asked.then(told)
        return answer

    def _topic_in(self, raw: bytes) -> str:
        """Return the topic that a document names, if there is one."""
        try:
            named = msgspec.json.decode(raw, type=_Named)
        except msgspec.DecodeError:
            return ""
        return named.topic_id or named.id

    # --- topics ---------------------------------------------------------------------------------------------------

    def create(self, caller: Caller, asked: wire.TimelineCreate) -> Answer[wire.Done]:
        """Make a topic, or find it made with the same settings."""
        self._check_cluster(asked.cluster)
        return self.create_topic(caller, asked.id, _choices_of(asked)).then_make(lambda _: wire.Done())

    def create_topic(self, caller: Caller, ident: str, choices: TimelineChoices) -> Answer[Entry]:
        """Make a topic with these settings, or find it."""
        check_name("the id of a topic", ident, TOPIC_BYTES_MAX)
        choices.check(None)
        self.report.check("admin")
        topic = self.node.topics.get(ident)
        if topic is not None and not topic.chosen.of(TimelineChoices).is_timeline:
            caller.check("change", ident, "becomes a timeline")
        caller.check("create", ident)
        self.storage.askers[ident] = caller
        made = self.overseer.create(ident, _settings_of(choices))

        def over(_: Entry | None, __: Exception | None) -> None:
            self.storage.askers.pop(ident, None)

        made.then(over)
        return made

    def delete(self, caller: Caller, asked: wire.TimelineDeleteTopic) -> Answer[wire.Done]:
        """Drop a topic; its data goes in a while."""
        self._check_cluster(asked.cluster)
        caller.check("delete", asked.id)
        self.report.check("admin")
        return self.overseer.delete(asked.id).then_make(lambda _: wire.Done())

    def timeline(self, ident: str) -> Timeline:
        """Return a topic at work, or refuse what there is instead."""
        entry = self.overseer.find(ident)
        timeline = self._timelines.get(ident)
        if timeline is None:
            self._topic_changed("live", entry)
            timeline = self._timelines.get(ident)
        if timeline is None or timeline.topic.deleted:
            raise Fault(Kind.STORAGE_OFFLINE, f"what topic {ident} stores is not on this node")
        return timeline

    @property
    def by_name(self) -> Mapping[str, Timeline]:
        """Those at work here."""
        return self._timelines

    def timelines(self) -> list[Timeline]:
        """Return all that are at work here."""
        return list(self._timelines.values())

    def _topic_changed(self, what: str, entry: Entry) -> None:
        """Put a topic to work, or let it go with everybody who uses it."""
        there = self._timelines.get(entry.id)
        if what != "live":
            if there is not None and there.choices.incarnation == entry.incarnation:
                self._drop(entry.id)
            return
        topic = self.node.topics.get(entry.id)
        if topic is None or topic.chosen.of(TimelineChoices).incarnation != entry.incarnation:
            return
        subscription = topic.subscriptions.get(NAME)
        if subscription is None or (there is not None and there.subscription is subscription):
            return
        if there is not None:
            self._drop(entry.id)
        timeline = self._timelines[entry.id] = Timeline(self.node, topic, subscription, secrets.randbits(64))
        timeline.use_windows()
        tables = self.membership.tables
        for table in (tables.at_present(entry.id), tables.coming(entry.id)):
            if table is not None:
                timeline.adopt(table)

    def _table_holds(self, entry: Entry, table: Table) -> None:
        timeline = self._timelines.get(entry.id)
        if timeline is not None:
            timeline.adopt(table)

    def _drop(self, ident: str) -> None:
        timeline = self._timelines.pop(ident, None)
        for session in self.sessions.of(ident):
            self.sessions.close(session, f"topic {ident} was deleted")
        if timeline is not None:
            timeline.close()

    def _heard(self, event: Change, topic: Topic, subscription: Subscription | None) -> None:
        """Hear that a topic went by another way than the overseer's."""
        if event == "deleted" and (subscription is None or subscription.name == NAME):
            timeline = self._timelines.get(topic.name)
            if timeline is not None and timeline.topic is topic:
                incarnation = topic.chosen.of(TimelineChoices).incarnation
                self._drop(topic.name)
                self.node.clock.call_soon(lambda: self._lost(topic.name, incarnation))

    def _lost(self, ident: str, incarnation: str) -> None:
        try:
            entry = self.overseer.find(ident)
        except Refusal:
            return
        if entry.incarnation == incarnation:
            self.overseer.delete(ident)

    def _check_cluster(self, cluster: str) -> None:
        if cluster and cluster != self.config.cluster:
            raise Fault(Kind.WRONG_CLUSTER, f"this is cluster {self.config.cluster!r}, and not {cluster[:256]!r}")

    # --- who comes ------------------------------------------------------------------------------------------------

    def greet_producer(self, caller: Caller, asked: wire.ProducerHandshake) -> Answer[wire.Session]:
        """Let a producer in."""
        check_name("a producer group", asked.producer_group_id, MEMBER_BYTES_MAX)
        check_name("the id of a producer", asked.producer_id, MEMBER_BYTES_MAX)

        def found(timeline: Timeline) -> wire.Session:
            session = Session("producer", asked.topic_id, asked.producer_id, group=asked.producer_group_id)
            entry = self.overseer.find(asked.topic_id)
            told = self._let_in(session)
            # A registry that nobody else has would be told in vain, and each word is a sync.
            is_told = not isinstance(self.node.registry, EmbeddedRegistry)
            said = self.membership.join("producer", entry, session.member, group=session.group, is_told=is_told)
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
        right: Any,
        asked: wire.ProducerHandshake | wire.ConsumerHandshake,
        found: Callable[[Timeline], wire.Session],
    ) -> Answer[wire.Session]:
        self._check_cluster(asked.cluster)
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
            return Answer.of(greet(self.timeline(ident)))
        except Refusal as refusal:
            if of_refusal(refusal).kind != Kind.TOPIC_NOT_FOUND or not self.config.auto_create:
                raise
        made = self.create_topic(caller, ident, TimelineChoices())
        return made.then_make(lambda _: greet(self.timeline(ident)))

    def _let_in(self, session: Session) -> wire.Session:
        brokers = self._preference(session.role, session.topic)
        self.sessions.open(session)
        return wire.Session(session_id=session.token, brokers=brokers)

    def _preference(self, role: Role, topic: str) -> list[wire.Broker]:
        """Return the brokers that a client should try, in order."""
        return [self._shown(each) for each in self.membership.preference(role, topic)]

    def _shown(self, broker: Preferred) -> wire.Broker:
        address = "" if broker.broker == self.broker else broker.address
        return wire.Broker(id=broker.broker, address=address, weight=broker.weight, over_capacity=broker.over_capacity)

    def _address(self) -> str:
        """Return where Flight listens."""
        served = self.node.served.get("flight")
        return served.bound[0].place if served is not None and served.bound else ""

    def _session_over(self, session: Session) -> None:
        if session.role == "producer":
            self.node.health.producer_left(session.token)
            self.membership.leave("producer", session.topic, session.member).then(_told)

    def _suggest(self, role: Role, topic: str, ident: str, target: Preferred) -> None:
        """Pass on to a consumer that another broker has more room for it."""
        timeline = self._timelines.get(topic)
        consumer = timeline.consumers.get(ident) if timeline is not None and role == "consumer" else None
        if timeline is not None and consumer is not None:
            window = self.now_ms() // timeline.choices.time_window_ms + 1
            consumer.say(wire.Down(switch=wire.Switch(broker=self._shown(target), window=window)))

    def unsubscribe(self, caller: Caller, asked: wire.Unsubscribe) -> Answer[wire.Done]:
        """End a session; what a consumer holds stays on lease until that ends."""
        session = self.sessions.find(asked.session_id)
        self.sessions.close(session, "it was unsubscribed")
        return Answer.of(wire.Done())

    def consume(self, caller: Caller, raw: bytes, stream: Stream) -> Consumer:
        """Open the stream of a consumer."""
        return Consumer(self, caller, stream)

    def joined(self, consumer: Consumer) -> None:
        """Hear that a consumer opened its stream."""

    def hydrated(self, consumer: Consumer) -> None:
        """Hear that a consumer has what it had before, and takes part from now on."""
        session = consumer.session
        if session is not None:
            entry = self.overseer.find(session.topic)
            self.membership.join("consumer", entry, session.member, rack=session.rack).then(_told)

    def left(self, consumer: Consumer) -> None:
        """Hear that a consumer's stream is closed."""
        session = consumer.session
        if session is not None:
            self.membership.leave("consumer", session.topic, session.member).then(_told)
            self._grant_all(session.topic)

    def heard(self, consumer: Consumer, room: int) -> None:
        """Hear how much room a consumer has; others may go on, or have to wait, if most have none."""
        session = consumer.session
        if session is not None:
            health = self.node.health
            before = health.may_push(session.topic)
            health.consumer(session.topic, session.member, is_busy=room == 0)
            if health.may_push(session.topic) != before:
                self._grant_all(session.topic)

    def ponged(self, consumer: Consumer, pong: wire.Pong) -> None:
        """Hear what time it is for a consumer."""
        session = consumer.session
        if session is not None:
            self.membership.ponged(
                "consumer", session.topic, session.member, pong.local_ts_ms, float(pong.partner_ts_ms)
            )

    def _grant_all(self, topic: str = "") -> None:
        """Let consumers have what they may have now."""
        for timeline in self.timelines():
            if topic in ("", timeline.topic.name):
                for consumer in list(timeline.consumers.values()):
                    consumer.grant()

    def room(self, consumer: Consumer, room: int) -> int:
        """Return how much a consumer with this much room may be pushed now."""
        session = consumer.session
        return room if session is not None and self.node.health.may_push(session.topic) else 0

    # --- what there is --------------------------------------------------------------------------------------------

    def info(self, caller: Caller, asked: wire.Info) -> Answer[wire.Informed]:
        """Tell what the cluster has, as far as somebody may know of it."""
        self._check_cluster(asked.cluster)
        caller.check_known()
        entries = [entry for entry in self.overseer.topics() if caller.may("see", entry.id)]
        if asked.topic_id:
            entries = [entry for entry in entries if entry.id == asked.topic_id]
            if not entries:
                self.overseer.find(asked.topic_id)
        told = wire.Informed(
            cluster=self.config.cluster,
            brokers=[msgspec.to_builtins(record) for record in self.membership.brokers()],
            topics=[self.described(entry) for entry in entries],
            preference=self._preference("consumer", asked.topic_id),
        )
        return Answer.of(told)

    def described(self, entry: Entry) -> dict[str, Any]:
        """Return what is known of a topic, as JSON has it."""
        told: dict[str, Any] = {
            "id": entry.id,
            "incarnation": entry.incarnation,
            "state": entry.state,
            "created_ms": entry.created_ms,
            "master_broker_id": entry.master,
            "settings": entry.settings,
        }
        timeline = self._timelines.get(entry.id)
        if timeline is not None:
            status = timeline.status()
            told |= {
                "approx_available": status.available,
                "oldest_ms": self.now_ms() - status.oldest_lag_ms if status.available else 0,
                "waiting": timeline.count("waiting"),
                "processing": timeline.count("processing"),
                "consumers": len(timeline.consumers),
            }
        return told

    def count(self, caller: Caller, asked: wire.Count) -> Answer[wire.Counted]:
        """Tell how many messages a topic has."""
        self._check_cluster(asked.cluster)
        caller.check("see", asked.topic_id)
        try:
            status = msgspec.convert(asked.status, Status)
        except msgspec.ValidationError:
            raise Fault(
                Kind.PROTOCOL, f"{asked.status!r} is no state; there are all, available, waiting, processing"
            ) from None
        return Answer.of(wire.Counted(n=self.timeline(asked.topic_id).count(status, asked.from_ms, asked.to_ms)))

    def ping(self, caller: Caller, asked: wire.Ping) -> Answer[wire.Pong]:
        """Tell the time here."""
        if asked.session_id:
            session = self.sessions.find(asked.session_id)
            # How long it was on its way is not known.
            self.membership.told_time(session.role, session.topic, session.member, asked.local_ts_ms)
        return Answer.of(wire.Pong(local_ts_ms=asked.local_ts_ms, partner_ts_ms=self.now_ms()))

    # --- messages -------------------------------------------------------------------------------------------------

    def create_messages(
        self, caller: Caller, publisher: object, asked: wire.CreateMessages, rows: pa.RecordBatch
    ) -> Answer[pa.RecordBatch]:
        """Take in messages of a producer, each stored or refused by itself."""
        session = self.sessions.find(asked.session_id, "producer")
        caller.check("publish", session.topic)
        began_ns = self.node.clock.monotonic()
        self.report.check_producer(session)
        made: Answer[Created]
        try:
            self.report.check("create")
            made = self._create_messages(caller, publisher, session, asked, rows)
        except (Fault, Refusal) as error:
            made = Answer.refused(error)

        def told(created: Created | None, error: Exception | None) -> None:
            self.report.created(session, rows, None if created is None else created.kinds, error, began_ns)

        made.then(told)
        return made.then_make(lambda created: replied(created.ids, created.kinds, None, 1))

    def _create_messages(
        self, caller: Caller, publisher: object, session: Session, asked: wire.CreateMessages, rows: pa.RecordBatch
    ) -> Answer[Created]:
        timeline = self._admitted(session, len(rows))
        now_ms = timeline.now_ms()
        due_ms = whole(rows.column("due_ms"), 0 if asked.relative else now_ms)
        if asked.relative:
            due_ms = np.minimum(due_ms, (1 << 62)) + now_ms
        batch = pa.record_batch(
            {"message_id": rows.column("message_id"), "due_ms": pa.array(due_ms), "body": _bodies(rows.column("body"))}
        )
        return timeline.create(caller, publisher, session.group.encode(), batch, _trace(asked.trace_id))

    def change_messages(self, caller: Caller, asked: wire.Change, rows: pa.RecordBatch) -> Answer[pa.RecordBatch]:
        """Delete, extend or release messages, each by itself."""
        if asked.command not in _OPS:
            raise Fault(
                Kind.UNKNOWN_COMMAND, f"{asked.command!r} is no change; there are delete, extend-lease, release"
            )
        session = self.sessions.find(asked.session_id, None if asked.command == "delete" else "consumer")
        caller.check("receive" if session.role == "consumer" else "publish", session.topic)
        began_ns = self.node.clock.monotonic()
        ids = rows.column("message_id").fill_null(b"")
        done: Answer[leases.Changed]
        try:
            self.report.check(_OPS[asked.command])
            done = self._change_messages(session, asked, ids, rows)
        except (Fault, Refusal) as error:
            done = Answer.refused(error)

        def told(changed: leases.Changed | None, error: Exception | None) -> None:
            kinds = None if changed is None else changed.kinds
            self.report.changed(asked.command, session, len(rows), kinds, error, began_ns)

        done.then(told)
        return done.then_make(lambda found: replied(ids, found.kinds, found.expiration_ms, found.versions))

    def _change_messages(
        self, session: Session, asked: wire.Change, ids: pa.BinaryArray, rows: pa.RecordBatch
    ) -> Answer[leases.Changed]:
        timeline = self._admitted(session, len(rows))
        versions = whole(rows.column("version"))
        if asked.command == "delete":
            return leases.delete(timeline, session, ids, versions)
        now_ms = timeline.now_ms()
        new_ms = whole(rows.column("new_ts_ms"), 0 if asked.relative else now_ms)
        if asked.relative:
            new_ms = np.minimum(new_ms, (1 << 62)) + now_ms
        act = leases.extend if asked.command == "extend-lease" else leases.release
        return act(timeline, session, ids, versions, new_ms)

    def _admitted(self, session: Session, rows: int) -> Timeline:
        """Return the topic of a session that may ask now for so many messages."""
        timeline = self.timeline(session.topic)
        session.spend(timeline.choices.rqs_limit_per_client, self.node.clock.monotonic())
        if rows > self.config.max_batch:
            text = f"{rows} messages at once; timeline.max_batch allows {self.config.max_batch}: divide them"
            raise Fault(Kind.PROTOCOL, text)
        return timeline


def _choices_of(asked: wire.TimelineCreate) -> TimelineChoices:
    given = {name: getattr(asked, said) for said, name in _SETTINGS.items()
             if getattr(asked, said) or (said in _MAY_BE_0 and getattr(asked, said) is not None)}  # fmt: skip
    try:
        return msgspec.convert(given, TimelineChoices)
    except msgspec.ValidationError as error:
        raise Fault(Kind.PROTOCOL, f"these settings cannot be used: {error}") from None


def _settings_of(choices: TimelineChoices) -> dict[str, int | bool | str]:
    """Return all that was chosen, as the overseer keeps and compares it."""
    return {name: getattr(choices, name) for name in _SETTINGS.values()}


def _told(_: None, error: Exception | None) -> None:
    if error is not None:
        _log.warning("what the cluster is told of a client is not in the registry: %s", error)


def _bodies(column: pa.Array) -> pa.BinaryArray:
    return column.fill_null(b"") if column.null_count else column


def _trace(text: str) -> int | None:
    """Return a trace id as the record keeps it: 64 bits, written as a number or as 16 hex digits."""
    try:
        value = int(text) if text.isdecimal() else int(text, 16)
    except ValueError:
        return None
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
