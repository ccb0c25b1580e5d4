"""What the kernel counts of TCP connections: how much came and was read, and how much arrived at the other side.

For listeners that are not ours to ask, as gRPC's: the kernel tells whoever may look at its own sockets. Linux's
sock_diag, which `ss` asks, too. Knows nothing of what is said.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_ESTABLISHED, _LISTEN = 1 << 1, 1 << 10
_INFO = 2

_HEAD = struct.Struct("=IHHII")
_ASK = struct.Struct("=BBBBI")
_PORTS = struct.Struct(">HH")
_ATTRIBUTE = struct.Struct("=HH")
#: In a `struct inet_diag_msg`: the address of the other side, what is not read yet, and its end; and in what follows,
#: a `struct tcp_info`, what was acknowledged and what came.
_FAR, _QUEUE, _SIZE = 24, 56, 72
_COUNTS = struct.Struct("=QQ")
_COUNTS_AT = 120

ANSWER_BYTES = 1 << 16
#: The kernel answers at once.
PATIENCE_S = 1.0


class Traffic(NamedTuple):
    """What one connection has moved since it was made."""

    #: Bytes that came and were taken from the kernel.
    taken: int
    #: Bytes that were sent and are there.
    sent: int


def families(port: int) -> tuple[int, ...]:
    """Return the address families in which somebody listens on a port: to ask for the others takes as long."""
    return tuple(
        family for family in (socket.AF_INET, socket.AF_INET6) if any(True for _ in _told(port, family, _LISTEN))
    )


def traffic(port: int, of: Iterable[int] = (socket.AF_INET, socket.AF_INET6)) -> dict[str, Traffic]:
    """Return what each connection to a port of this machine has moved, by `address:port` of its client.

    Blocking, 0.2 ms for each family; OSError where the kernel does not tell.
    """
    found: dict[str, Traffic] = {}
    for family in of:
        for said in _told(port, family, _ESTABLISHED):
            _one(said, found)
    return found


def _told(port: int, family: int, states: int) -> Iterator[bytes]:
    """Yield what the kernel tells of each socket."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(PATIENCE_S)
        ask = _ASK.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, states)
        ask += _PORTS.pack(port, 0) + bytes(32 + 4) + b"\xff" * 8
        kernel.send(_HEAD.pack(_HEAD.size + len(ask), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + ask)
        while True:
            answer, at = kernel.recv(ANSWER_BYTES), 0
            while at < len(answer):
                size, kind = _HEAD.unpack_from(answer, at)[:2]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", answer, at + _HEAD.size)[0]
                    raise OSError(number, "the kernel tells nothing of TCP")
                yield answer[at + _HEAD.size : at + size]
                at += size + 3 & ~3


def _one(said: bytes, found: dict[str, Traffic]) -> None:
    port = _PORTS.unpack_from(said, 4)[1]
    far = said[_FAR : _FAR + (4 if said[0] == socket.AF_INET else 16)]
    waiting = struct.unpack_from("=I", said, _QUEUE)[0]
    at = _SIZE
    while at + _ATTRIBUTE.size <= len(said):
        size, kind = _ATTRIBUTE.unpack_from(said, at)
        if kind == _INFO and size >= _ATTRIBUTE.size + _COUNTS_AT + _COUNTS.size:
            sent, came = _COUNTS.unpack_from(said, at + _ATTRIBUTE.size + _COUNTS_AT)
            found[f"{_plain(far)}:{port}"] = Traffic(came - waiting, sent)
        at += max(size + 3 & ~3, _ATTRIBUTE.size)


def _plain(address: bytes) -> str:
    """Return an address as people write it; one of IPv4 that came to a socket for both as what it is."""
    if len(address) == 16:
        six = ipaddress.IPv6Address(address)
        return str(six.ipv4_mapped or six)
    return str(ipaddress.IPv4Address(address))
