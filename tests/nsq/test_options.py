from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.dialects.nsq.config import NsqConfig
from tests.nsq.asking import ask, refused
from tests.served import Served

CONFIG = NsqConfig(tcp_port=0, http_port=0, max_msg_size=200, lookupd_tcp_addresses=("10.0.0.1:4160",))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    level = logging.getLogger("penstock").level
    with Served(tmp_path / "data", nsq=CONFIG) as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0
    logging.getLogger("penstock").setLevel(level)


def get(served: Served, option: str) -> Any:
    answer = ask(served, "GET", f"/config/{option}")
    assert answer.status == 200, answer
    return answer.json


def told(served: Served) -> list[tuple[str, int]]:
    """Return the lookup services that the node announces itself to."""
    return served.do(lambda: [link.address for link in served.nsq_running.registrar.links])


def test_nsq_case_32_lookup_addresses_are_echoed_and_used(served: Served) -> None:
    assert get(served, "nsqlookupd_tcp_addresses") == ["10.0.0.1:4160"]
    wanted = b'["127.0.0.1:4160","[::1]:4161"]'
    answer = ask(served, "PUT", "/config/nsqlookupd_tcp_addresses", wanted)
    assert (answer.status, answer.content) == (200, wanted)
    assert told(served) == [("127.0.0.1", 4160), ("::1", 4161)]
    assert get(served, "nsqlookupd_tcp_addresses") == ["127.0.0.1:4160", "[::1]:4161"]
    assert ask(served, "PUT", "/config/nsqlookupd_tcp_addresses", b"[]").content == b"[]"
    assert told(served) == []


@pytest.mark.parametrize(("word", "level", "number"), [("fatal", 50, 5), ("DEBUG", 10, 1), ("warn", 30, 3)])
def test_nsq_case_32_log_level_is_changed(served: Served, word: str, level: int, number: int) -> None:
    assert ask(served, "PUT", "/config/log_level", word.encode()).json == number
    assert logging.getLogger("penstock").level == level
    assert get(served, "log_level") == number


@pytest.mark.parametrize("value", [b"bad", b'"info"', b"\xff", b"info\n"])
def test_nsq_case_32_unknown_log_level_is_refused(served: Served, value: bytes) -> None:
    assert refused(ask(served, "PUT", "/config/log_level", value)) == (400, "INVALID_VALUE")


@pytest.mark.parametrize(
    "value", [b"{}", b"null", b"x", b"[1]", b'["\xff"]', b'["nowhere"]', b'["a:0"]', b'["a:70000"]']
)
def test_bad_lookup_addresses_change_nothing(served: Served, value: bytes) -> None:
    assert refused(ask(served, "PUT", "/config/nsqlookupd_tcp_addresses", value)) == (400, "INVALID_VALUE")
    assert told(served) == [("10.0.0.1", 4160)]
    assert get(served, "nsqlookupd_tcp_addresses") == ["10.0.0.1:4160"]


@pytest.mark.parametrize("option", ["log_level", "nsqlookupd_tcp_addresses", "max_msg_size"])
def test_value_of_no_or_too_many_bytes_is_refused(served: Served, option: str) -> None:
    for value in (b"", b"x" * 201):
        assert refused(ask(served, "PUT", f"/config/{option}", value)) == (413, "INVALID_VALUE")


def test_other_options_can_be_read_only(served: Served) -> None:
    assert get(served, "max_msg_size") == 200
    assert get(served, "msg_timeout") == CONFIG.msg_timeout_ns
    assert get(served, "data_path") == str(served.path)
    assert get(served, "tcp_address") == "127.0.0.1:0"
    assert refused(ask(served, "PUT", "/config/max_msg_size", b"1")) == (400, "INVALID_OPTION")


def test_unknown_options_paths_and_methods(served: Served) -> None:
    for option in ("nonsense", "token", "__class__"):
        assert refused(ask(served, "GET", f"/config/{option}")) == (400, "INVALID_OPTION")
    assert refused(ask(served, "PUT", "/config/nonsense", b"x")) == (400, "INVALID_OPTION")
    for path in ("/config", "/config/", "/config/log_level/x"):
        assert refused(ask(served, "GET", path)) == (404, "NOT_FOUND")
    assert refused(ask(served, "POST", "/config/log_level", b"info")) == (405, "METHOD_NOT_ALLOWED")


def test_every_option_of_nsq_can_be_shown_but_secrets(served: Served) -> None:
    for field in msgspec.structs.fields(NsqConfig):
        if field.name != "lookupd_token":
            get(served, field.name.removesuffix("_ns"))
    for method, value in (("GET", None), ("PUT", b"x")):
        assert refused(ask(served, method, "/config/lookupd_token", value)) == (400, "INVALID_OPTION")
