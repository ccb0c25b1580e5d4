"""The sockets a node listens on, bound before anything is opened, so that a taken port costs nothing.

Owns the errors about addresses, ports and paths. Knows nothing of what is spoken on a socket.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress

from penstock.cli.ports import holder
from penstock.config import Config, Endpoint
from penstock.dialect import Bound
from penstock.errors import ConfigError

#: Clients that come back together after a restart wait here instead of being refused.
BACKLOG = 1024
PORT_MAX = 65535
#: The port offset that is offered: far enough from the default ports of all dialects.
STEP = 1000


class Listeners:
    """The sockets of one process."""

    def __init__(self, config: Config, endpoints: Sequence[Endpoint]) -> None:
        self._config = config
        self._endpoints = endpoints
        self.bound: dict[str, Bound] = {}
        try:
            for endpoint in endpoints:
                self.bound[endpoint.key] = self._bind(endpoint)
        except BaseException:
            self.close()
            raise

    def open(self) -> None:
        """Let clients connect; who accepts them may follow a moment later."""
        for bound in self.bound.values():
            if bound.sock is not None and bound.sock.type == socket.SOCK_STREAM:
                try:
                    bound.sock.listen(BACKLOG)
                except OSError as error:
                    raise self.refusal(bound.endpoint, error) from error

    def close(self) -> None:
        """Let go of everything, and leave no socket behind in the file system."""
        for bound in self.bound.values():
            if bound.sock is not None:
                bound.sock.close()
            if bound.endpoint.is_path:
                with suppress(OSError):
                    os.unlink(bound.endpoint.address)

    def refusal(self, endpoint: Endpoint, error: OSError) -> ConfigError:
        """Return what to tell about a listener that the system did not give us."""
        key, address, port = endpoint.key, endpoint.address, endpoint.port
        if endpoint.is_path:
            return ConfigError(f'{key} = "{address}" cannot be used: {error.strerror or error}.')
        if error.errno == errno.EADDRINUSE:
            return ConfigError(self._taken(key, port))
        if error.errno == errno.EACCES:
            return ConfigError(f"port {port} ({key}) needs privileges this user lacks. Choose one from 1024 on.")
        if error.errno == errno.EADDRNOTAVAIL:
            text = "is no address of this machine. Name one that is, or 127.0.0.1"
            return ConfigError(f'{endpoint.address_key} = "{address}" {text}.')
        return ConfigError(f"port {port} on {address} ({key}) cannot be used: {error.strerror or error}.")

    def _bind(self, endpoint: Endpoint) -> Bound:
        try:
            sock = _path(endpoint) if endpoint.is_path else _port(endpoint)
        except OSError as error:
            raise self.refusal(endpoint, error) from error
        if endpoint.kind == "grpc":  # it binds by itself, later; now it is seen whether it can
            sock.close()
            return Bound(endpoint, None)
        return Bound(endpoint, sock)

    def _taken(self, key: str, port: int) -> str:
        other = holder(port)
        highest = max(endpoint.port for endpoint in self._endpoints)
        more = f"--port-offset {self._config.port_offset + STEP}" if highest + STEP <= PORT_MAX else f"--set {key}=PORT"
        owner = f"taken by {other}. Stop it" if other else "taken by another process. Stop that one"
        return f"port {port} is {owner}, or start with {more}."


def _port(endpoint: Endpoint) -> socket.socket:
    """Return a socket on a port; nobody can connect before it listens."""
    try:
        found = socket.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        text = f'{endpoint.address_key} = "{endpoint.address}" is no address of this machine ({error})'
        raise ConfigError(text) from error
    family, kind, protocol, _, place = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        # A restart must not wait for the kernel to forget the connections of the process before it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(place)
    except BaseException:
        sock.close()
        raise
    return sock


def _path(endpoint: Endpoint) -> socket.socket:
    """Return a socket in the file system; one that a dead process left there is taken away."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if endpoint.kind == "unix" else socket.SOCK_DGRAM)
    try:
        if _is_left(endpoint.address, sock.type):
            os.unlink(endpoint.address)
        sock.setblocking(False)
        sock.bind(endpoint.address)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_left(path: str, kind: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, kind) as probe:
            probe.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
