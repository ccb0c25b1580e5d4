"""Message debug files: what came in, what was sent and what was acknowledged, of chosen topics, for a while.

Off until somebody asks over HTTP, and off again when the time or the bytes are used up.
Invariant: only topics that were asked for are written, and a disk that is full costs the files, not the node.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from penstock.clock import Clock, Timer
from penstock.dialects.dory.forwarder import Watch

_log = logging.getLogger("penstock.dory")

Stage: TypeAlias = Literal["receive", "send", "got_ack"]

STAGES: tuple[Stage, ...] = ("receive", "send", "got_ack")
#: Topics told apart; who wants more wants all.
TOPICS_MAX = 1024


class MessageDebug:
    """The three files."""

    def __init__(
        self, clock: Clock, directory: str, time_ns: int, bytes_max: int, attach: Callable[[Watch | None], None]
    ) -> None:
        """Take where the files are (empty = nowhere, nothing is written), the limits, and how relays are watched."""
        self._clock = clock
        self._directory = directory
        self._time_ns = time_ns
        self._bytes_max = bytes_max
        self._attach = attach
        self.topics: set[str] = set()
        self.all_topics = False
        self._files: dict[Stage, int] = {}
        self._left = 0
        self._end_ns = 0
        self._timer: Timer | None = None

    @property
    def is_allowed(self) -> bool:
        """Tell whether there is a place for the files."""
        return bool(self._directory)

    @property
    def is_on(self) -> bool:
        """Tell whether something is written."""
        return bool(self._files)

    def add(self, topic: str) -> bool:
        """Write one more topic; False if it is written already, or there are too many."""
        if self.all_topics or topic in self.topics or len(self.topics) >= TOPICS_MAX:
            return False
        self._begin()
        self.topics.add(topic)
        return True

    def add_all(self) -> bool:
        """Write every topic; False if that is so already."""
        if self.all_topics:
            return False
        self._begin()
        self.all_topics = True
        self.topics.clear()
        return True

    def remove(self, topic: str) -> bool:
        """Write one topic no more; False if it was not written by its name."""
        if topic not in self.topics:
            return False
        self.topics.remove(topic)
        if not self.topics:
            self.stop()
        return True

    def stop(self) -> bool:
        """Write nothing more; False if nothing was written. What is in the files stays."""
        was_on = self.is_on
        self.topics.clear()
        self.all_topics = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._attach(None)
        for file in self._files.values():
            os.close(file)
        self._files = {}
        return was_on

    def truncate(self) -> None:
        """Write nothing more, and empty the files."""
        self.stop()
        for stage in STAGES:
            path = self._path(stage)
            if os.path.exists(path):
                os.truncate(path, 0)

    def note(
        self, stage: Stage, topic: str, times_ms: Sequence[int], keys: Sequence[bytes | None], bodies: Sequence[bytes]
    ) -> None:
        """Write messages of one topic down."""
        file = self._files.get(stage)
        if file is None or not (self.all_topics or topic in self.topics):
            return
        if self._clock.monotonic() >= self._end_ns:
            self._over()
            return
        name = topic.encode("utf-8", "surrogateescape")
        head = b"topic: %d[%b]" % (len(name), name.replace(b"\n", b"\\x0a"))
        lines = []
        for time_ms, key, body in zip(times_ms, keys, bodies, strict=True):
            key, body = base64.b64encode(key or b""), base64.b64encode(body)
            line = b"ts: %d %b key: %d[%b] value: %d[%b]\n" % (time_ms, head, len(key), key, len(body), body)
            self._left -= len(line)
            if self._left < 0:
                break
            lines.append(line)
        try:
            os.write(file, b"".join(lines))
        except OSError as error:
            _log.error("message debug files in %s cannot be written and end: %s", self._directory, error)
            self.stop()
            return
        if self._left < 0:
            _log.warning("message debug files in %s have all their bytes and end", self._directory)
            self.stop()

    def _begin(self) -> None:
        if self.is_on:
            return
        files: dict[Stage, int] = {}
        try:
            for stage in STAGES:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                files[stage] = os.open(self._path(stage), flags, 0o600)
        except OSError:
            for file in files.values():
                os.close(file)
            raise
        self._files = files
        self._left = self._bytes_max
        self._end_ns = self._clock.monotonic() + self._time_ns
        self._timer = self._clock.call_at(self._end_ns, self._over)
        self._attach(self.note)

    def _over(self) -> None:
        _log.warning("message debug files in %s have had their time and end", self._directory)
        self.stop()

    def _path(self, stage: Stage) -> str:
        return os.path.join(self._directory, f"msg_{stage}")
