from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.dialects.nsq.config import NsqConfig
from penstock.http import connection, incoming
from penstock.intake.receipt import Published
from penstock.message import Rows
from tests.nsq.certificates import certificates
from tests.served import PATIENCE_S, Served

NSQ = NsqConfig(tcp_port=0, http_port=0, https_port=0, max_msg_size=1000, max_body_size=4000)

OK = (200, b"OK")
PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


def pub(body: bytes, topic: str = "t", *headers: bytes, query: str = "") -> bytes:
    lines = [b"Host: localhost", b"Content-Length: %d" % len(body), *headers]
    return f"POST /pub?topic={topic}{query} HTTP/1.1\r\n".encode() + b"\r\n".join(lines) + b"\r\n\r\n" + body


class Client:
    """One connection that reads answers one by one."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._file = sock.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.sock.close()

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.sock.sendall(part)

    def head(self) -> bytes:
        """Return status line and headers of the next answer, nothing at the end."""
        lines = b""
        while line := self._file.readline():
            lines += line
            if line == b"\r\n":
                break
        return lines

    def answer(self) -> tuple[int, bytes]:
        """Return status and content of the next answer."""
        head = self.head().lower()
        assert head, "the connection ended"
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
        return int(head.split()[1]), self._file.read(size)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        self.send(request)
        return self.answer()

    def is_at_end(self) -> bool:
        return self._file.read(1) == b""


def connect(port: int) -> Client:
    return Client(socket.create_connection(("127.0.0.1", port)))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", nsq=NSQ) as node:
        node.post("topics", {"name": "t"})
        yield node
        assert node.do(lambda: node.node.bugs) == 0


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with connect(served.ports["nsq.http_port"]) as one:
        yield one


def stored(served: Served, topic: str = "t") -> list[str]:
    return [message["body"] for message in served.get(f"topics/{topic}/messages?limit=1000").json["messages"]]


def long_way(served: Served) -> int:
    """Return how many requests the application has answered."""
    return served.nsq.requests


def hold(served: Served, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let no publisher of a topic hear that his message is stored, until the returned function is called."""
    waiting: list[Callable[[], None]] = []
    topic = served.node.topics[name]
    publish = topic.publish

    def later(rows: Rows, publisher: object, done: Published, shard: int | None = None) -> None:
        publish(rows, publisher, lambda *told: waiting.append(partial(done, *told)), shard)

    def release() -> None:
        calls = waiting[:]
        waiting.clear()
        for call in calls:
            call()

    served.do(lambda: monkeypatch.setattr(topic, "publish", later))
    return lambda: served.do(release)


def published(served: Served, topic: str) -> int:
    return served.node.topics[topic].shards[0].end


def test_plain_publish_is_answered_without_the_application(served: Served, client: Client) -> None:
    for body in (b"a", b"a", b"bb", b"\r\n\r\nPOST /pub?topic=t"):
        assert client.ask(pub(body)) == OK
    assert stored(served) == ["a", "a", "bb", "\r\n\r\nPOST /pub?topic=t"]
    assert long_way(served) == 0


@pytest.mark.parametrize(
    "headers",
    [
        [b"Connection: keep-alive", b"Accept: */*", b"User-Agent: python-requests/2.31.0", b"Accept-Encoding: gzip"],
        [b"connection:Keep-Alive", b"X-Empty:", b"Content-Type: application/octet-stream"],
    ],
)
def test_headers_that_change_nothing_keep_a_request_plain(served: Served, client: Client, headers: list[bytes]) -> None:
    assert client.ask(pub(b"a", "t", *headers)) == OK
    assert long_way(served) == 0


def test_both_ways_answer_with_the_same_bytes(served: Served, client: Client) -> None:
    heads = []
    for query in ("", "&defer=0"):
        client.send(pub(b"a", query=query))
        heads.append(client.head())
        assert client._file.read(2) == b"OK"
    assert heads[0] == heads[1]
    assert long_way(served) == 1


def test_body_may_come_after_its_head(served: Served, client: Client) -> None:
    head, _, body = pub(b"x" * 500).partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    for cut in range(0, 500, 100):
        client.send(body[cut : cut + 100])
    assert client.answer() == OK
    assert stored(served) == ["x" * 500]
    assert long_way(served) == 0


def test_a_whole_head_waits_here_for_its_body(served: Served, client: Client) -> None:
    assert client.ask(pub(b"y")) == OK
    client.send(pub(b"x" * 10)[:-5])
    served.until(lambda: any(each.rest for each in served.nsq.connections))
    assert client.ask(b"xxxxx") == OK
    assert stored(served) == ["y", "xxxxxxxxxx"]
    assert long_way(served) == 0


def test_answers_come_in_the_order_of_the_requests_whichever_way_they_go(served: Served, client: Client) -> None:
    client.send(pub(b"a") + PING + pub(b"b", "new") + pub(b"c") + pub(b"", "t") + pub(b"d") + PING + pub(b"e"))
    found = [client.answer() for _ in range(8)]
    assert found == [OK, OK, OK, OK, (400, b'{"message":"MSG_EMPTY"}'), OK, OK, OK]
    assert stored(served) == ["a", "c", "d", "e"]
    assert stored(served, "new") == ["b"]


def test_an_answer_waits_for_the_one_before_it(served: Served, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    served.post("topics", {"name": "slow"})
    release = hold(served, "slow", monkeypatch)
    client.send(pub(b"a", "slow") + pub(b"b", "t", query="") + pub(b"c", "bad!"))
    served.until(lambda: published(served, "slow") + published(served, "t") == 2)
    client.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.sock.recv(1)
    client.sock.settimeout(PATIENCE_S)
    release()
    assert [client.answer()[0] for _ in range(3)] == [200, 200, 400]


def test_a_request_for_the_application_waits_for_the_answers_before_it(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = hold(served, "t", monkeypatch)
    client.send(pub(b"a") + b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n" + pub(b"b"))
    served.until(lambda: published(served, "t") == 1)
    assert long_way(served) == 0
    client.send(PING)
    release()
    assert client.answer() == OK
    assert client.answer() == (404, b'{"message":"NOT_FOUND"}')
    served.until(lambda: published(served, "t") == 2)
    release()
    assert [client.answer() for _ in range(2)] == [OK, OK]


def test_a_client_has_so_many_answers_outstanding_and_no_more(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.do(lambda: monkeypatch.setattr(connection, "ANSWERS_MAX", 2))
    release = hold(served, "t", monkeypatch)
    client.send(pub(b"a") * 5)
    for count in (2, 4, 5):
        served.until(lambda count=count: published(served, "t") == count)  # type: ignore[misc]
        release()
    assert [client.answer() for _ in range(5)] == [OK] * 5


def test_client_that_reads_nothing_is_not_read_either(served: Served, client: Client) -> None:
    sent, request = 0, pub(b"x")
    client.send(request)
    one = client.head() + client._file.read(2)
    client.sock.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while sent < 64 << 20:
            sent += client.sock.send((request * 1000)[sent % len(request) :])
    assert sent < 64 << 20
    client.sock.settimeout(PATIENCE_S)
    buffered = served.do(lambda: sum(each.transport.get_write_buffer_size() for each in served.nsq.connections))
    assert buffered < 4 << 20
    whole, cut = divmod(sent, len(request))
    assert client._file.read(len(one) * whole) == one * whole
    if cut:
        assert client.ask(request[cut:]) == OK


def test_what_was_asked_before_the_client_stopped_sending_is_answered(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = hold(served, "t", monkeypatch)
    client.send(pub(b"a"))
    client.sock.shutdown(socket.SHUT_WR)
    served.until(lambda: any(each.ends for each in served.nsq.connections))
    release()
    assert client.answer() == OK
    assert client.is_at_end()


def test_client_that_is_gone_costs_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    release = hold(served, "t", monkeypatch)
    with connect(served.ports["nsq.http_port"]) as client:
        client.send(pub(b"a"))
        served.until(lambda: published(served, "t") == 1)
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    served.until(lambda: not served.nsq.connections)
    release()


def test_a_listener_that_ends_answers_what_it_took(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    release = hold(served, "t", monkeypatch)
    with connect(served.ports["nsq.http_port"]) as idle, connect(served.ports["nsq.http_port"]) as client:
        assert idle.ask(PING) == OK
        client.send(pub(b"a"))
        served.until(lambda: published(served, "t") == 1)
        served.do(lambda: served._loop.create_task(served.nsq.close(PATIENCE_S)))
        assert idle.is_at_end()
        release()
        assert client.answer() == OK
        assert client.is_at_end()
    served.until(lambda: not served.nsq.connections)


def test_refusals_of_the_topic_are_told_and_counted(served: Served, client: Client) -> None:
    served.post("topics", {"name": "slow", "settings": {"rate": 1}})
    client.send(pub(b"x", "slow") * 50)
    found = {client.answer() for _ in range(50)}
    reason = b'"reason":"topic slow takes 1 messages a second; try again in a second"'
    assert (429, b'{"message":"RATE_LIMITED",' + reason + b"}") in found
    assert long_way(served) == 0
    served.do(served.node.stop)
    assert client.ask(pub(b"x")) == (503, b'{"message":"EXITING"}')
    assert served.node.ledger.total("nsq:EXITING") == 1


def test_topic_that_fails_costs_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path, nsq=NSQ) as served:
        served.post("topics", {"name": "t"})

        def fail(*_: object) -> None:
            raise ZeroDivisionError("planted")

        with connect(served.ports["nsq.http_port"]) as client:
            served.do(lambda: monkeypatch.setattr(served.node.topics["t"], "publish", fail))
            assert client.ask(pub(b"x")) == (500, b'{"message":"INTERNAL_ERROR"}')
            served.do(monkeypatch.undo)
            assert client.ask(pub(b"x")) == OK
        assert served.node.bugs == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /pub?topic=t HTTP/1.0\r\nContent-Length: 1\r\n\r\nx", 200),
        (pub(b"x", "t", b"Connection: close"), 200),
        (pub(b"x", "t", b"Connection: keep-alive, close"), 200),
        (pub(b"x", "t", b"Content-Length: 1"), 400),
        (pub(b"x", "t", b"Transfer-Encoding: chunked"), 400),
        (b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: -1\r\n\r\nx", 400),
        (b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: +1\r\n\r\nx", 400),
        (b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 1\r\nX\0: y\r\n\r\nx", 400),
        (b"POST /pub?topic=t HTTP/1.1\r\nContent-Length : 1\r\n\r\nx", 400),
        (b"POST /pub?topic=t HTTP/9.1\r\nContent-Length: 1\r\n\r\nx", 400),
    ],
)
def test_requests_of_another_shape_are_judged_by_the_parser_and_end_the_connection(
    served: Served, client: Client, request_: bytes, status: int
) -> None:
    assert client.ask(request_)[0] == status
    assert client.is_at_end()
    assert len(stored(served)) == (status == 200)


def test_chunks_and_100_continue_go_the_long_way(served: Served, client: Client) -> None:
    chunked = b"POST /pub?topic=t HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    assert client.ask(pub(b"a") + chunked) == OK
    assert client.answer() == OK
    head, _, body = pub(b"def", "t", b"Expect: 100-continue").partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    assert client.head().startswith(b"HTTP/1.1 100 ")
    assert client.ask(body) == OK
    assert client.ask(pub(b"g")) == OK
    assert stored(served) == ["a", "abc", "def", "g"]


def test_half_a_body_is_given_up(served: Served, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    served.do(lambda: monkeypatch.setattr(connection, "HEAD_NS", -1))
    served.do(lambda: monkeypatch.setattr(incoming, "BODY_PAUSE_NS", -1))
    assert client.ask(pub(b"a")) == OK
    client.send(pub(b"abcdef")[:-1])
    served.until(lambda: any(each.rest for each in served.nsq.connections))
    served.do(served.nsq._sweep)
    assert client.answer() == (408, b'{"message":"TOO_SLOW"}')
    assert stored(served) == ["a"]


def test_half_a_head_is_given_up(served: Served, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.send(pub(b"abc")[:30])
    served.until(lambda: any(each.rest for each in served.nsq.connections))
    served.do(lambda: monkeypatch.setattr(connection, "HEAD_NS", -1))
    served.do(lambda: monkeypatch.setattr(incoming, "HEAD_NS", -1))
    served.do(served.nsq._sweep)
    assert client.is_at_end()


def test_pipelined_publishes_stay_on_the_short_way_however_reads_cut_them(served: Served, client: Client) -> None:
    client.send(pub(b"x" * 100) * 5000)
    assert [client.answer() for _ in range(5000)] == [OK] * 5000
    assert long_way(served) == 0


def test_body_too_large_to_wait_for_goes_the_long_way(tmp_path: Path) -> None:
    with (
        Served(tmp_path, nsq=NsqConfig(tcp_port=0, http_port=0)) as served,
        connect(served.ports["nsq.http_port"]) as client,
    ):
        served.post("topics", {"name": "t"})
        body = b"x" * 200_000
        head, _, _ = pub(body).partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert client.ask(body) == OK
        assert client.ask(pub(b"y")) == OK
        assert [len(each) for each in stored(served)] == [200_000, 1]
        assert long_way(served) == 1


def test_idle_connection_is_closed_after_a_while(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.ask(pub(b"a")) == OK
    served.do(served.nsq._sweep)
    assert client.ask(pub(b"b")) == OK
    served.do(lambda: monkeypatch.setattr(connection, "KEEP_ALIVE_NS", -1))
    served.do(served.nsq._sweep)
    assert client.is_at_end()


def test_publishes_over_tls_take_the_same_way(tmp_path: Path) -> None:
    made = certificates()
    tls: dict[str, Any] = {"tls_cert": str(made.server), "tls_key": str(made.server_key)}
    with Served(tmp_path, nsq=NSQ, **tls) as served:
        secure = served.nsq_running.http["nsq.https_port"]
        served.do(lambda: served.node.obtain("t").now())
        sock = socket.create_connection(("127.0.0.1", served.ports["nsq.https_port"]))
        wrapped: ssl.SSLSocket = made.client_context().wrap_socket(sock, server_hostname="localhost")
        with Client(wrapped) as client:
            client.send(pub(b"a") + PING)
            assert [client.answer() for _ in range(2)] == [OK, OK]
            assert client.ask(pub(b"b" * 900)) == OK
            assert secure.requests == 1
        assert served.do(lambda: served.node.topics["t"].published) == 2


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Served(tmp_path_factory.mktemp("split"), nsq=NSQ) as served:
        served.post("topics", {"name": "t"})
        yield served


requests = st.one_of(
    st.binary(min_size=1, max_size=40).map(pub),
    st.sampled_from([PING, pub(b""), pub(b"x", query="&defer=0"), pub(b"y" * 1001), pub(b"z", "t", b"Accept: *")]),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(requests, min_size=1, max_size=6), data=st.data())
def test_however_requests_are_cut_each_is_answered_as_if_alone(
    shared: Served, asked: list[bytes], data: st.DataObject
) -> None:
    with connect(shared.ports["nsq.http_port"]) as one:
        alone = [one.ask(request) for request in asked]
    whole = b"".join(asked)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=8).map(sorted))
    before = published(shared, "t")
    with connect(shared.ports["nsq.http_port"]) as client:
        client.send(*(whole[start:stop] for start, stop in pairwise([0, *cuts, len(whole)])))
        assert [client.answer() for _ in asked] == alone
    taken = sum(answer == OK and not request.startswith(b"GET") for request, answer in zip(asked, alone, strict=True))
    assert published(shared, "t") - before == taken
    assert shared.node.bugs == 0
