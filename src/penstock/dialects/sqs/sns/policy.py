"""Filter policies: which messages a subscription takes, by their attributes or by their body.

Pure. Only what Amazon documents, no patterns: nothing here looks back, so a policy costs at most its length for each
value of a message. An `Effort` bounds that, because both may be long.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.dialects.sqs.codec.shapes import Values
from penstock.dialects.sqs.faults import Fault

#: Amazon's limits on a policy: keys, and combinations of values; and how deep one may be.
KEYS_MAX = 5
BODY_KEYS_MAX = 50
VALUES_MAX = 150
DEPTH_MAX = 5
#: Policies within policies by "$or"; Amazon names no number.
OR_DEPTH_MAX = 5
#: Comparisons for one message, of all subscriptions together: some 50 ms.
EFFORT_MAX = 200_000
POLICY_BYTES_MAX = 256 * 1024

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_TEXTS = ("prefix", "suffix", "equals-ignore-case")
_ABSENT = object()


class Effort:
    """What may be spent on comparing."""

    __slots__ = ("_left",)

    def __init__(self, messages: int = 1) -> None:
        self._left = messages * EFFORT_MAX

    def spend(self, count: int) -> None:
        """Spend some; refuse a message that would take too much."""
        self._left -= count
        if self._left < 0:
            raise Fault(
                "InvalidParameter",
                f"Invalid parameter: Message Reason: filter policies would compare more than {EFFORT_MAX} values of it",
            )


def read(text: str, *, of_body: bool) -> dict[str, Any]:
    """Return a policy; refuse one that cannot be."""
    try:
        policy = msgspec.json.decode(text) if len(text) <= POLICY_BYTES_MAX else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        policy = None
    if not isinstance(policy, dict):
        raise _wrong("failed to parse JSON")
    count = _check(policy, DEPTH_MAX if of_body else 1)
    if len(policy) > (BODY_KEYS_MAX if of_body else KEYS_MAX) or count > VALUES_MAX:
        raise Fault("FilterPolicyLimitExceeded", "Filter policy has too many keys or values.")
    return policy


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


def takes(policy: Mapping[str, Any], document: Mapping[str, Any], effort: Effort | None = None) -> bool:
    """Tell whether a message passes: every key of the policy has a value that one of its conditions takes."""
    effort = effort or Effort()
    for key, wanted in policy.items():
        if key == "$or" and _is_or(wanted):
            if not any(takes(one, document, effort) for one in wanted):
                return False
            continue
        held = document.get(key, _ABSENT)
        if isinstance(wanted, dict):
            items = held if isinstance(held, list) else [held]
            effort.spend(len(items))
            if not any(isinstance(item, dict) and takes(wanted, item, effort) for item in items):
                return False
        elif not any(_passes(condition, held, effort) for condition in wanted):
            return False
    return True


def _is_or(wanted: Any) -> bool:
    return isinstance(wanted, list) and all(isinstance(one, dict) for one in wanted)


def _passes(condition: Any, held: Any, effort: Effort) -> bool:
    effort.spend(len(held) if isinstance(held, list) else 1)
    if isinstance(condition, dict) and "exists" in condition:
        return bool((held is not _ABSENT) == condition["exists"])
    if held is _ABSENT:
        return False
    return any(_takes(condition, value) for value in (held if isinstance(held, list) else [held]))


def _takes(condition: Any, value: Any) -> bool:
    if not isinstance(condition, dict):
        return _equal(condition, value)
    (name, operand), *_ = condition.items()
    if name == "anything-but":
        others = operand if isinstance(operand, list) else [operand]
        return not any(_takes(other, value) for other in others)
    if name == "numeric":
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        pairs = zip(operand[::2], operand[1::2], strict=True)
        return is_number and all(_OPERATORS[operator](value, bound) for operator, bound in pairs)
    if not isinstance(value, str):
        return False
    if name == "prefix":
        return value.startswith(operand)
    if name == "suffix":
        return value.endswith(operand)
    if name == "equals-ignore-case":
        return bool(value.lower() == operand.lower())
    try:
        return ipaddress.ip_address(value) in ipaddress.ip_network(operand, strict=False)
    except ValueError:
        return False


def _equal(wanted: Any, value: Any) -> bool:
    return bool(wanted == value) and (type(wanted) is type(value) or (_is_number(wanted) and _is_number(value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check(policy: dict[str, Any], depth: int, ors: int = OR_DEPTH_MAX) -> int:
    """Refuse a policy that cannot be; return how many values it has."""
    count = 0
    for key, wanted in policy.items():
        if key == "$or" and _is_or(wanted):
            if len(wanted) < 2:
                raise _wrong('"$or" needs at least two policies')
            if ors < 1:
                raise _wrong("it is too deep")
            count += sum([_check(one, depth, ors - 1) for one in wanted])
        elif isinstance(wanted, dict) and wanted:
            if depth <= 1:
                raise _wrong(f'"{key[:100]}" must be an object or an array' if depth < 1 else "it is too deep")
            count += _check(wanted, depth - 1, ors)
        elif isinstance(wanted, list) and wanted:
            count += sum([_check_condition(condition) for condition in wanted])
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
            if isinstance(other, dict) and not set(other) <= {"prefix", "suffix", "equals-ignore-case"}:
                raise _wrong(f"Unsupported anything-but pattern: {str(other)[:100]}")
            _check_condition(other)
    elif name == "numeric":
        good = (
            isinstance(operand, list)
            and len(operand) in (2, 4)
            and all(operator in _OPERATORS for operator in operand[::2] if isinstance(operator, str))
            and all(isinstance(operator, str) for operator in operand[::2])
            and all(_is_number(bound) for bound in operand[1::2])
        )
    elif name == "cidr":
        try:
            good = isinstance(operand, str) and bool(ipaddress.ip_network(operand, strict=False))
        except ValueError:
            good = False
    else:
        raise _wrong(f"Unrecognized match type {name[:100]}")
    if not good:
        raise _wrong(f"{name} match pattern cannot be used")
    return count


def _wrong(reason: str) -> Fault:
    return Fault("InvalidParameter", f"Invalid parameter: FilterPolicy: {reason}")
