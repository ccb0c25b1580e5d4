"""Who may knock: requests that name this listener, and no web page of somebody else's.

A browser sends what any page asks it to, also to listeners of this machine, and a name can be made to lead here (DNS
rebinding). Two headers that no page can forge tell: `Host` is the name that was asked for, `Origin` whose page asks.
Programs that are no browsers send the first and not the second, and notice nothing.
Invariant: a page from elsewhere changes nothing here and reads nothing.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.config import is_loopback
from penstock.errors import Refusal

if TYPE_CHECKING:
    from penstock.http.request import Request

#: Hosts that were let in are remembered as they were sent, up to this many: clients repeat themselves.
KNOWN_MAX = 256

#: A name or an address in its brackets, and a port.
_HOST = re.compile(rb"(?:\[([0-9a-f:.]+)\]|([!#-.0-9;<=>?A-Z^_`a-z{|}~]+))(?::[0-9]{0,5})?", re.IGNORECASE).fullmatch

#: The kinds of `Sec-Fetch-Site` that are this listener's own pages, or a person who typed its address.
_OWN = (b"same-origin", b"none")


class Door:
    """The names that one listener answers to."""

    def __init__(self, address: str = "127.0.0.1", names: Iterable[str] = ()) -> None:
        """Take the address that is listened at, and the names that people gave it."""
        self._beyond = not is_loopback(address)
        own = (address, socket.gethostname()) if self._beyond else (address,)
        self._names = {name.lower().rstrip(".") for name in (*own, *names)}
        #: Values of `Host` that were looked at and are good; a set, so that a publish costs one look.
        self.known: set[bytes] = set()

    def answers_to(self, host: bytes) -> bool:
        """Tell whether a `Host` names this listener, at whatever port: tunnels and containers change that."""
        if host in self.known:
            return True
        if not self._is_own(host):
            return False
        if len(self.known) < KNOWN_MAX:
            self.known.add(host)
        return True

    def check(self, request: Request) -> None:
        """Refuse a request for another name, or one that a page from elsewhere makes."""
        hosts = [value for name, value in request.headers if name == b"host"]
        for host in hosts:  # a program that sends none is no browser
            if not self.answers_to(host):
                raise Refusal("misdirected", f'this listener is not "{_shown(host)}"; put that name into http.hosts')
        origin = request.header(b"origin")
        if origin and origin.lower().partition(b"://")[2] not in [host.lower() for host in hosts]:
            raise Refusal("forbidden", f"a page of {_shown(origin)} may not use this node")

    def check_change(self, request: Request) -> None:
        """Refuse what a page from elsewhere asks for without saying which, unless it only reads."""
        site = request.header(b"sec-fetch-site")
        if site and site.lower() not in _OWN:
            raise Refusal("forbidden", f"a page from elsewhere ({_shown(site)}) may not change anything on this node")

    def _is_own(self, host: bytes) -> bool:
        found = _HOST(host)
        if found is None:
            return False
        name = (found[1] or found[2]).decode("ascii").lower().rstrip(".")
        if name in self._names or name.endswith(".localhost") or is_loopback(name):
            return True
        # No name leads to an address, so where others may come from, whoever writes one means it.
        return self._beyond and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return value[:200].decode("latin-1")
