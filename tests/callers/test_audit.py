"""The audit tells who did what, from where, and whether it was allowed; nobody but the node writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.flight as flight
import pytest

from penstock.callers import Caller
from penstock.config import CallersConfig, Config
from penstock.dialects.dynamiq.queue import NAME, SETTINGS
from penstock.errors import Refusal
from penstock.node.audit import DROPPED, TOPIC
from tests.callers.parts import SECRET, TOKEN, bearer, user, users_in
from tests.flight.parts import Flown
from tests.nsq.caller import Caller as Client
from tests.nsq.parts import pub, sized
from tests.served import PATIENCE_S
from tests.site import Site

USERS = (user("eve", ("consume", "other")), user("bob", ("admin", "*"), token=TOKEN))
Row = dict[str, Any]


@pytest.fixture
def flown(tmp_path: Path) -> Iterator[Flown]:
    path = tmp_path / "data"
    users_in(path, USERS)
    with Flown(path, callers=CallersConfig(anonymous="off")) as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0


def rows(flown: Flown) -> list[Row]:
    """Return what the audit has, as anybody reads a topic who may."""

    def flush() -> None:
        assert flown.node.audit is not None
        flown.node.audit.flush()

    flown.do(flush)
    options = flight.FlightCallOptions(timeout=PATIENCE_S, headers=[(b"authorization", b"Bearer " + TOKEN.encode())])
    table = flown.client.do_get(flight.Ticket(msgspec.json.encode({"topic": TOPIC})), options).read_all()
    found = []
    for row in table.to_pylist():
        told = msgspec.json.decode(row["body"])
        headers = msgspec.json.decode(row["headers"])
        assert (headers["act"], headers["allowed"]) == (told["act"], "yes" if told["allowed"] else "no")
        assert row["tag"] == told["act"]
        assert row["key"] == (told["who"] or told["address"]).encode()
        assert row["source"] == "penstock"
        found.append({name: told.get(name, "") for name in ("act", "allowed", "who", "listener", "topic", "reason")})
    return found


def row(act: str, who: str, listener: str, topic: str = "", reason: str = "") -> Row:
    named = {"act": act, "allowed": not reason, "who": who, "listener": listener, "topic": topic, "reason": reason}
    return named


def test_the_audit_has_one_row_for_each_act(flown: Flown) -> None:
    tcp, api = "nsq.tcp_port", "api.port"
    with Client(flown.tcp_port) as client:
        client.send(b"AUTH\n" + sized(TOKEN.encode()))
        client.told()
        client.send(pub("t", b"x") * 3 + b"SUB t c\n")
        assert [client.told() for _ in range(4)] == ["OK"] * 4
    with Client(flown.tcp_port) as client:
        client.send(b"AUTH\n" + sized(b"bob:a wrong secret"))
        client.told()
    with Client(flown.tcp_port) as client:
        client.send(pub("t", b"x"))
        client.told()
    for _ in range(2):
        assert flown.ask("GET", "topics", headers=bearer(TOKEN)).status == 200
    assert flown.ask("PATCH", "topics/t", {"settings": {"rate": 5}}, headers=bearer(TOKEN)).status == 200
    assert flown.ask("DELETE", "topics/t", headers=bearer(f"eve:{SECRET}")).status == 403
    assert flown.ask("DELETE", "topics/t", headers=bearer(TOKEN)).status == 204
    users_in(flown.path, USERS[1:])
    flown.do(flown.node.gate.reload)
    assert rows(flown)[:11] == [
        row("authenticate", "bob", tcp),
        row("create", "bob", tcp, "t"),
        row("create", "bob", tcp, "t"),
        row("authenticate", "", tcp, reason="wrong_secret"),
        row("publish", "", tcp, "t", "no_secret"),
        row("authenticate", "bob", api),
        row("change", "bob", api, "t"),
        row("authenticate", "eve", api),
        row("delete", "eve", api, "t", "no_right"),
        row("delete", "bob", api, "t"),
        row("users", "", "users"),
    ]


def test_nobody_writes_empties_or_deletes_the_audit(flown: Flown) -> None:
    flown.do(lambda: flown.node.obtain(TOPIC).now())
    for method, path, body in (
        ("POST", f"topics/{TOPIC}/messages", {"body": "x"}),
        ("PATCH", f"topics/{TOPIC}", {"settings": {"retention_bytes": 1}}),
        ("POST", f"topics/{TOPIC}/empty", None),
        ("DELETE", f"topics/{TOPIC}", None),
        ("POST", "topics/t/subscriptions", {"name": "s", "settings": {"dead_letter": TOPIC}}),
    ):
        flown.do(lambda: flown.node.obtain("t").now())
        answer = flown.ask(method, path, body, headers=bearer(TOKEN))
        assert (answer.status, answer.code) == (403, "forbidden")
    assert [each["reason"] for each in rows(flown)].count("own_topic") == 5


def test_nobody_writes_the_audit_by_way_of_queues_and_fan_outs(flown: Flown) -> None:
    flown.do(lambda: flown.node.obtain(TOPIC).now())
    port = flown.ports["dynamiq.port"]

    def asked(method: str, path: str, body: str = "") -> int:
        return flown.ask(method, path, raw=body, headers=bearer(TOKEN), port=port).status

    forged = '{"act":"delete","who":"eve"}'
    assert asked("PUT", f"/v1/queues/{TOPIC}") == 403
    assert asked("PUT", "/v1/topics/news") == 201
    assert asked("PUT", f"/v1/topics/news/queues/{TOPIC}") == 403
    assert asked("PUT", "/v1/topics/news/message", forged) == 200
    assert asked("PUT", f"/v2/topics/news/subscriptions/{TOPIC}") == 403
    assert asked("POST", "/v2/queues", f'{{"name":"{TOPIC}"}}') == 403
    refused = [each for each in rows(flown) if each["reason"] == "own_topic"]
    assert len(refused) == 4
    assert forged not in flown.ask("GET", f"topics/{TOPIC}/messages", headers=bearer(TOKEN)).content.decode()


def test_nobody_sets_the_audit_by_way_of_queues(flown: Flown) -> None:
    flown.do(lambda: flown.node.obtain(TOPIC).now())
    # Such as an earlier version made.
    flown.do(lambda: flown.node.topic(TOPIC).create_subscription(NAME, SETTINGS).now())
    settings = flown.do(lambda: flown.node.topic(TOPIC).settings)
    port = flown.ports["dynamiq.port"]
    for path in (f"/v1/queues/{TOPIC}", f"/v2/queues/{TOPIC}"):
        body = '{"compressed_messages":true}'
        assert flown.ask("PATCH", path, raw=body, headers=bearer(TOKEN), port=port).status == 403
    assert flown.do(lambda: flown.node.topic(TOPIC).settings) == settings


def test_reading_the_audit_takes_admin_or_a_right_that_names_it(flown: Flown) -> None:
    flown.do(lambda: flown.node.obtain(TOPIC).now())
    users_in(flown.path, [*USERS, user("all", ("consume", "*")), user("auditor", ("consume", "_penstock.audit"))])
    flown.do(flown.node.gate.reload)
    asked = {
        name: flown.ask("GET", f"topics/{TOPIC}/messages", headers=bearer(f"{name}:{SECRET}")).status
        for name in ("all", "auditor", "bob")
    }
    assert asked == {"all": 403, "auditor": 200, "bob": 200}


def test_no_secret_is_in_the_audit(flown: Flown) -> None:
    for shown in (f"bob:{SECRET}", TOKEN, "bob:a wrong secret", "wrong token"):
        flown.ask("GET", f"topics/t?token={TOKEN}", headers=bearer(shown))
    rows(flown)
    answer = flown.ask("GET", f"topics/{TOPIC}/messages", headers=bearer(TOKEN)).content.decode()
    assert "authenticate" in answer
    for secret in (SECRET, TOKEN, "a wrong secret", "wrong token"):
        assert secret not in answer


# --- bounds -----------------------------------------------------------------------------------------------------------


def site(**callers: Any) -> Site:
    return Site(Config(data_dir="data", callers=CallersConfig(**callers)))


def acts(site: Site, count: int, address: str = "10.0.0.7:5") -> None:
    caller = Caller(site.node.gate, address, "nsq.tcp_port")
    for _ in range(count):
        try:
            caller.check("change", "t")
        except Refusal:
            continue


def test_rows_above_the_rate_are_dropped_and_counted() -> None:
    place = site(audit_rate_max=10)
    acts(place, 25)
    place.machine.run(1)
    assert place.node.audit is not None
    assert (place.node.audit.written, place.node.audit.dropped) == (10, 15)
    assert place.node.ledger.total(DROPPED) == 15
    acts(place, 3)
    place.machine.run(1)
    assert place.node.audit.written == 13


@pytest.mark.parametrize(("mode", "written"), [("off", None), ("named", 0), ("all", 3)])
def test_what_nobody_in_particular_does_is_kept_only_if_that_is_asked_for(mode: str, written: int | None) -> None:
    place = site(audit=mode)
    acts(place, 3, "127.0.0.1:5")
    place.machine.run(1)
    audit = place.node.audit
    assert (audit.written if audit is not None else None) == written
    assert (TOPIC in place.node.topics) is bool(written)


def test_rows_are_written_when_a_node_stops() -> None:
    place = site()
    acts(place, 3)
    place.node.stop()
    assert place.node.audit is not None
    assert place.node.audit.written == 3
    assert place.node.topic(TOPIC).shards[0].end == 3


def test_time_between_seconds_counts_for_the_rate() -> None:
    place = site(audit_rate_max=1)
    for _ in range(3):
        acts(place, 1)
        place.machine.run(1.1)
    assert place.node.audit is not None
    assert place.node.audit.written == 3
