"""TLS over memory, for either end of a connection, and what each of them is configured with.

Bytes in, bytes out, as the other `layers`. Knows nothing of sockets; which files are asked for is passed in.
Invariant: a peer whose certificate nobody vouches for gets no byte of what is said.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.columns import Buffer
from penstock.errors import ConfigError
from penstock.wire.layers import LayerError

#: A TLS record carries at most this much.
RECORD_BYTES_MAX = 16 * 1024
#: By the names that settings have for them.
VERSIONS = {"tls1.2": ssl.TLSVersion.TLSv1_2, "tls1.3": ssl.TLSVersion.TLSv1_3}


class TlsFacts(NamedTuple):
    """What was agreed on, as OpenSSL names it."""

    version: str
    cipher: str
    #: The application protocol (ALPN), "" if none was asked for.
    protocol: str


class Tls:
    """One end of a TLS connection: `handshake` until `done`, then `receive` and `send`, at the end `close`."""

    __slots__ = ("_in", "_out", "_tls", "done", "ended")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool = True, name: str | None = None) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side, server_hostname=name)
        #: Whether the handshake is over.
        self.done = False
        #: Whether the peer said that it sends no more.
        self.ended = False

    @property
    def pending(self) -> bool:
        """False: TLS makes nothing longer, so everything comes out at once."""
        return False

    @property
    def facts(self) -> TlsFacts:
        """What was agreed on, for statistics."""
        cipher = self._tls.cipher()
        return TlsFacts(
            self._tls.version() or "", cipher[0] if cipher else "", self._tls.selected_alpn_protocol() or ""
        )

    @property
    def common_name(self) -> str:
        """The common name in the peer's certificate, "" if it showed none or the context does not check them."""
        return common_name(self._tls.getpeercert())

    def handshake(self, data: Buffer) -> bytes:
        """Take the peer's bytes and return what to write; once `done`, `receive(b"")` gives what came behind it."""
        self._in.write(data)
        try:
            self._tls.do_handshake()
            self.done = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, ValueError) as error:
            raise LayerError(f"TLS handshake failed: {_reason(error)}", self._out.read()) from None
        return self._out.read()

    def receive(self, data: Buffer) -> bytes:
        """Decrypt. An answer that TLS itself owes the peer (a new key) leaves with the next `send`."""
        self._in.write(data)
        plain: list[bytes] = []
        try:
            while not self.ended:
                part = self._tls.read(RECORD_BYTES_MAX)
                self.ended = not part
                plain.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise LayerError(f"TLS: {_reason(error)}", self._out.read()) from None
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def send(self, data: Buffer) -> bytes:
        """Encrypt."""
        view = memoryview(data).cast("B")
        try:
            while len(view):
                # Each write is one record.
                view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            raise LayerError(f"TLS: {_reason(error)}", self._out.read()) from None
        return self._out.read()

    def close(self) -> bytes:
        """Return the close_notify that tells the peer the end is no accident."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            # It wants the peer's close_notify, which nobody waits for, or the handshake never ended.
            pass
        return self._out.read()


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the common name in a peer's certificate, "" if it showed none or nobody checks them."""
    subject: Sequence[Sequence[tuple[str, str]]] = (certificate or {}).get("subject", ())
    return next((value for part in subject for key, value in part if key == "commonName"), "")


def server_context(certificate: str, key: str, oldest: str = "tls1.2") -> ssl.SSLContext:
    """Return what serves TLS with a certificate's file and a key's, from a version on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[oldest]
    _show(context, certificate, key)
    return context


def ask_clients(context: ssl.SSLContext, authority: str, setting: str, *, required: bool = True) -> None:
    """Ask each client for a certificate that an authority's file vouches for, or without one the system's.

    Unless it is required, a client may show none, but no other.
    """
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    if not authority:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f'{setting} = "{authority}" cannot be used: {error}') from error


def client_context(authority: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Return what checks servers by an authority's file, or by what the system trusts, and may show a certificate."""
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f'authority "{authority}" cannot be used: {error}') from error
    if certificate:
        _show(context, certificate, key)
    return context


def _show(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f'certificate "{certificate}" with key "{key}" cannot be used: {error}') from error


def _reason(error: Exception) -> str:
    return (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
