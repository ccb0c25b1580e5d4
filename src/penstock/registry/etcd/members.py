"""The members of one etcd cluster, asked as if they were one: connections, the token, and what an error means.

Owns failover: a member that is not reached or does not answer is left for the next one. Knows nothing of keys.
Invariant: what may change something is sent once; only what was certainly not carried out goes to the next member.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from penstock.config import ZoneConfig, secret_in
from penstock.errors import ConfigError, Refusal
from penstock.registry.etcd import rpc_pb2 as rpc
from penstock.registry.registry import UnknownOutcomeError

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

#: A member that does not answer in this time is left. What reaches etcd between two leaders may be lost there.
TRY_S = 2.0
#: For so long members are tried, one after the other, before a question is given up.
PATIENCE_S = 6.0
#: Between two rounds through all members.
PAUSE_S = 0.1
#: More than a page of a listing can hold: that many keys, and values of at most a MiB and a half.
RECEIVE_BYTES_MAX = 256 << 20

OPTIONS = [
    # A connection that is dead and does not say so; etcd takes no more than one ping in five seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    # What a proxy for the web is set for is not etcd.
    ("grpc.enable_http_proxy", 0),
]

_log = logging.getLogger("penstock.etcd")


class Method(NamedTuple, Generic[Q, R]):
    """One call of etcd's API."""

    path: str
    reply: type[R]
    request: type[Q]


RANGE = Method("/etcdserverpb.KV/Range", rpc.RangeResponse, rpc.RangeRequest)
PUT = Method("/etcdserverpb.KV/Put", rpc.PutResponse, rpc.PutRequest)
DELETE = Method("/etcdserverpb.KV/DeleteRange", rpc.DeleteRangeResponse, rpc.DeleteRangeRequest)
TXN = Method("/etcdserverpb.KV/Txn", rpc.TxnResponse, rpc.TxnRequest)
COMPACT = Method("/etcdserverpb.KV/Compact", rpc.CompactionResponse, rpc.CompactionRequest)
WATCH = Method("/etcdserverpb.Watch/Watch", rpc.WatchResponse, rpc.WatchRequest)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", rpc.LeaseGrantResponse, rpc.LeaseGrantRequest)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", rpc.LeaseRevokeResponse, rpc.LeaseRevokeRequest)
#: A stream in etcd's API; with one message each way it is the same bytes as a plain call.
KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", rpc.LeaseKeepAliveResponse, rpc.LeaseKeepAliveRequest)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", rpc.AuthenticateResponse, rpc.AuthenticateRequest)
STATUS = Method("/etcdserverpb.Maintenance/Status", rpc.StatusResponse, rpc.StatusRequest)

#: What became of a question that failed: nothing, so that it may be asked elsewhere; nobody knows; its token is not
#: taken any more; or etcd heard it and said no.
Fate: TypeAlias = Literal["unsent", "doubtful", "stale", "refused"]

UNSENT = ("failed to connect", "dns resolution failed", "no leader", "too many requests", "not capable")
FORBIDDEN = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
STALE = ("invalid auth token", "revision of auth store is old", "user name is empty")


class Member:
    """One member: where it is, and the connection to it."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(endpoint, OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(endpoint, credentials, OPTIONS)

    async def ask(self, method: Method[Q, R], request: Q, seconds: float, token: str) -> R:
        """Ask once, this one."""
        call = self.channel.unary_unary(method.path, method.request.SerializeToString, method.reply.FromString)
        reply: R = await call(request, timeout=seconds, metadata=_metadata(method is not STATUS, token))
        return reply

    def stream(self, method: Method[Q, R], token: str) -> Any:
        """Open a stream that ends if this one has no leader for a while: what it says would be old."""
        call = self.channel.stream_stream(method.path, method.request.SerializeToString, method.reply.FromString)
        return call(metadata=_metadata(True, token))


class Members:
    """All members of a zone, and which of them is asked."""

    def __init__(self, zone: str, config: ZoneConfig) -> None:
        self.zone = zone
        self.config = config
        credentials = credentials_of(zone, config)
        self._all = [Member(endpoint, credentials) for endpoint in config.endpoints]
        self._at = 0
        self._token: str = ""
        #: Why the last one was left.
        self.why = ""
        #: Questions that were answered, the seconds that took, and how often a member was left.
        self.answered = 0
        self.seconds = 0.0
        self.moves = 0
        #: Bytes of questions that were answered, and of the answers.
        self.sent = self.received = 0

    @property
    def present(self) -> Member:
        """Return the one that is asked now."""
        return self._all[self._at]

    async def ask(self, method: Method[Q, R], request: Q, *, repeatable: bool, patience_s: float = PATIENCE_S) -> R:
        """Ask until there is an answer; what is not `repeatable` and may have been carried out is not asked again."""
        until = time.monotonic() + patience_s
        tried = 0
        while True:
            member = self.present
            try:
                return await self.ask_one(member, method, request, min(TRY_S, max(until - time.monotonic(), 0.01)))
            except grpc.aio.AioRpcError as error:
                fate = fate_of(error)
                if fate in ("refused", "stale"):
                    raise self._refusal(error) from None
                self.leave(member, error)
                if fate != "unsent" and not repeatable:
                    raise UnknownOutcomeError(f"{member.endpoint} did not answer ({said(error)})") from None
                tried += 1
                pause = 0.0 if tried % len(self._all) else PAUSE_S
                if time.monotonic() + pause >= until:
                    nothing = "" if repeatable else "; nothing was changed"
                    raise Refusal("unavailable", self.away(said(error)) + nothing) from None
            await asyncio.sleep(pause)

    async def ask_one(self, member: Member, method: Method[Q, R], request: Q, seconds: float) -> R:
        """Ask one member; a token that is no longer taken is replaced by another, once."""
        began = time.monotonic()
        try:
            reply = await member.ask(method, request, seconds, await self._known(member, seconds))
        except grpc.aio.AioRpcError as error:
            if fate_of(error) != "stale" or not self.config.user:
                raise
            self._token = ""
            reply = await member.ask(method, request, seconds, await self._known(member, seconds))
        self.answered += 1
        self.sent += request.ByteSize()
        self.received += reply.ByteSize()
        self.seconds += time.monotonic() - began
        return reply

    @asynccontextmanager
    async def stream(self, method: Method[Q, R]) -> AsyncIterator[tuple[Member, Any]]:
        """Open a stream to the present member, and end it."""
        member = self.present
        call = member.stream(method, await self._known(member, TRY_S))
        try:
            yield member, call
        finally:
            call.cancel()

    def forget_token(self) -> None:
        """Ask for another token before the next question."""
        self._token = ""

    def leave(self, member: Member, error: grpc.aio.AioRpcError | str) -> None:
        """Ask another one from now on."""
        self.why = error if isinstance(error, str) else said(error)
        if member is self.present:
            self._at = (self._at + 1) % len(self._all)
            self.moves += len(self._all) > 1

    def away(self, why: str) -> str:
        """Return the sentence on a zone in which nobody answers."""
        return f"etcd ({', '.join(self.config.endpoints)}) does not answer: {why}"

    async def each(self, method: Method[Q, R], make: Callable[[], Q], seconds: float) -> list[tuple[str, R | str]]:
        """Ask every member, and return what each said, or why it did not."""

        async def one(member: Member) -> tuple[str, R | str]:
            try:
                return member.endpoint, await self.ask_one(member, method, make(), seconds)
            except grpc.aio.AioRpcError as error:
                return member.endpoint, said(error)

        return list(await asyncio.gather(*map(one, self._all)))

    async def close(self) -> None:
        """Hang up."""
        for member in self._all:
            await member.channel.close()

    async def _known(self, member: Member, seconds: float) -> str:
        """Return a token where this zone has a user."""
        if self.config.user and not self._token:
            request = rpc.AuthenticateRequest(name=self.config.user, password=password_of(self.config))
            try:
                reply = await member.ask(AUTHENTICATE, request, seconds, "")
                self._token = reply.token
            except grpc.aio.AioRpcError as error:
                if "authentication is not enabled" not in said(error):
                    raise
        return self._token

    def _refusal(self, error: grpc.aio.AioRpcError) -> Refusal:
        """Return what etcd's no means to us."""
        text, where = said(error), f"etcd ({self.present.endpoint})"
        code = error.code()
        if code in FORBIDDEN or any(each in text for each in ("authentication failed", "user name is empty")):
            who = f"user {self.config.user!r}" if self.config.user else "a client without user"
            way_out = f"check user and password of [etcd.zones.{self.zone}], and its roles in etcd"
            return Refusal("forbidden", f"{where} refuses {who}: {text}; {way_out}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" in text:
            return Refusal("disk_full", f"{where} is full: {text}; compact and defragment it")
        if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE):
            return Refusal("gone", f"{where}: {text}")
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return Refusal("bad_request", f"{where}: {text}")
        return Refusal("unavailable", f"{where}: {text}")


def _metadata(needs_leader: bool, token: str) -> tuple[tuple[str, str], ...]:
    """Return what goes with a question; a member without a leader refuses at once what it could not answer in time."""
    return ((("hasleader", "true"),) if needs_leader else ()) + ((("token", token),) if token else ())


def said(error: grpc.aio.AioRpcError) -> str:
    """Return an error's text, without what it is wrapped in."""
    details = str(error.details() or error.code().name).removeprefix("etcdserver: ")
    # The last of several, without the name of its code.
    return re.sub(r"^[A-Z_]+: ", "", details.partition("last error: ")[2]) or details


def fate_of(error: grpc.aio.AioRpcError) -> Fate:
    """Tell what became of a question."""
    details, code = (error.details() or "").lower(), error.code()
    if code is grpc.StatusCode.UNAUTHENTICATED or any(text in details for text in STALE):
        return "stale"
    if any(text in details for text in UNSENT):
        return "unsent"
    if code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DATA_LOSS,
    ):
        return "doubtful"
    return "refused"


def password_of(config: ZoneConfig) -> str:
    """Return the password; a file is read each time, so that a new one needs no restart."""
    return config.password or (secret_in(config.password_file, "password") if config.password_file else "")


def credentials_of(zone: str, config: ZoneConfig) -> grpc.ChannelCredentials | None:
    """Return what TLS needs, None where it is not used."""
    if not config.tls:
        return None
    found = []
    for name, path in (("tls_ca", config.tls_ca), ("tls_key", config.tls_key), ("tls_cert", config.tls_cert)):
        try:
            found.append(Path(path).read_bytes() if path else None)
        except OSError as error:
            raise ConfigError(f'etcd.zones.{zone}.{name} = "{path}" cannot be read ({error.strerror})') from None
    return grpc.ssl_channel_credentials(*found)
