"""The commands of timelines, one method each, whoever carries them: Flight, HTTP, a test. No sockets.

A command takes a document (and rows) and answers with one; what goes wrong is an `Error` in it. Those for topics are
with the topics, those of who comes and goes with the reception.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import numpy as np
import pyarrow as pa

import penstock
from penstock.callers import Caller
from penstock.client.timeline import wire
from penstock.client.timeline.wire import Kind
from penstock.client.wire import decoded, encoded
from penstock.clock import MILLISECOND
from penstock.cluster.drift import is_active
from penstock.cluster.entries import Entry
from penstock.cluster.health import Op
from penstock.cluster.overseer import Overseer
from penstock.cluster.places import name_of
from penstock.cluster.records import BrokerRecord
from penstock.dialects.timeline import leases
from penstock.dialects.timeline.config import TimelineConfig
from penstock.dialects.timeline.counting import Status
from penstock.dialects.timeline.errors import Fault, of_refusal
from penstock.dialects.timeline.names import check_cluster
from penstock.dialects.timeline.reception import Reception
from penstock.dialects.timeline.report import Report
from penstock.dialects.timeline.sessions import Session, Sessions
from penstock.dialects.timeline.storage import Storage
from penstock.dialects.timeline.talks import change_talk, create_talk, replied, whole
from penstock.dialects.timeline.timeline import Created, Timeline, Wanted
from penstock.dialects.timeline.topics import Topics
from penstock.errors import Elsewhere, Refusal
from penstock.node.membership import Habits, Membership
from penstock.offers import Action, Offer, Opening
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node

_OPS: Mapping[str, Op] = {"delete": "delete", "extend-lease": "extend", "release": "release"}

#: A client that says that it waited longer is not believed.
RTT_MS_MAX = 60_000
#: No answer is waited for longer because somebody says so.
TIMEOUT_MS_MAX = 24 * 3600 * 1000

T = TypeVar("T")


class _Named(msgspec.Struct):
    topic_id: str = ""
    id: str = ""


class Service:
    """Timelines on one node."""

    def __init__(self, node: Node, config: Config, random: Random | None = None) -> None:
        random = random or Random(secrets.randbits(256))
        self.node = node
        self.config = config.of(TimelineConfig)
        broker = self.config.broker or name_of(node.config.cluster)
        share = node.share
        own, is_there = ("", None) if share is None else (share.name, lambda name: bool(share.listeners(name)))
        self.sessions = Sessions(node.clock, self.config.max_sessions, own, is_there)
        self.storage = Storage(node)
        self.overseer = Overseer(node.registry, node.clock, random, self.config.cluster, broker, self.storage)
        habits = Habits(self.config.clients_preferred, self.config.clients_most, self.config.clients_strict)
        #: What the node is to other brokers, and what it counts.
        self.membership = Membership(node, self.overseer, penstock.__version__, self._address, habits)
        self.topics = Topics(node, self.overseer, self.storage, self.sessions, self.membership.tables, random)
        self.report = Report(node, self.topics, self.sessions, self.membership.figures)
        self.reception = Reception(node, self.config, self.topics, self.sessions, self.membership, self.report)
        self.commands: Mapping[str, tuple[type, Callable[[Caller, Any], Answer[Any]]]] = {
            "create": (wire.TimelineCreate, self.topics.create),
            "delete": (wire.TimelineDeleteTopic, self.topics.delete),
            "redeal": (wire.Redeal, self.topics.redeal),
            "producer-handshake": (wire.ProducerHandshake, self.reception.greet_producer),
            "consumer-handshake": (wire.ConsumerHandshake, self.reception.greet_consumer),
            "info": (wire.Info, self.info),
            "ping": (wire.Ping, self.ping),
            "count": (wire.Count, self.count),
            "unsubscribe": (wire.Unsubscribe, self.reception.unsubscribe),
        }

    def offer(self) -> Offer:
        """Return what Flight carries."""
        actions = {name: self._action(name) for name in self.commands}
        exchanges = {
            "create-messages": Opening(wire.REPLIED, lambda caller, raw, way: create_talk(self, caller, raw, way)),
            "change": Opening(wire.REPLIED, lambda caller, raw, way: change_talk(self, caller, raw, way)),
            "consume": Opening(wire.PUSHED, self.reception.consume),
        }
        return Offer(actions, exchanges)

    def close(self) -> Answer[None]:
        """Serve nobody any more; answered once the cluster knows."""
        goodbye = self.reception.close()
        self.topics.close()
        return goodbye

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

    def _address(self) -> str:
        """Return where Flight listens."""
        served = self.node.served.get("flight")
        return served.bound[0].place if served is not None and served.bound else ""

    def _action(self, name: str) -> Action:
        return lambda caller, raw: self.act(name, caller, raw).then_make(encoded)

    def act(self, name: str, caller: Caller, raw: bytes) -> Answer[Any]:
        """Carry out a command by its name; answers with one of its documents, or refuses what another node has."""
        known = self.commands.get(name)
        if known is None:
            fault = Fault(Kind.UNKNOWN_COMMAND, f"there is no command {name!r}; there are {', '.join(self.commands)}")
            return Answer.of(wire.Done(error=fault.error(name)))
        takes, method = known
        reply = wire.ACTIONS[name][1]
        try:
            document: Any = decoded(raw, takes)
            asked = self._in_time(method(caller, document), document.timeout_ms)
        except Exception as error:
            asked = Answer.refused(error)
        answer: Answer[Any] = Answer()
        topic = self._topic_in(raw)

        def told(value: Any, error: Exception | None) -> None:
            if isinstance(error, Elsewhere):
                answer.refuse(error)
                return
            is_known = topic in self.topics.by_name or (error is None and name in ("create", "delete"))
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
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ""
        return named.topic_id or named.id

    # --- what there is --------------------------------------------------------------------------------------------

    def info(self, caller: Caller, asked: wire.Info) -> Answer[wire.Informed]:
        """Tell what the cluster has, as far as somebody may know of it."""
        check_cluster(asked.cluster, self.config.cluster)
        caller.check_known()
        if asked.topic_id and caller.may("see", asked.topic_id):
            self.topics.check_here(asked.topic_id)
        entries = [entry for entry in self.overseer.topics() if caller.may("see", entry.id)]
        if asked.topic_id:
            entries = [entry for entry in entries if entry.id == asked.topic_id]
            if not entries:
                self.overseer.find(asked.topic_id)
        told = wire.Informed(
            cluster=self.config.cluster,
            brokers=[_shown(record) for record in self.membership.brokers()],
            topics=[self.described(entry) for entry in entries],
            preference=self.reception.preference("consumer", asked.topic_id),
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
        timeline = self.topics.by_name.get(entry.id)
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
        check_cluster(asked.cluster, self.config.cluster)
        caller.check("see", asked.topic_id)
        try:
            status = msgspec.convert(asked.status, Status)
        except msgspec.ValidationError:
            raise Fault(
                Kind.PROTOCOL, f"{asked.status!r} is no state; there are all, available, waiting, processing"
            ) from None
        timeline, began_ns = self.topics.find(asked.topic_id), self.node.clock.monotonic()
        if asked.from_ms is None and asked.to_ms is None:
            counted = Answer.of(timeline.count(status))
        else:
            counted = timeline.count_between(status, asked.from_ms, asked.to_ms)
        counted.then(lambda _, error: self.report.counted(asked.topic_id, status, began_ns, error))
        return counted.then_make(lambda total: wire.Counted(n=total))

    def ping(self, caller: Caller, asked: wire.Ping) -> Answer[wire.Pong]:
        """Tell the time here."""
        if asked.session_id:
            session = self.sessions.find(asked.session_id)
            timeline = self.topics.by_name.get(session.topic)
            if timeline is not None:
                session.spend(timeline.choices.rqs_limit_per_client, self.node.clock.monotonic())
            # How long it was on its way is not known; how long the last one took it may say.
            if 0 < asked.rtt_ms <= RTT_MS_MAX:
                self.membership.figures.latency(session.role, session.topic, asked.rtt_ms / 1000)
            self.membership.told_time(session.role, session.topic, session.member, asked.local_ts_ms, caller.voice)
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
        replies = made.then_make(lambda created: replied(created.ids, created.kinds, 0, 1))
        return self._in_time(replies, asked.timeout_ms)

    def _create_messages(
        self, caller: Caller, publisher: object, session: Session, asked: wire.CreateMessages, rows: pa.RecordBatch
    ) -> Answer[Created]:
        timeline = self.admitted(session, len(rows))
        now_ms = timeline.now_ms()
        due_ms = whole(rows.column("due_ms"), 0 if asked.relative else now_ms)
        if asked.relative:
            due_ms = np.minimum(due_ms, (1 << 62)) + now_ms
        wanted = Wanted(rows.column("message_id"), due_ms, _filled(rows.column("body")))
        return timeline.create(caller, publisher, session.group.encode(), wanted, _trace(asked.trace_id))

    def change_messages(self, caller: Caller, asked: wire.Change, rows: pa.RecordBatch) -> Answer[pa.RecordBatch]:
        """Delete, extend or release messages, each by itself."""
        if asked.command not in _OPS:
            raise Fault(
                Kind.UNKNOWN_COMMAND, f"{asked.command!r} is no change; there are delete, extend-lease, release"
            )
        session = self.sessions.find(asked.session_id, None if asked.command == "delete" else "consumer")
        caller.check("receive" if session.role == "consumer" else "publish", session.topic)
        began_ns = self.node.clock.monotonic()
        ids = _filled(rows.column("message_id"))
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
        replies = done.then_make(lambda found: replied(ids, found.kinds, found.expiration_ms, found.versions))
        return self._in_time(replies, asked.timeout_ms)

    def _change_messages(
        self, session: Session, asked: wire.Change, ids: pa.BinaryArray, rows: pa.RecordBatch
    ) -> Answer[leases.Changed]:
        timeline = self.admitted(session, len(rows))
        versions = whole(rows.column("version"))
        keeping = timeline.subscription.keeping
        if asked.command == "delete":
            return keeping.after(leases.delete(timeline, session, ids, versions))
        now_ms = timeline.now_ms()
        new_ms = whole(rows.column("new_ts_ms"), 0 if asked.relative else now_ms)
        if asked.relative:
            new_ms = np.minimum(new_ms, (1 << 62)) + now_ms
        act = leases.extend if asked.command == "extend-lease" else leases.release
        return keeping.after(act(timeline, session, ids, versions, new_ms))

    def admitted(self, session: Session, rows: int = 0) -> Timeline:
        """Return the topic of a session that may ask now for so many messages."""
        timeline = self.topics.find(session.topic)
        session.spend(timeline.choices.rqs_limit_per_client, self.node.clock.monotonic())
        if rows > self.config.max_batch:
            text = f"{rows} messages at once; timeline.max_batch allows {self.config.max_batch}: divide them"
            raise Fault(Kind.PROTOCOL, text)
        return timeline

    def _in_time(self, answer: Answer[T], timeout_ms: int) -> Answer[T]:
        """Return an answer, or after so long that it takes longer; what was asked for goes on all the same."""
        if timeout_ms <= 0 or answer.is_given:
            return answer
        timed: Answer[T] = Answer()
        text = f"there is no answer after {timeout_ms} ms; what was asked for may still be done"
        at_ns = self.node.clock.monotonic() + min(timeout_ms, TIMEOUT_MS_MAX) * MILLISECOND
        timer = self.node.clock.call_at(at_ns, lambda: timed.refuse(Fault(Kind.BROKER_TIMEOUT, text)))

        def told(value: T | None, error: Exception | None) -> None:
            timer.cancel()
            if timed.is_given:
                return
            if error is None:
                timed.give(cast(T, value))
            else:
                timed.refuse(error)

        answer.then(told)
        return timed


def _shown(record: BrokerRecord) -> dict[str, Any]:
    """Return a broker as clients are told of it."""
    drifting = any(is_active(offset_ms) for offset_ms in (record.drift_ms, record.registry_drift_ms))
    return {**msgspec.to_builtins(record), "drifting": drifting}


def _filled(column: pa.Array) -> pa.BinaryArray:
    return column.fill_null(b"") if column.null_count else column


def _trace(text: str) -> int | None:
    """Return a trace id as the record keeps it: 64 bits, written as a number or as 16 hex digits."""
    try:
        value = int(text) if text.isdecimal() else int(text, 16)
    except ValueError:
        return None
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
