"""Upstream's own daemons and tools, unchanged: our node at their lookup service, their node at ours."""

from __future__ import annotations

import socket
import struct
import subprocess
from pathlib import Path

import pytest

from tests.nsq.lookup.programs import PATIENCE_S, Program, ours, until, upstream


def nsqd(command: list[str], cwd: Path, *services: Program, name: str = "data") -> Program:
    (cwd / name).mkdir()
    addresses = [f"--lookupd-tcp-address={service.tcp}" for service in services]
    return Program(
        command,
        f"--data-path={cwd / name}",
        "--broadcast-address=127.0.0.1",
        "--mem-queue-size=100",
        *addresses,
        cwd=cwd,
    )


def subscribe(node: Program, topic: str, channel: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", node.port("TCP")), PATIENCE_S)
    connection.sendall(f"  V2SUB {topic} {channel}\n".encode())
    assert connection.recv(100) == struct.pack(">II", 6, 0) + b"OK"
    return connection


def pair(kind: str) -> tuple[list[str], list[str]]:
    """Return the commands of the lookup service and of the node."""
    service = upstream("nsqlookupd") if kind == "our node, their service" else ours("nsqlookupd")
    return service, (upstream("nsqd") if kind == "their node, our service" else ours("nsqd"))


@pytest.mark.parametrize("kind", ["our node, their service", "their node, our service", "our node, our service"])
def test_nsq_case_35_a_node_is_found_through_a_lookup_service(tmp_path: Path, kind: str) -> None:
    service_command, node_command = pair(kind)
    with Program(service_command, cwd=tmp_path) as service, nsqd(node_command, tmp_path, service) as node:
        node.ask("POST", "/pub?topic=t", b"hello")
        until(lambda: service.producers("t") == [node.port("TCP")])
        subscribe(node, "t", "ch").close()
        until(lambda: service.channels("t") == ["ch"])
        (listed,) = service.ask("GET", "/nodes")["producers"]
        assert (listed["topics"], listed["tombstones"], listed["version"]) == (["t"], [False], "1.3.0")
        assert listed["http_port"] == node.port("HTTP")
        assert node.end() == 0
        until(lambda: service.producers("t") == [])
        assert service.channels("t") == ["ch"]
        assert service.end() == 0


@pytest.mark.parametrize("kind", ["our node, their service", "their node, our service", "our node, our service"])
def test_channels_that_the_service_knows_are_made_with_the_topic(tmp_path: Path, kind: str) -> None:
    service_command, node_command = pair(kind)
    with (
        Program(service_command, "--broadcast-address=127.0.0.1", cwd=tmp_path) as service,
        nsqd(node_command, tmp_path, service) as node,
    ):
        service.ask("POST", "/channel/create?topic=t&channel=early")
        until(lambda: len(service.ask("GET", "/nodes")["producers"]) == 1)
        node.ask("POST", "/pub?topic=t", b"one")
        until(lambda: len(service.ask("GET", "/debug").get("channel:t:early", [])) == 1)
        with subscribe(node, "t", "late"):
            pass
        with subscribe(node, "t", "early") as consumer:
            consumer.sendall(b"RDY 1\n")
            received = b""
            while not received.endswith(b"one"):
                received += consumer.recv(1000)


def test_a_lookup_service_in_another_process_knows_what_a_topic_was_made_with(tmp_path: Path) -> None:
    def extended(topic: str) -> bool | None:
        found = service.ask("GET", f"/lookup?topic={topic}&metainfo=true")
        return found["meta"]["extend_support"] if found and found["producers"] else None

    with Program(ours("nsqlookupd"), cwd=tmp_path) as service, nsqd(ours("nsqd"), tmp_path, service) as node:
        node.ask("POST", "/topic/create?topic=extended&extend=true")
        node.ask("POST", "/pub?topic=plain", b"x")
        until(lambda: extended("extended") is not None and extended("plain") is not None)
        assert (extended("extended"), extended("plain")) == (True, False)


def test_a_node_announces_itself_again_after_its_service_was_started_anew(tmp_path: Path) -> None:
    command = upstream("nsqlookupd")
    with Program(command, cwd=tmp_path) as service, nsqd(ours("nsqd"), tmp_path, service) as node:
        node.ask("POST", "/pub?topic=t", b"hello")
        until(lambda: service.producers("t") == [node.port("TCP")])
        tcp, http = service.tcp, service.http
        assert service.end() == 0
        flags = (f"--tcp-address={tcp}", f"--http-address={http}")
        with Program([*command, *flags], cwd=tmp_path, ports=0) as again:
            until(lambda: b"HTTP: listening" in again.said)
            until(lambda: service.producers("t") == [node.port("TCP")])


def test_nsq_case_60_upstreams_tools_publish_and_find_two_nodes_through_our_lookup_service(tmp_path: Path) -> None:
    to_nsq, nsq_tail, nsq_to_file = upstream("to_nsq"), upstream("nsq_tail"), upstream("nsq_to_file")
    with (
        Program(ours("nsqlookupd"), cwd=tmp_path) as service,
        nsqd(ours("nsqd"), tmp_path, service, name="first") as first,
        nsqd(ours("nsqd"), tmp_path, service, name="second") as second,
    ):
        for number, node in enumerate((first, second)):
            lines = b"".join(b"message %d %d\n" % (number, line) for line in range(50))
            command = [*to_nsq, "--topic=t", f"--nsqd-tcp-address={node.tcp}"]
            subprocess.run(command, input=lines, cwd=tmp_path, timeout=PATIENCE_S, check=True, capture_output=True)
        until(lambda: service.producers("t") == sorted(node.port("TCP") for node in (first, second)))
        wanted = sorted(f"message {number} {line}" for number in (0, 1) for line in range(50))
        through = [f"--lookupd-http-address={service.http}", "--topic=t"]
        tail = subprocess.run(
            [*nsq_tail, *through, "--channel=tail", "-n", "100"],
            cwd=tmp_path,
            timeout=PATIENCE_S,
            check=True,
            capture_output=True,
        )
        assert sorted(tail.stdout.decode().splitlines()) == wanted
        for node in (first, second):
            node.ask("POST", "/pub?topic=t", b"filed")
        (tmp_path / "files").mkdir()
        file_flags = ["--channel=file", f"--output-dir={tmp_path / 'files'}", "--sync-interval=100ms"]
        with Program([*nsq_to_file, *through, *file_flags], cwd=tmp_path, ports=0) as filer:
            # Its channel is new on both nodes, so it gets what comes from now on.
            until(lambda: "file" in service.channels("t"))
            until(lambda: len(service.ask("GET", "/debug")["channel:t:file"]) == 2)
            for node in (first, second):
                node.ask("POST", "/pub?topic=t", b"later")
            until(lambda: b"".join(p.read_bytes() for p in (tmp_path / "files").iterdir()).count(b"later\n") == 2)
            assert filer.end() == 0
