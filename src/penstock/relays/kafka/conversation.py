"""One connection to one broker: agree on versions, say who one is, then ask, and be answered in order.

It lives once: whatever goes wrong is told, and it is over.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from penstock.clock import MILLISECOND, SECOND, Clock, Timer
from penstock.columns import Buffer
from penstock.errors import PenstockError
from penstock.kafka.exchange import Api, Exchange
from penstock.kafka.opening import Opening
from penstock.kafka.sasl import Login
from penstock.kafka.wire import Reader
from penstock.relays.kafka.line import Trouble
from penstock.wire.dial import Dialler
from penstock.wire.link import HUNG_UP, Backoff, Link

_log = logging.getLogger("penstock.kafka")

BEAT_NS = SECOND
#: A broker that believes us for a time is told again who we are when this much of it is over.
RENEWAL_SHARE = 0.85
#: Not oftener, whatever it wants.
RENEWAL_NS_MIN = SECOND

#: Told why a connection is over, and of what kind that is.
Failed = Callable[[str, Trouble], None]
#: Told an answer, and in which version it is.
Told = Callable[[Reader, int], None]


class Manner:
    """How brokers are spoken to, the same for all connections of a relay."""

    def __init__(
        self,
        clock: Clock,
        dialler: Dialler,
        random: Random,
        *,
        client_id: str,
        timeout_ns: int,
        tls: ssl.SSLContext | None = None,
        login: Callable[[], Login] | None = None,
    ) -> None:
        self.clock = clock
        self.dialler = dialler
        self.random = random
        self.client_id = client_id
        self.timeout_ns = timeout_ns
        self.tls = tls
        #: Says who we are, anew on each connection.
        self.login = login


class Conversation:
    """Questions and answers."""

    def __init__(
        self,
        address: tuple[str, int],
        manner: Manner,
        *,
        ready: Callable[[], None],
        failed: Failed,
        hold: Callable[[bool], None] | None = None,
    ) -> None:
        """Connect; `ready` is told whenever something can be asked, after each login."""
        self._manner = manner
        self._ready = ready
        self._failed = failed
        self._hold = hold
        self._exchange = Exchange(manner.client_id)
        self._told: deque[Told] = deque()
        self._opening = Opening(self._exchange)
        self._versions: dict[Api, int] = {}
        #: Answers are those to the first words, or to who we are.
        self._is_opening = True
        #: Who we are is to be said again once everything is answered.
        self._is_renewal_due = False
        self._renewal: Timer | None = None
        #: When something was last heard, or asked where nothing was waited for.
        self._alive_ns = 0
        self._is_over = False
        self._is_connected = False
        self.is_ready = False
        self.link = Link(
            "broker",
            address,
            self,
            manner.clock,
            manner.dialler,
            Backoff(SECOND, SECOND, manner.random),
            beat_ns=BEAT_NS,
            log=_log,
            tls=manner.tls,
            lost=self._lost,
        )
        self.link.connect()

    def version(self, api: Api) -> int:
        """Return the version that was agreed on."""
        return self._versions[api]

    def ask(self, api: Api, body: list[Buffer], told: Told) -> None:
        """Ask; the answer comes later, or the end."""
        if not self._exchange.waiting:
            self._alive_ns = self._manner.clock.monotonic()
        self._told.append(told)
        self._write(self._exchange.ask(api, self._versions[api], body))

    def close(self) -> None:
        """Hang up; nothing more is told."""
        self._is_over = True
        self.is_ready = False
        self._cancel()
        self.link.close()

    def fail(self, why: str, kind: Trouble = "error") -> None:
        """Hang up, and say why."""
        self.link.close()
        self._end(why, kind)

    # --- the link calls these -------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Ask what the broker understands, and say who we are."""
        self._alive_ns = self._manner.clock.monotonic()
        self._is_connected = True
        try:
            login = self._login()
        except PenstockError as error:
            self.fail(str(error))
            return
        self._opening = Opening(self._exchange, login)
        self._write(self._opening.begin())

    def received(self, data: bytes) -> None:
        """Tell who asked."""
        self._alive_ns = self._manner.clock.monotonic()
        for asked, reader in self._exchange.feed(data):
            try:
                if self._is_opening:
                    self._open(self._opening.answered(asked, reader))
                else:
                    self._told.popleft()(reader, asked.version)
            except PenstockError as error:
                self.fail(f"the answer to {asked.api.name}: {error}", "error" if self._is_opening else "answer")
            if self._is_over:
                return
        if self._exchange.fault:
            self.fail(self._exchange.fault, "answer")
        self._renew()

    def beat(self) -> None:
        """Give up on who says nothing."""
        silent_ns = self._manner.clock.monotonic() - self._alive_ns
        if self._exchange.waiting and silent_ns >= self._manner.timeout_ns:
            self.fail(f"it said nothing for {silent_ns / SECOND:.0f} s", "silent")

    def hold(self, full: bool) -> None:
        """Say nothing more while what was said does not leave."""
        if self._hold is not None:
            self._hold(full)

    def closed(self, why: str) -> None:
        """Be over; the link says why next."""
        self.is_ready = False

    # --- inside ---------------------------------------------------------------------------------------------------

    def _write(self, pieces: Sequence[Buffer]) -> None:
        for piece in pieces:
            self.link.write(piece)

    def _open(self, pieces: Sequence[Buffer]) -> None:
        """Go on with the first words, or be ready for others."""
        self._write(pieces)
        opening = self._opening
        if opening.versions is None:
            return
        self._versions = opening.versions
        self._is_opening = False
        self.is_ready = True
        if opening.lifetime_ms > 0:
            clock = self._manner.clock
            wait_ns = max(int(opening.lifetime_ms * RENEWAL_SHARE) * MILLISECOND, RENEWAL_NS_MIN)
            self._renewal = clock.call_at(clock.monotonic() + wait_ns, self._must_renew)
        self._ready()

    def _must_renew(self) -> None:
        """Have nothing more asked, so that soon everything is answered."""
        self._renewal = None
        self.is_ready = False
        self._is_renewal_due = True
        self._renew()

    def _renew(self) -> None:
        """Say again who we are, if it is time for it and nothing waits for an answer: others may not come between."""
        if not self._is_renewal_due or self._exchange.waiting or self._is_over:
            return
        self._is_renewal_due = False
        try:
            login = self._login()
        except PenstockError as error:
            self.fail(str(error))
            return
        if login is not None:
            self._is_opening = True
            self._alive_ns = self._manner.clock.monotonic()
            self._write(self._opening.renew(login))

    def _login(self) -> Login | None:
        return self._manner.login() if self._manner.login is not None else None

    def _cancel(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None

    def _lost(self, why: str) -> None:
        if not self._is_connected:
            self._end(why, "connect")
        else:
            self._end(why, "closed" if why == HUNG_UP else "error")

    def _end(self, why: str, kind: Trouble) -> None:
        if not self._is_over:
            self._is_over = True
            self.is_ready = False
            self._cancel()
            self._failed(why, kind)
