"""More connections than a listener takes, and more than the process has files for."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from penstock.config import LimitsConfig
from penstock.dialects.nsq.lookup.codec import error
from penstock.dialects.sqs.config import SqsConfig
from tests.cli.program import Node
from tests.served import PATIENCE_S, Served

FILES = 400

#: Where a refused connection is counted.
COUNTED = {
    "nsq.http_port": "nsq:TOO_MANY_CONNECTIONS",
    "nsq.lookup_http_port": "nsq lookup:TOO_MANY_CONNECTIONS",
    "dynamiq.port": "dynamiq:too_many_connections",
    "sqs.port": "sqs:Throttling",
    "api.port": "api:too_many_connections",
}
#: Amazon's clients know this one by its name.
STATUS = {"sqs.port": 400}


def connect(stack: contextlib.ExitStack, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))


def pinged(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as late:
        late.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            return late.recv(100).startswith(b"HTTP/1.1 200 ")
    return False


@pytest.mark.parametrize("name", ["connections", "connections_per_address"])
@pytest.mark.parametrize("key", list(COUNTED))
def test_http_listeners_take_so_many_connections_and_no_more(tmp_path: Path, key: str, name: str) -> None:
    limits, sqs = LimitsConfig(**{name: 2}), SqsConfig(port=0)
    with Served(tmp_path, lookup=True, limits=limits, sqs=sqs) as served, contextlib.ExitStack() as stack:
        port = served.ports[key]
        first, second = connect(stack, port), connect(stack, port)
        for each in (first, second):
            each.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert each.recv(100).startswith(b"HTTP/1.1 ")
        third = connect(stack, port)
        told = b"".join(iter(lambda: third.recv(65536), b""))
        assert told.startswith(f"HTTP/1.1 {STATUS.get(key, 429)} ".encode())
        assert f"limits.{name}".encode() in told
        assert served.node.ledger.total(COUNTED[key]) == 1
        second.close()
        listener = served.nsq_running.http.get(key) or (
            served.node.served[key.partition(".")[0]].running.listener  # type: ignore[attr-defined]
            if key in ("api.port", "dynamiq.port", "sqs.port")
            else served.nsq_running.lookup.listener  # type: ignore[union-attr]
        )
        served.until(lambda: len(listener.connections) == 1)
        fourth = connect(stack, port)
        fourth.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"limits." not in fourth.recv(65536)


def test_the_lookup_service_takes_so_many_nodes_and_no_more(tmp_path: Path) -> None:
    limits = LimitsConfig(connections_per_address=2)
    with Served(tmp_path, lookup=True, limits=limits) as served, contextlib.ExitStack() as stack:
        port = served.ports["nsq.lookup_tcp_port"]
        for _ in range(2):
            known = connect(stack, port)
            known.sendall(b"  V1PING\n")
            assert known.recv(100) == b"\x00\x00\x00\x02OK"
        told = connect(stack, port).recv(65536)
        assert told == error("E_TOO_MANY_CONNECTIONS", told[4:].decode().partition(" ")[2])
        assert b"limits.connections_per_address = 2" in told
        assert served.node.ledger.total("nsq lookup:too_many_connections") == 1


@pytest.mark.parametrize(
    "key", ["nsq.tcp_port", "nsq.http_port", "nsq.lookup_tcp_port", "nsq.lookup_http_port", "sqs.port", "m3msg.port"]
)
def test_when_files_run_out_the_admin_api_still_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    bounded = ["sh", "-c", f'ulimit -n {FILES}; exec "$0" "$@"', sys.executable, "-m", "penstock.cli"]
    monkeypatch.setattr("tests.cli.program.COMMAND", bounded)
    with Node(tmp_path) as node, contextlib.ExitStack() as stack:
        node.ok("pub", "orders", "before")
        crowd = [connect(stack, node.port(key)) for _ in range(FILES)]
        crowd[-1].settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            told = crowd[-1].recv(65536)  # the last of them is refused; M3Msg has no words for it
            assert b"files are open" in told or (key, told) == ("m3msg.port", b"")
        node.ok("pub", "orders", "after")
        node.ok("topic", "create", "more")
        assert node.ok("sub", "orders", "audit").out == "before\nafter\n"
        with urllib.request.urlopen(f"{node.url}/readyz", timeout=PATIENCE_S) as answer:
            assert json.load(answer)["ready"] is True
        for each in crowd:
            each.close()
        end = time.monotonic() + PATIENCE_S
        while not pinged(node.port("nsq.http_port")):  # until the node has heard that they are gone
            assert time.monotonic() < end
