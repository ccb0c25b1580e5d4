"""What is said on a new connection before anything else: what the broker understands, and who we are.

And later who we are once more, where the broker believes it for a time only (KIP-368).
Invariant: `versions` is there when everything was said, and not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.columns import Buffer
from penstock.kafka import sasl, versions
from penstock.kafka.exchange import Api, Asked, Exchange
from penstock.kafka.sasl import Login, LoginFailed
from penstock.kafka.wire import Reader

#: What is asked of brokers later, unless it is said otherwise.
NEEDED = (Api.PRODUCE, Api.METADATA, Api.INIT_PRODUCER_ID)


class Opening:
    """The first questions of one connection; whoever has the socket writes what it returns."""

    def __init__(
        self,
        exchange: Exchange,
        login: Login | None = None,
        release: str = "1",
        needed: Iterable[Api] = NEEDED,
    ) -> None:
        self._exchange = exchange
        self._login = login
        self._release = release
        self._needed = needed
        self._chosen: dict[Api, int] = {}
        #: What both sides speak, once everything was said.
        self.versions: dict[Api, int] | None = None
        #: After so long the broker wants to hear again who we are; 0 = never.
        self.lifetime_ms = 0

    def begin(self) -> Sequence[Buffer]:
        """Return what is written first."""
        return self._ask_versions(versions.FIRST)

    def renew(self, login: Login) -> Sequence[Buffer]:
        """Return what is written to log in again; nothing else may be asked before its end."""
        self._login = login
        self.versions = None
        return self._shake_hands(login)

    def answered(self, asked: Asked, reader: Reader) -> Sequence[Buffer]:
        """Return what is written next, nothing where that was all; BadAnswer, Unsupported or LoginFailed."""
        if asked.api is Api.API_VERSIONS:
            return self._understood(reader, asked.version)
        login = self._login
        if login is None:
            raise reader.bad(f"an answer to {asked.api.name}, which nobody asks here")
        if asked.api is Api.SASL_HANDSHAKE:
            sasl.handshaken(reader, login.mechanism)
            return self._authenticate(login.first())
        step = sasl.authenticated(reader, asked.version)
        said = login.next(step.data)
        if said is not None:
            return self._authenticate(said)
        self.lifetime_ms = step.lifetime_ms
        self.versions = self._chosen
        return ()

    def _understood(self, reader: Reader, version: int) -> Sequence[Buffer]:
        found = versions.answer(reader, version)
        if found is None:
            return self._ask_versions(versions.OLDEST)
        login = self._login
        self._chosen = versions.chosen(found, self._needed)
        if login is None:
            self.versions = self._chosen
            return ()
        try:
            self._chosen |= versions.chosen(found, (Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE))
        except versions.Unsupported:
            raise LoginFailed("the broker knows no users: leave the name and the password out") from None
        return self._shake_hands(login)

    def _shake_hands(self, login: Login) -> Sequence[Buffer]:
        version = self._chosen[Api.SASL_HANDSHAKE]
        return self._exchange.ask(Api.SASL_HANDSHAKE, version, [sasl.handshake(login.mechanism)])

    def _ask_versions(self, version: int) -> Sequence[Buffer]:
        return self._exchange.ask(Api.API_VERSIONS, version, [versions.request(version, release=self._release)])

    def _authenticate(self, data: bytes) -> Sequence[Buffer]:
        version = self._chosen[Api.SASL_AUTHENTICATE]
        return self._exchange.ask(Api.SASL_AUTHENTICATE, version, [sasl.authenticate(version, data)])
