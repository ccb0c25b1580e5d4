"""Where messages may be sent over HTTP: the rule that keeps a node from being made to call whatever a client names.

Pure. A name is judged when it is subscribed, the address that it leads to whenever it is dialled: names change.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from penstock.callers.gate import is_here
from penstock.config import is_loopback
from penstock.dialects.sqs.faults import Fault
from penstock.errors import ConfigError

#: Any host whose address is one of the internet's.
PUBLIC = "public"
URL_CHARACTERS_MAX = 2048

#: Addresses that carry one of the older internet inside, which may be anybody's.
_TUNNELS = tuple(ipaddress.ip_network(each) for each in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Allowed:
    """The hosts that `sqs.sns_http` names; if it names none, this machine, and only to those who are on it."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Take names, *.names, addresses, networks, or `public`; ConfigError where something is none of these."""
        self._names: set[str] = set()
        self._ends: list[str] = []
        self._networks: list[Network] = []
        self._public = False
        for entry in entries:
            self._add(entry.strip().lower().rstrip("."))
        self._some = bool(self._names or self._ends or self._networks or self._public)

    def _add(self, entry: str) -> None:
        if entry == PUBLIC:
            self._public = True
            return
        try:
            self._networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            return
        except ValueError:
            pass
        if entry.startswith("*.") and len(entry) > 2 and "*" not in entry[1:]:
            self._ends.append(entry[1:])
        elif entry and not set(entry) & set("*/:@ "):
            self._names.add(entry)
        else:
            raise ConfigError(
                f'sqs.sns_http has "{entry}"; write names (hooks.example.org, *.example.org), addresses, networks '
                f'(10.0.0.0/8), or "{PUBLIC}"'
            )

    def check(self, endpoint: str, protocol: str, caller_address: str) -> None:
        """Refuse an endpoint that nobody at this address may subscribe."""
        host = host_of(endpoint, protocol)
        if self._some:
            if self._is_named(host) or self.takes(host, host) or (_address(host) is None and self._by_address):
                return
            raise _wrong(f"the node sends nothing to {host}; its operator may add it to sqs.sns_http")
        if not (host == "localhost" or is_loopback(host)):
            raise _wrong(f"the node sends nothing to {host}; its operator may put it into sqs.sns_http")
        if not is_here(caller_address):
            raise _wrong("who is not on the node's machine may not have it send there; name the host in sqs.sns_http")

    @property
    def _by_address(self) -> bool:
        return self._public or bool(self._networks)

    def _is_named(self, host: str) -> bool:
        return host in self._names or any(host.endswith(end) for end in self._ends)

    def takes(self, host: str, address: str) -> bool:
        """Tell whether a host may be dialled at an address that its name leads to."""
        found = _address(address)
        if found is None:
            return False
        if not self._some:
            return found.is_loopback
        if self._is_named(host) or any(found in network for network in self._networks):
            return True
        is_own = found.is_global and not found.is_multicast and not any(found in network for network in _TUNNELS)
        return self._public and is_own


def host_of(endpoint: str, protocol: str) -> str:
    """Return the host of an endpoint; refuse what is no URL of a protocol."""
    if len(endpoint) > URL_CHARACTERS_MAX or not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint:
        raise _wrong(f"an endpoint is a URL of up to {URL_CHARACTERS_MAX} characters")
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise _wrong("it is no URL") from None
    if parts.scheme != protocol or not host:
        raise _wrong(f"an endpoint of the {protocol} protocol begins with {protocol}://")
    if parts.username is not None or parts.fragment:
        raise _wrong("a user and a fragment have no place in an endpoint")
    return host.rstrip(".")


def _address(host: str) -> Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _wrong(reason: str) -> Fault:
    return Fault("InvalidParameter", f"Invalid parameter: Endpoint Reason: {reason}")
