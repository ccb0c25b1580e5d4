"""Filter policies: which messages a subscription takes, by their attributes or by their body.

Pure. Only what Amazon documents, and of patterns stars alone: nothing here looks back, so a policy costs at most its
length for each value of a message. An `Effort` bounds that, because both may be long; what one key asks is in
`conditions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_network
from typing import Any, NamedTuple

import msgspec

from penstock.dialects.sqs.codec.shapes import Values
from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.sns.conditions import ABSENT, OPERATORS, Conditions, Effort

#: Amazon's limits on a policy: keys, of which those within others do not count, and combinations of values; and how
#: deep one may be.
KEYS_MAX = 5
COMBINATIONS_MAX = 150
DEPTH_MAX = 5
#: Policies within policies by "$or"; Amazon names no number.
OR_DEPTH_MAX = 5
POLICY_BYTES_MAX = 256 * 1024
#: Numbers may be so far from 0.
NUMBER_MAX = 1e9
#: Stars of one pattern.
STARS_MAX = 3

#: Publishers need the same policies again and again; longer ones than these are not remembered.
REMEMBERED_MAX = 4096

_TEXTS = ("prefix", "suffix", "equals-ignore-case")


class Policy(NamedTuple):
    """A policy that was checked, and what it asks of each key."""

    keys: tuple[tuple[str, Conditions | Policy], ...]
    #: Of each of these at least one must take the message.
    ors: tuple[tuple[Policy, ...], ...]

    @classmethod
    def of(cls, policy: Mapping[str, Any]) -> Policy:
        """Put what was checked in order."""
        keys: list[tuple[str, Conditions | Policy]] = []
        ors = []
        for key, wanted in policy.items():
            if key == "$or" and _is_or(wanted):
                ors.append(tuple([cls.of(one) for one in wanted]))
            else:
                keys.append((key, cls.of(wanted) if isinstance(wanted, dict) else Conditions(wanted)))
        return cls(tuple(keys), tuple(ors))


def read(text: str, *, of_body: bool) -> Policy:
    """Return a policy; refuse one that cannot be."""
    return _remembered(text, of_body) if len(text) <= REMEMBERED_MAX else _read(text, of_body)


def _read(text: str, of_body: bool) -> Policy:
    try:
        policy = msgspec.json.decode(text) if len(text) <= POLICY_BYTES_MAX else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        policy = None
    if not isinstance(policy, dict):
        raise _wrong("failed to parse JSON")
    if len(policy) > KEYS_MAX:
        raise _wrong(f"Filter policy can not have more than {KEYS_MAX} keys")
    if _check(policy, DEPTH_MAX if of_body else 1) > COMBINATIONS_MAX:
        raise _wrong("Filter policy is too complex")
    return Policy.of(policy)


_remembered = lru_cache(maxsize=1024)(_read)


def of_attributes(values: Values) -> dict[str, list[Any]]:
    """Return what a policy on attributes looks at."""
    found: dict[str, list[Any]] = {}
    for name, value in values.items():
        text = value.string_value or ""
        kind = value.data_type.partition(".")[0]
        if value.data_type == "String.Array":
            try:
                items = msgspec.json.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                continue
            found[name] = (
                [item for item in items if not isinstance(item, (list, dict))] if isinstance(items, list) else []
            )
        elif kind == "Number":
            found[name] = [float(text)]
        elif kind == "String":
            found[name] = [text]
    return found


def takes(policy: Policy, document: Mapping[str, Any], effort: Effort | None = None) -> bool:
    """Tell whether a message passes: every key of the policy has a value that one of its conditions takes."""
    effort = effort or Effort()
    for key, wanted in policy.keys:
        held = document.get(key, ABSENT)
        if isinstance(wanted, Conditions):
            if not wanted.met_by(held, effort):
                return False
            continue
        items = held if isinstance(held, list) else [held]
        effort.spend(len(items))
        if not any(isinstance(item, dict) and takes(wanted, item, effort) for item in items):
            return False
    return all(any(takes(one, document, effort) for one in either) for either in policy.ors)


def _is_or(wanted: Any) -> bool:
    return isinstance(wanted, list) and all(isinstance(one, dict) for one in wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check(policy: dict[str, Any], depth: int, ors: int = OR_DEPTH_MAX, level: int = 1) -> int:
    """Refuse a policy that cannot be; return in how many ways its values combine.

    Amazon multiplies how many values keys have, and those of a key within others by how deep it is as well.
    """
    count = 1
    for key, wanted in policy.items():
        if key == "$or" and _is_or(wanted):
            if len(wanted) < 2:
                raise _wrong('"$or" needs at least two policies')
            if ors < 1:
                raise _wrong("it is too deep")
            count *= sum([_check(one, depth, ors - 1, level) for one in wanted])
        elif isinstance(wanted, dict) and wanted:
            if depth <= 1:
                raise _wrong(f'"{key[:100]}" must be an object or an array' if depth < 1 else "it is too deep")
            count *= _check(wanted, depth - 1, ors, level + 1)
        elif isinstance(wanted, list) and wanted:
            count *= level * sum([_check_condition(condition) for condition in wanted])
        else:
            raise _wrong(f'"{key[:100]}" must be an object or an array')
    return count


def _check_condition(condition: Any) -> int:
    """Refuse a condition that cannot be; return how many values it has."""
    count = 1
    if not isinstance(condition, dict):
        if isinstance(condition, list):
            raise _wrong("Match value must be String, number, true, false, or null")
        return count
    if len(condition) != 1:
        raise _wrong("Only one key allowed in match expression")
    (name, operand), *_ = condition.items()
    if name == "exists":
        good = isinstance(operand, bool)
    elif name in _TEXTS:
        good = isinstance(operand, str) and bool(operand)
    elif name == "anything-but":
        others = operand if isinstance(operand, list) else [operand]
        good, count = bool(others), len(others)
        for other in others:
            if isinstance(other, dict) and not set(other) <= {*_TEXTS, "wildcard"}:
                raise _wrong(f"Unsupported anything-but pattern: {str(other)[:100]}")
            _check_condition(other)
    elif name == "numeric":
        good = isinstance(operand, list) and _is_range(operand)
    elif name == "wildcard":
        good = isinstance(operand, str) and 0 < operand.count("*") <= STARS_MAX and "**" not in operand
    elif name == "cidr":
        try:
            good = isinstance(operand, str) and bool(ip_network(operand, strict=False))
        except ValueError:
            good = False
    else:
        raise _wrong(f"Unrecognized match type {name[:100]}")
    if not good:
        raise _wrong(f"{name} match pattern cannot be used")
    return count


def _is_range(operand: list[Any]) -> bool:
    """Tell whether this is one comparison with a number, or one from below and one from above, in this order."""
    operators, bounds = operand[::2], operand[1::2]
    if len(operators) != len(bounds) or not all(_is_number(bound) and abs(bound) <= NUMBER_MAX for bound in bounds):
        return False
    if len(operators) == 1:
        return isinstance(operators[0], str) and operators[0] in OPERATORS
    return len(operators) == 2 and operators[0] in (">", ">=") and operators[1] in ("<", "<=") and bounds[0] < bounds[1]


def _wrong(reason: str) -> Fault:
    return Fault("InvalidParameter", f"Invalid parameter: FilterPolicy: {reason}")
