"""Everything that can go wrong, as one tree, and the one table from a reason to each dialect's way of saying it.

A `Refusal` is the client's fault or the moment's (full, paused, unknown name); it carries a code from `REASONS`.
The rest are ours: damage on disk, an unusable configuration, a broken promise of the code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import NamedTuple


class PenstockError(Exception):
    """The root: anything Penstock says went wrong."""


class ConfigError(PenstockError):
    """A setting, file, port or directory cannot be used; the text names it, the reason and the way out."""


class CorruptionError(PenstockError):
    """Bytes on disk are not what was written."""


class InvariantError(PenstockError):
    """The code broke a promise it makes to itself."""


class Reason(NamedTuple):
    """How a refusal shows outside: the HTTP status, and whether a retry may succeed."""

    http: int
    retry: bool


#: Every code a refusal may carry. Dialects render it, each by its own table; HTTP by the status here.
REASONS: dict[str, Reason] = {
    "bad_request": Reason(400, False),
    "bad_name": Reason(400, False),
    "bad_column": Reason(400, False),
    "bad_offset": Reason(400, False),
    "due_too_far": Reason(400, False),
    "message_too_big": Reason(413, False),
    "unauthorized": Reason(401, False),
    "forbidden": Reason(403, False),
    "not_found": Reason(404, False),
    "method_not_allowed": Reason(405, False),
    "too_slow": Reason(408, False),
    "misdirected": Reason(421, False),
    "conflict": Reason(409, False),
    "not_leased": Reason(409, False),
    "gone": Reason(410, False),
    "rate_limited": Reason(429, True),
    "limit_reached": Reason(429, True),
    "too_many_connections": Reason(429, True),
    "memory_full": Reason(503, True),
    "disk_full": Reason(507, True),
    "quota_full": Reason(507, True),
    "disk_failed": Reason(503, True),
    "unavailable": Reason(503, True),
    "stopping": Reason(503, True),
    "elsewhere": Reason(421, True),
}


class Refusal(PenstockError):
    """A request was not carried out, for a reason the caller can act on."""

    def __init__(self, code: str, text: str, retry_ns: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.reason = REASONS[code]
        #: When another try may succeed, where somebody knows; 0 = not known.
        self.retry_ns = retry_ns

    @property
    def retry_s(self) -> int:
        """For how many whole seconds to wait before another try."""
        return max(-(-self.retry_ns // 1_000_000_000), 1)


class Elsewhere(Refusal):
    """What was asked for is on another node of the cluster; whoever can brings the request there."""

    def __init__(self, topic: str, node: str, text: str = "", location: str = "") -> None:
        super().__init__("elsewhere", text or f"topic {topic} is on node {node}")
        self.topic = topic
        self.node = node
        #: Where a client of the native protocol finds that node, as it was told; empty where nobody said.
        self.location = location


def hint(name: str, names: Collection[str], otherwise: str = "", show: Callable[[str], str] = str) -> str:
    """Return what helps with a name that is not there: the nearest of those that are, else the way out, or all of them.

    Whatever the case; the last part of a name with dots alone finds one that was put in the wrong section.
    """
    known = {one.lower(): one for one in names}
    lasts = {one.rpartition(".")[2]: one for one in known}
    wanted = name.lower()
    near = get_close_matches(wanted, known, 1, 0.75)
    near = near or [lasts[one] for one in get_close_matches(wanted.rpartition(".")[2], lasts, 1, 0.75)]
    near = near or get_close_matches(wanted, known, 1, 0.6)
    if near:
        return f"did you mean {show(known[near[0]])}?"
    return otherwise or f"there are {', '.join(names)}"
