"""Sockets that are bound before anything else: in the file system, too."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from penstock.cli.listeners import Listeners
from penstock.config import Config, Endpoint
from penstock.config.part import Kind
from penstock.errors import ConfigError


def listeners(kind: Kind, path: Path) -> Listeners:
    return Listeners(Config(), [Endpoint("line.path", kind, "lines", str(path))])


def test_a_stream_in_the_file_system_takes_connections_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "s"
    bound = listeners("unix", path)
    with socket.socket(socket.AF_UNIX) as client:
        with pytest.raises(ConnectionRefusedError):
            client.connect(str(path))
        bound.open()
        client.connect(str(path))
    assert bound.bound["line.path"].place == f"unix:{path}"
    bound.close()
    assert not path.exists()


def test_datagrams_in_the_file_system_arrive(tmp_path: Path) -> None:
    path = tmp_path / "s"
    bound = listeners("datagram", path)
    bound.open()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(b"hello", str(path))
    assert bound.bound["line.path"].taken().recv(10) == b"hello"
    bound.close()


@pytest.mark.parametrize("kind", ["unix", "datagram"])
def test_what_a_dead_process_left_is_taken_away_and_what_lives_is_not(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if kind == "unix" else socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))
    alive = listeners(kind, path)
    alive.open()
    with pytest.raises(ConfigError, match=r"line.path = .*Address already in use"):
        listeners(kind, path)
    alive.close()


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="cannot be used"):
        listeners("unix", path)
    assert path.read_text() == "precious"


def test_a_port_that_is_had_twice_is_refused_by_name() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} is taken by .*\(pid {os.getpid()}\)"):
            Listeners(Config(), [Endpoint("line.port", "tcp", "lines", "127.0.0.1", port)])
