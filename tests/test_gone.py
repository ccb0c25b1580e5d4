"""A connection that is over leaves nothing behind, at once: the cycle collector may come by much later, or never."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import pytest

from penstock.budget import Budget
from penstock.config import LimitsConfig, MemoryConfig
from penstock.errors import Refusal
from penstock.http import App, Connection, Listener, Request, Response, Route
from penstock.registry.answer import Answer
from penstock.settings import TopicSettings
from tests.fakes import FakeClock, gate_of
from tests.http.line import Line
from tests.nsq.lookup.parts import Service
from tests.nsq.parts import Broker, Client


@pytest.fixture(autouse=True)
def _without_the_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def nsq_end(client: Client) -> list[ref[object]]:
    """End a connection and return what is watched of it."""
    connection = client.connection
    session = connection.session
    watched: list[ref[object]] = [ref(connection), ref(session.publisher)]
    broker = client.broker
    client.closed = True
    connection.connection_lost(None)
    broker.clock.run()
    del client.connection
    return watched


def nsq_clients(broker: Broker) -> dict[str, Client]:
    """Return clients in every state that a connection can end in."""
    idle, mute = broker.client(), broker.client(magic=False)
    publisher = broker.client()
    publisher.pub("t", b"one", b"two")
    half = broker.client()
    half.send(b"MPUB t\n\x00\x10\x00\x00" + bytes(1000))
    consumer = broker.client()
    consumer.sub("t", "ch", 10)
    gathering = broker.client()
    gathering.identify(output_buffer_size=4096, output_buffer_timeout=250)
    gathering.sub("t", "other", 10)
    failed = broker.client()
    failed.send(b"NONSENSE\n")
    return {
        "idle": idle,
        "mute": mute,
        "publisher": publisher,
        "half": half,
        "consumer": consumer,
        "gathering": gathering,
        "failed": failed,
    }


@pytest.mark.parametrize("state", ["idle", "mute", "publisher", "half", "consumer", "gathering", "failed"])
def test_an_nsq_connection_is_gone_when_it_is_over(tmp_path: Path, state: str) -> None:
    clients = nsq_clients(Broker(tmp_path))
    watched = nsq_end(clients[state])
    assert [each() for each in watched] == [None, None]


def test_an_nsq_connection_that_waits_for_its_sync_is_gone_once_that_is_there(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.node.create_topic("safe", TopicSettings(durability="fsync")).now()
    client = broker.client()
    broker.disk.eager = False
    client.pub("safe", b"one")
    watched = nsq_end(client)
    assert watched[1]() is not None  # it still waits
    broker.disk.eager = True
    while broker.disk.work:
        broker.disk.step()
    broker.clock.run()
    assert [each() for each in watched] == [None, None]


def _hello(request: Request) -> Response:
    return Response(b"hello")


def _broken(request: Request) -> Response:
    raise Refusal("conflict", "not now")


def _later(request: Request) -> Answer[Response | None]:
    return Answer.of(None).then_make(lambda _: _broken(request))


WAYS = {
    "/never": Route(lambda request: None),
    "/broken": Route(_broken),
    "/later": Route(_later),
    "/large": Route(_hello, 10_000),
    "/own-words": Route(_hello, 1000, too_big=Refusal("message_too_big", "less, please")),
}


class Hello(App):
    """Answers everything at once, or never."""

    def begin(self, request: Request) -> None:
        if request.path == "/missing":
            raise Refusal("not_found", "there is nothing")
        request.route = WAYS.get(request.path, Route(_hello, 1000))

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        return Response(str(error).encode(), (), 400)

    def not_http(self, text: str, connection: Connection) -> None:
        pass


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHo",
        b"POST / HTTP/1.1\r\nContent-Length: 900\r\n\r\nhalf",
        b"GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /never HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5000\r\n\r\ntoo large",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + bytes(2000),
        b"GET /never HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 5000\r\n\r\ntoo large",
        b"GET /broken HTTP/1.1\r\n\r\n",
        b"GET /later HTTP/1.1\r\n\r\n",
        b"GET /missing HTTP/1.1\r\n\r\n",
        b"POST /own-words HTTP/1.1\r\nContent-Length: 5000\r\n\r\ntoo large",
    ],
)
def test_an_http_connection_is_gone_when_it_is_over(sent: bytes) -> None:
    clock = FakeClock()
    budget = Budget(MemoryConfig(), LimitsConfig(), clock)
    line = Line(Listener("here", Hello(), clock, budget, gate_of(clock)))
    line.send(sent)
    watched = ref(line.connection)
    line.close()
    del line.connection
    assert watched() is None


def test_a_request_that_gives_way_leaves_nothing_of_what_was_read() -> None:
    clock = FakeClock()
    budget = Budget(MemoryConfig(body_bytes=5000), LimitsConfig(), clock)
    app = Hello()
    lines = [Line(Listener("here", app, clock, budget, gate_of(clock))) for _ in range(2)]
    for line in lines:
        line.send(b"POST /large HTTP/1.1\r\nContent-Length: 9000\r\n\r\n" + bytes(4000))
    given_way = next(line for line in lines if b"memory.body_bytes" in line.out)
    watched = ref(given_way.connection)
    given_way.close()
    del given_way.connection
    assert watched() is None


@pytest.mark.parametrize("identify", [True, False])
def test_a_lookup_connection_is_gone_when_it_is_over(identify: bool) -> None:
    peer = Service().node(identify=identify)
    watched: list[ref[object]] = [ref(peer.connection), ref(peer.connection.session)]
    peer.connection.connection_lost(None)
    del peer.connection
    assert [each() for each in watched] == [None, None]
