"""What a message carries beyond its body: tag, key, traffic types, a time, a trace, and the header that says so.

Written apart from the node's header rules, so that each checks the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random

from penstock.clock import MILLISECOND

#: Few, so that they meet; consumers ask for the first two, nobody ever wants the last.
TAGS = ("red", "blue", "grey")
WANTED_TAGS = TAGS[:2]
KEYS = ("k0", "k1", "k2", "k3", "k4")
#: Header members that filters look at, and their values.
MEMBERS = {"shape": ("round", "square", "flat"), "size": ("s", "xl")}
TRAFFIC = (0, 1, 2, 4, 6, 8, 1 << 63)


@dataclass(frozen=True, slots=True)
class Extras:
    """What one message says beyond its body."""

    tag: str = ""
    key: bytes = b""
    traffic: int = 0
    due_ns: int = 0
    trace: int | None = None
    #: Members of its header by name, and the bytes that are sent; None without a header.
    members: dict[str, str] = field(default_factory=dict)
    header: bytes | None = None
    #: The header breaks the rules: the message must be refused.
    bad: bool = False


NOTHING = Extras()


def some_extras(random: Random, wall_ns: int) -> Extras:
    """Return what a producer says in a header."""
    if random.random() < 0.02:
        return Extras(header=random.choice((b"[1]", b'{"a": 1}', b'{"##traffic_types": "many"}', b"{")), bad=True)
    members: dict[str, str] = {}
    tag = key = ""
    traffic = due_ns = 0
    trace = None
    if random.random() < 0.6:
        members["##client_dispatch_tag"] = tag = random.choice(TAGS)
    if random.random() < 0.5:
        members["##key"] = key = random.choice(KEYS)
    if random.random() < 0.3:
        traffic = random.choice(TRAFFIC)
        members["##traffic_types"] = str(traffic)
    if random.random() < 0.04:
        due_ms = wall_ns // MILLISECOND + random.choice((0, 20, 300))
        members["##due_ms"] = str(due_ms)
        due_ns = due_ms * MILLISECOND
    if random.random() < 0.15:
        trace = random.choice((0, 0x0A20, (1 << 64) - 1, random.getrandbits(64)))
        members["##trace_id"] = str(trace)
    members |= some_members(random)
    header = json.dumps(members, separators=random.choice(((",", ":"), (", ", ": ")))).encode()
    return Extras(tag, key.encode(), traffic, due_ns, trace, members, header)


def some_members(random: Random) -> dict[str, str]:
    """Return header members of no meaning to the node."""
    return {name: random.choice(values) for name, values in MEMBERS.items() if random.random() < 0.4}
