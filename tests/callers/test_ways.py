"""Every way to a topic asks whether its caller may; nobody is asked per message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from penstock.callers import Action, Caller, Gate
from penstock.callers.book import Book, User
from penstock.callers.caller import GRANTS_MAX
from penstock.callers.gate import Verdict
from penstock.callers.rights import Rule
from penstock.errors import Refusal
from tests.fakes import FakeClock, gate_of
from tests.flight.parts import Flown, many
from tests.nsq.asking import ask
from tests.nsq.caller import Caller as Client
from tests.nsq.parts import pub
from tests.served import Served

Asked = list[tuple[str, Action, str]]


@contextmanager
def asked(served: Served, monkeypatch: pytest.MonkeyPatch, *, forbidden: tuple[str, ...] = ()) -> Iterator[Asked]:
    """Take note of who asks for what; some topics are forbidden."""
    found: Asked = []

    def judge(gate: Gate, caller: Caller, action: Action, topic: str) -> Verdict | None:
        assert caller.address
        if not found or found[-1] != (caller.listener, action, topic):  # why not is asked once more
            found.append((caller.listener, action, topic))
        return Verdict("forbidden", "no_right", f"{caller} may not") if topic in forbidden else None

    served.do(lambda: monkeypatch.setattr(Gate, "judge", judge))
    yield found
    served.do(monkeypatch.undo)


@pytest.fixture
def flown(tmp_path: Path) -> Iterator[Flown]:
    with Flown(tmp_path / "data") as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0


def test_a_caller_is_asked_once_for_each_topic_and_action(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []

    def judge(gate: Gate, caller: Caller, action: Action, topic: str) -> None:
        questions.append(action + topic)

    monkeypatch.setattr(Gate, "judge", judge)
    caller = Caller(gate_of(FakeClock()), "127.0.0.1:5", "nsq.tcp_port")
    for _ in range(3):
        caller.check("publish", "a")
        caller.check("receive", "a")
    assert questions == ["publisha", "receivea"]
    for number in range(2 * GRANTS_MAX):
        caller.check("read", str(number))
    assert len(caller._granted) <= GRANTS_MAX


def test_who_may_not_is_told_what_and_who_it_is() -> None:
    gate = gate_of(FakeClock())
    gate.book = Book([User("bob", (Rule("manage", "b*"),))])
    with pytest.raises(Refusal, match=r"bob at 127.0.0.1:5 may not delete topic a") as caught:
        Caller(gate, "127.0.0.1:5", "nsq.tcp_port", gate.certified("bob")).check("delete", "a")
    assert caught.value.code == "forbidden"


def test_nsq_asks_once_for_a_thousand_messages(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(flown, monkeypatch) as found, Client(flown.tcp_port) as client:
        client.send(pub("t", b"x") * 1000)
        assert [client.told() for _ in range(1000)] == ["OK"] * 1000
        client.send(b"SUB t c\nRDY 10\n")
        assert client.told() == "OK"
        tcp = "nsq.tcp_port"
        assert found == [(tcp, "publish", "t"), (tcp, "receive", "t")]


def test_nsq_refuses_in_its_own_words(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(flown, monkeypatch, forbidden=("t",)):
        for command in (pub("t", b"x"), b"SUB t c\n", b"INTERNAL_CREATE_TOPIC t 0\n"):
            with Client(flown.tcp_port) as client:
                client.send(command)
                assert client.told().startswith(f"E_UNAUTHORIZED AUTH failed for {command.split()[0].decode()}")
        for path in ("/pub?topic=t", "/mpub?topic=t", "/pub?topic=t&defer=1", "/topic/create?topic=t"):
            answer = ask(flown, "POST", path, b"x")
            assert (answer.status, answer.json["message"]) == (403, "FORBIDDEN")
        assert "t" not in flown.node.topics


def test_every_change_over_nsq_http_is_asked_for(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(flown, monkeypatch) as found:
        for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c", "/topic/delete?topic=t"):
            assert ask(flown, "POST", path).status == 200
    actions = [("create", "t"), ("change", "t"), ("delete", "t")]
    assert [(action, topic) for _, action, topic in found] == actions


@pytest.mark.parametrize(
    ("method", "path", "body", "action"),
    [
        ("POST", "topics", {"name": "t"}, "create"),
        ("GET", "topics/t", None, "see"),
        ("PATCH", "topics/t", {"settings": {"rate": 5}}, "change"),
        ("POST", "topics/t/pause", None, "change"),
        ("DELETE", "topics/t", None, "delete"),
        ("GET", "topics/t/messages", None, "read"),
        ("POST", "topics/t/messages", {"body": "x"}, "publish"),
        ("POST", "topics/t/subscriptions", {"name": "s"}, "change"),
        ("POST", "topics/t/subscriptions/s/lease", {"max": 1}, "receive"),
        ("POST", "topics/t/subscriptions/s/seek", {"to": "latest"}, "change"),
    ],
)
def test_every_way_of_the_api_asks_first(
    flown: Flown, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any, action: Action
) -> None:
    if action != "create":
        flown.post("topics", {"name": "t"})
    with asked(flown, monkeypatch, forbidden=("t",)) as found:
        answer = flown.ask(method, path, body)
        assert (answer.status, answer.code) == (403, "forbidden")
        assert found == [("api.port", action, "t")]


def test_every_way_of_flight_asks_first(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    flown.put("t", many(3))
    with asked(flown, monkeypatch, forbidden=("t",)) as found:
        for call in (
            lambda: flown.put("t", many(1)),
            lambda: flown.read("t"),
            lambda: flown.act("topic", name="t"),
            lambda: flown.act("delete-topic", name="t"),
            lambda: flown.subscribe("t", "s", create=True).next(),
        ):
            with pytest.raises(flight.FlightError, match="may not"):
                call()
        assert flown.act("topics") == {"topics": []}
    assert {action for _, action, _ in found} == {"publish", "read", "see", "delete", "receive"}


def test_a_stream_of_flight_asks_once(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(flown, monkeypatch) as found:
        flown.put("t", many(10), many(10), many(10))
        assert found == [("flight.port", "publish", "t")]
