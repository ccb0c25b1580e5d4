"""A queue's attributes: what each may be, and where it is kept.

What the core has a setting for is the subscription's (visibility, retention, dead letters, order); the rest is in
`choices`. Attributes nobody knows are kept and shown as they were set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.clock import SECOND
from penstock.delivery.subscription import Subscription
from penstock.dialects.sqs.choices import MESSAGE_BYTES_MAX, SqsChoices
from penstock.dialects.sqs.faults import Fault, invalid
from penstock.dialects.sqs.names import FIFO, Names
from penstock.node.topic import Topic
from penstock.settings import HOUR_NS, SubscriptionSettings

#: What Amazon's queues have unless somebody says otherwise.
RETENTION_S = 345_600
VISIBILITY_S = 30
VISIBILITY_S_MAX = 43_200
RECEIVES_MAX = 1000
#: Queues that one of dead letters may name as its sources.
SOURCES_MAX = 10
#: Messages of one group that one receive may bring.
GROUP_RUN = 10

#: What only the node says.
READ_ONLY = frozenset(
    (
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesDelayed",
        "ApproximateNumberOfMessagesNotVisible",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "QueueArn",
    )
)
#: Of FIFO queues alone.
FIFO_ONLY = frozenset(("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"))

#: Numbers: least, most.
_RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1024, MESSAGE_BYTES_MAX),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, VISIBILITY_S_MAX),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}
_WORDS = {
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_SWITCHES = ("FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled")

#: Attributes that are fields of the choices, as they are.
_FIELDS = {
    "DelaySeconds": "delay_s",
    "MaximumMessageSize": "message_bytes",
    "ReceiveMessageWaitTimeSeconds": "wait_s",
    "FifoQueue": "fifo",
    "ContentBasedDeduplication": "content_dedup",
    "DeduplicationScope": "dedup_scope",
    "FifoThroughputLimit": "throughput",
}


class Kept(NamedTuple):
    """Where a queue's attributes are."""

    choices: SqsChoices
    settings: SubscriptionSettings


class RedrivePolicy(msgspec.Struct, rename="camel"):
    """Where a queue's dead letters go, and after how many receives."""

    dead_letter_target_arn: str
    max_receive_count: int


class AllowPolicy(msgspec.Struct, rename="camel"):
    """Which queues may send dead letters to one."""

    redrive_permission: Literal["allowAll", "denyAll", "byQueue"] = "allowAll"
    source_queue_arns: list[str] = []


def fresh(name: str) -> Kept:
    """Return what a new queue starts with."""
    is_fifo = name.endswith(FIFO)
    settings = SubscriptionSettings(
        lease_ns=VISIBILITY_S * SECOND,
        lease_max_ns=12 * HOUR_NS,
        ttl_ns=RETENTION_S * SECOND,
        order="key" if is_fifo else "none",
        key_run=GROUP_RUN if is_fifo else 1,
    )
    return Kept(SqsChoices(), settings)


def changed(
    kept: Kept, given: dict[str, str], name: str, names: Names, target: Callable[[str], SqsChoices | None], now_s: int
) -> Kept:
    """Return what is kept with some attributes changed; refuse what cannot be. `target` tells what a queue chose."""
    choices, settings = kept
    others: dict[str, str] = msgspec.json.decode(choices.others) if choices.others else {}
    for key, text in given.items():
        value = _checked(key, text, name)
        if key in _FIELDS:
            choices = msgspec.structs.replace(choices, **{_FIELDS[key]: value})
        elif key == "VisibilityTimeout":
            settings = msgspec.structs.replace(settings, lease_ns=max(int(value) * SECOND, 1))
        elif key == "MessageRetentionPeriod":
            settings = msgspec.structs.replace(settings, ttl_ns=int(value) * SECOND)
        elif key == "RedrivePolicy":
            settings = _with_redrive(settings, text, name, names, target)
        elif key == "RedriveAllowPolicy":
            if text:
                _check_sources(_policy(key, text, AllowPolicy), text)
            choices = msgspec.structs.replace(choices, redrive_allow=text)
        elif text:
            others[key] = text
        else:
            others.pop(key, None)
    if choices.throughput == "perMessageGroupId" and choices.dedup_scope != "messageGroup":
        text = "To set FifoThroughputLimit to perMessageGroupId, the DeduplicationScope must be messageGroup."
        raise Fault("InvalidAttributeValue", f"Invalid value for the parameter FifoThroughputLimit. Reason: {text}")
    if settings.lease_ns > settings.lease_max_ns:
        settings = msgspec.structs.replace(settings, lease_max_ns=12 * HOUR_NS)
    told = msgspec.json.encode(others).decode() if others else ""
    return Kept(msgspec.structs.replace(choices, others=told, modified_s=now_s), settings)


def shown(topic: Topic, subscription: Subscription, names: Names) -> dict[str, str]:
    """Return all attributes of a queue."""
    choices, settings = topic.chosen.of(SqsChoices), subscription.settings
    backlog = topic.backlog(subscription)
    created_s = topic.record.created_ns // SECOND
    told = {
        "QueueArn": names.arn(topic.name),
        "ApproximateNumberOfMessages": backlog.ready,
        "ApproximateNumberOfMessagesNotVisible": backlog.leased,
        "ApproximateNumberOfMessagesDelayed": backlog.waiting,
        "CreatedTimestamp": created_s,
        "LastModifiedTimestamp": choices.modified_s or created_s,
        "VisibilityTimeout": settings.lease_ns // SECOND,
        "MaximumMessageSize": choices.message_bytes,
        "MessageRetentionPeriod": settings.ttl_ns // SECOND if settings.ttl_ns else 1_209_600,
        "DelaySeconds": choices.delay_s,
        "ReceiveMessageWaitTimeSeconds": choices.wait_s,
        "SqsManagedSseEnabled": "false",
    }
    if choices.fifo:
        told["FifoQueue"] = "true"
        told["ContentBasedDeduplication"] = "true" if choices.content_dedup else "false"
        told["DeduplicationScope"], told["FifoThroughputLimit"] = choices.dedup_scope, choices.throughput
    if settings.max_attempts and settings.dead_letter:
        told["RedrivePolicy"] = redrive_text(settings, names)
    if choices.redrive_allow:
        told["RedriveAllowPolicy"] = choices.redrive_allow
    if choices.others:
        told.update(msgspec.json.decode(choices.others))
    return {key: str(value) for key, value in told.items()}


def picked(told: dict[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """Return the attributes that somebody asks for; refuse those that no queue could have."""
    asked = set(wanted)
    if "All" in asked:
        return told
    known = {*told, *READ_ONLY, *FIFO_ONLY, *_RANGES, *_SWITCHES, "Policy", "KmsMasterKeyId", "RedrivePolicy"}
    for name in asked - {*known, "RedriveAllowPolicy"}:
        raise Fault("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
    return {name: value for name, value in told.items() if name in asked}


def redrive_text(settings: SubscriptionSettings, names: Names) -> str:
    """Return the redrive policy as Amazon writes it."""
    policy = RedrivePolicy(names.arn(settings.dead_letter), settings.max_attempts)
    return msgspec.json.encode(policy).decode()


def allows(target: SqsChoices, source_arn: str) -> bool:
    """Tell whether a queue takes dead letters of another."""
    text = target.redrive_allow
    policy = msgspec.json.decode(text, type=AllowPolicy) if text else AllowPolicy()
    return policy.redrive_permission == "allowAll" or (
        policy.redrive_permission == "byQueue" and source_arn in policy.source_queue_arns
    )


def _checked(key: str, text: str, name: str) -> Any:
    """Return what the text of an attribute means."""
    is_fifo = name.endswith(FIFO)
    if key in READ_ONLY:
        raise Fault("InvalidAttributeName", f"Attribute {key} cannot be set.")
    if key in FIFO_ONLY and not is_fifo:
        if key == "FifoQueue":
            raise _wrong(key, "A queue whose name does not end with .fifo cannot be a FIFO queue.", text)
        raise Fault("InvalidAttributeName", f"Unknown Attribute {key}.")
    if key in _RANGES:
        low, high = _RANGES[key]
        if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
            raise _wrong(key)
        return int(text)
    if key in _WORDS and text not in _WORDS[key]:
        raise _wrong(key)
    if key in _SWITCHES:
        if text.lower() not in ("true", "false") or (key == "FifoQueue" and text.lower() == "false"):
            raise _wrong(key)
        return text.lower() == "true"
    if key == "Policy" and text and not is_object(text):
        raise _wrong(key)
    return text


def is_object(text: str) -> bool:
    """Tell whether a text is a JSON object, as policies are."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def _with_redrive(
    settings: SubscriptionSettings, text: str, name: str, names: Names, target: Callable[[str], SqsChoices | None]
) -> SubscriptionSettings:
    if not text:
        return msgspec.structs.replace(settings, max_attempts=0, dead_letter="")
    policy = _policy("RedrivePolicy", text, RedrivePolicy)
    found = names.of_arn(policy.dead_letter_target_arn)
    letters = target(found) if found is not None else None
    if found is None or letters is None:
        raise _wrong("RedrivePolicy", "Dead letter target does not exist.", text)
    if not 1 <= policy.max_receive_count <= RECEIVES_MAX:
        given = policy.max_receive_count
        reason = f"Invalid value for maxReceiveCount: {given}, valid values are from 1 to 1000 both inclusive."
        raise _wrong("RedrivePolicy", reason, text)
    if found.endswith(FIFO) != name.endswith(FIFO):
        raise _wrong("RedrivePolicy", "Dead-letter queue must be same type of queue as the source.", text)
    if found == name:
        raise _wrong("RedrivePolicy", "A queue cannot be its own dead-letter queue.", text)
    if not allows(letters, names.arn(name)):
        raise _wrong("RedrivePolicy", "The dead-letter queue does not allow this queue as a source.", text)
    return msgspec.structs.replace(settings, max_attempts=policy.max_receive_count, dead_letter=found)


def _check_sources(policy: AllowPolicy, text: str) -> None:
    """Refuse to name sources where all or none are allowed, and too many of them."""
    if policy.redrive_permission != "byQueue" and policy.source_queue_arns:
        raise _wrong("RedriveAllowPolicy", "sourceQueueArns go with redrivePermission byQueue only.", text)
    if policy.redrive_permission == "byQueue" and not 1 <= len(policy.source_queue_arns) <= SOURCES_MAX:
        raise _wrong("RedriveAllowPolicy", f"byQueue needs 1 to {SOURCES_MAX} sourceQueueArns.", text)


def _policy(key: str, text: str, kind: type[Any]) -> Any:
    try:  # numbers may be texts, as some clients write them
        return msgspec.convert(msgspec.json.decode(text), kind, strict=False)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise _wrong(key, "Could not be read as JSON with its members.", text) from None


def _wrong(key: str, reason: str = "", text: str = "") -> Fault:
    """Return what is said of an attribute: Amazon calls it a parameter's fault where it gives a reason."""
    if reason:
        return invalid(key, text[:500], reason)
    return Fault("InvalidAttributeValue", f"Invalid value for the parameter {key}.")
