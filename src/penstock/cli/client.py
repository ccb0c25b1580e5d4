"""The way to a running node: requests over its admin API on one kept connection.

Owns addresses, tokens and what a failed request means to a person. Knows no route.
Invariant: a request that may have been carried out is never sent twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.cli.failure import REFUSED, UNREACHABLE, USAGE, Failure, Refused

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

    from penstock.config import Config, Loaded

T = TypeVar("T")

PREFIX = "/api/v1"
#: How long a node may take to answer beyond what a request asks it to wait.
TIMEOUT_S = 30.0

#: Where a secret may stand.
ELSEWHERE = "put it into a file and name that with --token-file, or set PENSTOCK_TOKEN"

Query = Mapping[str, str | int | bool | None]


class Answer:
    """What a node answered."""

    def __init__(self, status: int, raw: bytes, url: str) -> None:
        self.status = status
        self.raw = raw
        self._url = url

    def read(self, kind: type[T]) -> T:
        """Return the document in it; fields that `kind` does not name are passed over."""
        try:
            return msgspec.json.decode(self.raw, type=kind)
        except msgspec.MsgspecError as error:
            raise Failure(
                f"{self._url} gave an answer this program cannot read ({error}); is it a Penstock node?"
            ) from error


class Client:
    """One node, reached over HTTP."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failure(f'--url "{url}" is no address; write one like http://127.0.0.1:7070', USAGE)
        if "@" in parts.netloc or parts.query:
            # It would be in the list of processes, in the history of the shell and in logs.
            raise Failure(f"--url {parts.scheme}://...{parts.hostname} holds a secret; {ELSEWHERE}", USAGE)
        try:
            port = parts.port or 7070
        except ValueError as error:
            raise Failure(f'--url "{url}" has no usable port ({error})', USAGE) from error
        self.host = parts.hostname
        self.port = port
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.token = token
        self._secure = parts.scheme == "https"
        self._connection: HTTPConnection | None = None

    def get(self, path: str, query: Query | None = None, *, wait_s: float = 0, accept: tuple[int, ...] = ()) -> Answer:
        """Ask for a document; a path without a leading slash is one beside the API, like `readyz`."""
        return self.call("GET", path, query=query, wait_s=wait_s, accept=accept)

    def call(
        self,
        method: str,
        path: str,
        document: object = None,
        *,
        query: Query | None = None,
        raw: bytes | None = None,
        content: str = "application/json",
        wait_s: float = 0,
        accept: tuple[int, ...] = (),
    ) -> Answer:
        """Send a request and return its answer; a status from 400 on is raised, unless it is one to accept."""
        body = raw if raw is not None else msgspec.json.encode(document) if document is not None else None
        with_body = {"Content-Type": content} if body is not None else {}
        response = self._send(method, path, query, body, with_body, wait_s)
        try:
            data = response.read()
        except OSError as error:
            raise self._unreachable(error) from error
        if response.status >= 400 and response.status not in accept:
            raise self._refused(response.status, data, path)
        return Answer(response.status, data, self.url)

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None,
        headers: Mapping[str, str],
        wait_s: float,
    ) -> HTTPResponse:
        from http.client import HTTPException

        target = PREFIX + path if path.startswith("/") else f"/{path}"
        if given := {name: _text(value) for name, value in (query or {}).items() if value is not None}:
            target += "?" + urlencode(given, quote_via=quote)
        sent = {"Accept": "application/json", **headers}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        fresh = self._connection is None
        while True:
            try:
                connection = self._connected()
                if connection.sock is not None:
                    connection.sock.settimeout(TIMEOUT_S + wait_s)
                connection.request(method, target, body, sent)
                return connection.getresponse()
            except (OSError, HTTPException) as error:
                self.close()
                # A kept connection that the node has closed meanwhile; only reading may be asked for again.
                if fresh or method != "GET":
                    raise self._unreachable(error) from error
                fresh = True

    def _connected(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        if self._connection is None:
            kind = HTTPSConnection if self._secure else HTTPConnection
            self._connection = kind(self.host, self.port, timeout=TIMEOUT_S)
            self._connection.connect()
        return self._connection

    def _unreachable(self, error: Exception) -> Failure:
        if isinstance(error, ConnectionRefusedError):
            text = "nobody listens there. Start a node with `penstock up`, or name another with --url"
        elif isinstance(error, TimeoutError):
            text = f"no answer within {TIMEOUT_S:.0f} s. Look at the node's log, or name another with --url"
        else:
            why = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
            text = f"{why}. Is a Penstock node there? Name another with --url"
        return Failure(f"{self.url} cannot be reached: {text}.", UNREACHABLE)

    def _refused(self, status: int, data: bytes, path: str) -> Failure:
        if status == 401:
            if self.token:
                text = "does not know this token. Look at --token-file, PENSTOCK_TOKEN, or the configuration here"
                return Failure(f"{self.url} {text}.", REFUSED)
            return Failure(
                f"{self.url} wants a token. Name its file with --token-file, or set PENSTOCK_TOKEN.", REFUSED
            )
        try:
            error = msgspec.json.decode(data, type=ErrorAnswer).error
        except msgspec.MsgspecError:
            said = " ".join(data[:200].decode(errors="replace").split())
            return Failure(f"{self.url} answered {path} with status {status}: {said or 'nothing'}", REFUSED)
        return Refused(error.message, error.code)


class ErrorBody(msgspec.Struct):
    """The reason inside a refused answer."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct):
    """A refused answer."""

    error: ErrorBody


def part(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


#: The settings that say where a node has its admin API.
WHERE = ("api.address", "api.port", "port_offset")


def target(loaded: Loaded, token: str | None = None) -> Client:
    """Return the node that a configuration describes; a file that nobody named may not send a token elsewhere."""
    shown, origin = token or loaded.config.token, loaded.origin
    if shown and (token or origin["token"] != loaded.unnamed):
        for name in WHERE:
            if origin[name] == loaded.unnamed:
                raise Failure(
                    f"{name} of ./penstock.toml would say who gets your token; if it may, name the file: "
                    "PENSTOCK_CONFIG=penstock.toml, or say where with --url",
                    USAGE,
                )
    return Client(address_of(loaded.config), shown)


def address_of(config: Config) -> str:
    """Return where the node of a configuration has its admin API."""
    from penstock.api.config import ApiConfig

    api = config.of(ApiConfig)
    address, port = api.address, config.listen_port(api.port)
    if not port:
        raise Failure("api.port is 0, any free port, so the node must be named: --url http://127.0.0.1:PORT", USAGE)
    # Where a node listens everywhere, it listens here too.
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)
    return f"{'https' if config.tls_cert else 'http'}://{host}:{port}"


def _text(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
