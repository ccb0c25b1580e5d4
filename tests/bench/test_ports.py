"""A port is asked for its owner before its numbers are believed."""

from __future__ import annotations

import os
import socket

from bench.ports import free_offset, owns_port


def test_a_port_belongs_to_the_process_that_listens_on_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert owns_port(os.getpid(), port)
        assert not owns_port(1, port)
    assert not owns_port(os.getpid(), port)


def test_an_offset_leaves_every_port_free() -> None:
    offset = free_offset((1, 2, 3))
    for port in (1, 2, 3):
        with socket.create_server(("127.0.0.1", port + offset)):
            pass
