"""A message as it will be stored: what its sender asked for, checked as Amazon does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import md5, sha256
from typing import NamedTuple

from penstock.clock import SECOND
from penstock.columns import HEADERS_BYTES_MAX, Column
from penstock.dialects.sqs import values
from penstock.dialects.sqs.choices import SqsChoices
from penstock.dialects.sqs.codec.shapes import SendEntry, Sending, SendMessage
from penstock.dialects.sqs.faults import Fault, invalid, missing, within
from penstock.dialects.sqs.queues import Queue
from penstock.message import Rows

SOURCE = "sqs"

_UNSPEAKABLE = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF"
)
#: What groups and duplicates may be called.
is_id = re.compile(r"""[A-Za-z0-9!"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}""").fullmatch


class Draft(NamedTuple):
    """A message that may be stored, and what its sender is told of it."""

    body: bytes
    due_ns: int | None
    key: bytes | None
    tag: str | None
    traffic: int | None
    headers: bytes | None
    dedup: bytes | None
    body_md5: str
    values_md5: str | None
    system_md5: str | None
    size: int


def drafted(queue: Queue, asked: Sending, now_ns: int) -> Draft:
    """Return a message as it will be stored; refuse what Amazon would."""
    choices, text = queue.choices, asked.message_body
    if not text:
        raise missing("MessageBody")
    if not text.isprintable() and values.unspeakable(text):
        raise Fault("InvalidMessageContents", _UNSPEAKABLE)
    body = text.encode()
    size = len(body) + (values.check(asked.message_attributes) if asked.message_attributes else 0)
    if size > choices.message_bytes:
        reason = f"Message must be shorter than {choices.message_bytes} bytes."
        raise Fault("InvalidParameterValue", f"One or more parameters are invalid. Reason: {reason}")
    system = asked.message_system_attributes
    if system:
        values.check_system(system)
    headers = values.kept(asked.message_attributes, system)
    if headers is not None and len(headers) > HEADERS_BYTES_MAX:
        text = f"Message attributes take more than {HEADERS_BYTES_MAX} bytes as they are stored."
        raise Fault("InvalidParameterValue", text)
    return Draft(
        body,
        _due_ns(now_ns, asked.delay_seconds, choices.delay_s, is_fifo=choices.fifo),
        _group(asked.message_group_id, is_fifo=choices.fifo),
        values.tag(asked.message_attributes),
        values.traffic(asked.message_attributes),
        headers,
        _dedup(queue, asked, body),
        md5_of(body),
        values.digest(asked.message_attributes),
        values.digest(system),
        size,
    )


def plain_bodies(choices: SqsChoices, asked: Sequence[SendMessage | SendEntry]) -> list[bytes] | None:
    """Return the bodies of messages that are nothing else, and that nothing is wrong with; else None."""
    if choices.fifo or choices.delay_s:
        return None
    bodies = []
    for each in asked:
        text = each.message_body
        if (
            not text
            or not text.isprintable()  # what is printable may be sent; of the rest somebody has to look
            or each.message_attributes
            or each.delay_seconds is not None
            or each.message_system_attributes
            or each.message_group_id is not None
            or each.message_deduplication_id is not None
        ):
            return None
        body = text.encode()
        if len(body) > choices.message_bytes:
            return None
        bodies.append(body)
    return bodies


def rows_of(drafts: Sequence[Draft]) -> Rows:
    """Return messages as they are stored."""
    given: dict[str, Column] = {
        "due": [draft.due_ns for draft in drafts],
        "key": [draft.key for draft in drafts],
        "tag": [draft.tag for draft in drafts],
        "traffic": [draft.traffic for draft in drafts],
        "headers": [draft.headers for draft in drafts],
        "dedup": [draft.dedup for draft in drafts],
    }
    columns = {name: column for name, column in given.items() if any(value is not None for value in column)}
    return Rows.of([draft.body for draft in drafts], SOURCE, columns)


def md5_of(body: bytes) -> str:
    """Return the MD5 by which clients check a body."""
    return md5(body, usedforsecurity=False).hexdigest()


def _due_ns(now_ns: int, asked_s: int | None, queue_s: int, *, is_fifo: bool) -> int | None:
    within("DelaySeconds", asked_s, 0, 900)
    if is_fifo and asked_s:
        reason = "The request include parameter that is not valid for this queue type."
        raise invalid("DelaySeconds", asked_s, reason)
    delay_s = queue_s if asked_s is None else asked_s
    return now_ns + delay_s * SECOND if delay_s else None


def _group(group: str | None, *, is_fifo: bool) -> bytes | None:
    if group is None or not group:
        if is_fifo:
            raise missing("MessageGroupId")
        return None
    if is_id(group) is None:
        reason = "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise invalid("MessageGroupId", group[:128], reason)
    return group.encode()


def _dedup(queue: Queue, asked: Sending, body: bytes) -> bytes | None:
    choices, given = queue.choices, asked.message_deduplication_id
    if not choices.fifo:
        if given:
            reason = "The request include parameter that is not valid for this queue type."
            raise invalid("MessageDeduplicationId", given[:128], reason)
        return None
    if given is not None and is_id(given) is None:
        reason = "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise invalid("MessageDeduplicationId", given[:128], reason)
    if given is None:
        if not choices.content_dedup:
            raise Fault(
                "InvalidParameterValue",
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly",
            )
        given = sha256(body).hexdigest()
    if choices.dedup_scope == "messageGroup":
        return (asked.message_group_id or "").encode() + b"\0" + given.encode()
    return given.encode()
