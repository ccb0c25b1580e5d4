"""The application behind the listener: a request's operation, its encoding, who asks, and the answer.

Two encodings of one table of operations: JSON, where a header names the operation, and the older form of queries, where
a parameter does. An answer is in the encoding of its request, and so is what goes wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import msgspec

from penstock.callers import Caller
from penstock.dialects.sqs import plain
from penstock.dialects.sqs.codec import query, shapes
from penstock.dialects.sqs.faults import Fault, missing
from penstock.dialects.sqs.handles import Handles
from penstock.dialects.sqs.names import Names
from penstock.dialects.sqs.operation import Asked, Operation
from penstock.dialects.sqs.queues import Queues
from penstock.dialects.sqs.receiver import Receiver
from penstock.dialects.sqs.sender import Sender
from penstock.dialects.sqs.signers import Signers
from penstock.dialects.sqs.sns.endpoints import Allowed
from penstock.dialects.sqs.sns.operations import Sns
from penstock.dialects.sqs.sns.seals import CERTIFICATES
from penstock.dialects.sqs.tasks import Tasks
from penstock.errors import Elsewhere
from penstock.http import App, Connection, Request, Response, Route, Shortcut
from penstock.node.node import Node
from penstock.registry.answer import Answer

SQS = "http://queue.amazonaws.com/doc/2012-11-05/"

_JSON = (b"content-type", b"application/x-amz-json-1.0")
_XML = (b"content-type", b"text/xml")
_PEM = (b"content-type", b"application/x-pem-file")
_TARGET = b"AmazonSQS."
_MISSING = re.compile(r"missing required field `(\w+)`").search
_FORM = b"application/x-www-form-urlencoded"


T = TypeVar("T")


class Voice(Protocol):
    """One encoding."""

    def read(self, request: Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
        """Return what a request says."""

    def answer(self, operation: str, answer: msgspec.Struct) -> Response:
        """Return an answer's bytes."""

    def refused(self, fault: Fault) -> Response:
        """Return in bytes why not."""


class Json:
    """AWS JSON 1.0."""

    def __init__(self) -> None:
        self._decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}
        self.encode = msgspec.json.Encoder().encode

    def read(self, request: Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
        """Return what a request says."""
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.json.Decoder(kind)
        found: msgspec.Struct = decoder.decode(request.body or b"{}")
        return found

    def answer(self, operation: str, answer: msgspec.Struct) -> Response:
        """Return an answer's bytes."""
        return Response(self.encode(answer), (_JSON, _request_id()))

    def refused(self, fault: Fault) -> Response:
        """Return in bytes why not."""
        content = self.encode({"__type": f"com.amazonaws.sqs#{fault.name}", "message": str(fault)})
        side = "Sender" if fault.kind.is_sender else "Receiver"
        old = (b"x-amzn-query-error", f"{fault.kind.code};{side}".encode())
        return Response(content, (_JSON, old, _request_id()), fault.kind.status)


class Query:
    """Parameters and XML."""

    def __init__(self, namespace: str = SQS, *, flat: bool = True) -> None:
        self._namespace = namespace
        self._flat = flat
        self._given: dict[str, str] = {}

    def in_namespace(self, namespace: str) -> Query:
        """Return the same of a service that has another namespace, and writes lists in full."""
        other = Query(namespace, flat=False)
        other._given = self._given
        return other

    @property
    def names_topic(self) -> bool:
        """Whether the parameters are about a topic of SNS."""
        return "TopicArn" in self._given

    def action(self, request: Request) -> str:
        """Return which operation is asked for."""
        if not (request.header(b"content-type").startswith(_FORM) or request.method == "GET"):
            raise Fault("UnknownOperationException", "Send AWS JSON 1.0 with X-Amz-Target, or a form with Action.")
        self._given = query.parameters(request.query, request.body)
        if "Action" not in self._given:
            raise missing("Action")
        return self._given["Action"]

    def read(self, request: Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
        """Return what a request says; its path may be the queue's address."""
        given = {name: value for name, value in self._given.items() if not name.startswith("X-Amz-")}
        if "queue_url" in kind.__struct_fields__ and "QueueUrl" not in given and request.path.strip("/"):
            given["QueueUrl"] = request.path
        return query.read(given, kind)

    def answer(self, operation: str, answer: msgspec.Struct) -> Response:
        """Return an answer's bytes."""
        header = _request_id()
        content = query.written(operation, answer, self._namespace, header[1].decode(), flat=self._flat)
        return Response(content, (_XML, header))

    def refused(self, fault: Fault) -> Response:
        """Return in bytes why not."""
        header = _request_id()
        code = fault.kind.code if self._flat else fault.sns_code
        content = query.refused(fault, code, self._namespace, header[1].decode())
        return Response(content, (_XML, header), fault.kind.status)


class Api(App):
    """SQS over HTTP."""

    starts = (b"POST / HTTP/1.1\r\n",)
    takes_signatures = True

    def __init__(self, node: Node, names: Names, body_bytes_max: int, allowed: Allowed) -> None:
        self._node = node
        self.gate = node.gate
        self._names = names
        self._signers = Signers(node)
        self._json = Json()
        too_big = Fault("RequestEntityTooLarge", f"A request may have {body_bytes_max} bytes.")
        self._route = Route(self._handle, body_bytes_max, too_big)
        self._link = Route(self._handle, body_bytes_max, too_big, only_reads=True)
        self.queues = Queues(node, names)
        self.sender = Sender(self.queues)
        self.receiver = Receiver(self.queues)
        self.handles = Handles(self.queues)
        self.sns = Sns(self.queues, allowed)
        self.operations = {
            **self._operations(Tasks(self.queues)),
            **self.sns.operations(),
        }
        self._of_topics = self.sns.of_topics()
        #: Those that have a short way, by the header that names them.
        self.plain = plain.table(self)

    def _operations(self, tasks: Tasks) -> dict[str, Operation]:
        queues, sender, receiver, handles = self.queues, self.sender, self.receiver, self.handles
        """Return the table."""
        return {
            "CreateQueue": Operation(shapes.CreateQueue, lambda a: queues.create(a.caller, a.params, a.url_of)),
            "GetQueueUrl": Operation(shapes.GetQueueUrl, lambda a: queues.url(a.caller, a.params, a.url_of)),
            "ListQueues": Operation(shapes.ListQueues, lambda a: queues.list(a.caller, a.params, a.url_of)),
            "ListDeadLetterSourceQueues": Operation(
                shapes.ListSources, lambda a: queues.sources(a.caller, a.params, a.url_of)
            ),
            "GetQueueAttributes": Operation(shapes.GetQueueAttributes, lambda a: queues.attributes(a.caller, a.params)),
            "SetQueueAttributes": Operation(
                shapes.SetQueueAttributes, lambda a: queues.set_attributes(a.caller, a.params)
            ),
            "DeleteQueue": Operation(shapes.ByUrl, lambda a: queues.delete(a.caller, a.params)),
            "PurgeQueue": Operation(shapes.ByUrl, lambda a: queues.purge(a.caller, a.params)),
            "ListQueueTags": Operation(shapes.ByUrl, lambda a: queues.tags(a.caller, a.params)),
            "AddPermission": Operation(shapes.AddPermission, lambda a: queues.add_permission(a.caller, a.params)),
            "RemovePermission": Operation(
                shapes.RemovePermission, lambda a: queues.drop_permission(a.caller, a.params)
            ),
            "TagQueue": Operation(shapes.TagQueue, lambda a: queues.tag(a.caller, a.params)),
            "UntagQueue": Operation(shapes.UntagQueue, lambda a: queues.untag(a.caller, a.params)),
            "StartMessageMoveTask": Operation(shapes.StartMessageMoveTask, lambda a: tasks.start(a.caller, a.params)),
            "CancelMessageMoveTask": Operation(
                shapes.CancelMessageMoveTask, lambda a: tasks.cancel(a.caller, a.params)
            ),
            "ListMessageMoveTasks": Operation(shapes.ListMessageMoveTasks, lambda a: tasks.list(a.caller, a.params)),
            "SendMessage": Operation(
                shapes.SendMessage, lambda a: sender.send(a.caller, a.params, a.request.connection)
            ),
            "SendMessageBatch": Operation(
                shapes.SendMessageBatch, lambda a: sender.send_batch(a.caller, a.params, a.request.connection)
            ),
            "ReceiveMessage": Operation(
                shapes.ReceiveMessage, lambda a: receiver.receive(a.caller, a.params, a.request)
            ),
            "DeleteMessage": Operation(shapes.DeleteMessage, lambda a: handles.delete(a.caller, a.params)),
            "DeleteMessageBatch": Operation(
                shapes.DeleteMessageBatch, lambda a: handles.delete_batch(a.caller, a.params)
            ),
            "ChangeMessageVisibility": Operation(
                shapes.ChangeMessageVisibility, lambda a: handles.change(a.caller, a.params)
            ),
            "ChangeMessageVisibilityBatch": Operation(
                shapes.ChangeMessageVisibilityBatch, lambda a: handles.change_batch(a.caller, a.params)
            ),
        }

    # --- App ------------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Take every request there is: the path is a queue's address, or nothing."""
        request.route = self._link if request.method == "GET" and _is_link(request) else self._route

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong before it was known in which encoding, and say it in JSON."""
        return self._refused(self._json, error, request, connection)

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self._node.count_fault("sqs", "bad_request", text, connection.peer)

    def shortcut(
        self, method: bytes, target: bytes, head: bytes, caller: Caller, connection: Connection
    ) -> Shortcut | None:
        """Return the short way of requests about messages."""
        return plain.way(self, head, caller, connection)

    # --- the short way --------------------------------------------------------------------------------------------

    def wire_of(self, answer: msgspec.Struct) -> bytes:
        """Return the bytes of an answer in JSON, as `Response.wire` would."""
        content = self._json.encode(answer)
        return _WIRE % (_DRAWN, next(_asked), len(content), content)

    def refusal(self, error: BaseException | None, name: str, connection: Connection) -> bytes:
        """Return in bytes why an operation was refused."""
        return self._refused(self._json, error or Fault("InternalFailure", ""), name, connection).wire()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _opened(self, operation: Operation, voice: Voice, request: Request) -> tuple[Caller, msgspec.Struct]:
        """Return who asks, and for what; refuse those who must say who they are and did not."""
        if operation.is_open is not None and not request.caller.is_known and not _is_signed(request):
            params = voice.read(request, operation.kind)
            if operation.is_open(params):
                return request.caller, params
        caller = request.caller = self._signers.caller(request)  # whoever brings it to another node tells whose it is
        caller.enter()
        return caller, voice.read(request, operation.kind)

    def _certificate(self, request: Request) -> Answer[Response]:
        def shown(pem: bytes | None) -> Response:
            if pem is None:
                raise Fault("NotFound", "There is no such certificate.")
            return Response(pem, (_PEM,))

        return self._told(self._json, "certificate", request, self.sns.seals.certificate(request.path), shown)

    def _handle(self, request: Request) -> Response | Answer[Response]:
        if request.method == "GET" and request.path.startswith(CERTIFICATES):
            return self._certificate(request)
        target, old = request.header(b"x-amz-target"), Query()
        voice: Voice = self._json if target else old
        name = "request"
        try:
            name = target.removeprefix(_TARGET).decode("latin-1") if target else old.action(request)
            operation = (self._of_topics.get(name) if old.names_topic else None) or self.operations.get(name)
            if operation is None:
                raise Fault("InvalidAction", f"The action {name[:100]} is not valid for this endpoint.")
            if operation.namespace:
                voice = old.in_namespace(operation.namespace)
            caller, params = self._opened(operation, voice, request)
            done = operation.carry(Asked(request, caller, params, self._names))
        except Elsewhere:  # the kit brings it there
            raise
        except Exception as error:
            return self._refused(voice, error, name, request.connection)
        if not isinstance(done, Answer):
            return voice.answer(name, done)
        return self._told(voice, name, request, done, partial(voice.answer, name))

    def _told(
        self, voice: Voice, name: str, request: Request, done: Answer[T], shown: Callable[[T], Response]
    ) -> Answer[Response]:
        """Answer with what will be known later, or why not."""
        told: Answer[Response] = Answer()

        def tell(answer: Response | None, error: Exception | None) -> None:
            if isinstance(error, Elsewhere):
                told.refuse(error)
                return
            if answer is None:
                answer = self._refused(voice, error or Fault("InternalFailure", ""), name, request.connection)
            told.give(answer)

        done.then_make(shown).then(tell)
        return told

    def _refused(self, voice: Voice, error: BaseException, request: str, connection: Connection) -> Response:
        fault = _fault(error)
        if fault.name == "InternalFailure":
            self._node.report_bug(f"sqs {request}", error)
        else:
            self._node.count_fault("sqs", fault.kind.code, f"{request}: {fault}", connection.peer)
        return voice.refused(fault)


def _fault(error: BaseException) -> Fault:
    if isinstance(error, msgspec.ValidationError):
        found = _MISSING(str(error))
        return missing(found[1]) if found is not None else Fault("SerializationException", str(error))
    if isinstance(error, (msgspec.DecodeError, UnicodeDecodeError, RecursionError)):
        return Fault("SerializationException", f"The request cannot be read: {error}")
    return Fault.of(error)


#: Ids of requests: UUIDs in form, drawn once and counted on.
_DRAWN = str(uuid4())[:-12].encode("ascii")
_asked = count(uuid4().int & 0xFFFF_FFFF)
#: A good answer in JSON: its id in two parts, its length, and itself.
_WIRE = b"HTTP/1.1 200 OK\r\n%b: %b\r\nx-amzn-requestid: %%b%%012x\r\ncontent-length: %%d\r\n\r\n%%b" % _JSON


def _request_id() -> tuple[bytes, bytes]:
    return b"x-amzn-requestid", b"%b%012x" % (_DRAWN, next(_asked))


def _is_signed(request: Request) -> bool:
    return bool(request.header(b"authorization")) or b"X-Amz-Signature" in request.query


def _is_link(request: Request) -> bool:
    """Tell whether a page from elsewhere may lead to a request: it changes nothing, or holds what only one knows."""
    try:
        action = query.parameters(request.query, b"").get("Action", "")
    except Fault:
        return False
    return action.startswith(("List", "Get")) or action in ("ConfirmSubscription", "Unsubscribe")
