"""A file with one line for each message that was thrown away, in Dory's form; full files are set aside.

Invariant: whatever a message holds, it is one line; and neither a full disk nor a removed directory disturbs the node.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Iterator

from penstock.clock import MILLISECOND, SECOND, Clock
from penstock.config import DiscardsConfig
from penstock.discards import Content, Thrown, raw
from penstock.disk import Disk, File
from penstock.errors import ConfigError

#: That a line could not be written is said this often at most.
COMPLAINT_NS = 30 * SECOND

#: What each reason is called in the file.
CODES = {
    "malformed": "MALFORMED",
    "unclean_unix": "UNCLEAN_U",
    "unclean_tcp": "UNCLEAN_T",
    "unsupported_api_key": "API_KEY",
    "unsupported_version": "VERSION",
    "no_memory": "NO_MEM",
    "bad_topic": "BAD_TOPIC",
    "too_long": "LONG_MSG",
    "no_available_partitions": "NO_AVAILABLE_PARTITIONS",
    "rate_limit": "RATE_LIMIT",
    "topic_autocreate_failed": "TOPIC_AUTOCREATE_FAIL",
    "error_ack": "KAFKA_ERROR_ACK",
    "attempt_limit": "DELIVERY_ATTEMPT_LIMIT",
    "shutdown": "SERVER_SHUTDOWN",
    "bug": "BUG",
}

_log = logging.getLogger("penstock.discards")


def discard_log(disk: Disk, clock: Clock, config: DiscardsConfig) -> DiscardLog:
    """Open the file that is configured, or say why it cannot be."""
    if not os.path.isabs(config.log):
        raise ConfigError(f'discards.log = "{config.log}" is no absolute path; write one that begins with /')
    try:
        return DiscardLog(disk, clock, config)
    except OSError as error:
        raise ConfigError(
            f"discards.log = {config.log} cannot be written: {error.strerror or error}. Make its directory, or name "
            "another file"
        ) from error


class DiscardLog:
    """One file, and those before it."""

    def __init__(self, disk: Disk, clock: Clock, config: DiscardsConfig) -> None:
        """Open the file; OSError if that cannot be."""
        self._disk = disk
        self._clock = clock
        self._config = config
        self._directory, self._name = os.path.split(config.log)
        self._file: File | None = disk.open(config.log, create=True)
        self._size = self._file.size()
        self._complained_ns: int | None = None
        #: Lines that could not be written.
        self.lost = 0

    def write(self, thrown: Thrown) -> None:
        """Write a line for each."""
        if self._file is None:
            return
        pending: list[bytes] = []
        size = 0
        for line in self._lines(thrown):
            if pending and self._size + size + len(line) > self._config.log_file_bytes:
                self._append(pending, size)
                pending, size = [], 0
            if self._size + size + len(line) > self._config.log_file_bytes:
                self._rotate()
            pending.append(line)
            size += len(line)
        self._append(pending, size)

    def close(self) -> None:
        """Write nothing more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lines(self, thrown: Thrown) -> Iterator[bytes]:
        event, code = (b"DISC", CODES[thrown.reason]) if thrown.reason is not None else (b"DUP", "NONE")
        if thrown.number is not None:
            code = f"{code}({thrown.number})"
        topic = _one_line(raw(thrown.topic))
        head = b"now: %d ts: %%d event: %b info: %b topic: %d[%b]" % (
            thrown.now_ms,
            event,
            code.encode(),
            len(raw(thrown.topic)),
            topic.replace(b"%", b"%%"),
        )
        for row in range(len(thrown.times_ms)):
            key = self._encoded(thrown.keys[row] if thrown.keys else None)
            body = self._encoded(thrown.bodies[row] if thrown.bodies else None)
            said = head % int(thrown.times_ms[row])
            yield b"%b key: %d[%b] msg: %d[%b]\n" % (said, len(key), key, len(body), body)

    def _encoded(self, content: Content | None) -> bytes:
        most = self._config.log_message_bytes
        return base64.b64encode(bytes(content[:most] if most else content)) if content else b""

    def _append(self, lines: list[bytes], size: int) -> None:
        if not lines or self._file is None:
            return
        try:
            self._file.append(lines)
        except OSError as error:
            self._complain(len(lines), error)
            return
        self._size += size

    def _rotate(self) -> None:
        """Set a full file aside under the time, and remove the oldest until what is left is within its bound."""
        if self._file is None or not self._size:
            return
        try:
            stamp = self._clock.now() // MILLISECOND
            while self._disk.exists(f"{self._config.log}.{stamp}"):
                stamp += 1
            self._disk.rename(self._config.log, f"{self._config.log}.{stamp}")
            self._file.close()
            self._file = self._disk.open(self._config.log, create=True)
            self._size = self._file.size()
            self._shorten()
        except OSError as error:
            self._complain(0, error)

    def _shorten(self) -> None:
        prefix = self._name + "."
        stamps = [name.removeprefix(prefix) for name in self._disk.list(self._directory) if name.startswith(prefix)]
        total = 0
        for stamp in sorted((int(each) for each in stamps if each.isascii() and each.isdigit()), reverse=True):
            path = f"{self._config.log}.{stamp}"
            archive = self._disk.open(path)
            total += archive.size()
            archive.close()
            if total > self._config.log_archive_bytes:
                self._disk.remove(path)

    def _complain(self, lines: int, error: OSError) -> None:
        self.lost += lines
        now_ns = self._clock.monotonic()
        if self._complained_ns is None or now_ns - self._complained_ns >= COMPLAINT_NS:
            self._complained_ns = now_ns
            _log.error("discard log %s cannot be written: %s; %d lines lost so far", self._config.log, error, self.lost)


def _one_line(name: bytes) -> bytes:
    """Return a name in which nothing ends the line."""
    if name.isascii() and name.decode("ascii").isprintable():
        return name
    return b"".join(b"\\x%02x" % byte if byte < 0x20 or byte == 0x7F else bytes((byte,)) for byte in name)
