"""The section [dory]: the inputs that local programs send to, and their limits. All of them are off until named."""

from __future__ import annotations

import errno
import os
import socket
from typing import Annotated

from msgspec import Meta

from penstock.budget import sizes_of
from penstock.config import TOKEN_AND_TLS, Config, Endpoint, Section, has_callers
from penstock.config.tree import KIB, MIB, Duration, Named, Port, SomeSize
from penstock.errors import ConfigError
from penstock.settings import HOUR_NS
from penstock.units.quantity import format_size

DATAGRAM, STREAM, TCP = "dory.unix_datagram_path", "dory.unix_stream_path", "dory.tcp_port"
HTTP = "dory.http_port"

#: What Dory itself refuses to take as one datagram.
DATAGRAM_BYTES_MAX = 16 * MIB
MODE_MAX = 0o777


class DoryConfig(Section, frozen=True, kw_only=True):
    """Dory in: one-way input for programs on this machine."""

    #: Where the UNIX datagram socket is; empty = none.
    unix_datagram_path: str = ""
    #: Who may send to it, like "0222"; empty = as the umask of the node says.
    unix_datagram_mode: str = ""
    #: Where the UNIX stream socket is; empty = none.
    unix_stream_path: str = ""
    unix_stream_mode: str = ""
    #: Whether there is input by TCP, on this machine alone ...
    tcp: bool = False
    #: ... and where.
    tcp_port: Port = 7508
    #: Keys and values that were taken in and are not stored (never more than half of memory.input_bytes); of memory
    #: topics, also those that are not delivered.
    max_buffer: SomeSize = 128 * MIB
    #: One datagram.
    max_datagram_msg_size: Annotated[int, Meta(ge=1, le=DATAGRAM_BYTES_MAX, extra={"kind": "size"})] = 64 * KIB
    #: It may be so large that senders must ask for a larger buffer.
    allow_large_unix_datagrams: bool = False
    #: One message over a stream or TCP, without the four bytes that say its size.
    max_stream_msg_size: SomeSize = 2 * MIB
    #: Whether there are status pages, while there is an input, ...
    http: bool = True
    #: ... and where.
    address: str = "127.0.0.1"
    http_port: Port = 9091
    #: The directory of the files that message debugging writes; empty = it cannot be switched on.
    msg_debug_path: Named = ""
    #: It ends by itself after this, ...
    msg_debug_time_ns: Duration = HOUR_NS
    #: ... or when the three files together have this.
    msg_debug_bytes: SomeSize = 256 * MIB


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    dory = config.of(DoryConfig)
    for name in ("unix_datagram", "unix_stream"):
        path: str = getattr(dory, f"{name}_path")
        mode: str = getattr(dory, f"{name}_mode")
        if path and not os.path.isabs(path):
            raise ConfigError(f'dory.{name}_path = "{path}" is no absolute path; write one that begins with /')
        mode_of(mode, f"dory.{name}_mode")
    if dory.msg_debug_path and not os.path.isabs(dory.msg_debug_path):
        raise ConfigError(f'dory.msg_debug_path = "{dory.msg_debug_path}" is no absolute path; write one')
    if dory.unix_datagram_path:
        _check_datagrams(dory)
    if dory.unix_stream_path or dory.tcp:
        most = sizes_of(config.memory)["body"]
        if dory.max_stream_msg_size > most:
            text = f"above memory.body_bytes = {format_size(most)}; lower it, or raise memory.body_bytes"
            raise ConfigError(f"dory.max_stream_msg_size = {format_size(dory.max_stream_msg_size)} is {text}")


def mode_of(text: str, key: str) -> int | None:
    """Return the mode of a socket's file; None where the umask decides."""
    if not text:
        return None
    try:
        mode = int(text, 2) if text[:2] in ("0b", "0B") else int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= MODE_MAX:
        raise ConfigError(f'{key} = "{text}" is no mode; write it octal, like "0222", at most "0777"')
    return mode


def _check_datagrams(dory: DoryConfig) -> None:
    """Send the largest datagram to ourselves: what a sender cannot send here is no limit worth having."""
    size = dory.max_datagram_msg_size
    if _fits(size, raised=False):
        return
    text = f"dory.max_datagram_msg_size = {format_size(size)}"
    if not dory.allow_large_unix_datagrams:
        raise ConfigError(
            f"{text} is more than a sender can send without asking for a larger buffer; lower it, or say "
            "dory.allow_large_unix_datagrams = true if your senders do that (SO_SNDBUF)"
        )
    if not _fits(size, raised=True):
        raise ConfigError(
            f"{text} is more than a sender can send on this machine; lower it, or raise net.core.wmem_max"
        )


def _fits(size: int, *, raised: bool) -> bool:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        if raised:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size + KIB)
        try:
            return ours.send(bytes(size), socket.MSG_DONTWAIT) == size
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.ENOBUFS, errno.EAGAIN):
                return False
            raise


def endpoints(config: Config) -> list[Endpoint]:
    """Return where programs send to."""
    dory = config.of(DoryConfig)
    found = []
    if dory.unix_datagram_path:
        found.append(Endpoint(DATAGRAM, "datagram", "Dory datagrams", dory.unix_datagram_path))
    if dory.unix_stream_path:
        found.append(Endpoint(STREAM, "unix", "Dory stream", dory.unix_stream_path))
    if dory.tcp:
        found.append(Endpoint(TCP, "tcp", "Dory TCP", "127.0.0.1", config.listen_port(dory.tcp_port)))
    if found and dory.http:
        port, tls, asks = config.listen_port(dory.http_port), bool(config.tls_cert), has_callers(config)
        curl = "curl {}/discards/plain"
        found.append(Endpoint(HTTP, "http", "Dory status", dory.address, port, tls, asks, TOKEN_AND_TLS, example=curl))
    return found
