"""Large bodies of /mpub and of the admin API: read in slices, with everybody else in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.nsq.http import lines
from penstock.dialects.nsq.http.lines import Lines
from penstock.dialects.nsq.http.words import Fault
from penstock.message import Rows
from penstock.rest import record
from tests.served import Served


def bodies_of(rows: Rows) -> list[bytes]:
    return [bytes(memoryview(rows.body)[rows.cuts[at] : rows.cuts[at + 1]]) for at in range(rows.count)]


def whole(body: bytes, most: int = 1000) -> Rows:
    found = Lines(body, most)
    while not found.step():
        pass
    return found.rows()


@given(
    body=st.binary().map(lambda raw: raw.replace(b"\x00", b"\n")),
    slice_bytes=st.integers(1, 9),
    times=st.integers(1, 3),
)
def test_slices_say_what_splitting_says(body: bytes, slice_bytes: int, times: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "PLAIN_BYTES_MAX", 0)
        patch.setattr(lines, "SLICE_BYTES", slice_bytes)
        body *= times
        wanted = [line for line in body.split(b"\n") if line]
        if any(len(line) > 20 for line in wanted):
            with pytest.raises(Fault):
                whole(body, 20)
        else:
            assert bodies_of(whole(body, 20)) == wanted


def watched(served: Served, patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Return how often something was called in each turn of the loop from now on."""
    turns = [0]
    real: Callable[..., Any] = getattr(owner, name)

    def counted(*arguments: Any) -> Any:
        turns[-1] += 1
        return real(*arguments)

    def turn() -> None:
        if turns[-1]:
            turns.append(0)
        served.clock.call_soon(turn)

    patch.setattr(owner, name, counted)
    served.do(turn)
    return turns


def test_a_large_publish_in_json_gives_the_loop_back_between_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(tmp_path) as served:
        served.post("topics", {"name": "t"})
        turns = watched(served, monkeypatch, record, "_read")
        answer = served.post("topics/t/messages", raw=b'{"body":"x"}\n' * 20_000)
        assert answer.json["count"] == 20_000
        assert answer.json["ids"][0] == "0000000000000001"
        assert sum(turns) == 20_000
        assert max(turns) <= record.SLICE_LINES


def test_a_large_mpub_gives_the_loop_back_between_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path) as served:
        served.post("topics", {"name": "t"})
        port = served.ports["nsq.http_port"]
        turns = watched(served, monkeypatch, Lines, "step")
        body = b"x\n" * (lines.SLICE_BYTES * 2)
        assert served.ask("POST", "/mpub?topic=t", raw=body, port=port).content == b"OK"
        assert sum(turns) == 4
        assert max(turns) == 1
        assert served.do(lambda: served.node.topics["t"].shards[0].readable_end) == lines.SLICE_BYTES * 2


def test_others_publish_while_a_large_publish_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path) as served:
        served.post("topics", {"name": "t"})
        topic = served.node.topics["t"]
        order: list[int] = []
        real = record.Reading.step

        def step(reading: record.Reading) -> bool:
            if len(order) == 3:  # somebody else, in the middle of it
                rows = Rows.of([b"quick"], "test")
                topic.publish(rows, object(), lambda receipt, error: order.append(-1))
            order.append(1)
            return real(reading)

        monkeypatch.setattr(record.Reading, "step", step)
        assert served.post("topics/t/messages", raw=b'{"body":"x"}\n' * 5_000).json["count"] == 5_000
        assert 0 < order.index(-1) < len(order) - 1
        first = served.get("topics/t/messages?limit=1").json["messages"][0]
        assert first["body"] == "quick"


def test_a_bad_line_far_behind_refuses_all_of_it(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.post("topics", {"name": "t"})
        answer = served.post("topics/t/messages", raw=b'{"body":"x"}\n' * 5_000 + b"nonsense\n")
        assert answer.status == 400
        assert "line 5001" in answer.message
        body = b"x\n" * lines.SLICE_BYTES + b"y" * (2 << 20)
        answer = served.ask("POST", "/mpub?topic=t", raw=body, port=served.ports["nsq.http_port"])
        assert (answer.status, answer.json["message"]) == (413, "MSG_TOO_BIG")
        assert served.get("topics/t/messages").json["end"] == 0
