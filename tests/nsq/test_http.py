from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.http.api import TlsRequired
from penstock.disk import LocalFile
from penstock.http import Listener
from penstock.settings import TopicSettings
from tests.fakes import FakeClock
from tests.http.line import Line
from tests.served import Answer, Served

#: Small limits, so that a test can reach them.
SMALL = NsqConfig(tcp_port=0, http_port=0, max_msg_size=100, max_body_size=1000)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", nsq=SMALL) as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0


def ask(served: Served, method: str, path: str, body: bytes | None = None) -> Answer:
    answer = served.ask(method, path, raw=body, port=served.ports["nsq.http_port"])
    if path.lstrip("/") != "ping":
        assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    return answer


def refused(answer: Answer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    return answer.status, answer.json["message"]


def stored(served: Served, topic: str = "t") -> list[str]:
    answer = served.get(f"topics/{topic}/messages?limit=1000")
    return [message["body"] for message in answer.json["messages"]] if answer.status == 200 else []


def packed(*bodies: bytes) -> bytes:
    return struct.pack(">I", len(bodies)) + b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def test_nsq_case_29_pub_of_nothing_is_msg_empty(served: Served) -> None:
    assert refused(ask(served, "POST", "/pub?topic=t", b"")) == (400, "MSG_EMPTY")
    assert stored(served) == []


def test_nsq_case_29_mpub_takes_a_message_a_line(served: Served) -> None:
    answer = ask(served, "POST", "/mpub?topic=t", b"a\nb\nc\nd\n")
    assert (answer.status, answer.content) == (200, b"OK")
    assert stored(served) == ["a", "b", "c", "d"]


def test_nsq_case_29_mpub_skips_empty_lines(served: Served) -> None:
    assert ask(served, "POST", "/mpub?topic=t", b"\na\n\n\nb\r\n\n").content == b"OK"
    assert stored(served) == ["a", "b\r"]


@pytest.mark.parametrize("switch", ["true", "1", "junk", "non_normalized_binary_param", ""])
def test_nsq_case_29_mpub_takes_five_packed_messages(served: Served, switch: str) -> None:
    answer = ask(served, "POST", f"/mpub?topic=t&binary={switch}", packed(b"a", b"b\n", b"c", b"d", b"e"))
    assert (answer.status, answer.content) == (200, b"OK")
    assert stored(served) == ["a", "b\n", "c", "d", "e"]


@pytest.mark.parametrize("switch", ["false", "0"])
def test_mpub_takes_lines_where_binary_is_off(served: Served, switch: str) -> None:
    ask(served, "POST", f"/mpub?topic=t&binary={switch}", b"a\nb")
    assert stored(served) == ["a", "b"]


def test_nsq_case_30_unknown_path_is_not_found(served: Served) -> None:
    assert refused(ask(served, "GET", "/not_found")) == (404, "NOT_FOUND")
    assert refused(ask(served, "POST", "/")) == (404, "NOT_FOUND")


@pytest.mark.parametrize(("method", "path"), [("POST", "/info"), ("GET", "/pub"), ("GET", "/mpub"), ("PUT", "/pub")])
def test_nsq_case_30_wrong_method_is_not_allowed(served: Served, method: str, path: str) -> None:
    assert refused(ask(served, method, path)) == (405, "METHOD_NOT_ALLOWED")


def test_ping_says_ok_without_the_header_of_the_others(served: Served) -> None:
    answer = ask(served, "GET", "/ping")
    assert (answer.status, answer.content) == (200, b"OK")
    assert "x-nsq-content-type" not in answer.headers


def test_ping_says_nok_while_the_last_write_failed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(served, "POST", "/pub?topic=t", b"x")

    def full(self: LocalFile, parts: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFile, "append", full)
        assert refused(ask(served, "POST", "/pub?topic=t", b"x")) == (507, "DISK_FULL")
        answer = ask(served, "GET", "/ping")
        assert (answer.status, answer.content) == (500, b"NOK - topic t could not be written")
    assert ask(served, "POST", "/pub?topic=t", b"y").content == b"OK"
    assert ask(served, "GET", "/ping").content == b"OK"
    assert stored(served) == ["x", "y"]


def test_double_slashes_are_collapsed(served: Served) -> None:
    assert ask(served, "GET", "//ping").status == 200
    assert ask(served, "POST", "//pub?topic=t", b"x").content == b"OK"


def test_info_tells_what_a_client_needs(served: Served) -> None:
    info = ask(served, "GET", "/info").json
    assert info["http_port"] == served.ports["nsq.http_port"]
    assert info["start_time"] == served.node.started_ns // 10**9
    assert info["max_heartbeat_interval"] == SMALL.max_heartbeat_interval_ns
    assert info["max_output_buffer_timeout"] == SMALL.max_output_buffer_timeout_ns
    assert {"version", "broadcast_address", "hostname", "tcp_port", "max_output_buffer_size", "max_deflate_level"} <= {
        *info
    }


def test_pub_stores_the_body_as_it_is(served: Served) -> None:
    assert ask(served, "POST", "/pub?topic=t", b"a\nb\x00").content == b"OK"
    assert stored(served) == ["a\nb\x00"]


def test_old_names_of_the_paths_still_publish(served: Served) -> None:
    assert ask(served, "POST", "/put?topic=t", b"a").content == b"OK"
    assert ask(served, "POST", "/mput?topic=t", b"b\nc").content == b"OK"
    assert stored(served) == ["a", "b", "c"]


def test_pub_with_defer_is_due_later(served: Served) -> None:
    assert ask(served, "POST", "/pub?topic=t&defer=60000", b"later").content == b"OK"
    message = served.get("topics/t/messages").json["messages"][0]
    assert message["due"] > message["timestamp"]
    ask(served, "POST", "/pub?topic=t&defer=0", b"now")
    assert "due" not in served.get("topics/t/messages").json["messages"][1]


@pytest.mark.parametrize("delay", ["-1", "x", "", "1.5", "3600001", "9" * 30])
def test_bad_defer_is_refused(served: Served, delay: str) -> None:
    assert refused(ask(served, "POST", f"/pub?topic=t&defer={delay}", b"x")) == (400, "INVALID_DEFER")
    assert stored(served) == []


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
def test_topic_must_be_named_and_named_well(served: Served, path: str) -> None:
    assert refused(ask(served, "POST", path, b"x")) == (400, "MISSING_ARG_TOPIC")
    for name in ("", "a%20b", "x" * 65, "%C3%A9", "a%0A", "%FF"):
        assert refused(ask(served, "POST", f"{path}?topic={name}", b"x")) == (400, "INVALID_TOPIC")
    for query in ("topic=%zz", "topic=t%", "a=%2&topic=t"):
        assert refused(ask(served, "POST", f"{path}?{query}", b"x")) == (400, "INVALID_REQUEST")
    assert served.get("topics").json["topics"] == []


def test_of_a_repeated_parameter_the_first_counts(served: Served) -> None:
    ask(served, "POST", "/pub?topic=t&topic=u", b"x")
    assert stored(served, "t") == ["x"]


def test_sizes_beyond_the_limits_are_refused(served: Served) -> None:
    assert ask(served, "POST", "/pub?topic=t", b"x" * 100).status == 200
    assert refused(ask(served, "POST", "/pub?topic=t", b"x" * 101)) == (413, "MSG_TOO_BIG")
    assert refused(ask(served, "POST", "/mpub?topic=t", b"x" * 101)) == (413, "MSG_TOO_BIG")
    assert refused(ask(served, "POST", "/mpub?topic=t", b"x\n" * 501)) == (413, "BODY_TOO_BIG")
    assert refused(ask(served, "POST", "/mpub?topic=t&binary=1", packed(b"x" * 101))) == (413, "BAD_MESSAGE")
    assert len(stored(served)) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_BODY"),
        (b"\x00\x00", "BAD_BODY"),
        (packed(), "BAD_BODY"),
        (packed(b"a", b""), "BAD_MESSAGE"),
        (packed(b"a", b"b")[:-1], "BAD_BODY"),
        (packed(b"a") + b"x", "BAD_BODY"),
        (b"\xff\xff\xff\xff", "BAD_BODY"),
    ],
)
def test_bad_packing_is_refused(served: Served, body: bytes, code: str) -> None:
    assert refused(ask(served, "POST", "/mpub?topic=t&binary=true", body)) == (413, code)
    assert stored(served) == []


def test_mpub_of_no_line_stores_nothing(served: Served) -> None:
    assert ask(served, "POST", "/mpub?topic=t", b"\n\n").content == b"OK"
    assert stored(served) == []


def test_ephemeral_topic_is_made_as_over_tcp(served: Served) -> None:
    assert ask(served, "POST", "/pub?topic=t%23ephemeral", b"x").content == b"OK"
    assert served.get("topics/t%23ephemeral").json["settings"]["ephemeral"] is True


def test_stopping_node_is_exiting(served: Served) -> None:
    ask(served, "POST", "/pub?topic=t", b"x")
    served.do(served.node.stop)
    for path in ("/pub?topic=t", "/pub?topic=new", "/mpub?topic=t"):
        assert refused(ask(served, "POST", path, b"x")) == (503, "EXITING")


def test_refusals_keep_their_status_and_are_counted(served: Served) -> None:
    served.post("topics", {"name": "t", "settings": {"rate": 1}})
    answers = [ask(served, "POST", "/pub?topic=t", b"x") for _ in range(50)]
    assert (429, "RATE_LIMITED") in [refused(answer) for answer in answers if answer.status != 200]
    memory = served.node.budget.body
    served.do(lambda: setattr(memory, "bytes_max", 0))
    assert refused(ask(served, "POST", "/mpub?topic=t", b"x")) == (503, "MEMORY_FULL")
    assert memory.used == 0
    assert served.get("ledger?reason=nsq:MEMORY_FULL").json["total"] == 1


def test_handler_that_fails_is_internal_error_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path, nsq=SMALL) as served:

        def fail(reason: str) -> None:
            raise ZeroDivisionError("planted")

        served.do(lambda: monkeypatch.setattr(served.node.ledger, "entries", fail))
        assert refused(served.ask("GET", "/ping", port=served.ports["nsq.http_port"])) == (500, "INTERNAL_ERROR")
        assert served.node.bugs == 1


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Served(tmp_path_factory.mktemp("fuzz"), nsq=SMALL) as served:
        yield served


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/pub", "/mpub", "/pub_ext", "/pubtrace", "/topic/create", "/channel/setoffset"]),
    query=st.sampled_from(
        ["topic=t", "topic=t&binary=1", "topic=t&defer=1", "topic=u&ext={}", "topic=t&trace_id=1", "topic=t&channel=c"]
    )
    | st.text(st.characters(codec="ascii", exclude_characters="\r\n #\x7f", min_codepoint=33), max_size=20),
    body=st.binary(max_size=60) | st.lists(st.binary(max_size=5)).map(lambda bodies: packed(*bodies)),
)
def test_no_request_makes_the_node_fail_inside(shared: Served, path: str, query: str, body: bytes) -> None:
    answer = shared.ask("POST", f"{path}?{query}", raw=body, port=shared.ports["nsq.http_port"])
    assert answer.status < 500
    assert shared.node.bugs == 0


@pytest.mark.parametrize("mode", ["channels", "off"])
def test_node_that_makes_no_topics_refuses_unknown_ones(tmp_path: Path, mode: Literal["channels", "off"]) -> None:
    nsq = msgspec.structs.replace(SMALL, auto_create=mode)
    with Served(tmp_path, nsq=nsq) as served:
        for path in ("/pub", "/mpub"):
            assert refused(ask(served, "POST", f"{path}?topic=t", b"x")) == (404, "TOPIC_NOT_FOUND")
        for path in ("/pub_ext?ext={}", "/pubtrace?trace_id=1"):
            assert refused(ask(served, "POST", f"{path}&topic=t", b"x")) == (404, "E_TOPIC_NOT_EXIST")
            assert refused(ask(served, "POST", path, b"x")) == (400, "MISSING_ARG_TOPIC")
        assert ask(served, "POST", "/topic/create?topic=t", b"").status == 200
        assert ask(served, "POST", "/pub?topic=t", b"x").content == b"OK"


def test_plain_port_sends_everybody_to_tls_where_it_is_required(served: Served) -> None:
    node = served.node
    line = Line(Listener("nsq.http_port", TlsRequired(node, 4152), FakeClock(), node.budget, node.gate))
    line.send(b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
    status, headers, content = line.answer()
    assert (status, headers["x-nsq-content-type"]) == (403, "nsq; version=1.0")
    assert msgspec.json.decode(content) == {"message": "TLS_REQUIRED", "https_port": 4152}


def test_full_topic_refuses_and_the_node_is_well(served: Served) -> None:
    served.do(
        lambda: served.node.create_topic("t", NsqChoices(extend="off").put(TopicSettings(quota_bytes=10_000))).now()
    )
    answers = [ask(served, "POST", "/pub?topic=t", b"x") for _ in range(50)]
    assert answers[0].status == 200
    assert refused(answers[-1]) == (507, "QUOTA_FULL")
    assert ask(served, "GET", "/ping").content == b"OK"
