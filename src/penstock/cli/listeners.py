"""The sockets a node listens on, tried before anything is opened, so that a taken port costs nothing.

Owns the errors about addresses and ports. Knows nothing of what is spoken on a socket.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from penstock.cli.ports import holder
from penstock.config import Config
from penstock.errors import ConfigError

#: Clients that come back together after a restart wait here instead of being refused.
BACKLOG = 1024
PORT_MAX = 65535
#: The port offset that is offered: far enough from the default ports of all dialects.
STEP = 1000


def probe(config: Config, keys: Iterable[str] | None = None) -> None:
    """Refuse if any listener of the configuration, or of those named, could not be had."""
    for key in keys if keys is not None else config.listeners():
        bind(config, key).close()


def bind(config: Config, key: str) -> socket.socket:
    """Return the socket of one listener, by the key of its port; nobody can connect before it listens."""
    address, port = config.listeners()[key]
    section = key.partition(".")[0]
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f'{section}.address = "{address}" is no address of this machine ({error})') from error
    sock = socket.socket(family, kind, protocol)
    try:
        # A restart must not wait for the kernel to forget the connections of the process before it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(place)
    except OSError as error:
        sock.close()
        raise refusal(config, key, error) from error
    return sock


def refusal(config: Config, key: str, error: OSError) -> ConfigError:
    """Return what to tell about a listener that the system did not give us."""
    address, port = config.listeners()[key]
    if error.errno == errno.EADDRINUSE:
        return ConfigError(_taken(config, key, port))
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} ({key}) needs privileges this user lacks. Choose one from 1024 on.")
    section = key.partition(".")[0]
    if error.errno == errno.EADDRNOTAVAIL:
        text = "is no address of this machine. Name one that is, or 127.0.0.1"
        return ConfigError(f'{section}.address = "{address}" {text}.')
    return ConfigError(f"port {port} on {address} ({key}) cannot be used: {error.strerror}.")


def _taken(config: Config, key: str, port: int) -> str:
    other = holder(port)
    highest = max(number for _, number in config.listeners().values())
    more = f"--port-offset {config.port_offset + STEP}" if highest + STEP <= PORT_MAX else f"--set {key}=PORT"
    owner = f"taken by {other}. Stop it" if other else "taken by another process. Stop that one"
    return f"port {port} is {owner}, or start with {more}."
