"""How much of what was produced may wait in memory, and what gives way: upstream's buffer.

Pure: whoever holds it says what time it is. A message is finished once: consumed, when nobody waits for it any more, or
dropped. Its bytes count until then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from penstock.clock import SECOND
from penstock.errors import ConfigError, PenstockError

_log = logging.getLogger("penstock.m3msg")

#: What became of a message: every service that should have it has it, or is not to get it any more; or none of that.
Fate: TypeAlias = Literal["consumed", "dropped"]
Finished: TypeAlias = Callable[[Fate], None]


class BufferFull(PenstockError):
    """There is no room for a message, and nothing is dropped for it."""


class MessageTooLarge(PenstockError):
    """A message above what one may have."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that may wait, and what happens beyond; the defaults are upstream's."""

    bytes_max: int = 100 << 20
    message_bytes_max: int = 1 << 20
    #: drop: the oldest gives way; refuse: the new one is not taken.
    on_full: Literal["drop", "refuse"] = "drop"
    #: With `drop` so much more may wait, as a fraction, until the oldest are dropped at the next interval.
    spill: float = 0.2
    drop_interval_ns: int = SECOND

    def check(self) -> None:
        """Refuse what cannot work."""
        if self.bytes_max <= 0 or self.message_bytes_max <= 0 or self.spill < 0:
            raise ConfigError("a buffer needs room for its messages: bytes_max and message_bytes_max above 0")
        if self.message_bytes_max > self.bytes_max:
            raise ConfigError(
                f"message_bytes_max = {self.message_bytes_max} is above bytes_max = {self.bytes_max}: "
                "a message of that size would never be taken"
            )


class Held:
    """One message: what it counts for, and who waits for it."""

    __slots__ = ("_finished", "is_open", "size", "waits")

    def __init__(self, size: int, finished: Finished | None) -> None:
        self.size = size
        #: A bit for each subscription that has not finished it.
        self.waits = 0
        self.is_open = True
        self._finished = finished

    def finish(self, fate: Fate) -> None:
        """Tell what became of it, once."""
        self.is_open = False
        told, self._finished = self._finished, None
        if told is not None:
            try:
                told(fate)
            except Exception:  # whose bug it is, it must not cost the others
                _log.exception("who was told that a message is %s failed", fate)


class Buffer:
    """The messages that wait, oldest first."""

    def __init__(self, limits: Limits, drop: Callable[[Held], None], emptied: Callable[[], None]) -> None:
        limits.check()
        self._limits = limits
        self._drop = drop
        self._emptied = emptied
        self._held: dict[Held, None] = {}
        #: Bytes of messages that are not finished.
        self.total = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_over(self) -> bool:
        """Whether the oldest are to be dropped at the next interval."""
        return self.total > self._limits.bytes_max

    def add(self, size: int, finished: Finished | None = None) -> Held:
        """Take a message in; what cannot be is raised, and changes nothing."""
        limits = self._limits
        if size > limits.message_bytes_max:
            raise MessageTooLarge(f"a message of {size} bytes, above the {limits.message_bytes_max} that one may have")
        total = self.total + size
        if total > limits.bytes_max:
            if limits.on_full == "refuse":
                raise BufferFull(f"{self.total} of {limits.bytes_max} bytes wait, no room for {size}; try again later")
            if total >= limits.bytes_max + int(limits.bytes_max * limits.spill):
                self.drop_down_to(limits.bytes_max - size)
        held = Held(size, finished)
        self._held[held] = None
        self.total += size
        return held

    def drop_over(self) -> None:
        """Drop the oldest until the rest fits."""
        self.drop_down_to(self._limits.bytes_max)

    def drop_down_to(self, total: int) -> None:
        """Drop the oldest until no more than this waits."""
        while self.total > total:
            held = next(iter(self._held))
            self.dropped += 1
            self._remove(held, "dropped")
            self._drop(held)

    def consume(self, held: Held) -> None:
        """Let go of a message that nobody waits for."""
        if held.is_open:
            self._remove(held, "consumed")

    def _remove(self, held: Held, fate: Fate) -> None:
        del self._held[held]
        self.total -= held.size
        held.finish(fate)
        if not self._held:
            self._emptied()
