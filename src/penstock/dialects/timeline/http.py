"""Timelines over HTTP, as JSON: every command, and messages one or a few at a time, so that curl can do all of it.

Invariant: whatever is asked, the answer is a JSON document; with an `error` in it where something went wrong, whose
kind the status follows.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.client.timeline import wire
from penstock.client.timeline.wire import Kind
from penstock.client.wire import encoded
from penstock.dialects.timeline.errors import KINDS, Fault
from penstock.dialects.timeline.poll import Poll
from penstock.errors import REASONS, Refusal
from penstock.http import App, Connection, Request, Response, Route, Routes
from penstock.http.response import CHALLENGE
from penstock.registry.answer import Answer
from penstock.rest.reading import unquoted

if TYPE_CHECKING:
    from penstock.dialects.timeline.service import Service
    from penstock.dialects.timeline.sessions import Session
    from penstock.node.node import Node

V1 = "/v1"
JSON = (b"content-type", b"application/json")
#: A body that is a command, not messages.
COMMAND_BYTES_MAX = 64 << 10
#: A question waits no longer, whatever it asks for.
WAIT_MS_MAX = 60_000
#: No number of a query is longer: 64 bits have 20 digits, and Python does not read thousands of them.
DIGITS_MAX = 20


class MessageIn(msgspec.Struct, forbid_unknown_fields=True):
    """A message to create, or the name of one; which fields count depends on what is asked."""

    id: str | None = None
    due_ms: int | None = None
    #: From now on, by the clock of the node.
    delay_ms: int | None = None
    body: str | None = None
    body_base64: str | None = None
    version: int | None = None
    bucket_id: int | None = None
    new_ts_ms: int | None = None


class MessagesIn(msgspec.Struct, forbid_unknown_fields=True):
    """Messages of one session."""

    session_id: str
    messages: list[MessageIn]
    trace_id: str = ""
    timeout_ms: int = 0


class LeaseIn(msgspec.Struct, forbid_unknown_fields=True):
    """What a consumer without a stream asks for."""

    session_id: str
    limit: int = 1
    wait_ms: int = 0
    #: Pass by what is on lease to it already.
    fresh: bool = False
    trace_id: str = ""
    timeout_ms: int = 0


class Http(App):
    """The application of the listener."""

    def __init__(self, node: Node, service: Service) -> None:
        self._node = node
        self._service = service
        most = min(service.config.max_body_size, node.budget.input.bytes_max)
        topics, topic = f"{V1}/topics", V1 + "/topics/{topic}"
        table = [
            ("GET", f"{V1}/info", Route(self.info, only_reads=True)),
            ("GET", topics, Route(self.info, only_reads=True)),
            ("GET", topic, Route(self.show_topic, only_reads=True)),
            ("PUT", topic, Route(self.create_topic, COMMAND_BYTES_MAX)),
            ("DELETE", topic, Route(self.delete_topic, COMMAND_BYTES_MAX)),
            ("GET", topic + "/count", Route(self.count, only_reads=True)),
            ("POST", f"{V1}/messages", Route(self.create_messages, most)),
            ("POST", f"{V1}/lease", Route(self.lease, COMMAND_BYTES_MAX)),
        ]
        changes = ("delete", "extend-lease", "release")
        table += [
            ("POST", f"{V1}/messages/{each}", Route(partial(self.change_messages, each), most)) for each in changes
        ]
        table += [
            ("POST", f"{V1}/{name}", Route(partial(self.command, name), COMMAND_BYTES_MAX)) for name in service.commands
        ]
        self._routes = Routes(table, head=True)

    # --- App ------------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Give a request its route."""
        request.route, request.names = self._routes.find(request.method, request.path)

    def admit(self, request: Request) -> None:
        """Let those in that may be here."""
        request.caller.enter()

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong and return what is said about it."""
        if isinstance(error, Refusal):
            self._node.count_fault("timeline", error.code, f"{request}: {error}", connection.peer)
        fault = self._service.fault_of(error)
        if fault.kind == Kind.TOPIC_NOT_FOUND and isinstance(error, Refusal) and not hasattr(error, "kind"):
            fault = Fault(Kind.UNKNOWN_COMMAND, str(error))
        return _failed(fault, request)

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self._node.count_fault("timeline", "bad_request", text, connection.peer)

    # --- topics and sessions --------------------------------------------------------------------------------------

    def command(self, name: str, request: Request) -> Answer[Response]:
        """Carry out a command as Flight carries it."""
        return self._act(name, request, request.body or b"{}")

    def _act(self, name: str, request: Request, raw: bytes) -> Answer[Response]:
        return self._service.act(name, request.caller, raw).then_make(_told)

    def info(self, request: Request) -> Answer[Response]:
        """Tell what there is."""
        return self._act("info", request, b"{}")

    def show_topic(self, request: Request) -> Answer[Response]:
        """Tell of one topic."""
        asked = wire.Info(topic_id=unquoted(request.names["topic"]))
        request.caller.check("see", asked.topic_id)
        return self._service.info(request.caller, asked).then_make(lambda told: _document(told.topics[0]))

    def create_topic(self, request: Request) -> Answer[Response]:
        """Make a topic, or find it with the same settings."""
        return self._act("create", request, self._named(request, "id"))

    def delete_topic(self, request: Request) -> Answer[Response]:
        """Drop a topic."""
        return self._act("delete", request, self._named(request, "id"))

    def count(self, request: Request) -> Answer[Response]:
        """Tell how many messages a topic has."""
        document: dict[str, object] = {}
        for part in request.query.decode("latin-1").split("&") if request.query else ():
            name, _, value = part.partition("=")
            is_number = value.isdecimal() and len(value) <= DIGITS_MAX
            document[name] = int(value) if is_number else unquoted(value)
        document["topic_id"] = unquoted(request.names["topic"])
        return self._act("count", request, msgspec.json.encode(document))

    def _named(self, request: Request, field: str) -> bytes:
        """Return a request's document with the name that stands in its path."""
        given = _read(request.body, dict[str, Any]) if request.body else {}
        return msgspec.json.encode({**given, field: unquoted(request.names["topic"])})

    # --- messages -------------------------------------------------------------------------------------------------

    def create_messages(self, request: Request) -> Answer[Response]:
        """Create messages, each stored or refused by itself."""
        asked = _read(request.body, MessagesIn)
        now_ms = self._service.now_ms()
        rows = pa.record_batch(
            [
                pa.array([_bytes(each.id) for each in asked.messages], pa.binary()),
                pa.array([_time(each.due_ms, each.delay_ms, now_ms) for each in asked.messages], pa.uint64()),
                pa.array([_body(each) for each in asked.messages], pa.binary()),
            ],
            wire.CREATED,
        )
        words = wire.CreateMessages(session_id=asked.session_id, trace_id=asked.trace_id, timeout_ms=asked.timeout_ms)
        self._service.sessions.find(asked.session_id, "producer")  # another node's is brought there, with its body
        request.let_go()
        made = self._service.create_messages(request.caller, request.connection, words, rows)
        return made.then_make(lambda batch: _replies(batch, "create-messages"))

    def change_messages(self, command: str, request: Request) -> Answer[Response]:
        """Delete, extend or release messages, each by itself."""
        asked = _read(request.body, MessagesIn)
        now_ms = self._service.now_ms()
        rows = pa.record_batch(
            [
                pa.array([_bytes(each.id) for each in asked.messages], pa.binary()),
                pa.array([_small(each.version) for each in asked.messages], pa.uint16()),
                pa.array([_small(each.bucket_id) for each in asked.messages], pa.uint16()),
                pa.array([_time(each.new_ts_ms, each.delay_ms, now_ms) for each in asked.messages], pa.uint64()),
            ],
            wire.CHANGED,
        )
        words = wire.Change(
            session_id=asked.session_id, command=command, trace_id=asked.trace_id, timeout_ms=asked.timeout_ms
        )
        done = self._service.change_messages(request.caller, words, rows)
        return done.then_make(lambda batch: _replies(batch, command))

    def lease(self, request: Request) -> Answer[Response]:
        """Lease messages to a consumer that has no stream."""
        asked = _read(request.body, LeaseIn)
        session = self._service.sessions.find(asked.session_id, "consumer")
        request.caller.check("receive", session.topic)
        report = self._service.report
        try:
            poll = self._poll(session, asked)
            request.on_gone(poll.give_up)
            wait_ms = min(asked.wait_ms, asked.timeout_ms) if asked.timeout_ms > 0 else asked.wait_ms
            found = poll.begin(wait_ms, fresh=asked.fresh)
        except (Fault, Refusal) as error:
            found = Answer.refused(error)
        found.then(lambda _, error: report.consumed(session.topic, error))
        return found.then_make(_leases)

    def _poll(self, session: Session, asked: LeaseIn) -> Poll:
        timeline = self._service.admitted(session)
        if not 1 <= asked.limit <= self._service.config.max_batch or not 0 <= asked.wait_ms <= WAIT_MS_MAX:
            most = self._service.config.max_batch
            raise Fault(Kind.PROTOCOL, f"limit is 1 to {most}, and wait_ms 0 to {WAIT_MS_MAX}")
        self._service.report.check("lease")
        return Poll(self._service.report, timeline, session, asked.limit)


def _told(reply: Any) -> Response:
    error = reply.error
    status = _status(error) if error is not None and error.message else 200
    return Response(encoded(reply), _headers(status), status)


def _status(error: wire.Error) -> int:
    """Return what HTTP calls an error: of a refusal by the core, what it calls that everywhere."""
    reason = REASONS.get(error.details.get("code", ""))
    return reason.http if reason is not None and error.kind == Kind.TOPIC else KINDS[error.kind].status


def _failed(fault: Fault, op: str) -> Response:
    return Response(encoded(wire.Done(error=fault.error(op))), _headers(fault.status), fault.status)


def _document(content: object) -> Response:
    return Response(msgspec.json.encode(content), (JSON,))


def _headers(status: int) -> tuple[tuple[bytes, bytes], ...]:
    return (JSON, CHALLENGE) if status == 401 else (JSON,)


def _read(raw: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Fault(Kind.PROTOCOL, f"the body is not what is asked for: {error}") from None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _time(at_ms: int | None, after_ms: int | None, now_ms: int) -> int | None:
    if at_ms is not None and after_ms is not None:
        raise Fault(Kind.PROTOCOL, "a time is said once: as a time, or as delay_ms from now on")
    time_ms = at_ms if after_ms is None else now_ms + after_ms
    if time_ms is not None and not 0 <= time_ms < 1 << 64:
        raise Fault(Kind.TIME_OUT_OF_RANGE, f"{time_ms} is no time in milliseconds since 1970")
    return time_ms


def _small(value: int | None) -> int | None:
    if value is not None and not 0 <= value <= 0xFFFF:
        raise Fault(Kind.PROTOCOL, f"{value} does not fit into 16 bits")
    return value


def _body(message: MessageIn) -> bytes:
    if message.body_base64 is None:
        return (message.body or "").encode("utf-8", "surrogatepass")
    if message.body is not None:
        raise Fault(Kind.PROTOCOL, "a body is said once: as body, or as body_base64")
    try:
        return b64decode(message.body_base64, validate=True)
    except BadBase64:
        raise Fault(Kind.PROTOCOL, "body_base64 is not Base64") from None


def _replies(batch: pa.RecordBatch, op: str) -> Response:
    told = []
    for row in batch.to_pylist():
        kind = row["kind"]
        one: dict[str, object] = {"id": _text(row["message_id"])}
        if kind:
            known = KINDS[kind]
            one["error"] = {"kind": kind, "message": row["text"], "should_retry": known.should_retry}
        one |= {name: row[name] for name in ("expiration_ts_ms", "version") if row[name] is not None}
        told.append(one)
    return _document({"messages": told})


def _leases(batch: pa.RecordBatch) -> Response:
    told = []
    for row in batch.to_pylist():
        raw = row.pop("body")
        row |= {name: _text(row[name]) for name in ("consumer_id", "message_id", "producer_group_id")}
        try:
            row["body"] = raw.decode()
        except UnicodeDecodeError:
            row["body_base64"] = b64encode(raw).decode()
        told.append(row)
    return _document({"messages": told})


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
