"""AUTH: what an auth server lets a client do, and when it has to be asked again.

`Guard` is one connection's part, without I/O: it asks through `Ask` and is told later. `authenticator` is the real
way to the servers, over HTTP on the running loop.
Invariant: while somebody must authenticate, nothing is published or subscribed without a grant that has not run out.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from penstock.clock import SECOND, Clock
from penstock.wire.fetch import fetch

#: An auth server that takes longer is not there; nsqd waits as long.
ANSWER_S = 5.0

_log = logging.getLogger("penstock.nsq.auth")


class Query(NamedTuple):
    """What an auth server is asked."""

    remote_ip: str
    tls: bool
    secret: str
    common_name: str

    def fields(self) -> dict[str, str]:
        """Return the parameters of a request."""
        return {
            "remote_ip": self.remote_ip,
            "tls": "true" if self.tls else "false",
            "secret": self.secret,
            "common_name": self.common_name,
        }


class _Authorization(msgspec.Struct):
    topic: str
    channels: list[str]
    permissions: list[Literal["subscribe", "publish"]]


class _Answer(msgspec.Struct):
    ttl: int
    authorizations: list[_Authorization] | None = None
    identity: str = ""
    identity_url: str = ""


class Grants:
    """What one answer of an auth server allows."""

    __slots__ = ("_allowed", "_rules", "identity", "identity_url", "ttl_ns")

    def __init__(self, answer: bytes) -> None:
        try:
            found = msgspec.json.decode(answer, type=_Answer)
            rules = [
                (re.compile(one.topic), [re.compile(channel) for channel in one.channels], frozenset(one.permissions))
                for one in found.authorizations or ()
            ]
        except (msgspec.DecodeError, UnicodeDecodeError, re.error) as error:
            raise ValueError(f"it answered something else than grants: {error}") from None
        if found.ttl <= 0:
            raise ValueError(f"it answered with ttl {found.ttl}, which must be above 0")
        self._rules = rules
        self._allowed: dict[tuple[str, str], bool] = {}
        self.identity = found.identity
        self.identity_url = found.identity_url
        self.ttl_ns = found.ttl * SECOND

    def __len__(self) -> int:
        return len(self._rules)

    def allow(self, topic: str, channel: str) -> bool:
        """Tell whether a channel may be subscribed to, or with channel "" whether a topic may be published to."""
        found = self._allowed.get((topic, channel))
        if found is None:
            wanted = "subscribe" if channel else "publish"
            found = self._allowed[(topic, channel)] = any(
                wanted in permissions and pattern.search(topic) and any(c.search(channel) for c in channels)
                for pattern, channels, permissions in self._rules
            )
        return found


#: Told the grants, or None where no server gave any.
Told = Callable[[Grants | None], None]
Ask = Callable[[Query, Told], None]


class Guard:
    """What one connection may do."""

    __slots__ = ("_ask", "_clock", "_expires_ns", "_query", "grants")

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._query: Query | None = None
        self._expires_ns = 0
        self.grants: Grants | None = None

    @property
    def known(self) -> bool:
        """Whether the client has authenticated."""
        return self.grants is not None

    @property
    def fresh(self) -> bool:
        """Whether the grants still count."""
        return self._clock.monotonic() < self._expires_ns

    def authenticate(self, query: Query, told: Callable[[], None]) -> None:
        """Ask for grants; `told` is called when `grants` are known, or are None because nobody gave any."""
        self._query = query
        self.refresh(told)

    def refresh(self, told: Callable[[], None]) -> None:
        """Ask again, as the client did before."""
        assert self._query is not None

        def answered(grants: Grants | None) -> None:
            self.grants = grants
            self._expires_ns = self._clock.monotonic() + grants.ttl_ns if grants is not None else 0
            told()

        self._ask(self._query, answered)


class Authenticator:
    """The auth servers, asked one after the other until one answers."""

    def __init__(self, addresses: Sequence[str], method: Literal["get", "post"]) -> None:
        self._addresses = tuple(a if "://" in a else f"http://{a}/auth" for a in addresses)
        self._method = method
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, query: Query, told: Told) -> None:
        """Ask; `told` hears in a later turn of the loop."""
        task = asyncio.get_running_loop().create_task(self._ask(query, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Ask nothing more."""
        for task in list(self._tasks):
            task.cancel()

    async def _ask(self, query: Query, told: Told) -> None:
        for address in self._addresses:
            try:
                grants = Grants(await self._fetched(address, query))
            except (OSError, ValueError) as error:  # TimeoutError is an OSError
                _log.warning("auth server %s gave no answer: %s", address, str(error) or type(error).__name__)
                continue
            told(grants)
            return
        told(None)

    async def _fetched(self, address: str, query: Query) -> bytes:
        headers = {"Accept": "application/vnd.nsq; version=1.0"}
        if self._method == "get":
            joint = "&" if urlsplit(address).query else "?"
            return await fetch(f"{address}{joint}{urlencode(query.fields())}", ANSWER_S, headers)
        content = msgspec.json.encode({name: [value] for name, value in query.fields().items()})
        return await fetch(address, ANSWER_S, {**headers, "Content-Type": "application/json"}, content)
