"""The node's memory for what it holds for others, cut into parts that cannot starve each other (ruling 30).

Counters only, moved once for a read, a group of rows or a flush, never for a message. Knows nothing of connections,
topics or files. Invariant: a part holds no more than it may, apart from the bytes of the one read or append that
showed it: then somebody is refused, or gives way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.clock import SECOND, Clock, Timer
from penstock.config.tree import MIB, LimitsConfig, MemoryConfig
from penstock.errors import InvariantError, Refusal
from penstock.resident import memory_bytes
from penstock.settings import GIB
from penstock.units.quantity import format_duration, format_size

#: Without a setting the budget is so much of the memory there is, and no more than that: a node that keeps up needs
#: little, and what lies unused here is the page cache of its log.
OF_MEMORY = 2
BUDGET_BYTES_MAX = GIB
#: On the smallest machine, too, a part holds one body of every dialect's default.
PART_BYTES_MIN = 8 * MIB

#: Whoever is waited for is looked at this often ...
LOOK_NS = SECOND
#: ... and must have sent its least over so long: shorter, and a lost packet would cut somebody off.
WINDOW_NS = 30 * SECOND


class Share:
    """Bytes of one kind: how many are held, and how many may be."""

    __slots__ = ("bytes_max", "name", "refused", "used")

    def __init__(self, name: str, bytes_max: int) -> None:
        #: As in `memory.<name>_bytes`.
        self.name = name
        self.bytes_max = bytes_max
        self.used = 0
        #: How often somebody was refused or cut off because it was full.
        self.refused = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve memory, or count a refusal and return False."""
        if self.used + size_bytes > self.bytes_max:
            self.refused += 1
            return False
        self.used += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """Return memory that was taken."""
        if size_bytes > self.used:
            raise InvariantError(f"{size_bytes} bytes of {self.name} given back, but only {self.used} are taken")
        self.used -= size_bytes


class Pace(NamedTuple):
    """How long the node waits for a client: for so long in all, and only while it moves so many bytes a second."""

    rate_bytes: int
    timeout_ns: int


#: Told why its client is waited for no longer.
Cut = Callable[[Refusal], None]


class Wait:
    """What is held until one client moves: the body it sends, or the output it does not read."""

    __slots__ = ("bytes", "client", "cut", "is_over", "paced", "seen_bytes", "seen_ns", "since_ns")

    def __init__(self, client: str, cut: Cut, now_ns: int) -> None:
        self.client = client
        self.cut = cut
        self.bytes = 0
        self.is_over = False
        #: It is the client's move; while it is the node's own, no time runs.
        self.paced = True
        self.since_ns = self.seen_ns = now_ns
        self.seen_bytes = 0


class Waiting(Share):
    """Bytes held for clients that are waited for.

    When there are too many of them, of the client that holds most the one goes that was waited for longest: whoever
    sends or reads as others do is soon gone from here by itself. A client is an address.
    """

    __slots__ = ("_clients", "_clock", "_pace", "_timer")

    def __init__(self, name: str, bytes_max: int, clock: Clock, pace: Pace) -> None:
        super().__init__(name, bytes_max)
        self._clock = clock
        self._pace = pace
        self._timer: Timer | None = None
        self._clients: dict[str, _Client] = {}

    def __len__(self) -> int:
        return sum(len(client.waits) for client in self._clients.values())

    def begin(self, address: str, cut: Cut) -> Wait:
        """Wait for a client; `cut` hears if that ends before its `end`."""
        now_ns = self._clock.monotonic()
        wait = Wait(address, cut, now_ns)
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = _Client()
        client.waits[wait] = None
        if self._timer is None:
            self._timer = self._clock.call_at(now_ns + LOOK_NS, self._look)
        return wait

    def keep(
        self, wait: Wait | None, size_bytes: int, address: str, cut: Cut, *, fresh: bool = False, paced: bool = True
    ) -> Wait | None:
        """Hold so many bytes for a client, where `wait` is what it had before; return what it has now.

        A fresh wait has a time of its own. A client that is cut for this, or for whom nothing is held, has none.
        """
        if wait is not None and (fresh or not size_bytes):
            self.end(wait)
        if not size_bytes:
            return None
        if wait is None or wait.is_over:
            wait = self.begin(address, cut)
        wait.paced = paced
        self.hold(wait, size_bytes)
        return None if wait.is_over else wait

    def hold(self, wait: Wait, size_bytes: int) -> None:
        """Say how many bytes are held for it now; it, or others, may be cut for that before this returns."""
        grown = size_bytes - wait.bytes
        wait.bytes = size_bytes
        self._clients[wait.client].bytes += grown
        self.used += grown
        while self.used > self.bytes_max and grown > 0:
            most = max(self._clients.values(), key=_held, default=_NOBODY)
            if not most.bytes:
                return  # the rest is a relay's or a feed's, which stops by itself
            longest = next(each for each in most.waits if each.bytes)
            self.refused += 1
            text = f"memory.{self.name}_bytes of {format_size(self.bytes_max)} are full; try again in a moment"
            self._cut(longest, Refusal("memory_full", text))

    def end(self, wait: Wait) -> None:
        """Wait no longer, nothing is held; once more changes nothing."""
        client = self._clients.get(wait.client)
        if client is None or wait not in client.waits:
            return
        del client.waits[wait]
        wait.is_over, wait.cut = True, _ended  # the client knows the wait, and that the client
        client.bytes -= wait.bytes
        self.used -= wait.bytes
        if not client.waits:
            del self._clients[wait.client]

    def _cut(self, wait: Wait, why: Refusal) -> None:
        cut = wait.cut
        self.end(wait)
        cut(why)

    def _look(self) -> None:
        """Cut off who is too slow."""
        self._timer = None
        now_ns = self._clock.monotonic()
        for wait in [wait for client in self._clients.values() for wait in client.waits]:
            if not wait.paced:
                wait.since_ns = wait.seen_ns = now_ns
            elif why := self._too_slow(wait, now_ns):
                self.refused += 1
                self._cut(wait, Refusal("too_slow", why))
        if self._clients:
            self._timer = self._clock.call_at(now_ns + LOOK_NS, self._look)

    def _too_slow(self, wait: Wait, now_ns: int) -> str:
        rate_bytes, timeout_ns = self._pace
        if now_ns - wait.since_ns >= timeout_ns:
            return f"took more than limits.{self.name}_timeout = {format_duration(timeout_ns)}"
        if now_ns - wait.seen_ns >= WINDOW_NS:
            moved = abs(wait.bytes - wait.seen_bytes)
            if moved * SECOND < rate_bytes * WINDOW_NS:
                return f"{moved} bytes in {format_duration(WINDOW_NS)} are less than limits.{self.name}_rate allows"
            wait.seen_ns, wait.seen_bytes = now_ns, wait.bytes
        return ""


class _Client:
    __slots__ = ("bytes", "waits")

    def __init__(self) -> None:
        self.bytes = 0
        #: The longest first.
        self.waits: dict[Wait, None] = {}


_NOBODY = _Client()


def _ended(_: Refusal) -> None:
    pass


def _held(client: _Client) -> int:
    return client.bytes


class Budget:
    """All parts of one node."""

    def __init__(self, memory: MemoryConfig, limits: LimitsConfig, clock: Clock) -> None:
        sizes = sizes_of(memory)
        self.bytes_max = sum(sizes.values())
        #: Bodies and commands that have not come whole.
        self.body = Waiting("body", sizes["body"], clock, Pace(limits.body_rate, limits.body_timeout_ns))
        #: What was read whole and is not stored.
        self.input = Share("input", sizes["input"])
        #: What clients do not read.
        self.output = Waiting("output", sizes["output"], clock, Pace(0, limits.output_timeout_ns))
        #: Rows of memory topics.
        self.topic = Share("topic", sizes["topic"])
        #: What of the log is at hand; whoever keeps it keeps count, and brings it down from time to time.
        self.cache = Share("cache", sizes["cache"])

    def __iter__(self) -> Iterator[Share]:
        return iter((self.body, self.input, self.output, self.topic, self.cache))


#: How many eighths of the budget a part has that nobody chose.
_EIGHTHS = {"body": 1, "input": 2, "output": 2, "topic": 2, "cache": 1}


def sizes_of(memory: MemoryConfig) -> dict[str, int]:
    """Return how many bytes each part may hold."""
    chosen = {name: int(getattr(memory, f"{name}_bytes")) for name in _EIGHTHS}
    if all(chosen.values()):
        return chosen
    budget = memory.budget_bytes or min(memory_bytes() // OF_MEMORY, BUDGET_BYTES_MAX)
    return {name: chosen[name] or max(budget * eighths // 8, PART_BYTES_MIN) for name, eighths in _EIGHTHS.items()}
