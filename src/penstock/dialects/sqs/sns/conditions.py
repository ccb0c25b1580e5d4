"""What a filter policy asks of one key: put in order once, so that a value is looked up and not compared with each.

Pure. Invariant: what a value costs is spent before it is looked at, also what its length and its networks cost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from penstock.dialects.sqs.faults import Fault

#: What may be spent on one message, by all subscriptions together. One is a look at a value, or a comparison, some
#: 250 ns; so all of it is some 50 ms.
EFFORT_MAX = 200_000

#: Characters compared, and brought to lower case, for one: outside of ASCII either goes by characters, not by words.
COMPARED_CHARS = 256
LOWERED_CHARS = 16
#: ... and where something is looked for, which may fit nearly everywhere.
SEARCHED_CHARS = 8
#: What it takes to read an address: 4 to 10 us.
ADDRESS_EFFORT = 40
#: No address is longer, unless it names a scope.
ADDRESS_CHARS_MAX = 64

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

#: A key that a message does not have.
ABSENT = object()


class Effort:
    """What may be spent on comparing."""

    __slots__ = ("left",)

    def __init__(self, messages: int = 1) -> None:
        self.left = messages * EFFORT_MAX

    def spend(self, count: int) -> None:
        """Spend some; refuse a message that would take too much."""
        self.left -= count
        if self.left < 0:
            raise Fault(
                "InvalidParameter",
                f"Invalid parameter: Message Reason: filter policies would compare more than {EFFORT_MAX} values of it",
            )


class Conditions:
    """The conditions of one key, of which a value must meet one."""

    __slots__ = (
        "_cost",
        "_exists",
        "_literals",
        "_lowered",
        "_lowered_chars",
        "_networks",
        "_others",
        "_patterns",
        "_prefixes",
        "_ranges",
        "_suffixes",
        "_text_chars",
    )

    def __init__(self, wanted: Sequence[Any]) -> None:
        """Take what a policy that was checked has in one of its arrays."""
        found = [next(iter(each.items())) for each in wanted if isinstance(each, dict)]

        def operands(name: str) -> list[Any]:
            return [operand for known, operand in found if known == name]

        self._literals = frozenset([_literal(each) for each in wanted if not isinstance(each, dict)])
        self._exists = frozenset(operands("exists"))
        self._prefixes: tuple[str, ...] = tuple(operands("prefix"))
        self._suffixes: tuple[str, ...] = tuple(operands("suffix"))
        self._lowered = frozenset([operand.lower() for operand in operands("equals-ignore-case")])
        self._ranges = [
            [(OPERATORS[operator], bound) for operator, bound in zip(operand[::2], operand[1::2], strict=True)]
            for operand in operands("numeric")
        ]
        self._networks = [_network(operand) for operand in operands("cidr")]
        #: What must come between stars, one after the other.
        self._patterns: list[list[str]] = [operand.split("*") for operand in operands("wildcard")]
        others = operands("anything-but")
        self._others = [Conditions(other if isinstance(other, list) else [other]) for other in others]
        #: Longer values compare no further, and never become shorter in lower case.
        self._text_chars = max(map(len, self._prefixes + self._suffixes), default=0)
        self._lowered_chars = max(map(len, self._lowered), default=-1)
        #: Of a value, before what its length and its networks cost.
        self._cost: int = 1 + len(self._ranges) + sum([each._cost for each in self._others])

    def met_by(self, held: Any, effort: Effort) -> bool:
        """Tell whether what a message has under the key meets one of them: a value, or any of several."""
        if held is ABSENT:
            effort.spend(1)
            return False in self._exists
        if True in self._exists:
            effort.spend(1)
            return True
        items = held if isinstance(held, list) else (held,)
        effort.spend(self._cost * len(items))
        return any(self._takes(value, effort) for value in items)

    def _takes(self, value: Any, effort: Effort) -> bool:
        if isinstance(value, str):
            met = value in self._literals or self._takes_text(value, effort)
        elif isinstance(value, (list, dict)):
            met = False
        else:
            met = _literal(value) in self._literals or bool(self._ranges and self._takes_number(value))
        if met or not self._others:
            return met
        return not all(each._takes(value, effort) for each in self._others)

    def _takes_number(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return any(all(is_so(value, bound) for is_so, bound in each) for each in self._ranges)

    def _takes_text(self, value: str, effort: Effort) -> bool:
        if self._text_chars:
            texts = len(self._prefixes) + len(self._suffixes)
            effort.spend(texts * (1 + min(len(value), self._text_chars) // COMPARED_CHARS))
            if value.startswith(self._prefixes) or value.endswith(self._suffixes):
                return True
        if len(value) <= self._lowered_chars:
            effort.spend(1 + len(value) // LOWERED_CHARS)
            if value.lower() in self._lowered:
                return True
        if self._patterns:
            effort.spend(len(self._patterns) * (1 + len(value) // SEARCHED_CHARS))
            if any(_has_shape(value, pattern) for pattern in self._patterns):
                return True
        return bool(self._networks) and len(value) <= ADDRESS_CHARS_MAX and self._is_inside(value, effort)

    def _is_inside(self, value: str, effort: Effort) -> bool:
        effort.spend(ADDRESS_EFFORT + len(self._networks))
        try:
            address = ip_address(value)
        except ValueError:
            return False
        bits = int(address)
        return any(
            address.version == version and bits >> hosts == network for version, hosts, network in self._networks
        )


def _has_shape(value: str, parts: list[str]) -> bool:
    """Tell whether a value is these parts with anything between them. The first fit of each part leaves most room."""
    first, *between, last = parts
    if len(value) < len(first) + len(last) or not (value.startswith(first) and value.endswith(last)):
        return False
    at, end = len(first), len(value) - len(last)
    for part in between:
        at = value.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _literal(value: Any) -> Hashable:
    """Return what plain values are looked up by: true is not 1."""
    return (value,) if isinstance(value, bool) else value


def _network(text: str) -> tuple[int, int, int]:
    """Return a network's version, the bits of its hosts, and its own."""
    network = ip_network(text, strict=False)
    hosts = network.max_prefixlen - network.prefixlen
    return network.version, hosts, int(network.network_address) >> hosts
