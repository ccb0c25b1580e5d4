"""StatsD: lines over UDP, again and again.

Owns packets and their pace; what the lines say is passed in, and where that is totals, `Totals` tells what they grew.
What cannot be sent is lost, as with StatsD always. Nothing here waits: a name is looked up in a thread, and packets
leave in small groups.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.clock import MILLISECOND, Clock, Timer

#: So many packets leave at once, and the next ones this much later: a burst of thousands would be dropped on the way.
BURST_PACKETS = 32
BURST_PAUSE_NS = 10 * MILLISECOND

_log = logging.getLogger("penstock.statsd")

#: A name, a value, and whether that is a counter, which only grows.
Sample = tuple[str, int, bool]
#: Hands a connected socket to its caller, now or later; None if there is none to be had.
Dial = Callable[[Callable[[socket.socket | None], None]], None]


class Totals:
    """Samples of what there is, told as lines: of counters, by what they grew since the last time."""

    def __init__(self, samples: Callable[[], Iterable[Sample]], prefix: str) -> None:
        self._samples = samples
        self._prefix = prefix
        #: A count may go on after a restart: what it was then did not happen now.
        self._last = {name: value for name, value, grows in self._samples() if grows}

    def lines(self) -> Iterator[str]:
        """Yield a line for each sample."""
        now: dict[str, int] = {}
        for name, value, grows in self._samples():
            if grows:
                now[name] = value
                yield f"{self._prefix}{name}:{_growth(self._last, name, value)}|c\n"
            else:
                yield f"{self._prefix}{name}:{value}|g\n"
        self._last = now


class Statsd:
    """Sends lines again and again."""

    def __init__(
        self,
        lines: Callable[[], Iterator[str]],
        clock: Clock,
        dial: Dial,
        *,
        interval_ns: int,
        packet_bytes_max: int,
    ) -> None:
        self._lines = lines
        self._clock = clock
        self._dial = dial
        self._interval_ns = interval_ns
        self._packet_bytes_max = packet_bytes_max
        self._waiting: deque[bytes] = deque()
        self._socket: socket.socket | None = None
        self._timer = self._arm()
        self._burst: Timer | None = None

    def close(self) -> None:
        """Send nothing more."""
        self._timer.cancel()
        if self._burst is not None:
            self._burst.cancel()
        self._waiting.clear()
        self._hang_up()

    def _arm(self) -> Timer:
        return self._clock.call_at(self._clock.monotonic() + self._interval_ns, self._tick)

    def _tick(self) -> None:
        self._timer = self._arm()
        if self._waiting or self._socket is not None:  # the last ones are still on their way
            return
        self._waiting.extend(packets(self._lines(), self._packet_bytes_max))
        self._dial(self._dialled)

    def _dialled(self, connected: socket.socket | None) -> None:
        if connected is None or not self._waiting:  # not found, or closed meanwhile
            self._waiting.clear()
            if connected is not None:
                connected.close()
            return
        self._socket = connected
        self._send()

    def _send(self) -> None:
        self._burst = None
        for _ in range(min(BURST_PACKETS, len(self._waiting))):
            packet = self._waiting.popleft()
            try:
                if self._socket is not None:
                    self._socket.send(packet)
            except OSError as error:  # nobody listens, or the buffer is full: the next interval tells it again
                _log.debug("a packet was lost: %s", error)
        if self._waiting:
            self._burst = self._clock.call_at(self._clock.monotonic() + BURST_PAUSE_NS, self._send)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def packets(lines: Iterator[str], size_bytes: int) -> Iterator[bytes]:
    """Return lines in packets of at most so many bytes; a longer line has one of its own."""
    packet = b""
    for line in lines:
        data = line.encode()
        if packet and len(packet) + len(data) > size_bytes:
            yield packet
            packet = b""
        packet += data
    if packet:
        yield packet


def dialler(host: str, port: int) -> Dial:
    """Return what connects a UDP socket; an address is used at once, a name is asked for in a thread."""
    address = f"{host}:{port}"

    def dial(done: Callable[[socket.socket | None], None]) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_DGRAM)
            asked = asyncio.get_running_loop().run_in_executor(None, look)
            asked.add_done_callback(lambda answer: done(_connected(address, answer)))
        else:
            done(_open(address, found))

    return dial


def _connected(address: str, answer: asyncio.Future[Any]) -> socket.socket | None:
    if answer.cancelled():
        return None
    error = answer.exception()
    if error is not None:
        _log.warning("statsd %s was not found: %s", address, error)
        return None
    return _open(address, answer.result())


def _open(address: str, found: Sequence[tuple[Any, ...]]) -> socket.socket | None:
    family, kind, protocol, _, place = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.connect(place)
    except OSError as error:
        opened.close()
        _log.warning("statsd %s cannot be reached: %s", address, error)
        return None
    return opened


def _growth(last: Mapping[str, int], name: str, value: int) -> int:
    """Return how much a counter grew; one that fell started anew."""
    before = last.get(name, 0)
    return value - before if value >= before else value
