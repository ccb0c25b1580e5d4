"""AUTH: what an auth server lets a client do, and when it has to be asked again.

`Guard` is one connection's part, without I/O: it asks through `Ask` and is told later. `authenticator` is the real
way to the servers, over HTTP on the running loop.
Invariant: while somebody must authenticate, nothing is published or subscribed without a grant that has not run out.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import httptools
import msgspec

from penstock.clock import SECOND, Clock

#: An auth server that takes longer is not there; nsqd waits as long.
ANSWER_S = 5.0
#: A list of grants is a few KB; more than this is something else.
ANSWER_BYTES_MAX = 1 << 20

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
                async with asyncio.timeout(ANSWER_S):
                    grants = Grants(await _fetched(address, self._method, query))
            except (OSError, ValueError, httptools.HttpParserError) as error:  # TimeoutError is an OSError
                _log.warning("auth server %s gave no answer: %s", address, str(error) or type(error).__name__)
                continue
            told(grants)
            return
        told(None)


async def _fetched(address: str, method: Literal["get", "post"], query: Query) -> bytes:
    url = urlsplit(address)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("its address is no http:// or https:// URL")
    secure = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(url.hostname, port, ssl=secure)
    try:
        writer.write(_request(url, method, query))
        answer = _Reader()
        while not answer.done and (part := await reader.read(65536)):
            answer.feed(part)
    finally:
        writer.close()
    if answer.status != 200:
        raise ValueError(f"it answered with status {answer.status}")
    return bytes(answer.content)


def _request(url: SplitResult, method: Literal["get", "post"], query: Query) -> bytes:
    path = quote(url.path or "/", safe="/%:@!$&'()*+,;=~-._")
    sent = "&".join(part for part in (url.query, urlencode(query.fields()) if method == "get" else "") if part)
    target = f"{path}?{sent}" if sent else path
    content = b""
    if method == "post":
        content = msgspec.json.encode({name: [value] for name, value in query.fields().items()})
    head = f"{method.upper()} {target} HTTP/1.1\r\nHost: {url.netloc.rpartition('@')[2]}\r\nConnection: close\r\n"
    if content:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Accept: application/vnd.nsq; version=1.0\r\n\r\n".encode("ascii") + content


class _Reader:
    """One response, of bounded size."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.content = bytearray()
        self.status = 0
        self.done = False

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.content += body
        if len(self.content) > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        self.done = True
