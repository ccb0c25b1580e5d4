from __future__ import annotations

import signal
import socket
import struct
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.program import ANY_PORTS, PORTS, Node, Running, penstock


def test_a_node_prints_where_it_listens_and_what_to_try(tmp_path: Path) -> None:
    with Running("up", "--data", "d", *ANY_PORTS, cwd=tmp_path) as node:
        assert node.line().startswith(b"Penstock 0.1.0 is up. Data in d, durability os.")
        lines = [node.line().rsplit(None, 1) for _ in range(10)]
        api, flight, nsq, http, tcp, web, sqs, queues, m3msg, timelines = lines
        assert [line[0].strip() for line in (api, flight, nsq, http)] == [b"admin API", b"Flight", b"NSQ", b"NSQ HTTP"]
        assert [line[0].strip() for line in (tcp, web)] == [b"NSQ lookup", b"NSQ lookup HTTP"]
        assert [line[0].strip() for line in (sqs, queues, m3msg)] == [b"SQS and SNS", b"Dynamiq", b"M3Msg"]
        assert timelines[0].strip() == b"Timelines"
        assert node.line() == b"Try:"
        tries = [node.line().decode().strip() for _ in range(5)]
        url = api[-1].decode()
        assert tries == [
            f'penstock pub greetings "hello" --url {url}',
            f"penstock sub greetings first --max 1 --url {url}",
            f"curl -d hello '{http[-1].decode()}/pub?topic=greetings'",
            f"curl -X PUT {queues[-1].decode()}/v1/queues/jobs",
            f"curl -X PUT {timelines[-1].decode()}/v1/topics/reminders",
        ]
        assert penstock("pub", "greetings", "hello", "--url", url, cwd=tmp_path).code == 0
        assert penstock("sub", "greetings", "first", "--max", "1", "--url", url, cwd=tmp_path).out == "hello\n"


def test_a_node_that_is_open_to_strangers_says_so_loudly(tmp_path: Path) -> None:
    open_ = ("--set=nsq.address=0.0.0.0", "--set=nsq.lookup=false")
    with Running("up", "--data", "d", *ANY_PORTS, *open_, "--insecure", cwd=tmp_path) as node:
        for what in (b"NSQ at", b"NSQ HTTP at"):
            line = node.line(b"Warning: insecure")
            assert what in line
            assert line.endswith(b"is open beyond this machine without TLS and callers.")
        node.line(b"Stop with Ctrl-C.")
        assert node.errors().count("is open beyond this machine without TLS and callers") == 2


def test_every_listener_of_the_ready_file_answers(node: Node) -> None:
    assert set(node.ready["ports"]) == set(PORTS)
    assert node.ready["pid"] == node.process.pid
    with urllib.request.urlopen(f"{node.url}/healthz", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{node.port('nsq.http_port')}/ping", timeout=10) as answer:
        assert answer.read() == b"OK"
    with socket.create_connection(("127.0.0.1", node.port("nsq.tcp_port")), 10) as connection:
        connection.sendall(b"  V2PUB up\n" + struct.pack(">i", 5) + b"hello")
        assert connection.recv(100) == struct.pack(">ii", 6, 0) + b"OK"


def test_messages_survive_kill_9_and_acked_ones_do_not_come_again(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.ok("pub", "orders", "one", "two", "three")
        assert node.ok("sub", "orders", "audit", "--max", "1").out == "one\n"
        assert node.end(signal.SIGKILL) == -signal.SIGKILL
    with Node(tmp_path) as node:
        assert node.ok("sub", "orders", "audit").out == "two\nthree\n"
        node.ok("pub", "orders", "four")
        assert node.ok("sub", "orders", "audit").out == "four\n"
        assert node.ok("log", "verify", "--data", tmp_path / "data").code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_node_with_exit_code_0_and_everything_written(tmp_path: Path, number: signal.Signals) -> None:
    with Node(tmp_path) as node:
        node.ok("pub", "orders", "one", "two")
        assert node.ok("sub", "orders", "audit", "--max", "1").out == "one\n"
        assert node.end(number) == 0, node.errors()
        assert "Traceback" not in node.errors()
    with Node(tmp_path) as node:
        assert node.ok("sub", "orders", "audit").out == "two\n"


def test_a_stopping_node_says_what_it_stops(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.ok("pub", "orders", "one")
        with socket.create_connection(("127.0.0.1", node.port("nsq.tcp_port")), 10) as connection:
            connection.sendall(b"  V2SUB orders audit\nRDY 1\n")
            received = b""
            while b"one" not in received:
                received += connection.recv(1000)
            node.process.send_signal(signal.SIGINT)
            assert node.line() == b"Stopping. A second Ctrl-C ends it at once; the next start then recovers."
            assert node.line() == b"  timeline, m3msg, dynamiq, sqs, nsq, flight, api: taking nothing more in"
            assert node.line() == b"  consumers: 1 message is with them, waiting up to 5s for its ack"
        assert node.line() == b"  topics: writing down 1"
        assert node.line() == b"Stopped."
        assert node.process.wait(60) == 0


def test_a_quiet_node_says_nothing_at_its_end_either(tmp_path: Path) -> None:
    with Running("up", "--data", "d", "--quiet", "--ready-file", "ready", *ANY_PORTS, cwd=tmp_path) as node:
        while not (tmp_path / "ready").exists():
            assert node.process.poll() is None
        assert node.end(signal.SIGINT) == 0
        assert node.process.stdout is not None
        assert node.process.stdout.read() == b""


def test_a_node_stops_although_a_consumer_waits_for_messages(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.ok("pub", "orders", "one")
        with node.follow("sub", "orders", "audit", "--follow") as consumer:
            assert consumer.line() == b"one"
            assert node.end() == 0
            assert consumer.process.wait(60) == 3
            assert f"{node.url} cannot be reached" in consumer.errors()


def test_a_stopping_node_waits_for_what_a_consumer_holds_and_a_second_signal_does_not(tmp_path: Path) -> None:
    with Node(tmp_path, "--set", "node.drain_timeout=10m") as node:
        node.ok("pub", "orders", "one")
        with socket.create_connection(("127.0.0.1", node.port("nsq.tcp_port")), 10) as connection:
            connection.sendall(b"  V2SUB orders audit\nRDY 1\n")
            received = b""
            while b"one" not in received:
                received += connection.recv(1000)
            node.process.send_signal(signal.SIGTERM)
            # It stops to listen first: once nobody can connect, it waits for the message that is out.
            _until_refused(node.port("nsq.tcp_port"))
            assert node.process.poll() is None
            assert node.end(signal.SIGTERM) == -signal.SIGTERM


def test_a_message_finished_while_the_node_stops_stays_finished(tmp_path: Path) -> None:
    with Node(tmp_path, "--set", "node.drain_timeout=10m") as node:
        node.ok("pub", "orders", "one")
        with socket.create_connection(("127.0.0.1", node.port("nsq.tcp_port")), 10) as connection:
            connection.sendall(b"  V2SUB orders audit\nRDY 1\n")
            received = b""
            while b"one" not in received:
                received += connection.recv(1000)
            node.process.send_signal(signal.SIGTERM)
            _until_refused(node.port("nsq.tcp_port"))
            connection.sendall(b"FIN " + received[-19:-3] + b"\n")
            assert node.process.wait(60) == 0, node.errors()
    with Node(tmp_path) as node:
        assert node.ok("sub", "orders", "audit").out == ""


def test_a_second_process_on_a_data_directory_is_told_who_holds_it(node: Node) -> None:
    done = penstock("up", "--data", node.cwd / "data", "--ready-file", node.cwd / "ready.json", cwd=node.cwd)
    assert done.code == 2
    assert (node.cwd / "ready.json").exists()
    assert done.error.count("\n") == 1
    assert f"is in use by another Penstock (pid {node.process.pid})" in done.error


def test_a_taken_port_names_its_holder_and_the_way_out(tmp_path: Path) -> None:
    with Node(tmp_path) as other:
        port = other.port("nsq.tcp_port")
        done = penstock("up", "--data", "second", *ANY_PORTS, f"--set=nsq.tcp_port={port}", cwd=tmp_path)
        assert done.code == 2
        assert done.error == (
            f"penstock: port {port} is taken by penstock (pid {other.process.pid}). "
            f"Stop it, or start with --port-offset 1000.\n"
        )


def test_a_port_offset_moves_every_port_and_quiet_prints_nothing(tmp_path: Path) -> None:
    offset = _free_offset(4150, 4151, 7070, 8081, 9000)
    with Running("up", "--port-offset", str(offset), "--quiet", cwd=tmp_path) as node:
        for port in (4150, 4151, 7070):
            _until_accepted(port + offset, node)
        assert penstock("topic", "list", cwd=tmp_path, PENSTOCK_PORT_OFFSET=str(offset)).code == 0
        node.process.send_signal(signal.SIGTERM)
        output, _ = node.process.communicate(timeout=60)
        assert (node.process.returncode, output) == (0, b"")
    assert (tmp_path / "penstock-data" / "registry").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "nsq.tcp_prt=1"], "nsq.tcp_prt is not a setting; did you mean nsq.tcp_port?"),
        (["--set", "nonsense"], "write --set KEY=VALUE"),
        (["--set", "nsq.tcp_port=many"], "nsq.tcp_port"),
        (["--durability", "stone"], '"memory", "os", "fsync"'),
        (["--config", "missing.toml"], "missing.toml: no such file"),
        (["--set", "api.address=0.0.0.0"], "without TLS and callers"),
        (
            ["--set", "api.address=192.0.2.1", *ANY_PORTS, "--insecure"],
            "no address of this machine",
        ),
        (["--data", "/proc/nowhere"], "data directory /proc/nowhere cannot be used"),
        (["--ready-file", "no/where", *ANY_PORTS], "--ready-file no/where cannot be written"),
        (["--port-offset", "many"], "port-offset"),
        (["--port-offset", "65000"], "beyond 65535"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], text: str) -> None:
    done = penstock("up", "--data", "d", *arguments, cwd=tmp_path)
    assert done.code == 2
    assert text in done.error
    assert done.error.startswith("penstock: ")
    assert done.error.count("\n") == 1


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    done = penstock("up", "--data", "file", cwd=tmp_path)
    assert done.code == 2
    assert "data directory file cannot be used" in done.error


def test_garbage_in_the_registry_is_named_and_nothing_is_touched(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "registry").write_bytes(b"garbage" * 100)
    done = penstock("up", "--data", "d", *ANY_PORTS, cwd=tmp_path)
    assert done.code == 1
    assert "registry: not a registry" in done.error
    assert done.error.count("\n") == 1
    assert (tmp_path / "d" / "registry").read_bytes() == b"garbage" * 100


def test_settings_come_from_file_then_environment_then_flags(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(
        '[topic]\ndurability = "fsync"\n[nsq]\nmax_msg_size = "1KiB"\n[node]\nmessage_bytes = "1KiB"\n'
    )
    with Node(tmp_path, "--durability", "os", PENSTOCK_NODE_MESSAGE_BYTES="2KiB") as node:
        node.ok("pub", "orders", "x" * 1500)
        assert node.ok("topic", "show", "orders", "--json").json["settings"]["durability"] == "os"
        refused = node.call("pub", "orders", "x" * 3000)
        assert refused.code == 1
        assert "3000 bytes is over the limit of 2048" in refused.error


def test_a_token_is_asked_for_once_it_is_set(tmp_path: Path) -> None:
    with Node(tmp_path, PENSTOCK_TOKEN="secret") as node:
        refused = node.call("topic", "list")
        assert refused.code == 1
        assert "--token-file" in refused.error
        assert node.call("topic", "list", PENSTOCK_TOKEN="secret").code == 0
        (tmp_path / "token").write_text("secret\n")
        assert node.call("topic", "list", "--token-file", "token").code == 0
        assert node.call("topic", "list", PENSTOCK_TOKEN_FILE="token").code == 0
        assert node.call("topic", "list", "--token-file", "-", stdin=b"secret\n").code == 0


def _until_refused(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 10).close()
        except OSError:
            return


def _until_accepted(port: int, node: Running) -> None:
    while node.process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 10).close()
            return
        except OSError:
            continue
    raise AssertionError(node.errors())


def _free_offset(*ports: int) -> int:
    for offset in range(20_000, 50_000, 137):
        with ExitStack() as held:
            try:
                for port in ports:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return offset
    raise AssertionError("no free ports")
