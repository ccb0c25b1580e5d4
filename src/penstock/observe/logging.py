"""What the node says about itself: one line per event, as text for people or as JSON for machines, times in UTC.

Owns the form of the lines. Knows nothing of what is said.
Invariant: an event is one line, whatever its message holds.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import TextIO

import msgspec

from penstock.config import LogConfig
from penstock.errors import ConfigError
from penstock.observe.syslog import Syslog

_log = logging.getLogger("penstock.log")

#: What every record carries; anything else was added by the one who logged it.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def set_up(config: LogConfig, stream: TextIO | None = None) -> logging.Handler:
    """Send everything that is logged in this process to a stream (standard error), or the file that is configured.

    Where a syslog is configured, it gets everything, too.
    """
    handler: logging.Handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    if config.file and stream is None:
        handler = _file(config.file)
    handlers = [handler]
    if config.syslog:
        handlers.append(Syslog(config.syslog))
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, TextLines | JsonLines):
            root.removeHandler(old)
            if isinstance(old, logging.FileHandler | Syslog):
                old.close()
    for each in handlers:
        # Syslog has its own times and levels.
        each.setFormatter(JsonLines() if config.format == "json" else TextLines(is_bare=isinstance(each, Syslog)))
        root.addHandler(each)
    root.setLevel(logging.WARNING)
    logging.getLogger("penstock").setLevel(config.level.upper())
    if isinstance(handlers[-1], Syslog) and not handlers[-1].is_heard:
        _log.warning("log.syslog = %s: nobody listens there; until somebody does, its lines are lost", config.syslog)
    return handler


def _file(path: str) -> WatchedFileHandler:
    try:
        return WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"log.file = {path} cannot be written: {error.strerror or error}; name another") from error


def reopen() -> None:
    """Open the log's file anew if somebody has renamed or removed it; the next line would do so, too."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, WatchedFileHandler):
            handler.reopenIfNeeded()


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info  node: topic orders created key=value`; bare, it begins with `node`."""

    def __init__(self, *, is_bare: bool = False) -> None:
        super().__init__()
        self._is_bare = is_bare

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one event."""
        where = record.name.removeprefix("penstock.")
        extra = "".join(f" {key}={value}" for key, value in _extra(record).items())
        text = f"{where}: {_message(record)}{extra}"
        if not self._is_bare:
            text = f"{_time(record)} {record.levelname.lower():<7} {text}"
        if record.exc_info and record.exc_info[0]:
            text += "\n" + self.formatException(record.exc_info)
        return text.replace("\r", "\\r").replace("\n", "\\n ")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, what was added, and the error if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one event."""
        event: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        event |= {key: value for key, value in _extra(record).items() if key not in event}
        if record.exc_info and record.exc_info[0]:
            event["error"] = self.formatException(record.exc_info)
        return _ENCODER.encode(event).decode()


def _shown(value: object) -> str:
    return repr(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_shown)


def _message(record: logging.LogRecord) -> str:
    # A client's bytes may have become text that is not Unicode; the line must be.
    return record.getMessage().encode("utf-8", "backslashreplace").decode()


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
