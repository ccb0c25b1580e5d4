"""Who we are, to a broker: SASL's PLAIN, and SCRAM as in RFC 5802, over Kafka's two requests for it.

Invariant: a password leaves only by PLAIN; by SCRAM the broker must prove that it knows it, too.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.errors import PenstockError
from penstock.kafka.codes import NONE, named
from penstock.kafka.exchange import Api, is_flexible
from penstock.kafka.wire import Reader, Writer

PLAIN = "PLAIN"
#: SCRAM's mechanisms and what they hash with.
SCRAMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = (PLAIN, *SCRAMS)

#: RFC 5802's least; and more than anybody asks for: a round takes half a microsecond in which nothing else is done.
_ROUNDS_MIN, _ROUNDS_MAX = 4096, 200_000
#: So that what a broker's message holds cannot be large.
_MESSAGE_BYTES_MAX = 4096


class LoginFailed(PenstockError):
    """A broker does not let us in, or is not who it should be; asking again does not help."""


class Login(Protocol):
    """One mechanism: what is said in turn."""

    mechanism: str

    def first(self) -> bytes:
        """Return what is said first."""

    def next(self, data: bytes) -> bytes | None:
        """Return what follows on what the broker said, None where nothing does; LoginFailed."""


class Plain:
    """RFC 4616: the password as it is."""

    mechanism = PLAIN

    def __init__(self, user: str, password: str) -> None:
        if "\0" in user + password:
            raise LoginFailed("PLAIN can carry no NUL in a name or a password")
        self._said = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """Return name and password."""
        return self._said

    def next(self, data: bytes) -> bytes | None:
        """Return nothing: all was said."""
        return None


class Scram:
    """RFC 5802: proof of a password on both sides."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: Callable[[], str]) -> None:
        self.mechanism = mechanism
        self._hash = SCRAMS[mechanism]
        self._user = user.replace("=", "=3D").replace(",", "=2C")
        self._password = password.encode()
        self._nonce = nonce()
        self._bare = f"n={self._user},r={self._nonce}"
        self._proof_due: bytes | None = None
        self._is_over = False

    def first(self) -> bytes:
        """Return who we are, and what nobody said before."""
        return f"n,,{self._bare}".encode()

    def next(self, data: bytes) -> bytes | None:
        """Return the proof that we know the password; then check the broker's."""
        if self._is_over:
            raise LoginFailed("the broker goes on after the end")
        if self._proof_due is None:
            return self._prove(data)
        self._is_over = True
        said = _attributes(data)
        if "e" in said:
            raise LoginFailed(f"the broker refuses: {said['e'][:200]}")
        if not hmac.compare_digest(_decoded(said.get("v", "")), self._proof_due):
            raise LoginFailed("the broker does not know the password: it is not who it should be")
        return None

    def _prove(self, data: bytes) -> bytes:
        said = _attributes(data)
        if "e" in said:
            raise LoginFailed(f"the broker refuses: {said['e'][:200]}")
        nonce, salt, rounds = said.get("r", ""), _decoded(said.get("s", "")), said.get("i", "")
        if "m" in said or not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce) or not salt:
            raise LoginFailed("the broker answers something else than SCRAM does")
        if not rounds.isascii() or not rounds.isdigit() or not _ROUNDS_MIN <= int(rounds[:9]) <= _ROUNDS_MAX:
            raise LoginFailed(
                f"the broker asks for {rounds[:20]} rounds, where {_ROUNDS_MIN} to {_ROUNDS_MAX} are possible"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(rounds))
        key = self._sign(salted, b"Client Key")
        last = f"c=biws,r={nonce}"
        whole = f"{self._bare},{data.decode()},{last}".encode()
        signature = self._sign(hashlib.new(self._hash, key).digest(), whole)
        proof = bytes(left ^ right for left, right in zip(key, signature, strict=True))
        self._proof_due = self._sign(self._sign(salted, b"Server Key"), whole)
        return f"{last},p={b64encode(proof).decode()}".encode()

    def _sign(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._hash)


def login(mechanism: str, user: str, password: str, nonce: Callable[[], str]) -> Login:
    """Return what logs in; `nonce` makes text that was never used, of letters and digits."""
    if mechanism == PLAIN:
        return Plain(user, password)
    if mechanism in SCRAMS:
        return Scram(mechanism, user, password, nonce)
    raise LoginFailed(f"there is no mechanism {mechanism}: take one of {', '.join(MECHANISMS)}")


def handshake(mechanism: str) -> bytes:
    """Return the question whether a mechanism will do."""
    out = Writer(False)
    out.string(mechanism)
    return out.done()


def handshaken(reader: Reader, mechanism: str) -> None:
    """Read the answer; LoginFailed where it will not do."""
    code = reader.int16()
    offered = [reader.text() for _ in range(reader.count(2))]
    reader.end()
    if code != NONE:
        names = ", ".join(offered) or "nothing"
        raise LoginFailed(f"the broker does not take {mechanism} ({named(code)}); it takes {names}")


def authenticate(version: int, data: bytes) -> bytes:
    """Return one step of a mechanism."""
    out = Writer(is_flexible(Api.SASL_AUTHENTICATE, version))
    out.data(data)
    out.tags()
    return out.done()


class Step(NamedTuple):
    """What a broker said to one step."""

    data: bytes
    #: After so long it wants us to log in again; 0 = never.
    lifetime_ms: int = 0


def authenticated(reader: Reader, version: int) -> Step:
    """Return what a broker says to one step; LoginFailed where it does not let us in."""
    code, why = reader.int16(), reader.string()
    data = reader.data()
    lifetime_ms = reader.int64() if version >= 1 else 0
    reader.tags()
    reader.end()
    if code != NONE:
        raise LoginFailed(f"the broker does not let us in: {(why or named(code))[:200]}")
    return Step(data, lifetime_ms)


def _attributes(data: bytes) -> dict[str, str]:
    """Return what a message of SCRAM says, by letter."""
    if len(data) > _MESSAGE_BYTES_MAX:
        raise LoginFailed(f"the broker says {len(data)} bytes, more than SCRAM has to say")
    try:
        pairs = [part.partition("=") for part in data.decode().split(",")]
    except UnicodeDecodeError:
        raise LoginFailed("the broker says what is no text") from None
    return {name: value for name, _, value in pairs}


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise LoginFailed("the broker says what is not base64") from None
