"""What is said to subscribers: the JSON documents of SNS, and the text of each that is signed. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from penstock.dialects.sqs import values
from penstock.dialects.sqs.codec.shapes import Values
from penstock.units import times

#: The fields that are signed, as far as a document has them: in this order, each name and value on a line of its own.
_SIGNED = ("Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")

Document = dict[str, Any]


def notification(arn: str, id_: str, text: str, subject: str | None, now_ns: int) -> Document:
    """Return a message that was published, without what tells subscribers apart."""
    told: Document = {"Type": "Notification", "MessageId": id_, "TopicArn": arn}
    if subject is not None:
        told["Subject"] = subject
    return told | {"Message": text, "Timestamp": _time(now_ns)}


def confirmation(arn: str, id_: str, token: str, base_url: str, now_ns: int, *, cancelled: bool) -> Document:
    """Return the question whether an endpoint wants a subscription, or wants one back that was cancelled."""
    what = "is cancelled; to have it again" if cancelled else "was asked for at this endpoint; to confirm it"
    text = f"A subscription to {arn} {what}, visit the SubscribeURL of this message."
    return {
        "Type": "UnsubscribeConfirmation" if cancelled else "SubscriptionConfirmation",
        "MessageId": id_,
        "Token": token,
        "TopicArn": arn,
        "Message": text,
        "SubscribeURL": f"{base_url}/?Action=ConfirmSubscription&TopicArn={quote(arn)}&Token={token}",
        "Timestamp": _time(now_ns),
    }


def signed_text(document: Document) -> str:
    """Return the text of a document that is signed."""
    return "".join(f"{name}\n{document[name]}\n" for name in _SIGNED if name in document)


def sealed(document: Document, version: str, signature: str, certificate_url: str) -> Document:
    """Return a document with its signature."""
    return document | {"SignatureVersion": version, "Signature": signature, "SigningCertURL": certificate_url}


def addressed(document: Document, base_url: str, member_arn: str, given: Values) -> bytes:
    """Return what one subscriber gets of a notification."""
    url = f"{base_url}/?Action=Unsubscribe&SubscriptionArn={quote(member_arn)}"
    told = document | {"UnsubscribeURL": url}
    if given:
        told["MessageAttributes"] = {
            key: {"Type": held["type"], "Value": held["value"]}
            for key, held in msgspec.json.decode(values.kept(given, {}) or b"{}").items()
        }
    return msgspec.json.encode(told)


def _time(now_ns: int) -> str:
    return times.shown(now_ns)[:23] + "Z"  # to the millisecond, as clients expect it
