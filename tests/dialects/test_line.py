"""A dialect that nobody else knows of: served by a real node, shown by everything that reads the table, simulated."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.table import TABLE
from penstock.config import Keys, endpoints, load
from penstock.errors import ConfigError
from tests.cli.program import PORTS
from tests.dialects import line
from tests.dialects.line import DIALECT
from tests.dialects.speech import LINE
from tests.served import PATIENCE_S
from tests.simulation.runner import failure_of

WHOLE = (*TABLE, DIALECT)

#: What `penstock up` does, with one row more in the table.
UP = """
import sys
from penstock.cli import banner
from penstock.cli.daemon import run
from tests.dialects.test_line import WHOLE
from penstock.config import load
show = lambda config, bound: banner.show(config, bound, "test")
run(load(WHOLE, sys.argv[1], {}, {}).config, sys.argv[2], show, WHOLE)
"""


class Node:
    """A node in a process of its own."""

    def __init__(self, path: Path) -> None:
        ports = "".join(
            f"[{key.partition('.')[0]}]\n{key.partition('.')[2]} = 0\n" for key in PORTS if not key.startswith("nsq.")
        )
        nsq = "[nsq]\n" + "".join(f"{key.partition('.')[2]} = 0\n" for key in PORTS if key.startswith("nsq."))
        line = f'[line]\nport = 0\nhttp_port = 0\npath = "{path}/socket"\nlease = "30s"\n'
        (path / "c.toml").write_text(f'data_dir = "{path}/data"\n{ports}{nsq}{line}')
        command = [sys.executable, "-c", UP, str(path / "c.toml"), str(path / "ready")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.banner = ""
        for said in self.process.stdout:
            self.banner += said
            if said.startswith("Stop with"):
                break
        assert (path / "ready").exists(), self.process.communicate()[1]
        self.ready = json.loads((path / "ready").read_text())
        self.port: int = self.ready["ports"]["line.port"]
        self.path = path

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.ready["url"] + path, timeout=PATIENCE_S) as answer:
            content = answer.read()
        return json.loads(content) if content.startswith(b"{") else content.decode()

    def line(self) -> Client:
        return Client(socket.create_connection(("127.0.0.1", self.port), PATIENCE_S))

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=PATIENCE_S)[1]


class Client:
    """One line."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        self.sock = sock
        self._file = sock.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.sock.close()

    def say(self, text: str) -> None:
        self.sock.sendall(text.encode() + b"\n")

    def hear(self) -> str:
        return self._file.readline().decode().rstrip("\n")

    def ask(self, text: str) -> str:
        self.say(text)
        return self.hear()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("line"))
    yield node
    errors = node.end()
    assert node.process.returncode == 0, errors
    assert "Traceback" not in errors


def test_the_example_to_copy_is_as_short_as_its_page_says() -> None:
    assert len(Path(line.__file__).read_text().splitlines()) <= 200


def test_a_line_has_one_subscription(node: Node) -> None:
    with node.line() as first:
        assert first.ask("SUB once audit") == "OK"
        assert first.ask("SUB once audit") == "ERR bad_request SUB this line has a subscription of once"
        assert first.hear() == ""  # it was hung up on


def test_a_line_that_does_not_read_is_not_read_either(node: Node) -> None:
    with node.line() as deaf:
        deaf.sock.settimeout(1)
        with pytest.raises(TimeoutError):
            deaf.sock.sendall(b"ACK 1\n" * 10_000_000)  # far more than its sockets hold


def test_messages_go_through_and_come_again_to_another_line_unless_acked(node: Node) -> None:
    with node.line() as first:
        assert first.ask("PUB orders 100%25 of it%0Aand more") == "OK"
        assert first.ask("PUB orders two") == "OK"
        assert first.ask("SUB orders audit") == "OK"
        first.say("WANT 10")
        word, id_, attempts, _, text = first.hear().split(" ", 4)
        assert (word, attempts, text) == ("MSG", "1", "100%25 of it%0Aand more")
        assert first.hear().endswith(" two")
        first.say(f"ACK {id_}")
        assert first.ask(f"ACK {id_}") == f"ERR not_leased ACK {id_}"
    with node.line() as second:
        assert second.ask("SUB orders audit") == "OK"
        second.say("WANT 1")
        _, other, attempts, _, text = second.hear().split(" ", 4)
        assert (attempts, text) == ("2", "two")
        second.say(f"ACK {other}")
        assert second.ask("PUB other x") == "OK"


def test_a_unix_socket_speaks_the_same(node: Node) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(node.path / "socket"))
    with Client(sock) as client:
        assert client.ask("PUB local x") == "OK"
        assert client.ask("WHAT").startswith("ERR bad_request WHAT")
        assert client.hear() == ""


@pytest.mark.parametrize("bad", ["", "PUB", "PUB  x", "SUB orders", "WANT many", "PUB orders"])
def test_what_cannot_be_read_costs_one_line(node: Node, bad: str) -> None:
    with node.line() as client:
        assert client.ask(bad).startswith("ERR bad_")
    with node.line() as client:
        assert client.ask("PUB fine x") == "OK"


def test_everything_that_reads_the_table_shows_it(node: Node) -> None:
    assert f"lines' status http://127.0.0.1:{node.ready['ports']['line.http_port']}" in " ".join(node.banner.split())
    with node.line() as client:
        assert client.ask("SUB orders shown") == "OK"
        (peer,) = node.get("/api/v1/peers?dialect=line")["peers"]
        assert (peer["listener"], peer["topic"]) == ("line.port", "orders")
        (line,) = [each for each in node.get("/api/v1/dialects")["dialects"] if each["name"] == "line"]
        assert [listener["kind"] for listener in line["listeners"]] == ["tcp", "http", "unix"]
        assert "penstock_line_connections 1\n" in node.get("/metrics")


def test_its_status_page(node: Node) -> None:
    url = f"http://127.0.0.1:{node.ready['ports']['line.http_port']}"
    with urllib.request.urlopen(f"{url}/status", timeout=PATIENCE_S) as answer:
        assert answer.read().startswith(b"lines: ")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/nothing", timeout=PATIENCE_S)


def test_its_section_is_configured_like_any_other(tmp_path: Path) -> None:
    assert "line.lease" in Keys(WHOLE)
    config = load(WHOLE, None, {"port_offset": 1000, "line.path": str(tmp_path / "s")}, {}).config
    places = {each.key: each.place(each.port) for each in endpoints(config, WHOLE)}
    assert places["line.port"] == "127.0.0.1:8099"
    assert places["line.path"] == f"unix:{tmp_path}/s"
    for flags, text in (
        ({"line.lease": "0s"}, "line.lease is 0"),
        ({"line.port": 4150}, "line.port and nsq.tcp_port are both 4150"),
        ({"line.address": "0.0.0.0"}, "beyond this machine without TLS and callers; listen on 127"),
        ({"line.prt": 1}, "did you mean line.port"),
    ):
        with pytest.raises(ConfigError, match=text):
            load(WHOLE, None, flags, {})


@pytest.mark.parametrize("seed", range(1, 9))
def test_it_keeps_every_promise_beside_nsq_in_the_simulation(seed: int) -> None:
    _, failure = failure_of(seed, speeches=(LINE,), only="clients")
    assert not failure, failure
