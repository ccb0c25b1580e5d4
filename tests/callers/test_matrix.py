"""Every listener, asked by somebody who shows nothing, something wrong, enough for something else, and enough."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow.flight as flight
import pytest

from penstock.config import CallersConfig
from penstock.dialects.dory.config import DoryConfig
from penstock.dialects.dynamiq.queue import SETTINGS
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.timeline.config import TimelineConfig
from tests.callers.parts import SECRET, TOKEN, basic, bearer, user, users_in
from tests.flight.parts import Flown, Held, many
from tests.nsq.caller import Caller as Client
from tests.nsq.parts import pub, sized
from tests.served import PATIENCE_S

USERS = (
    user("eve", ("publish", "other"), ("consume", "other"), ("manage", "other"), token="token-of-eve"),
    user("bob", ("admin", "*"), token=TOKEN),
)
OK, UNKNOWN, WRONG, FORBIDDEN = "ok", "unknown", "wrong", "forbidden"

#: What somebody does who shows this, and how it ends.
Way = Callable[[Flown, str], str]


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flown]:
    path = tmp_path_factory.mktemp("matrix") / "data"
    users_in(path, USERS)
    timeline = TimelineConfig(port=0)
    callers = CallersConfig(anonymous="off")
    dory = DoryConfig(tcp=True, tcp_port=0, http_port=0)
    with Flown(path, lookup=True, sqs=SqsConfig(port=0), timeline=timeline, dory=dory, callers=callers) as node:
        node.do(lambda: [node.node.create_topic(name).now() for name in ("t", "gone", "u")])
        node.do(lambda: node.node.topic("t").create_subscription("s").now())
        node.do(lambda: node.node.topic("t").create_subscription("queue", SETTINGS).now())
        node.do(lambda: node.node.fanouts.create("t").now())
        made = node.ask("PUT", "/v1/topics/t", {}, headers=bearer(TOKEN), port=node.ports["timeline.port"])
        assert made.status == 200, made
        yield node
        assert node.do(lambda: node.node.bugs) == 0


# --- NSQ over TCP -----------------------------------------------------------------------------------------------------


def nsq(command: bytes, told: str = "OK") -> Way:
    def way(flown: Flown, shown: str) -> str:
        with Client(flown.tcp_port) as client:
            assert client.identify()["auth_required"] is True
            if shown:
                client.send(b"AUTH\n" + sized(shown.encode()))
                answer = client.told()
                if answer.startswith("E_AUTH_FAILED"):
                    return WRONG
                name = "eve" if "eve" in shown else "bob"
                assert msgspec.json.decode(answer)["identity"] == name
            client.send(command)
            answer = client.told()
            if answer == told:
                return OK
            assert client.ended()
            return {"E_AUTH_FIRST": UNKNOWN, "E_UNAUTHORIZED": FORBIDDEN}[answer.split(" ")[0]]

    return way


# --- HTTP -------------------------------------------------------------------------------------------------------------


def http(port: str, method: str, path: str, body: bytes | None = None) -> Way:
    def way(flown: Flown, shown: str) -> str:
        name, _, secret = shown.partition(":")
        headers = (basic(name, secret) if secret else bearer(shown)) if shown else {}
        answer = flown.ask(method, path, raw=body, headers=headers, port=flown.ports[port])
        if answer.status == 401:
            assert answer.headers["www-authenticate"] == 'Bearer realm="penstock", Basic realm="penstock"'
            return WRONG if shown else UNKNOWN
        assert answer.status in (200, 201, 204, 403), answer
        return FORBIDDEN if answer.status == 403 else OK

    return way


def aws(operation: str, body: bytes) -> Way:
    def way(flown: Flown, shown: str) -> str:
        name, _, secret = shown.partition(":")
        headers = (basic(name, secret) if secret else bearer(shown)) if shown else {}
        headers = {**headers, "X-Amz-Target": f"AmazonSQS.{operation}"}
        answer = flown.ask("POST", "/", raw=body, headers=headers, port=flown.ports["sqs.port"])
        if answer.status == 200:
            return OK
        assert answer.status == 403, answer
        if answer.headers["x-amzn-query-error"] == "AccessDenied;Sender":
            return FORBIDDEN
        assert answer.headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"
        return WRONG if shown else UNKNOWN

    return way


# --- Flight -----------------------------------------------------------------------------------------------------------


def flights(call: Callable[[flight.FlightClient, flight.FlightCallOptions], object]) -> Way:
    def way(flown: Flown, shown: str) -> str:
        name, _, secret = shown.partition(":")
        header = (basic(name, secret) if secret else bearer(shown))["Authorization"].encode()
        headers = [(b"authorization", header)] if shown else []
        client = flown.connect()
        try:
            call(client, flight.FlightCallOptions(timeout=PATIENCE_S, headers=headers))
        except flight.FlightUnauthenticatedError as error:
            assert "unauthorized: " in str(error)
            return WRONG if shown else UNKNOWN
        except flight.FlightUnauthorizedError as error:
            assert "forbidden: " in str(error)
            return FORBIDDEN
        finally:
            client.close()
            flown._clients.remove(client)
        return OK

    return way


def put(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    batch = many(1)
    writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema, options)
    with writer:
        writer.write_batch(batch)
        answers.read()


def consume(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    command = flight.FlightDescriptor.for_command(b'{"subscribe":{"topic":"t","subscription":"s"}}')
    held = Held.__new__(Held)
    held.writer, held.reader = client.do_exchange(command, options)
    held.notices = []
    try:
        held.ping()
    finally:
        held.close()


def act(name: str, body: bytes) -> Callable[[flight.FlightClient, flight.FlightCallOptions], object]:
    return lambda client, options: list(client.do_action(flight.Action(name, body), options))


# --- lookup over TCP --------------------------------------------------------------------------------------------------


def register(flown: Flown, shown: str) -> str:
    """Announce a node that has topic t."""
    me = msgspec.json.encode({"broadcast_address": "n", "tcp_port": 1, "http_port": 2, "version": "1"})
    with socket.create_connection(("127.0.0.1", flown.ports["nsq.lookup_tcp_port"]), PATIENCE_S) as wire:

        def told() -> bytes:
            (size,) = struct.unpack(">I", wire.recv(4, socket.MSG_WAITALL))
            return wire.recv(size, socket.MSG_WAITALL)

        wire.sendall(b"  V1IDENTIFY\n" + sized(me))
        assert msgspec.json.decode(told())["auth_required"] is True
        if shown:
            wire.sendall(b"AUTH\n" + sized(shown.encode()))
            if (answer := told()) != b"OK":
                assert answer.startswith(b"E_AUTH_FAILED")
                return WRONG
        wire.sendall(b"REGISTER t\n")
        return {b"OK": OK, b"E_AUTH_FIRST": UNKNOWN, b"E_UNAUTHORIZED": FORBIDDEN}[told().split(b" ")[0]]


API = "/api/v1"
_PRODUCER = b'{"topic_id":"t","producer_group_id":"g","producer_id":"p"}'
WAYS: dict[str, Way] = {
    "nsq PUB": nsq(pub("t", b"x")),
    "nsq SUB": nsq(b"SUB t c\n"),
    "nsq INTERNAL_CREATE_TOPIC": nsq(b"INTERNAL_CREATE_TOPIC t 0\n"),
    "nsq http pub": http("nsq.http_port", "POST", "/pub?topic=t", b"x"),
    "nsq http mpub": http("nsq.http_port", "POST", "/mpub?topic=t", b"x\ny"),
    "nsq http topic": http("nsq.http_port", "POST", "/topic/create?topic=t"),
    "nsq http empty": http("nsq.http_port", "POST", "/topic/empty?topic=t"),
    "nsq http channel": http("nsq.http_port", "POST", "/channel/create?topic=t&channel=d"),
    "nsq http stats": http("nsq.http_port", "GET", "/stats"),
    "nsq http config": http("nsq.http_port", "PUT", "/config/log_level", b"info"),
    "api publish": http("api.port", "POST", f"{API}/topics/t/messages", b'{"body":"x"}'),
    "api peek": http("api.port", "GET", f"{API}/topics/t/messages"),
    "api show": http("api.port", "GET", f"{API}/topics/t"),
    "api change": http("api.port", "PATCH", f"{API}/topics/t", b'{"settings":{"rate":0}}'),
    "api subscription": http("api.port", "POST", f"{API}/topics/t/subscriptions/s/pause"),
    "api resume": http("api.port", "POST", f"{API}/topics/t/subscriptions/s/resume"),
    "api lease": http("api.port", "POST", f"{API}/topics/t/subscriptions/s/lease", b'{"max":1}'),
    "api metrics": http("api.port", "GET", "/metrics"),
    "api ledger": http("api.port", "GET", f"{API}/ledger"),
    "api peers": http("api.port", "GET", f"{API}/peers"),
    "api routing": http("api.port", "PUT", f"{API}/routing?force=true", b'{"traffic_types":{}}'),
    "dynamiq send": http("dynamiq.port", "PUT", "/v1/queues/t/message", b"x"),
    "dynamiq receive": http("dynamiq.port", "GET", "/v1/queues/t/messages/1"),
    "dynamiq delete": http("dynamiq.port", "DELETE", "/v1/queues/t/message/1"),
    "dynamiq delete many": http("dynamiq.port", "DELETE", "/v1/queues/t/messages/1,2"),
    "dynamiq settings": http("dynamiq.port", "PATCH", "/v1/queues/t", b"{}"),
    "dynamiq queue": http("dynamiq.port", "GET", "/v1/queues/t"),
    "dynamiq publish": http("dynamiq.port", "PUT", "/v1/topics/t/message", b"x"),
    "dynamiq subscribe": http("dynamiq.port", "PUT", "/v1/topics/t/queues/t"),
    "dynamiq unsubscribe": http("dynamiq.port", "DELETE", "/v1/topics/t/queues/t"),
    "dynamiq topic": http("dynamiq.port", "GET", "/v1/topics/t"),
    "v2 send": http("dynamiq.port", "POST", "/v2/queues/t/messages", b'{"messages":[{"body":"x"}]}'),
    "v2 receive": http("dynamiq.port", "POST", "/v2/queues/t/leases", b"{}"),
    "v2 finish": http("dynamiq.port", "POST", "/v2/queues/t/leases/delete", b'{"receipts":["none"]}'),
    "v2 extend": http("dynamiq.port", "POST", "/v2/queues/t/leases/extend", b'{"receipts":["none"],"visibility":1}'),
    "v2 release": http("dynamiq.port", "POST", "/v2/queues/t/leases/release", b'{"receipts":["none"]}'),
    "v2 queue": http("dynamiq.port", "GET", "/v2/queues/t"),
    "v2 counts": http("dynamiq.port", "GET", "/v2/queues/t/counts"),
    "v2 settings": http("dynamiq.port", "PATCH", "/v2/queues/t", b"{}"),
    "v2 purge": http("dynamiq.port", "DELETE", "/v2/queues/t/messages"),
    "v2 redrives": http("dynamiq.port", "GET", "/v2/queues/t/redrives"),
    "v2 publish": http("dynamiq.port", "POST", "/v2/topics/t/messages", b'{"messages":[{"body":"x"}]}'),
    "v2 subscribe": http("dynamiq.port", "PUT", "/v2/topics/t/subscriptions/t"),
    "v2 topic": http("dynamiq.port", "GET", "/v2/topics/t"),
    "timeline create": http("timeline.port", "PUT", "/v1/topics/t", b"{}"),
    "timeline producer": http("timeline.port", "POST", "/v1/producer-handshake", _PRODUCER),
    "timeline consumer": http("timeline.port", "POST", "/v1/consumer-handshake", b'{"topic_id":"t","consumer_id":"c"}'),
    "timeline count": http("timeline.port", "GET", "/v1/topics/t/count"),
    "timeline redeal": http("timeline.port", "POST", "/v1/redeal", b'{"topic_id":"t"}'),
    "timeline topic": http("timeline.port", "GET", "/v1/topics/t"),
    "sqs send": aws("SendMessage", b'{"QueueUrl":"/0/t","MessageBody":"x"}'),
    "sqs receive": aws("ReceiveMessage", b'{"QueueUrl":"/0/t"}'),
    "sqs attributes": aws("GetQueueAttributes", b'{"QueueUrl":"/0/t"}'),
    "sqs set": aws("SetQueueAttributes", b'{"QueueUrl":"/0/t","Attributes":{"DelaySeconds":"0"}}'),
    "sqs create": aws("CreateQueue", b'{"QueueName":"t"}'),
    "dory pages": http("dory.http_port", "GET", "/queues/json"),
    "dory discards": http("dory.http_port", "GET", "/discards/plain"),
    "dory debug": http("dory.http_port", "GET", "/msg_debug/get_topics"),
    "flight put": flights(put),
    "flight get": flights(lambda client, o: client.do_get(flight.Ticket(b'{"topic":"t"}'), o).read_all()),
    "flight info": flights(lambda client, o: client.get_flight_info(flight.FlightDescriptor.for_path("t"), o)),
    "flight exchange": flights(consume),
    "flight topic": flights(act("topic", b'{"name":"t"}')),
    "flight seek": flights(act("seek", b'{"topic":"t","subscription":"s","offset":0}')),
    "lookup REGISTER": register,
    "lookup http lookup": http("nsq.lookup_http_port", "GET", "/lookup?topic=t"),
    "lookup http nodes": http("nsq.lookup_http_port", "GET", "/nodes"),
    "lookup http topic": http("nsq.lookup_http_port", "POST", "/topic/create?topic=t"),
    "lookup http tombstone": http("nsq.lookup_http_port", "POST", "/topic/tombstone?topic=t&node=n:2"),
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize(
    ("shown", "end"),
    [
        ("", UNKNOWN),
        ("bob:not the secret of bob", WRONG),
        ("bobs-token-but-wrong", WRONG),
        (f"eve:{SECRET}", FORBIDDEN),
        ("token-of-eve", FORBIDDEN),
        (f"bob:{SECRET}", OK),
        (TOKEN, OK),
    ],
)
def test_every_listener_asks_who_it_is_and_whether_it_may(flown: Flown, name: str, shown: str, end: str) -> None:
    assert WAYS[name](flown, shown) == end


@pytest.mark.parametrize("port", ["nsq.http_port", "nsq.lookup_http_port", "api.port", "dynamiq.port"])
def test_whether_a_node_is_well_anybody_may_ask(flown: Flown, port: str) -> None:
    path = "/healthz" if port == "api.port" else "/ping"
    assert flown.ask("GET", path, port=flown.ports[port]).status == 200


def test_lists_show_what_somebody_may_see(flown: Flown) -> None:
    def names(shown: str) -> list[str]:
        answer = flown.ask("GET", f"{API}/topics", headers=bearer(shown), port=flown.ports["api.port"])
        return [topic["name"] for topic in answer.json["topics"]]

    flown.do(lambda: flown.node.obtain("other").now())
    assert names("token-of-eve") == ["other"]
    assert {"t", "other"} <= set(names(TOKEN))


@pytest.mark.parametrize("name", ["nsq PUB", "nsq http pub", "api publish", "flight put"])
def test_the_nodes_own_topics_are_nobodys_to_write(flown: Flown, name: str) -> None:
    ways: dict[str, Way] = {
        "nsq PUB": nsq(pub("_penstock.audit", b"x")),
        "nsq http pub": http("nsq.http_port", "POST", "/pub?topic=_penstock.audit", b"x"),
        "api publish": http("api.port", "POST", f"{API}/topics/_penstock.audit/messages?create=true", b'{"body":"x"}'),
        "flight put": flights(act("create-topic", b'{"name":"_penstock.mine"}')),
    }
    assert ways[name](flown, TOKEN) == FORBIDDEN


@pytest.mark.parametrize("create", ["", "?create=true"])
def test_who_may_not_publish_learns_nothing_of_its_body(flown: Flown, create: str) -> None:
    assert (
        http("api.port", "POST", f"{API}/topics/t/messages{create}", b'{"bod":1}')(flown, f"eve:{SECRET}") == FORBIDDEN
    )


def test_refusals_are_in_the_metrics_with_their_reason(flown: Flown) -> None:
    assert WAYS["nsq PUB"](flown, "") == UNKNOWN
    assert WAYS["api show"](flown, f"eve:{SECRET}") == FORBIDDEN
    text = flown.ask("GET", "/metrics", headers=bearer(TOKEN), port=flown.ports["api.port"]).content.decode()
    assert 'penstock_callers_refused_total{reason="no_secret",listener="nsq.tcp_port"}' in text
    assert 'penstock_callers_refused_total{reason="no_right",listener="api.port"}' in text


def closed(path: Path) -> Flown:
    """Return a node that takes nobody who shows nothing."""
    return Flown(path, callers=CallersConfig(anonymous="off"))


def connect(flown: Flown, port: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", flown.ports[port]), PATIENCE_S)


def test_a_publish_by_the_short_way_is_judged_by_the_rights_of_now(tmp_path: Path) -> None:
    path = tmp_path / "data"
    users_in(path, [user("bob", ("publish", "t"), token=TOKEN)])
    head = (
        f"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1\r\n\r\nx"
    )
    with closed(path) as flown, connect(flown, "nsq.http_port") as wire:
        for _ in range(3):
            wire.sendall(head.encode())
            assert wire.recv(4096).startswith(b"HTTP/1.1 200")
        users_in(path, [user("bob", ("consume", "t"), token=TOKEN)])
        flown.do(flown.node.gate.reload)
        wire.sendall(head.encode())
        assert wire.recv(4096).startswith(b"HTTP/1.1 403")
        users_in(path, [])
        flown.do(flown.node.gate.reload)
        assert wire.recv(4096) == b""


def test_open_nsq_connections_are_judged_by_the_rights_of_now(tmp_path: Path) -> None:
    path = tmp_path / "data"
    users_in(path, [user("bob", ("publish", "t"), ("consume", "t"), token=TOKEN)])
    with closed(path) as flown, Client(flown.tcp_port) as producer, Client(flown.tcp_port) as consumer:
        for client in (producer, consumer):
            client.send(b"AUTH\n" + sized(TOKEN.encode()))
            assert msgspec.json.decode(client.told())["permission_count"] == 2
        producer.send(pub("t", b"x"))
        assert producer.told() == "OK"
        consumer.send(b"SUB t c\n")
        assert consumer.told() == "OK"
        users_in(path, [user("bob", ("manage", "t"), token=TOKEN)])
        flown.do(flown.node.gate.reload)
        assert consumer.told() == 'E_UNAUTHORIZED AUTH failed for SUB on "t"'
        producer.send(pub("t", b"x"))
        assert producer.told() == 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'


def test_a_removed_user_is_hung_up_on(tmp_path: Path) -> None:
    path = tmp_path / "data"
    users_in(path, [user("bob", ("admin", "*"), token=TOKEN)])
    with Flown(path, callers=CallersConfig(anonymous="off")) as flown:
        options = flight.FlightCallOptions(
            timeout=PATIENCE_S, headers=[(b"authorization", b"Bearer " + TOKEN.encode())]
        )
        held = Held.__new__(Held)
        command = flight.FlightDescriptor.for_command(b'{"subscribe":{"topic":"t","subscription":"s"}}')
        held.writer, held.reader = flown.client.do_exchange(command, options)
        held.notices = []
        held.ping()
        with Client(flown.tcp_port) as idle:
            idle.send(b"AUTH\n" + sized(TOKEN.encode()))
            idle.told()
            users_in(path, [])
            flown.do(flown.node.gate.reload)
            assert idle.told().startswith("E_UNAUTHORIZED")
            assert idle.ended()
        said = held.next()
        assert getattr(said, "end", "").startswith("unauthorized: ")
        held.close()
