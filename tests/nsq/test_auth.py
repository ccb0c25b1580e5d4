"""AUTH: what an auth server's answer allows, when it is asked again, and how it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.dialects.nsq.tcp.auth import Authenticator, Grants, Query
from tests.nsq.parts import Broker, Client, pub, sized

ALL = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


class AuthServer:
    """Answers when it is told to."""

    def __init__(self, *authorizations: dict[str, Any], ttl: int = 60, at_once: bool = True) -> None:
        self.answer: bytes | None = msgspec.json.encode(
            {"ttl": ttl, "authorizations": list(authorizations), "identity": "", "identity_url": ""}
        )
        self.at_once = at_once
        self.asked: list[Query] = []
        self.waiting: list[Callable[[Grants | None], None]] = []

    def ask(self, query: Query, told: Callable[[Grants | None], None]) -> None:
        self.asked.append(query)
        self.waiting.append(told)
        if self.at_once:
            self.tell()

    def tell(self) -> None:
        self.waiting.pop(0)(Grants(self.answer) if self.answer is not None else None)


def auth(client: Client, secret: bytes = b"secret") -> list[str]:
    client.send(b"AUTH\n" + sized(secret))
    return client.replies()


def test_nsq_case_23_no_authorizations(tmp_path: Path) -> None:
    client = Broker(tmp_path, ask=AuthServer().ask).client()
    assert client.identify()["auth_required"] is True
    assert auth(client) == ["E_UNAUTHORIZED AUTH no authorizations found"]
    assert client.closed


def test_nsq_case_23_a_valid_list(tmp_path: Path) -> None:
    server = AuthServer(ALL)
    client = Broker(tmp_path, ask=server.ask).client()
    assert auth(client) == ['{"identity":"","identity_url":"","permission_count":1}']
    assert server.asked == [Query("127.0.0.1", False, "secret", "")]
    client.send(b"SUB t ch\n" + pub("t", b"x"))
    assert client.replies() == ["OK", "OK"]


@pytest.mark.parametrize(
    "command", [b"SUB t ch\n", pub("t", b"x"), b"PUB_EXT t\n" + sized(b"\0\0x"), b"INTERNAL_CREATE_TOPIC t 0\n"]
)
def test_nothing_goes_before_auth(tmp_path: Path, command: bytes) -> None:
    broker = Broker(tmp_path, ask=AuthServer(ALL).ask)
    client = broker.client()
    client.send(command)
    word = command.split(b" ")[0].decode()
    assert client.replies() == [f"E_AUTH_FIRST AUTH required before {word}"]
    assert client.closed
    assert broker.node.topics == {}


@pytest.mark.parametrize(
    ("rule", "published", "subscribed"),
    [
        ({"topic": "^a$", "channels": [".*"], "permissions": ["publish"]}, True, False),
        ({"topic": "a", "channels": ["^ch$"], "permissions": ["subscribe", "publish"]}, False, True),
        ({"topic": "^b", "channels": [".*"], "permissions": ["subscribe", "publish"]}, False, False),
        ({"topic": "a", "channels": ["c"], "permissions": ["subscribe"]}, False, True),
    ],
)
def test_a_grant_allows_what_its_patterns_find(
    tmp_path: Path, rule: dict[str, Any], published: bool, subscribed: bool
) -> None:
    broker = Broker(tmp_path, ask=AuthServer(rule).ask)
    for command, allowed in ((pub("a", b"x"), published), (b"SUB a ch\n", subscribed)):
        client = broker.client()
        auth(client)
        client.send(command)
        (reply,) = client.replies()
        assert reply == "OK" if allowed else reply.startswith("E_UNAUTHORIZED AUTH failed for ")
        assert client.closed is not allowed


def test_the_server_is_asked_again_when_its_answer_ran_out(tmp_path: Path) -> None:
    server = AuthServer(ALL, ttl=10)
    broker = Broker(tmp_path, ask=server.ask)
    client = broker.client()
    auth(client)
    broker.advance(9)
    client.pub("t", b"x")
    assert len(server.asked) == 1
    broker.advance(2)
    server.at_once = False
    client.send(pub("t", b"y") + b"NOP\n" + pub("u", b"z"))
    client.send(pub("t", b"w"))
    assert client.replies() == ["OK"]
    server.tell()
    assert client.replies() == ["OK"] * 3
    assert len(server.asked) == 2
    consumer = broker.client()
    auth_later(server, consumer)
    consumer.send(b"SUB t ch\nRDY 9\n")
    assert [data[26:] for kind, data in consumer.frames() if kind == 2] == [b"x", b"y", b"w"]
    broker.advance(11)
    server.answer = None
    client.pub("t", b"x")
    server.tell()
    assert client.replies() == ["E_AUTH_FAILED AUTH failed"]
    assert client.closed


def auth_later(server: AuthServer, client: Client) -> None:
    client.send(b"AUTH\n" + sized(b"s"))
    server.tell()
    assert client.replies()[0].startswith("{")


def test_what_is_sent_behind_auth_waits_for_the_answer(tmp_path: Path) -> None:
    server = AuthServer(ALL, at_once=False)
    client = Broker(tmp_path, ask=server.ask).client()
    client.send(b"AUTH\n" + sized(b"s") + b"SUB t ch\nRDY 5\n" + pub("t", b"hello")[:7])
    client.send(pub("t", b"hello")[7:])
    assert client.frames() == []
    server.tell()
    frames = client.frames()
    assert [data for kind, data in frames if kind == 0][1:] == [b"OK", b"OK"]
    assert [data[26:] for kind, data in frames if kind == 2] == [b"hello"]


def test_an_answer_after_the_client_left_hurts_nobody(tmp_path: Path) -> None:
    server = AuthServer(ALL, at_once=False)
    broker = Broker(tmp_path, ask=server.ask)
    client = broker.client()
    client.send(b"AUTH\n" + sized(b"s"))
    client.hang_up()
    server.tell()
    broker.clock.run()
    assert broker.node.bugs == 0


def test_auth_is_refused_where_it_makes_no_sense(tmp_path: Path) -> None:
    client = Broker(tmp_path / "off").client()
    assert auth(client) == ["E_AUTH_DISABLED AUTH disabled"]
    broker = Broker(tmp_path / "on", ask=AuthServer(ALL).ask)
    client = broker.client()
    auth(client)
    assert auth(client) == ["E_INVALID AUTH already set"]
    client = broker.client()
    client.send(b"AUTH now\n" + sized(b"s"))
    assert client.replies() == ["E_INVALID AUTH invalid number of parameters"]
    failing = AuthServer(ALL)
    failing.answer = None
    assert auth(Broker(tmp_path / "failing", ask=failing.ask).client()) == ["E_AUTH_FAILED AUTH failed"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"ttl":0,"authorizations":[]}',
        b'{"ttl":5,"authorizations":[{"topic":"(","channels":[],"permissions":[]}]}',
        b'{"ttl":5,"authorizations":[{"topic":"a","channels":[],"permissions":["all"]}]}',
    ],
)
def test_an_answer_that_is_no_grant_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError):
        Grants(answer)


async def served(answers: list[bytes], requests: list[bytes]) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        length = [line for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
        requests.append(request + body)
        writer.write(answers.pop(0))
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


GOOD = msgspec.json.encode({"ttl": 5, "identity": "me", "identity_url": "u", "authorizations": [ALL]})
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(GOOD) + GOOD + b"\r\n0\r\n\r\n"
BROKEN = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"


def ask(addresses: int, answers: list[bytes], method: Any = "get", path: str = "") -> tuple[Grants | None, list[bytes]]:
    requests: list[bytes] = []

    async def run() -> Grants | None:
        server = await served(answers, requests)
        port = server.sockets[0].getsockname()[1]
        told: asyncio.Future[Grants | None] = asyncio.get_running_loop().create_future()
        address = f"http://127.0.0.1:{port}{path}" if path else f"127.0.0.1:{port}"
        authenticator = Authenticator([address] * addresses, method)
        authenticator.ask(Query("10.0.0.1", True, "s e&cret", "cn"), told.set_result)
        async with server:
            return await told

    return asyncio.run(run()), requests


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED])
def test_the_server_is_asked_over_http(answer: bytes) -> None:
    grants, (request,) = ask(1, [answer])
    assert request.startswith(b"GET /auth?remote_ip=10.0.0.1&tls=true&secret=s+e%26cret&common_name=cn HTTP/1.1\r\n")
    assert grants is not None
    assert (grants.identity, len(grants)) == ("me", 1)


def test_the_next_server_is_asked_when_one_fails() -> None:
    grants, requests = ask(2, [BROKEN, PLAIN])
    assert grants is not None
    assert len(requests) == 2
    assert ask(2, [BROKEN, b"nonsense\r\n\r\n"])[0] is None


def test_a_url_is_used_as_it_is_and_a_post_carries_lists() -> None:
    _, (request,) = ask(1, [PLAIN], "post", "/my/path?x=1")
    assert request.startswith(b"POST /my/path?x=1 HTTP/1.1\r\n")
    sent = msgspec.json.decode(request.partition(b"\r\n\r\n")[2])
    assert sent == {"remote_ip": ["10.0.0.1"], "tls": ["true"], "secret": ["s e&cret"], "common_name": ["cn"]}
