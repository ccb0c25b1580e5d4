"""Quotas on every listener, with real clients: rates, connections, topics, what is stored."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pyarrow.flight as flight
import pytest

from penstock.callers.account import Account
from penstock.callers.quota import UserQuota
from penstock.client import Client as Sdk
from penstock.client.connection import Access, Connection
from penstock.client.wire import Stage
from penstock.errors import Refusal
from penstock.pipeline.stage import Line
from penstock.pipeline.target import Target
from tests.callers.parts import bearer, user, users_in
from tests.flight.parts import Flown, Held, many
from tests.nsq.caller import Caller as Client
from tests.nsq.parts import pub, sized
from tests.served import PATIENCE_S

#: Whoever publishes so many at one a second waits for a second, and is far over its rate for the whole test.
MANY = 1000
LEAST_S = 500

WAYS = ("nsq", "http", "api", "flight", "stage")
USERS = (
    *(user(f"fast-{way}", ("admin", "*"), token=f"fast-{way}", quota=UserQuota(messages_per_second=1)) for way in WAYS),
    user("seen", ("admin", "*"), token="seen", quota=UserQuota(messages_per_second=1)),
    user("lone", ("admin", "*"), token="lone", quota=UserQuota(connections=1)),
    user("maker", ("admin", "*"), token="maker", quota=UserQuota(topics=1)),
    user("keeper", ("admin", "*"), token="keeper", quota=UserQuota(stored_bytes=1 << 20)),
    user("other", ("admin", "*"), token="other"),
)


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flown]:
    path = tmp_path_factory.mktemp("quotas") / "data"
    users_in(path, USERS)
    with Flown(path, lookup=True) as node:
        node.do(lambda: node.node.create_topic("t").now())
        yield node
        assert node.do(lambda: node.node.bugs) == 0


def account(flown: Flown, name: str) -> Account:
    return flown.node.gate.accounts.named(name)


def nsq_client(flown: Flown, token: str) -> Client:
    client = Client(flown.tcp_port)
    client.identify()
    client.send(b"AUTH\n" + sized(token.encode()))
    client.auth = client.told()  # type: ignore[attr-defined]
    return client


def stage_as(flown: Flown, token: str, count: int) -> None:
    with Connection(Access(f"grpc://localhost:{flown.flight.port}", token)) as connection:
        batch = many(count)
        command = Stage(query="q", batch=1, attempt=f"a{time.monotonic_ns()}", topic="t")
        connection.stage(command, iter([batch]), batch.schema)


def put_as(flown: Flown, token: str, count: int, topic: str = "t") -> None:
    with Sdk(f"grpc://localhost:{flown.flight.port}", token=token, patience=0) as client:
        client.publish(topic, many(count))


# --- rates ------------------------------------------------------------------------------------------------------------


def publish_nsq(flown: Flown, count: int) -> float:
    """Publish, and return for how long to wait before the next try, 0 if it worked."""
    with nsq_client(flown, "fast-nsq") as client:
        items = b"".join(sized(b"x") for _ in range(count))
        client.send(b"MPUB t\n" + sized(struct.pack(">I", count) + items) + b"NOP\n" + pub("t", b"x"))
        told = [client.told(), client.told()]  # the second came after the first was slowed
    assert told[1].startswith("E_PUB_FAILED PUB failed the quota of user fast-nsq is 1 messages a second; try again in")
    return 0 if told[0] == "OK" else LEAST_S


def publish_http(flown: Flown, count: int) -> float:
    port = flown.ports["nsq.http_port"]
    answer = flown.ask("POST", "/mpub?topic=t", raw="x\n" * count, headers=bearer("fast-http"), port=port)
    if answer.status == 200:
        one = flown.ask("POST", "/pub?topic=t", raw="x", headers=bearer("fast-http"), port=port)
        assert one.status == 429
        return 0
    assert (answer.status, answer.json["message"]) == (429, "RATE_LIMITED")
    assert "the quota of user fast-http is 1 messages a second" in answer.json["reason"]
    return float(answer.headers["retry-after"])


def publish_api(flown: Flown, count: int) -> float:
    lines = '{"body":"x"}\n' * count
    answer = flown.ask("POST", "topics/t/messages", raw=lines, headers=bearer("fast-api"))
    if answer.status == 200:
        return 0
    assert (answer.status, answer.code) == (429, "rate_limited")
    assert "the quota of user fast-api is 1 messages a second" in answer.message
    return float(answer.headers["retry-after"])


def over_flight(call: Callable[[Flown, str, int], None], token: str) -> Callable[[Flown, int], float]:
    def publish(flown: Flown, count: int) -> float:
        try:
            call(flown, token, count)
        except Refusal as refusal:
            assert refusal.code == "rate_limited"
            assert f"the quota of user {token} is 1 messages a second" in str(refusal)
            return refusal.retry_ns / 1e9
        return 0

    return publish


PUBLISH: dict[str, Callable[[Flown, int], float]] = {
    "nsq": publish_nsq,
    "http": publish_http,
    "api": publish_api,
    "flight": over_flight(put_as, "fast-flight"),
    "stage": over_flight(stage_as, "fast-stage"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_publisher_over_its_rate_is_slowed_then_refused_and_told_when_to_come_back(flown: Flown, way: str) -> None:
    began = time.monotonic()
    assert PUBLISH[way](flown, MANY) == 0
    assert time.monotonic() - began > 0.9
    assert PUBLISH[way](flown, 1) >= LEAST_S
    found = flown.do(lambda: account(flown, f"fast-{way}"))
    assert found.refused["messages"] >= 1
    assert found.slowed_ns == 1_000_000_000


def test_a_batch_over_flight_is_refused_whole(flown: Flown) -> None:
    users = "fast-flight"
    flown.do(lambda: account(flown, users).take(MANY, 0, flown.clock.monotonic(), is_begun=True))
    before = flown.do(lambda: flown.node.topic("t").intake.published)
    with pytest.raises(Refusal, match="is 1 messages a second"):
        put_as(flown, users, 50_000)
    assert flown.do(lambda: flown.node.topic("t").intake.published) == before


def test_the_sdk_waits_as_long_as_it_is_told_and_publishes_then(flown: Flown) -> None:
    flown.do(lambda: users_in(flown.path, [*USERS, user("slow", ("admin", "*"), token="slow", quota=ONE)]))
    flown.do(flown.node.gate.reload)
    flown.do(lambda: account(flown, "slow").take(4, 0, flown.clock.monotonic()))
    with Sdk(f"grpc://localhost:{flown.flight.port}", token="slow") as client:
        assert client.publish("t", b"x").count == 1


ONE = UserQuota(messages_per_second=1)


def test_metrics_and_the_api_tell_what_was_refused_and_used(flown: Flown) -> None:
    flown.do(lambda: account(flown, "seen").take(MANY, 0, flown.clock.monotonic()))
    assert flown.ask("POST", "topics/t/messages", {"body": "x"}, headers=bearer("seen")).status == 429
    text = flown.get("/metrics").content.decode()
    assert 'penstock_user_quota{user="seen",reason="messages"} 1\n' in text
    assert 'penstock_user_slowed_seconds_total{user="seen"} 1.0\n' in text
    assert 'penstock_user_refused_total{user="seen",reason="messages"} 1\n' in text
    assert 'penstock_user_used{user="seen",reason="connections"} 1\n' in text
    assert 'user="other"' not in text
    (found,) = [each for each in flown.get("users").json["users"] if each["name"] == "seen"]
    assert found["quota"] == {
        "messages_per_second": 1,
        "bytes_per_second": 0,
        "connections": 0,
        "topics": 0,
        "stored_bytes": 0,
    }
    assert found["refused"] == {"messages": 1}
    assert found["rights"] == ["admin *"]
    assert "secret" not in str(found)
    assert flown.get("users").json["users"][0]["name"] == "anonymous"


# --- connections ------------------------------------------------------------------------------------------------------


@contextmanager
def nsq_connection(flown: Flown) -> Iterator[str]:
    with nsq_client(flown, "lone") as client:
        told: str = client.auth  # type: ignore[attr-defined]
        if told.startswith("{"):
            client.send(b"SUB t lone\n")
            told = client.told()
        yield told
        if told != "OK":
            assert client.ended()


def http_connection(port: str, path: str) -> Callable[[Flown], AbstractContextManager[str]]:
    @contextmanager
    def connection(flown: Flown) -> Iterator[str]:
        wire = HTTPConnection("127.0.0.1", flown.ports[port], timeout=PATIENCE_S)
        try:
            for _ in range(2):  # the same connection counts once
                wire.request("GET", path, headers=bearer("lone"))
                answer = wire.getresponse()
                content = answer.read().decode()
            if answer.status == 429:
                assert answer.headers["retry-after"] == "1"
            yield "OK" if answer.status == 200 else f"{answer.status} {content}"
        finally:
            wire.close()

    return connection


@contextmanager
def plain_publish(flown: Flown) -> Iterator[str]:
    wire = HTTPConnection("127.0.0.1", flown.ports["nsq.http_port"], timeout=PATIENCE_S)
    try:
        wire.request("POST", "/pub?topic=t", b"x", headers=bearer("lone"))
        answer = wire.getresponse()
        content = answer.read().decode()
        yield "OK" if answer.status == 200 else f"{answer.status} {content}"
    finally:
        wire.close()


@contextmanager
def flight_exchange(flown: Flown) -> Iterator[str]:
    client = flown.connect()
    header = [(b"authorization", bearer("lone")["Authorization"].encode())]
    command = flight.FlightDescriptor.for_command(b'{"subscribe":{"topic":"t","subscription":"flown"}}')
    held = Held.__new__(Held)
    held.writer, held.reader = client.do_exchange(command, flight.FlightCallOptions(PATIENCE_S, headers=header))
    held.notices = []
    told = "OK"
    try:
        held.ping()
    except flight.FlightUnavailableError as error:
        told = str(error)
    try:
        yield told
    finally:
        with suppress(flight.FlightUnavailableError):
            held.close()
        client.close()
        flown._clients.remove(client)


@contextmanager
def flight_put(flown: Flown) -> Iterator[str]:
    with Sdk(f"grpc://localhost:{flown.flight.port}", token="lone", patience=0) as client:
        try:
            client.publish("t", b"x")
        except Refusal as refusal:
            yield f"{refusal.code}: {refusal}"
            return
        yield "OK"


@contextmanager
def lookup_connection(flown: Flown) -> Iterator[str]:
    me = msgspec.json.encode({"broadcast_address": "n", "tcp_port": 1, "http_port": 2, "version": "1"})
    with socket.create_connection(("127.0.0.1", flown.ports["nsq.lookup_tcp_port"]), PATIENCE_S) as wire:

        def told() -> str:
            (size,) = struct.unpack(">I", wire.recv(4, socket.MSG_WAITALL))
            return wire.recv(size, socket.MSG_WAITALL).decode()

        wire.sendall(b"  V1IDENTIFY\n" + sized(me) + b"AUTH\n" + sized(b"lone") + b"REGISTER t\n")
        yield [told(), told(), told()][2]


CONNECTIONS: dict[str, Callable[[Flown], AbstractContextManager[str]]] = {
    "nsq": nsq_connection,
    "nsq http": http_connection("nsq.http_port", "/stats"),
    "nsq http publish": plain_publish,
    "api": http_connection("api.port", "/api/v1/topics"),
    "flight exchange": flight_exchange,
    "flight put": flight_put,
    "lookup": lookup_connection,
    "lookup http": http_connection("nsq.lookup_http_port", "/topics"),
    "dynamiq": http_connection("dynamiq.port", "/v1/queues"),
}


@pytest.mark.parametrize("way", CONNECTIONS)
def test_a_user_has_so_many_connections_and_another_one_once_it_closed_one(flown: Flown, way: str) -> None:
    lone = account(flown, "lone")
    flown.until(lambda: lone.connections == 0)
    with CONNECTIONS[way](flown) as told:
        assert told == "OK"
        assert flown.do(lambda: lone.connections) == 1
        for other, connect in CONNECTIONS.items():
            with connect(flown) as told:
                assert "the quota of user lone is 1 connections; close one" in told, other
                assert told.lower().startswith(("e_too_many", "too_many", "429")), other
        assert flown.do(lambda: lone.connections) == 1
    flown.until(lambda: lone.connections == 0)


def test_others_connect_as_they_like(flown: Flown) -> None:
    with ExitStack() as held:
        for _ in range(5):
            client = held.enter_context(nsq_client(flown, "other"))
            client.send(pub("t", b"x"))
            assert client.told() == "OK"
        assert flown.do(lambda: account(flown, "other").connections) == 5


# --- topics -----------------------------------------------------------------------------------------------------------


def make_nsq(command: str) -> Callable[[Flown, str], str]:
    def make(flown: Flown, topic: str) -> str:
        with nsq_client(flown, "maker") as client:
            client.send(command.format(topic).encode() if command.endswith("\n") else pub(topic, b"x"))
            told = client.told()
            client.send(pub("t", b"x"))  # it is still connected
            assert client.told() == "OK"
        return told

    return make


def make_http(port: str, path: str, body: str | None = None, method: str = "POST") -> Callable[[Flown, str], str]:
    def make(flown: Flown, topic: str) -> str:
        raw = body.replace("TOPIC", topic) if body is not None else ""
        target = path.replace("TOPIC", topic)
        answer = flown.ask(method, target, raw=raw, headers=bearer("maker"), port=flown.ports[port])
        if answer.status == 429:
            assert answer.headers["retry-after"] == "1"
        return "OK" if answer.status in (200, 201) else f"{answer.status} {answer.content.decode()}"

    return make


def make_flight(flown: Flown, topic: str) -> str:
    with Connection(Access(f"grpc://localhost:{flown.flight.port}", "maker")) as connection:
        try:
            connection.act("create-topic", {"name": topic})
        except Refusal as refusal:
            return f"{refusal.code}: {refusal}"
        return "OK"


def make_put(flown: Flown, topic: str) -> str:
    try:
        put_as(flown, "maker", 1, topic)
    except Refusal as refusal:
        return f"{refusal.code}: {refusal}"
    return "OK"


def make_staged(flown: Flown, topic: str) -> str:
    access = Access(f"grpc://127.0.0.1:{flown.flight.port}", "maker")
    query = uuid.uuid4().hex
    try:
        with Line(Target(access=access, topic=topic), patience_s=0) as line:
            line.commit(query, 0, list(line.stage(query, 0, iter([many(1)]))[0]))
    except Refusal as refusal:
        return f"{refusal.code}: {refusal}"
    return "OK"


MAKE: dict[str, Callable[[Flown, str], str]] = {
    "nsq PUB": make_nsq("PUB"),
    "nsq INTERNAL_CREATE_TOPIC": make_nsq("INTERNAL_CREATE_TOPIC {} 0\n"),
    "nsq http pub": make_http("nsq.http_port", "/pub?topic=TOPIC", "x"),
    "nsq http create": make_http("nsq.http_port", "/topic/create?topic=TOPIC"),
    "lookup http create": make_http("nsq.lookup_http_port", "/topic/create?topic=TOPIC&partition_num=1&extend=false"),
    "api create": make_http("api.port", "/api/v1/topics", '{"name":"TOPIC"}'),
    "api publish": make_http("api.port", "/api/v1/topics/TOPIC/messages?create=true", '{"body":"x"}'),
    "dynamiq create": make_http("dynamiq.port", "/v1/queues/TOPIC", method="PUT"),
    "flight create": make_flight,
    "flight put": make_put,
    "flight commit": make_staged,
}


@pytest.mark.parametrize("way", MAKE)
def test_a_user_makes_so_many_topics_and_another_one_once_it_deleted_one(flown: Flown, way: str) -> None:
    assert MAKE[way](flown, "mine") == "OK"
    assert flown.get("topics/mine").json["owner"] == "maker"
    for other, make in MAKE.items():
        told = make(flown, "more")
        assert "the quota of user maker is 1 topics, and it made as many; delete one" in told, other
        assert told.startswith(("E_PUB_FAILED", "E_CREATE_TOPIC_FAILED", "429", "limit_reached")), other
        assert make(flown, "t") == "OK" or "create" in other or "CREATE" in other
    flown.do(lambda: flown.node.delete_topic("mine").now())
    assert flown.do(lambda: flown.node.owned("maker")) == 0
    assert MAKE[way](flown, "mine") == "OK"
    flown.do(lambda: flown.node.delete_topic("mine").now())


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_what_the_topics_of_a_user_hold_together_is_bounded_for_whoever_publishes_there(flown: Flown) -> None:
    url, body = f"grpc://localhost:{flown.flight.port}", b"x" * 60_000
    with Sdk(url, token="keeper", patience=0) as keeper, Sdk(url, token="other", patience=0) as other:
        keeper.publish("kept-1", b"x")
        keeper.publish("kept-2", b"x")
        stored = 0
        while flown.do(lambda: account(flown, "keeper").refused["stored"]) == 0:
            with suppress(Refusal):
                other.publish(f"kept-{stored % 2 + 1}", body)
                stored += 1
        assert 5 < stored < 18
        with pytest.raises(Refusal, match="the topics that user keeper made hold its quota of 1MiB") as found:
            other.publish("kept-1", body)
        assert found.value.code == "quota_full"
        assert flown.do(lambda: account(flown, "keeper").stored.used) <= 1 << 20
        for _ in range(20):
            keeper.publish("t", body)  # which is not its own
        answer = flown.ask("POST", "topics/kept-1/messages", {"body": "x" * 60_000}, headers=bearer("other"))
        assert answer.status == 507
        with nsq_client(flown, "other") as client:
            client.send(pub("kept-1", body))
            assert client.told().startswith("E_PUB_FAILED PUB failed the topics that user keeper made hold its quota")
        flown.do(lambda: flown.node.delete_topic("kept-2").now())
        other.publish("kept-1", body)
    assert flown.do(lambda: account(flown, "keeper").refused["stored"]) >= 3


def test_who_made_a_topic_is_known_after_a_restart(tmp_path: Path) -> None:
    users_in(tmp_path, USERS)
    with Flown(tmp_path) as flown:
        assert make_flight(flown, "mine") == "OK"
        put_as(flown, "maker", 100, "mine")
    with Flown(tmp_path) as flown:
        assert "limit_reached" in make_flight(flown, "more")
        assert flown.do(lambda: account(flown, "maker").stored.used) > 100


def test_dead_letters_are_stored_for_the_maker_of_their_topic(tmp_path: Path) -> None:
    users_in(tmp_path, USERS)
    with Flown(tmp_path) as flown:
        assert make_flight(flown, "mine") == "OK"
        made = flown.ask(
            "POST", "topics/mine/subscriptions", {"name": "s", "settings": {"max_attempts": 1}}, headers=bearer("maker")
        )
        assert made.status == 201
        put_as(flown, "maker", 1, "mine")
        with nsq_client(flown, "maker") as client:
            client.send(b"SUB mine s\nRDY 1\n")
            assert client.told() == "OK"
            _, data = client.frame()
            client.send(b"REQ " + data[10:26] + b" 0\n")
            flown.until(lambda: "mine.dead" in flown.node.topics)
        assert flown.do(lambda: flown.node.topic("mine.dead").record.owner) == "maker"


def test_anonymous_callers_share_one_quota(tmp_path: Path) -> None:
    users_in(tmp_path, [], UserQuota(topics=1, connections=2))
    with Flown(tmp_path) as flown:
        assert flown.post("topics", {"name": "one"}).status == 201
        with Client(flown.tcp_port) as client:
            client.send(pub("two", b"x"))
            assert "the quota of user anonymous is 1 topics" in client.told()
            with Client(flown.tcp_port) as third:
                third.send(pub("one", b"x"))
                assert third.told().startswith("E_TOO_MANY_CONNECTIONS PUB failed the quota of user anonymous is 2")
            with pytest.raises(Refusal, match="the quota of user anonymous is 2 connections"):
                put_as(flown, "", 1, "one")
