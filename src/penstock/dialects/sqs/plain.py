"""The short way of requests about messages: JSON, of the shape that SDKs send, by somebody who need not be looked at.

A head is one regular expression's work (`http.plain`), and here two more; the rest of the way is that of every other
request. Whatever is unusual (a signature that can be checked, a receive that has to wait) takes the long way.
Invariant: both ways answer the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.callers import Caller
from penstock.dialects.sqs.codec import shapes
from penstock.errors import Elsewhere
from penstock.http import Connection
from penstock.http.app import Done
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.dialects.sqs.api import Api

#: Larger bodies are counted as they come, which is the long way's work.
BODY_BYTES_MAX = 64 * 1024

#: The first header of a name is the one that counts.
_target = re.compile(rb"\r\n(?i:x-amz-target):[ \t]*([^\r]*)").search
_authorization = re.compile(rb"\r\n(?i:authorization):").search
#: A whole signature; another one is the long way's to judge.
_signature = re.compile(
    rb"[ \t]*AWS4-HMAC-SHA256 Credential=([^/,\s]+)/[^/,\s]+/[^/,\s]+/[^/,\s]+/aws4_request, ?"
    rb"SignedHeaders=(?:[^,;\s]+;)*?host(?:;[^,;\s]+)*, ?Signature=[^,\s]+\r\n"
).match

#: Returns what is answered, now or later; None if it shall take the long way.
Carry = Callable[[Caller, Any, Connection], "msgspec.Struct | Answer[Any] | None"]


class Way:
    """One operation, as one connection asks for it."""

    __slots__ = ("_api", "_caller", "_connection", "_operation", "answer", "body_bytes_max", "in_turn")

    def __init__(self, api: Api, operation: Plain, caller: Caller, connection: Connection) -> None:
        self._api = api
        self._operation = operation
        self._caller = caller
        self._connection = connection
        self.body_bytes_max = BODY_BYTES_MAX
        self.answer = b""
        self.in_turn = operation.in_turn

    def take(self, body: bytes, done: Done) -> bool:
        """Carry it out; False if it has to wait for something."""
        api, operation, connection = self._api, self._operation, self._connection
        try:
            answer = operation.carry(self._caller, operation.decode(body), connection)
        except Elsewhere:
            return False
        except Exception as error:
            done(api.refusal(error, operation.name, connection), None)
            return True
        if answer is None:
            return False
        if not isinstance(answer, Answer):
            done(api.wire_of(answer), None)
            return True

        def tell(told: msgspec.Struct | None, error: Exception | None) -> None:
            wire = api.wire_of(told) if told is not None else api.refusal(error, operation.name, connection)
            done(wire, None)

        answer.then(tell)
        return True


class Plain:
    """One operation that has a short way."""

    def __init__(self, name: str, kind: type[msgspec.Struct], carry: Carry, in_turn: bool) -> None:
        self.name = name
        self.decode = msgspec.json.Decoder(kind).decode
        self.carry = carry
        self.in_turn = in_turn


def table(api: Api) -> dict[bytes, Plain]:
    """Return the operations that have a short way."""
    sender, receiver, handles = api.sender, api.receiver, api.handles
    rows: list[tuple[str, type[msgspec.Struct], Carry, bool]] = [
        ("SendMessage", shapes.SendMessage, sender.send, False),
        ("SendMessageBatch", shapes.SendMessageBatch, sender.send_batch, False),
        ("ReceiveMessage", shapes.ReceiveMessage, lambda caller, asked, _: receiver.receive_now(caller, asked), True),
        ("DeleteMessage", shapes.DeleteMessage, lambda caller, asked, _: handles.delete(caller, asked), True),
        (
            "DeleteMessageBatch",
            shapes.DeleteMessageBatch,
            lambda caller, asked, _: handles.delete_batch(caller, asked),
            True,
        ),
    ]
    return {b"AmazonSQS." + row[0].encode(): Plain(*row) for row in rows}


def way(api: Api, head: bytes, caller: Caller, connection: Connection) -> Way | None:
    """Return the short way of a request with this head, if it has one."""
    found = _target(head)
    operation = api.plain.get(found[1].rstrip()) if found is not None else None
    if operation is None or not caller.is_known:
        return None
    shown = _authorization(head)
    if shown is not None and caller is connection.visitor.caller:  # else it showed a token, and is known by that
        signed = _signature(head, shown.end())
        if signed is None or api.gate.access_key(signed[1].decode("latin-1")) is not None:
            return None
    if not api.gate.counts(caller):
        return None
    caller.doing = "POST /"
    return Way(api, operation, caller, connection)
