"""Queues over HTTP as a client asks for them: requests out, answers in, receipts taken apart.

Written apart from the node's own codecs, so that each checks the other.
"""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64decode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from struct import Struct
from typing import Any, NamedTuple, Protocol

from penstock.clock import MILLISECOND, SECOND
from tests.simulation.extras import Extras
from tests.simulation.wire import PLAIN, RESPONSE, Command, Frame

#: Id, version, incarnation, and a sum that is the node's own affair.
_HANDLE = Struct(">QIQI")

Entry = dict[str, Any]


@dataclass(slots=True)
class Ask(Command):
    """One request: its bytes, and what they say."""

    #: Receipts that it answers for, or ids as the service shows them.
    handles: list[str] = field(default_factory=list)
    #: How long messages shall be invisible; None where it does not say.
    seconds: int | None = None
    #: A client whose answer was lost may ask the same again: nothing is done twice.
    again: bool = False
    #: Idempotence keys of the bodies.
    dedups: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Reply(Frame):
    """One answer."""

    status: int = 0

    @property
    def json(self) -> Any:
        """What it says."""
        return json.loads(self.data) if self.data else None


class ReplyReader:
    """Answers from a stream in any cuts."""

    def __init__(self) -> None:
        self.form = PLAIN
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[Frame, int]]:
        """Return the answers that are whole now, each with how many of the new bytes it needed."""
        offset, at, out = -len(self._rest), 0, []
        data = self._rest + data
        while (end := data.find(b"\r\n\r\n", at)) >= 0:
            first, *lines = data[at:end].decode("latin-1").split("\r\n")
            status = int(first.split(" ")[1])
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            start = end + 4
            stop = start + int(headers.get("content-length", "0"))
            if stop > len(data):
                break
            out.append((Reply(RESPONSE, data[start:stop], status=status), stop + offset))
            at = stop
        self._rest = data[at:]
        return out  # type: ignore[return-value]


class Receipt(NamedTuple):
    """What a receipt handle says."""

    id: int
    version: int
    incarnation: int


def receipt(handle: str) -> Receipt:
    """Take a receipt handle apart."""
    return Receipt(*_HANDLE.unpack(urlsafe_b64decode(handle))[:3])


def shown_in(message_id: str) -> int:
    """Return the id that a message's UUID shows."""
    number = int(message_id.replace("-", ""), 16)
    return (number >> 64 & 1) << 62 | number & (1 << 62) - 1


def body_of(entry: Entry) -> bytes:
    """Return the body that a message of any service shows, which may be no text."""
    if "body_base64" in entry:
        return b64decode(entry["body_base64"])
    text: str = entry["Body"] if "Body" in entry else entry["body"]
    encoding = entry.get("encoding", entry.get("MessageAttributes", {}).get("penstock.encoding", {}).get("StringValue"))
    return b64decode(text) if encoding == "base64" else text.encode()


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """Return the bytes of a request."""
    head = "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers))
    return head.encode() + b"\r\n\r\n" + body


class Got(NamedTuple):
    """A message that came with a receipt."""

    receipt: str
    #: As the service shows it.
    shown: int
    body: bytes
    attempts: int
    time_ns: int
    #: The time is told in steps of this.
    grain_ns: int
    key: bytes


class Ways(Protocol):
    """How a service is asked by who answers for messages by receipt."""

    def send(self, queue: str, drafts: list[Draft], *, batch: bool) -> Ask:
        """Store one message, or several together, which are all as late."""

    def receive(self, queue: str, limit: int, wait_s: int, hidden_s: int | None) -> Ask:
        """Ask for messages, waiting for the first."""

    def delete(self, queue: str, handles: list[str], *, batch: bool) -> Ask:
        """Delete messages by receipt."""

    def change(self, queue: str, handles: list[str], seconds: int, *, batch: bool) -> Ask:
        """Let messages be invisible for so long from now on."""

    def got(self, reply: Reply) -> list[Got]:
        """Return the messages that an answer brings."""


# --- SQS --------------------------------------------------------------------------------------------------------------


def _aws(operation: str, queue: str, **said: Any) -> bytes:
    body = json.dumps({"QueueUrl": f"http://localhost/000000000000/{queue}", **said}).encode()
    kind = "Content-Type: application/x-amz-json-1.0"
    return request("POST", "/", body, kind, f"X-Amz-Target: AmazonSQS.{operation}")


class Draft(NamedTuple):
    """A message to be sent."""

    body: bytes
    extras: Extras
    delay_s: int
    dedup: str

    def fields(self) -> Entry:
        """Return what a request says of it."""
        said: Entry = {"MessageBody": self.body.decode()}
        if self.extras.key:
            said["MessageGroupId"] = self.extras.key.decode()
        if self.extras.tag:
            said["MessageAttributes"] = {"tag": {"DataType": "String", "StringValue": self.extras.tag}}
        if self.delay_s:
            said["DelaySeconds"] = self.delay_s
        if self.dedup:
            said["MessageDeduplicationId"] = self.dedup
        return said


class Sqs:
    """SQS in JSON."""

    def send(self, queue: str, drafts: list[Draft], *, batch: bool) -> Ask:
        """Send one message, or several together, which are all as late."""
        if batch:
            entries = [{"Id": str(number), **draft.fields()} for number, draft in enumerate(drafts)]
            word, data = "SendMessageBatch", _aws("SendMessageBatch", queue, Entries=entries)
        else:
            word, data = "SendMessage", _aws("SendMessage", queue, **drafts[0].fields())
        return Ask(
            word,
            data,
            queue,
            bodies=[draft.body for draft in drafts],
            extras=[draft.extras for draft in drafts],
            number=drafts[0].delay_s,
            again=all(draft.dedup for draft in drafts),
            dedups=[draft.dedup for draft in drafts],
        )

    def receive(self, queue: str, limit: int, wait_s: int, hidden_s: int | None) -> Ask:
        """Ask for messages, waiting for the first."""
        said: Entry = {"MaxNumberOfMessages": limit, "WaitTimeSeconds": wait_s}
        said |= {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        if hidden_s is not None:
            said["VisibilityTimeout"] = hidden_s
        return Ask("ReceiveMessage", _aws("ReceiveMessage", queue, **said), queue, number=limit, seconds=hidden_s)

    def delete(self, queue: str, handles: list[str], *, batch: bool) -> Ask:
        """Delete messages by receipt."""
        if batch:
            entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
            data = _aws("DeleteMessageBatch", queue, Entries=entries)
            return Ask("DeleteMessageBatch", data, queue, handles=handles, again=True)
        data = _aws("DeleteMessage", queue, ReceiptHandle=handles[0])
        return Ask("DeleteMessage", data, queue, handles=handles[:1], again=True)

    def change(self, queue: str, handles: list[str], seconds: int, *, batch: bool) -> Ask:
        """Let messages be invisible for so long from now on."""
        more = {"VisibilityTimeout": seconds}
        if batch:
            entries = [{"Id": str(number), "ReceiptHandle": handle, **more} for number, handle in enumerate(handles)]
            data = _aws("ChangeMessageVisibilityBatch", queue, Entries=entries)
            return Ask("ChangeMessageVisibilityBatch", data, queue, handles=handles, seconds=seconds, again=True)
        data = _aws("ChangeMessageVisibility", queue, ReceiptHandle=handles[0], **more)
        return Ask("ChangeMessageVisibility", data, queue, handles=handles[:1], seconds=seconds, again=True)

    def got(self, reply: Reply) -> list[Got]:
        """Return the messages that an answer brings."""
        return [
            Got(
                entry["ReceiptHandle"],
                shown_in(entry["MessageId"]),
                body_of(entry),
                int(entry["Attributes"]["ApproximateReceiveCount"]),
                int(entry["Attributes"]["SentTimestamp"]) * MILLISECOND,
                MILLISECOND,
                entry["Attributes"].get("MessageGroupId", "").encode(),
            )
            for entry in reply.json.get("Messages") or ()
        ]


# --- Dynamiq ----------------------------------------------------------------------------------------------------------


def enqueue(queue: str, body: bytes) -> Ask:
    """Store one message."""
    data = request("PUT", f"/v1/queues/{queue}/message", body)
    return Ask("enqueue", data, queue, bodies=[body], extras=[Extras()])


def take(queue: str, limit: int) -> Ask:
    """Receive messages of one partition."""
    return Ask("take", request("GET", f"/v1/queues/{queue}/messages/{limit}"), queue, number=limit)


def drop(queue: str, ids: list[str], *, many: bool) -> Ask:
    """Delete messages by id."""
    path = f"messages/{','.join(ids)}" if many else f"message/{ids[0]}"
    word = "drop many" if many else "drop"
    return Ask(word, request("DELETE", f"/v1/queues/{queue}/{path}"), queue, handles=ids if many else ids[:1])


def configure(queue: str, least: int, most: int, age_s: float) -> Ask:
    """Choose how many partitions there are, and how long one is kept that nobody looks into."""
    said = {"min_partitions": least, "max_partitions": most, "max_partition_age": age_s}
    return Ask("configure", request("PATCH", f"/v1/queues/{queue}", json.dumps(said).encode()), queue)


# --- Dynamiq, version 2 -----------------------------------------------------------------------------------------------


def _v2(method: str, queue: str, rest: str, said: Entry | None = None) -> bytes:
    return request(method, f"/v2/queues/{queue}/{rest}", json.dumps(said).encode() if said is not None else b"")


class V2:
    """Leases as resources."""

    def send(self, queue: str, drafts: list[Draft], *, batch: bool) -> Ask:
        """Store one message, or several together, which are all as late."""
        drafts = drafts if batch else drafts[:1]
        entries = []
        for draft in drafts:
            said: Entry = {"body": draft.body.decode(), "key": draft.extras.key.decode(), "tag": draft.extras.tag}
            said |= {"delay": draft.delay_s, "dedup": draft.dedup}
            entries.append({name: value for name, value in said.items() if value or name == "body"})
        return Ask(
            "publish",
            _v2("POST", queue, "messages", {"messages": entries}),
            queue,
            bodies=[draft.body for draft in drafts],
            extras=[draft.extras for draft in drafts],
            number=drafts[0].delay_s,
            again=all(draft.dedup for draft in drafts),
            dedups=[draft.dedup for draft in drafts],
        )

    def receive(self, queue: str, limit: int, wait_s: int, hidden_s: int | None) -> Ask:
        """Ask for messages, waiting for the first."""
        said: Entry = {"max": limit, "wait": wait_s, "visibility": hidden_s}
        return Ask("lease", _v2("POST", queue, "leases", said), queue, number=limit, seconds=hidden_s)

    def delete(self, queue: str, handles: list[str], *, batch: bool) -> Ask:
        """Delete messages by receipt."""
        if batch:
            data = _v2("POST", queue, "leases/delete", {"receipts": handles})
            return Ask("finish many", data, queue, handles=handles, again=True)
        return Ask("finish", _v2("DELETE", queue, f"leases/{handles[0]}"), queue, handles=handles[:1], again=True)

    def change(self, queue: str, handles: list[str], seconds: int, *, batch: bool) -> Ask:
        """Let messages be invisible for so long from now on, or give them back."""
        word, more = ("extend", {"visibility": seconds}) if seconds else ("release", {})
        if batch:
            data = _v2("POST", queue, f"leases/{word}", {"receipts": handles, **more})
            return Ask(f"{word} many", data, queue, handles=handles, seconds=seconds, again=True)
        one = f"leases/{handles[0]}"
        data = _v2("PATCH", queue, one, more) if seconds else _v2("POST", queue, f"{one}/release", {})
        return Ask(word, data, queue, handles=handles[:1], seconds=seconds, again=True)

    def got(self, reply: Reply) -> list[Got]:
        """Return the messages that an answer brings."""
        return [
            Got(
                entry["receipt"],
                int(entry["id"]),
                body_of(entry),
                entry["attempts"],
                time_of(entry["timestamp"]),
                1,
                entry.get("key", "").encode(),
            )
            for entry in reply.json["data"]["messages"]
        ]


def time_of(text: str) -> int:
    """Return the time that is written so: to the second, a dot, and nine digits."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()) * SECOND + int(rest)
