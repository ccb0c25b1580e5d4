from __future__ import annotations

import io
import logging
from collections.abc import Iterator

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
