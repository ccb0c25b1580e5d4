"""What two nodes say before a door's own bytes: who they are, that both know the secret, for whom, and which door.

    Hello ─►   cluster, who comes, whom it means, a number never used before
    ◄─ Challenge   the same from the other side, and the proof that it knows the secret
    Visit ─►   the proof of the one who comes, the caller, the door and what it wants to know
    ◄─ Welcome   or, at any time, Refused; then the connection is the door's

Bytes in, frames out; no sockets. Each frame is a mark, a length and JSON: whatever speaks something else here is
known by its first four bytes.
Invariant: nobody learns anything of the secret but whether both know it, and a proof is good for one connection, one
pair of nodes and one side.
"""

from __future__ import annotations

import hmac
import struct

import msgspec

from penstock.callers.carried import Carried
from penstock.errors import Refusal

VERSION = 1

MARK = b"PnPr"
_HEAD = struct.Struct(">4sI")
#: A caller's rules and what a door wants to know are far smaller.
FRAME_BYTES_MAX = 256 * 1024
#: No longer name is one.
NAME_CHARACTERS_MAX = 255
NONCE_BYTES = 32


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Who comes, and whom it means."""

    version: int
    cluster: str
    node: str
    to: str
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """Who is here, and that it knows the secret."""

    version: int
    node: str
    nonce: bytes
    proof: bytes


class Visit(msgspec.Struct, frozen=True, tag=True):
    """That whoever comes knows the secret, too; for whom it comes, and through which door."""

    proof: bytes
    door: str
    caller: Carried
    about: bytes = b""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The door is open."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It stays shut."""

    code: str
    text: str


Frame = Hello | Challenge | Visit | Welcome | Refused

_decode = msgspec.json.Decoder(Frame).decode
_encode = msgspec.json.Encoder().encode


def written(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    content = _encode(frame)
    return _HEAD.pack(MARK, len(content)) + content


class Frames:
    """Takes the bytes of frames as they come."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Frame | None:
        """Return the next frame, None while it is not all there; refuse what is none."""
        self._held += data
        held = self._held
        if held[:4] != MARK[: len(held)]:
            raise Refusal("bad_request", f"these are no words of a node: {held[:8]!r}")
        if len(held) < _HEAD.size:
            return None
        size = _HEAD.unpack_from(held)[1]
        if size > FRAME_BYTES_MAX:
            raise Refusal("bad_request", f"a preface of {size} bytes is over the limit of {FRAME_BYTES_MAX}")
        end = _HEAD.size + size
        if len(held) < end:
            return None
        self._held = held[end:]
        try:
            frame: Frame = _decode(held[_HEAD.size : end])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal("bad_request", f"the preface cannot be read: {error}") from None
        return frame

    def rest(self) -> bytes:
        """Return what came behind the last frame: it is the door's."""
        held, self._held = self._held, b""
        return held


class Guest:
    """The side that comes."""

    def __init__(self, secret: bytes, cluster: str, node: str, to: str, nonce: bytes) -> None:
        self._secret = secret
        self.hello = Hello(VERSION, cluster, node, to, nonce)

    def visit(self, challenge: Frame, door: str, caller: Carried, about: bytes) -> Visit:
        """Return what is said to whoever shows that it is the node that was meant."""
        if isinstance(challenge, Refused):
            raise refusal_of(challenge)
        if not isinstance(challenge, Challenge):
            raise Refusal("bad_request", f"a {type(challenge).__name__} came instead of a challenge")
        _check_version(challenge.version, challenge.node)
        if challenge.node != self.hello.to:
            raise Refusal("misdirected", f"node {challenge.node[:NAME_CHARACTERS_MAX]} is there")
        _check(challenge.proof, self._secret, "host", self.hello, challenge.nonce)
        return Visit(_proof(self._secret, "guest", self.hello, challenge.nonce), door, caller, about)


class Host:
    """The side that is come to."""

    def __init__(self, secret: bytes, cluster: str, node: str, nonce: bytes) -> None:
        self._secret = secret
        self._cluster = cluster
        self._node = node
        self._nonce = nonce
        self._hello: Hello | None = None

    @property
    def guest(self) -> str:
        """The name of who comes, empty before it said so."""
        return self._hello.node if self._hello is not None else ""

    def challenge(self, hello: Frame) -> Challenge:
        """Return the answer to the first frame."""
        if not isinstance(hello, Hello):
            raise Refusal("bad_request", f"a {type(hello).__name__} came instead of a hello")
        name = hello.node[:NAME_CHARACTERS_MAX]
        _check_version(hello.version, name)
        if hello.cluster != self._cluster:
            text = f"node {name} is of cluster {hello.cluster[:NAME_CHARACTERS_MAX]}, this one of {self._cluster}"
            raise Refusal("forbidden", text)
        if hello.to != self._node:
            raise Refusal("misdirected", f"this is node {self._node}, not {hello.to[:NAME_CHARACTERS_MAX]}")
        if not (hello.node and len(hello.node) <= NAME_CHARACTERS_MAX and len(hello.nonce) == NONCE_BYTES):
            raise Refusal("bad_request", "a hello has a name and a number of 32 bytes")
        self._hello = hello
        return Challenge(VERSION, self._node, self._nonce, _proof(self._secret, "host", hello, self._nonce))

    def visit(self, visit: Frame) -> Visit:
        """Return the second frame of somebody who knows the secret."""
        if not isinstance(visit, Visit) or self._hello is None:
            raise Refusal("bad_request", f"a {type(visit).__name__} came instead of a visit")
        _check(visit.proof, self._secret, "guest", self._hello, self._nonce)
        return visit


def refusal_of(refused: Refused) -> Refusal:
    """Return why the other side says no."""
    try:
        return Refusal(refused.code, refused.text)
    except KeyError:  # it is newer
        return Refusal("unavailable", f"{refused.code}: {refused.text}")


def _check_version(version: int, node: str) -> None:
    if version != VERSION:
        text = f"node {node} speaks version {version} of what nodes speak, this one {VERSION}; give both one release"
        raise Refusal("conflict", text)


def _proof(secret: bytes, side: str, hello: Hello, nonce: bytes) -> bytes:
    said = _encode(["penstock", VERSION, side, hello.cluster, hello.node, hello.to, hello.nonce, nonce])
    return hmac.digest(secret, said, "sha256")


def _check(proof: bytes, secret: bytes, side: str, hello: Hello, nonce: bytes) -> None:
    if not hmac.compare_digest(proof, _proof(secret, side, hello, nonce)):
        raise Refusal("unauthorized", "the other side does not know the cluster's secret")
