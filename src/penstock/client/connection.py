"""A connection to a node over Arrow Flight, blocking: calls in the words of `wire`, errors as this package's own.

Owns addresses, tokens, TLS and the reading of errors. Knows nothing of retries or of what messages mean. Needs pyarrow
and nothing else, so that a Spark executor can use it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client import wire
from penstock.errors import REASONS, ConfigError, PenstockError, Refusal

DEFAULT_URL = "grpc://127.0.0.1:7071"
DEFAULT_PORT = 7071
#: Errors come as "code: text", and gRPC adds remarks of its own.
_CODED = re.compile(rf"\b({'|'.join(REASONS)}): (.*)", re.DOTALL)
_REMARKS = re.compile(r"\.? (?:Detail: |gRPC client debug context: |Client context: ).*", re.DOTALL)


class Unreachable(PenstockError):
    """No node answers at this address, or it went away in the middle."""


class Access(NamedTuple):
    """How to get to a node, or to a cluster by some of its nodes; may be sent to other processes."""

    #: Several nodes have commas between them.
    url: str = DEFAULT_URL
    #: A token, or user:secret.
    token: str = ""
    #: PEM of the authority that signed the node's certificate; empty = those the system trusts.
    tls_roots: bytes = b""

    def __repr__(self) -> str:
        """Return what may stand in a log."""
        return f"Access({self.url!r}{', token=...' if self.token else ''})"


def token_in(path: str) -> str:
    """Return the token in a file: its first line."""
    try:
        with open(path, encoding="utf-8") as file:
            token = file.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the token cannot be read from {path}: {why}") from None
    if not token:
        raise ConfigError(f"the token cannot be read from {path}: its first line is empty")
    return token


def locations_of(url: str) -> list[str]:
    """Return the Flight locations of nodes as people write them, with commas between."""
    if "," not in url:
        return [location_of(url)]
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "grpc", url
    each = (one.strip() for one in rest.split(","))  # the first one's scheme is meant for all that do not say
    return list(dict.fromkeys(location_of(one if "://" in one else f"{scheme}://{one}") for one in each if one))


def location_of(url: str) -> str:
    """Return the Flight location of an address as people write it: `host`, `host:port`, `grpc://`, `grpc+tls://`."""
    parts = urlsplit(url if "://" in url else f"grpc://{url}")
    schemes = {"grpc": "grpc+tcp", "grpc+tcp": "grpc+tcp", "grpc+tls": "grpc+tls", "grpcs": "grpc+tls"}
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        port = 0
    if parts.scheme not in schemes or not parts.hostname or not 0 < port < 65536 or parts.path not in ("", "/"):
        raise ConfigError(
            f"{url!r} is no address of a node; write grpc://host:{DEFAULT_PORT}, or grpc+tls:// with TLS."
        )
    if "@" in parts.netloc or parts.query:
        # An address is printed and logged.
        raise ConfigError(f"the address of {parts.hostname} holds a secret; pass it as token, and no other way.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{schemes[parts.scheme]}://{host}:{port}"


#: A node that is back is found soon.
_PATIENT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)]
#: A node that does not answer any more, though its machine does, is given up after twice this time, and nobody waits
#: longer for a connection. Streams on it may not be silent for long: a node takes many pings for an attack.
BEAT_MS = 10_000
_WATCHFUL = [
    *_PATIENT,
    ("grpc.keepalive_time_ms", BEAT_MS),
    ("grpc.keepalive_timeout_ms", BEAT_MS),
    ("grpc.http2.ping_timeout_ms", BEAT_MS),
    ("grpc.min_reconnect_backoff_ms", BEAT_MS),
]


class Connection:
    """Calls to one node; may be used by several threads."""

    def __init__(self, access: Access, timeout_s: float | None = None, *, is_watchful: bool = False) -> None:
        self.access = access
        #: Where it leads, in Flight's words.
        self.location = location_of(access.url)
        tls = {"tls_root_certs": access.tls_roots} if access.tls_roots else {}
        self._client = flight.FlightClient(self.location, generic_options=_WATCHFUL if is_watchful else _PATIENT, **tls)
        headers = [(b"authorization", b"Bearer " + access.token.encode())] if access.token else []
        self._options = flight.FlightCallOptions(timeout=timeout_s, headers=headers)
        # A stream lasts as long as it lasts.
        self._lasting = flight.FlightCallOptions(headers=headers)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def act(self, action: str, document: object = None) -> Any:
        """Carry out an action; takes a document of `wire` or plain values, returns decoded JSON."""
        if document is None:
            body = b"{}"
        else:
            body = json.dumps(document).encode() if isinstance(document, dict) else wire.encoded(document)
        with self.told():
            results = list(self._client.do_action(flight.Action(action, body), self._options))
        return json.loads(results[0].body.to_pybytes()) if results else None

    def topics(self) -> list[wire.TopicInfo]:
        """Return what the node has."""
        return [wire.made(values, wire.TopicInfo) for values in self.act("topics")["topics"]]

    def topic(self, name: str) -> wire.TopicInfo:
        """Return one topic; `Refusal` with code not_found if there is none."""
        return wire.made(self.act("topic", {"name": name}), wire.TopicInfo)

    def report(self, how: wire.PipelineReport) -> None:
        """Tell the node how a pipeline is; `Refusal` says what is wrong with a report."""
        self.act("pipeline", how)

    def routing(self) -> wire.Routing:
        """Return which bit each traffic type is."""
        return wire.made(self.act("routing"), wire.Routing)

    def read(self, what: wire.Read) -> Iterator[pa.RecordBatch]:
        """Yield rows of a shard."""
        with self.told():
            stream = self._client.do_get(flight.Ticket(wire.encoded(what)), self._lasting)
            for chunk in stream:
                if chunk.data is not None:
                    yield chunk.data

    def put(
        self, command: wire.Publish | wire.Stage, schema: pa.Schema
    ) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]:
        """Begin a stream of batches; its answers come from the second part. Use it inside `told`."""
        descriptor = flight.FlightDescriptor.for_command(wire.command(command))
        with self.told():
            writer, answers = self._client.do_put(descriptor, schema, self._lasting)
        return writer, answers

    def stage(self, command: wire.Stage, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> wire.Staged:
        """Stage batches that become visible by a commit, and return what the node has of them, synced."""
        writer, answers = self.put(command, schema)
        with self.told():
            try:
                for batch in batches:
                    writer.write_batch(batch)
                writer.done_writing()
                answer = answers.read()
            finally:
                writer.close()
        if answer is None:
            raise Unreachable(f"{self.access.url} ended a stage without an answer")
        return wire.decoded(answer.to_pybytes(), wire.Staged)

    def exchange(self, command: wire.Subscribe) -> tuple[flight.FlightStreamWriter, flight.FlightStreamReader]:
        """Begin to consume; orders go into the first part, batches and notices come from the second."""
        descriptor = flight.FlightDescriptor.for_command(wire.command(command))
        with self.told():
            writer, reader = self._client.do_exchange(descriptor, self._lasting)
        return writer, reader

    def talk(self, name: str) -> tuple[flight.FlightStreamWriter, flight.FlightStreamReader]:
        """Begin an exchange of a dialect that has it carried here, by its name with a dot."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps({name: {}}))
        with self.told():
            writer, reader = self._client.do_exchange(descriptor, self._lasting)
        return writer, reader

    @contextmanager
    def told(self) -> Iterator[None]:
        """Let Flight's errors inside a block come out as this package's own."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise error_of(error, self.access.url) from error


def error_of(error: BaseException, url: str) -> PenstockError:
    """Return what a Flight error says in this package's words."""
    text = _REMARKS.sub("", str(error))
    if coded := _CODED.search(text):
        told = getattr(error, "extra_info", b"")
        if coded[1] == "elsewhere":
            return wire.told_place(told, coded[2].strip())
        return refusal_of(text, wire.told_retry(told))
    if isinstance(error, flight.FlightUnauthenticatedError):
        return Refusal("unauthorized", f"{url} wants another token, or user and secret")
    if isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError | flight.FlightTimedOutError):
        return Unreachable(f"no node answers at {url}: {text}")
    return PenstockError(f"{url}: {text}")


def refusal_of(text: str, retry_ns: int = 0) -> Refusal:
    """Return the refusal in a text like "gone: topic t was deleted"; one without a code says that something is gone."""
    coded = _CODED.search(text)
    return Refusal(coded[1], coded[2].strip(), retry_ns) if coded is not None else Refusal("gone", text)
