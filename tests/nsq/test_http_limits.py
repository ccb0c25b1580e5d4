from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.dialects.nsq.config import NsqConfig
from penstock.http import connection, incoming
from penstock.http.incoming import HEAD_BYTES_MAX
from tests.nsq.test_direct import OK, PING, Client, connect, pub
from tests.served import Served

NSQ = NsqConfig(tcp_port=0, http_port=0, max_msg_size=1000, max_body_size=4000)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Return a node with a client that must notice nothing of what another one does."""
    with Served(tmp_path / "data", nsq=NSQ) as node, connect(node.ports["nsq.http_port"]) as neighbour:
        node.post("topics", {"name": "t"})
        assert neighbour.ask(pub(b"before")) == OK
        assert neighbour.ask(PING) == OK
        yield node
        assert neighbour.ask(pub(b"after")) == OK
        assert neighbour.ask(PING) == OK
        assert [message["body"] for message in node.get("topics/t/messages").json["messages"]] == ["before", "after"]
        assert node.do(lambda: node.node.bugs) == 0
        assert node.node.budget.body.used == 0


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with connect(served.ports["nsq.http_port"]) as one:
        yield one


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\nx"])
@pytest.mark.parametrize(
    "start", [b"POST /pub?topic=t HTTP/1.1\r\nX: ", b"POST /pub?topic=", b"GET /ping HTTP/1.1\r\n"]
)
def test_a_head_that_is_too_long_is_refused(served: Served, client: Client, start: bytes, end: bytes) -> None:
    filler = b"x" * (HEAD_BYTES_MAX + 1) if not start.startswith(b"GET") else b"X: y\r\n" * (HEAD_BYTES_MAX // 3)
    with contextlib.suppress(ConnectionError):  # it may be refused before it is sent
        client.send(start + filler + (b" HTTP/1.1" + end if start.endswith(b"=") else end))
    status, content = client.answer()
    assert status == 400
    assert str(HEAD_BYTES_MAX).encode() in content
    assert served.node.ledger.total("nsq:INVALID_REQUEST") == 1


def test_a_head_behind_other_requests_is_counted_by_itself(served: Served, client: Client) -> None:
    many = PING * (3 * HEAD_BYTES_MAX // len(PING))
    client.send(many + PING[:10])
    for _ in range(len(many) // len(PING)):
        assert client.answer() == OK
    assert client.ask(PING[10:]) == OK


@pytest.mark.parametrize("length", [b"-1", b"+1", b"1,1", b"0x1", b"", b"1 1", b"99999999999999999999999"])
def test_a_length_that_is_none_is_refused(served: Served, client: Client, length: bytes) -> None:
    status, _ = client.ask(b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: %b\r\n\r\nx" % length)
    assert status == 400
    assert client.is_at_end()


@pytest.mark.parametrize("path", [b"/pub", b"/mpub", b"/pub_ext", b"/pubtrace"])
def test_a_length_beyond_the_limit_is_refused_before_the_body_comes(
    served: Served, client: Client, path: bytes
) -> None:
    status, content = client.ask(
        b"POST %b?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n" % path
    )
    assert status == 413
    assert content in (b'{"message":"MSG_TOO_BIG"}', b'{"message":"BODY_TOO_BIG"}')


def send_for_ever(client: Client, part: bytes) -> None:
    while True:
        client.send(part)


@pytest.mark.parametrize("path", [b"/pub", b"/mpub"])
@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Content-Length: 999999999999"])
def test_an_endless_body_is_refused_and_then_cut_off(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch, path: bytes, framing: bytes
) -> None:
    served.do(lambda: monkeypatch.setattr(incoming, "LEFTOVER_BYTES_MAX", 100_000))
    client.send(b"POST %b?topic=t HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % (path, framing))
    part = b"1000\r\n" + b"x" * 0x1000 + b"\r\n" if b"chunked" in framing else b"x" * 0x1000
    client.send(part, part)
    assert client.answer()[0] == 413
    with pytest.raises(ConnectionError):
        send_for_ever(client, part)


def test_the_rest_of_a_refused_body_may_not_take_for_ever(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send(b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n")
    assert client.answer()[0] == 413
    client.send(b"x")
    served.do(lambda: monkeypatch.setattr(incoming, "HEAD_NS", -1))
    served.until(lambda: any(not each._incoming.between for each in served.nsq.connections))
    served.do(served.nsq._sweep)
    assert client.is_at_end()


def test_the_rest_of_a_refused_body_is_skipped(served: Served, client: Client) -> None:
    assert client.ask(b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n")[0] == 413
    assert client.ask(b"x" * 9999 + PING) == OK


@pytest.mark.parametrize(
    "start", [b"G", b"POST /mpub?topic=t HTTP/1.1\r\nHost: localhost\r\n", b"\r\nGET /ping HTTP/1.1\r\nX"]
)
def test_a_head_that_takes_for_ever_is_given_up(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    client.send(start)
    served.until(lambda: any(each._incoming._in_head for each in served.nsq.connections))
    served.do(served.nsq._sweep)
    served.do(lambda: monkeypatch.setattr(incoming, "HEAD_NS", -1))
    served.do(served.nsq._sweep)
    assert client.is_at_end()


def test_a_client_that_says_nothing_is_given_up(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.until(lambda: len(served.nsq.connections) == 2)
    with monkeypatch.context() as patch:
        served.do(lambda: patch.setattr(connection, "KEEP_ALIVE_NS", 10**9))

        def age() -> None:
            for each in served.nsq.connections:
                is_it = each.client is not None and each.client[1] == client.sock.getsockname()[1]
                each.heard_ns -= 2 * 10**9 if is_it else 0

        served.do(age)
        served.do(served.nsq._sweep)
    assert client.is_at_end()


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"DELETE /pub?topic=t HTTP/1.1\r\nHost: localhost\r\n\r\n", (405, b'{"message":"METHOD_NOT_ALLOWED"}')),
        (b"OPTIONS /mpub?topic=t HTTP/1.1\r\nHost: localhost\r\n\r\n", (405, b'{"message":"METHOD_NOT_ALLOWED"}')),
        (pub(b"x").replace(b"/pub", b"/pubb"), (404, b'{"message":"NOT_FOUND"}')),
        (pub(b"x").replace(b"/pub?", b"/pub/?"), (404, b'{"message":"NOT_FOUND"}')),
        (pub(b"x").replace(b"/pub?topic=t", b"/"), (404, b'{"message":"NOT_FOUND"}')),
        (pub(b"x").replace(b"/pub", b"/PUB"), (404, b'{"message":"NOT_FOUND"}')),
        (pub(b"x", "t%zz"), (400, b'{"message":"INVALID_REQUEST"}')),
        (pub(b"x", "x" * 65), (400, b'{"message":"INVALID_TOPIC"}')),
    ],
)
def test_a_wrong_method_or_path_costs_one_request(
    served: Served, client: Client, request_: bytes, answer: tuple[int, bytes]
) -> None:
    assert client.ask(request_) == answer
    assert client.ask(PING) == OK


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"BREW /pub HTTP/1.1\r\n\r\n",
        b"  V2PUB t\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
def test_what_is_no_http_costs_one_connection(served: Served, client: Client, garbage: bytes) -> None:
    assert client.ask(garbage)[0] == 400
    assert client.is_at_end()
    assert served.node.ledger.total("nsq:INVALID_REQUEST") == 1


def test_half_a_request_and_then_the_end_is_no_bug(served: Served, client: Client) -> None:
    for cut in (3, 30, len(pub(b"abc")) - 1):
        with connect(served.ports["nsq.http_port"]) as other:
            other.send(pub(b"abc")[:cut])
            other.sock.shutdown(socket.SHUT_WR)
            other.is_at_end()
