"""The policy of a queue or topic as AddPermission and RemovePermission change it: one statement for each label.

Kept and shown as the attribute `Policy`, as one that was set whole; who may do what is said by the callers' rights.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from penstock.dialects.sqs.faults import Fault, invalid

#: As Amazon has it.
ACTIONS_MAX = 7
STATEMENTS_MAX = 20
PRINCIPALS_MAX = 50


class Service(NamedTuple):
    """Whose policy it is."""

    name: str
    #: What may be allowed.
    actions: frozenset[str]


ACTIONS = frozenset(
    (
        "*",
        "AddPermission",
        "CancelMessageMoveTask",
        "ChangeMessageVisibility",
        "CreateQueue",
        "DeleteMessage",
        "DeleteQueue",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "ListMessageMoveTasks",
        "ListQueueTags",
        "ListQueues",
        "PurgeQueue",
        "ReceiveMessage",
        "RemovePermission",
        "SendMessage",
        "SetQueueAttributes",
        "StartMessageMoveTask",
        "TagQueue",
        "UntagQueue",
    )
)

SQS = Service("SQS", ACTIONS)
SNS = Service(
    "SNS",
    frozenset(
        (
            "*",
            "AddPermission",
            "DeleteTopic",
            "GetDataProtectionPolicy",
            "GetTopicAttributes",
            "ListSubscriptionsByTopic",
            "ListTagsForResource",
            "Publish",
            "PutDataProtectionPolicy",
            "RemovePermission",
            "SetTopicAttributes",
            "Subscribe",
        )
    ),
)

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}").fullmatch
_ACCOUNT = re.compile(r"[0-9]{12}").fullmatch


def added(policy: str, arn: str, label: str, accounts: list[str], actions: list[str], service: Service = SQS) -> str:
    """Return a policy that lets accounts do this with what has this ARN, too; refuse what Amazon would."""
    if _LABEL(label) is None:
        reason = "It has 1 to 80 letters, digits, hyphens and underscores."
        raise invalid("Label", label[:80], reason)
    for account in accounts:
        if _ACCOUNT(account) is None:
            raise invalid("PrincipalId", account[:80], "Unable to verify.")
    for action in actions:
        if action not in service.actions:
            raise invalid("ActionName", f"{service.name}:{action[:80]}", "There is no such action.")
    if not accounts or not actions:
        raise Fault("MissingParameter", "The request must contain at least one AWSAccountId and one ActionName.")
    if len(actions) > ACTIONS_MAX:
        raise Fault("OverLimit", f"{len(actions)} Actions were found, maximum allowed is {ACTIONS_MAX}.")
    whole: dict[str, Any] = {"Version": "2012-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    if policy:
        whole = _read(policy)
    statements = whole["Statement"]
    if any(each.get("Sid") == label for each in statements):
        raise invalid("Label", label, "Already exists.")
    if len(statements) >= STATEMENTS_MAX:
        raise Fault("OverLimit", f"A policy may have {STATEMENTS_MAX} statements.")
    principals = list(dict.fromkeys(f"arn:aws:iam::{account}:root" for account in accounts))
    if len(principals) > PRINCIPALS_MAX:
        raise Fault("OverLimit", f"A policy may have {PRINCIPALS_MAX} principals.")
    named = [f"{service.name}:{action}" for action in dict.fromkeys(actions)]
    statements.append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _one(principals)},
            "Action": _one(named),
            "Resource": arn,
        }
    )
    return msgspec.json.encode(whole).decode()


def removed(policy: str, label: str) -> str:
    """Return a policy without the statement of a label, nothing if that was the last."""
    whole = _read(policy) if policy else {"Statement": []}
    left = [each for each in whole["Statement"] if each.get("Sid") != label]
    if len(left) == len(whole["Statement"]):
        raise invalid("Label", label[:80], "can't find label.")
    whole["Statement"] = left
    return msgspec.json.encode(whole).decode() if left else ""


def _one(values: list[str]) -> str | list[str]:
    """Return the value itself where it is the only one, as Amazon writes it."""
    return values[0] if len(values) == 1 else values


def _read(policy: str) -> dict[str, Any]:
    """Return a policy with its statements as a list."""
    try:
        whole = msgspec.json.decode(policy, type=dict[str, Any])
        found = whole.get("Statement", [])
        whole["Statement"] = msgspec.convert([found] if isinstance(found, dict) else found, list[dict[str, Any]])
    except msgspec.MsgspecError:
        raise Fault("InvalidAttributeValue", "The Policy is none that a statement can be added to.") from None
    return whole
