"""One outgoing connection that is kept: dialled, put into TLS, beaten, and dialled again when it breaks.

Owns when to dial and when to give up. Knows no protocol: a `Speaker` says what is said. Time, chance and the way out
are passed in, so the simulation drives it as the daemon does.
Invariant: a speaker hears `opened` and `closed` in turns, beginning with `opened`, and nothing else outside of the two.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol, cast

from penstock.clock import SECOND, Clock, Timer
from penstock.columns import Buffer
from penstock.wire.dial import Dialler, Dialling
from penstock.wire.layers import LayerError
from penstock.wire.tls import Tls

#: Why a connection is over whose other side ended it in order.
HUNG_UP = "it hung up"
#: Who takes longer to accept, or to agree on keys, is not there.
CONNECT_NS = 5 * SECOND
HANDSHAKE_NS = 5 * SECOND


class Speaker(Protocol):
    """Who speaks a protocol over a link."""

    def opened(self) -> None:
        """The connection stands: say the first words."""

    def received(self, data: bytes) -> None:
        """Take what the peer said."""

    def beat(self) -> None:
        """Show life, and look whether the peer does; called again and again while the connection stands."""

    def hold(self, full: bool) -> None:
        """Say nothing more while what was said does not leave, and go on when it did."""

    def closed(self, why: str) -> None:
        """The connection is gone; another follows unless the link was closed."""


class Backoff:
    """How long to wait before the next attempt: twice as long each time, and up to half of it less by chance."""

    def __init__(self, first_ns: int, most_ns: int, random: Random) -> None:
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._random = random
        self._step_ns = first_ns

    def next_ns(self) -> int:
        """Return the next pause. Many who lost the same peer must not all come back at once."""
        step_ns = self._step_ns
        self._step_ns = min(2 * step_ns, self._most_ns)
        return step_ns - int(self._random.random() * (step_ns // 2))

    def reset(self) -> None:
        """Begin with the shortest again."""
        self._step_ns = self._first_ns


class Link(asyncio.Protocol):
    """A connection to one address, for as long as it is wanted."""

    def __init__(
        self,
        what: str,
        address: tuple[str, int],
        speaker: Speaker,
        clock: Clock,
        dialler: Dialler,
        backoff: Backoff,
        *,
        beat_ns: int,
        log: logging.Logger,
        connect_ns: int = CONNECT_NS,
        tls: ssl.SSLContext | None = None,
        lost: Callable[[str], None] | None = None,
    ) -> None:
        self.address = address
        #: Why it cannot be used, empty while all is well.
        self.problem = ""
        self._what = what
        self._speaker = speaker
        self._clock = clock
        self._dialler = dialler
        self._backoff = backoff
        self._beat_ns = beat_ns
        self._connect_ns = connect_ns
        self._log = log
        self._context = tls
        #: Told why it cannot be had or kept; whoever wants to know decides what comes next, and nobody dials again.
        self._lost = lost
        self._dialling: Dialling | None = None
        self._transport: asyncio.Transport | None = None
        self._tls: Tls | None = None
        #: Between the speaker's `opened` and `closed`.
        self._is_open = False
        #: Why it was given up; the transport has yet to say that it is gone.
        self._dropped = ""
        self._timer: Timer | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The peer's address."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def is_open(self) -> bool:
        """Whether something can be said."""
        return self._is_open and not self._dropped and not self._closed

    def connect(self) -> None:
        """Go and connect, now and whenever the connection breaks."""
        if self._closed or self._dialling is not None or self._transport is not None:
            return
        self._arm(self._connect_ns, self._not_accepted)
        self._dialling = self._dialler.dial(*self.address, self, self._failed)

    def write(self, data: Buffer) -> None:
        """Say something; nothing is said to who is not there."""
        if self.is_open and self._transport is not None:
            try:
                self._transport.write(self._tls.send(data) if self._tls is not None else data)
            except LayerError as error:
                self.drop(str(error))

    def settled(self) -> None:
        """Take the speaker's word that the peer is what it should be: whatever breaks now is a new problem."""
        self._backoff.reset()
        self.problem = ""

    def drop(self, why: str) -> None:
        """Give this connection up, and come back later."""
        if self._transport is not None and not self._dropped:
            self._dropped = why
            self._cancel()
            self._transport.abort()

    def close(self) -> None:
        """Leave for good."""
        self._cancel()
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if self._transport is not None and not self._closed:
            if self._tls is not None:
                self._transport.write(self._tls.close())
            self._transport.close()
        self._closed = True

    # --- the dialler and the transport call these -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Agree on keys if that is asked for, and let the speaker speak."""
        self._transport = cast(asyncio.Transport, transport)
        self._dialling = None
        self._cancel()
        if self._closed:
            self._transport.abort()
        elif self._context is None:
            self._open()
        else:
            self._tls = Tls(self._context, server_side=False, name=self.address[0])
            self._arm(HANDSHAKE_NS, partial(self.drop, f"it did not agree on keys for {HANDSHAKE_NS // SECOND} s"))
            self._transport.write(self._tls.handshake(b""))

    def data_received(self, data: bytes) -> None:
        """Let the speaker hear."""
        if self._dropped or self._closed:
            return
        if self._tls is not None:
            try:
                data = self._decrypted(self._tls, data)
            except LayerError as error:
                if self._transport is not None:
                    self._transport.write(error.last)
                self.drop(str(error))
                return
        if data and self.is_open:
            self._speaker.received(data)
        if self._tls is not None and self._tls.ended:
            self.drop(HUNG_UP)

    def pause_writing(self) -> None:
        """Let the speaker wait until what it said has left."""
        if self.is_open:
            self._speaker.hold(True)

    def resume_writing(self) -> None:
        """Let the speaker go on."""
        if self.is_open:
            self._speaker.hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Come back later."""
        why = self._dropped or (str(exc) or type(exc).__name__ if exc is not None else HUNG_UP)
        was_open, self._is_open = self._is_open, False
        self._transport = self._tls = None
        self._dropped = ""
        self._cancel()
        if was_open:
            self._speaker.closed(why)
        self._failed(why)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._is_open = True
        self._arm(self._beat_ns, self._beat)
        self._speaker.opened()

    def _decrypted(self, tls: Tls, data: bytes) -> bytes:
        if not self._is_open:
            answer = tls.handshake(data)
            if self._transport is not None:
                self._transport.write(answer)
            if not tls.done:
                return b""
            self._open()
            data = b""  # some may have come behind the handshake
        return tls.receive(data)

    def _beat(self) -> None:
        self._arm(self._beat_ns, self._beat)  # before, because the speaker may drop the connection
        self._speaker.beat()

    def _not_accepted(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            self._failed(f"it did not accept for {self._connect_ns / SECOND:g} s")

    def _failed(self, why: str) -> None:
        """Try again, later and later."""
        self._dialling = None
        if self._closed:
            return
        if self._lost is not None:
            self._cancel()
            self._closed = True
            self._lost(why)
            return
        if not self.problem:  # said once, not at every attempt
            self._log.warning("%s %s cannot be used: %s; trying again", self._what, self.name, why)
        self.problem = why
        self._arm(self._backoff.next_ns(), self.connect)

    def _arm(self, delay_ns: int, call: Callable[[], None]) -> None:
        self._cancel()
        self._timer = self._clock.call_at(self._clock.monotonic() + delay_ns, partial(self._ring, call))

    def _ring(self, call: Callable[[], None]) -> None:
        self._timer = None
        call()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
