from __future__ import annotations

import io
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.config import LogConfig
from penstock.observe.logging import set_up


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    before = (list(root.handlers), root.level, ours.level)
    yield
    for handler in list(root.handlers):
        if handler not in before[0]:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_text_line_has_time_level_place_and_what_was_added() -> None:
    out = io.StringIO()
    set_up(LogConfig(), out)
    logging.getLogger("penstock.node").info("topic %s created", "orders", extra={"shards": 2})
    time, level, where, *rest = out.getvalue().split()
    assert time.endswith("Z")
    assert (level, where, " ".join(rest)) == ("info", "node:", "topic orders created shards=2")


def test_json_line_is_one_object_with_the_error() -> None:
    out = io.StringIO()
    set_up(LogConfig(format="json"), out)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("penstock.api").exception("it %s", "failed", extra={"peer": ("h", 1), "odd": object()})
    lines = out.getvalue().splitlines()
    assert len(lines) == 1
    event = msgspec.json.decode(lines[0])
    assert event["time"].endswith("Z")
    assert (event["level"], event["logger"], event["message"]) == ("error", "penstock.api", "it failed")
    assert event["peer"] == ["h", 1]
    assert "ValueError: two\nlines" in event["error"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_event_is_one_line_whatever_it_holds(form: str) -> None:
    out = io.StringIO()
    set_up(msgspec.convert({"format": form}, LogConfig), out)
    logging.getLogger("penstock.x").warning("a\nb\r\x00\udcff")
    assert out.getvalue().count("\n") == 1
    out.getvalue().encode()


def test_level_holds_for_ours_and_others_only_warn() -> None:
    out = io.StringIO()
    set_up(LogConfig(level="debug"), out)
    logging.getLogger("penstock.x").debug("ours")
    logging.getLogger("elsewhere").info("theirs")
    logging.getLogger("elsewhere").warning("trouble")
    assert [line.split(": ")[1] for line in out.getvalue().splitlines()] == ["ours", "trouble"]


def test_second_set_up_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up(LogConfig(), first)
    set_up(LogConfig(), second)
    logging.getLogger("penstock.x").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def listening(path: Path) -> socket.socket:
    """Return what a syslog has at this path."""
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.bind(str(path))
    found.setblocking(False)
    return found


@pytest.mark.parametrize(
    ("level", "priority"), [("debug", 31), ("info", 30), ("warning", 28), ("error", 27), ("critical", 26)]
)
def test_syslog_gets_every_line_as_well_with_its_priority_and_who_wrote_it(
    tmp_path: Path, level: str, priority: int
) -> None:
    out = io.StringIO()
    with listening(tmp_path / "log") as syslog:
        set_up(LogConfig(level="debug", syslog=str(tmp_path / "log")), out)
        getattr(logging.getLogger("penstock.node"), level)("two\nlines", extra={"shards": 2})
        head, _, text = syslog.recv(65536).decode().partition("]: ")
    assert head.startswith(f"<{priority}>")
    assert head.endswith(f"[{os.getpid()}")
    assert text == "node: two\\n lines shards=2"
    assert "two" in out.getvalue()


def test_a_syslog_that_is_started_anew_is_found_and_one_that_is_away_is_told_of(tmp_path: Path) -> None:
    out, path, log = io.StringIO(), tmp_path / "log", logging.getLogger("penstock.node")
    set_up(LogConfig(syslog=str(path)), out)
    assert f"log.syslog = {path}: nobody listens there" in out.getvalue()
    log.info("lost")
    for word in (b"first", b"second"):
        with listening(path) as syslog:
            log.info(word.decode())
            assert syslog.recv(65536).endswith(word)
    assert "second" in out.getvalue()


def test_a_syslog_that_does_not_read_holds_nobody(tmp_path: Path) -> None:
    out, lines = io.StringIO(), 100
    with listening(tmp_path / "log"):
        set_up(LogConfig(syslog=str(tmp_path / "log")), out)
        for _ in range(lines):
            logging.getLogger("penstock.node").info("x" * 20_000)
    assert out.getvalue().count("\n") == lines
