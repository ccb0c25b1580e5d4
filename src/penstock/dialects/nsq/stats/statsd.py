"""StatsD: the stats of a node as lines over UDP, under nsqd's names, so that its dashboards go on working.

Owns names, kinds and packets. Counters are sent as what they grew since the last time; what cannot be sent is lost, as
with StatsD always. Nothing here waits: a name is looked up in a thread, and packets leave in small groups.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.clock import MILLISECOND, Clock, Timer
from penstock.config import NsqConfig, host_and_port
from penstock.dialects.nsq.stats.document import Channel, Observer, TopicStats, memory_of_process
from penstock.dialects.nsq.stats.latency import Percentiles
from penstock.dialects.nsq.topics import EPHEMERAL

#: So many packets leave at once, and the next ones this much later: a burst of thousands would be dropped on the way.
BURST_PACKETS = 32
BURST_PAUSE_NS = 10 * MILLISECOND

_log = logging.getLogger("penstock.nsq.statsd")

#: A value, and whether it is a counter that only grows.
Sample = tuple[str, int, bool]
#: Hands a connected socket to its caller, now or later; None if there is none to be had.
Dial = Callable[[Callable[[socket.socket | None], None]], None]


class Statsd:
    """Sends a node's stats again and again."""

    def __init__(self, observer: Observer, clock: Clock, config: NsqConfig, host: str, dial: Dial) -> None:
        self._observer = observer
        self._clock = clock
        self._config = config
        self._prefix = prefix(config.statsd_prefix, host)
        self._dial = dial
        #: A channel's count goes on after a restart: what it was then did not happen now.
        self._last = {name: value for name, value, grows in self._samples() if grows}
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
        return self._clock.call_at(self._clock.monotonic() + self._config.statsd_interval_ns, self._tick)

    def _tick(self) -> None:
        self._timer = self._arm()
        if self._waiting or self._socket is not None:  # the last ones are still on their way
            return
        self._waiting.extend(packets(self._lines(), self._config.statsd_udp_packet_size))
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
                _log.debug("a packet to %s was lost: %s", self._config.statsd_address, error)
        if self._waiting:
            self._burst = self._clock.call_at(self._clock.monotonic() + BURST_PAUSE_NS, self._send)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # --- what is said ---------------------------------------------------------------------------------------------

    def _lines(self) -> Iterator[str]:
        now: dict[str, int] = {}
        for name, value, grows in self._samples():
            if grows:
                now[name] = value
                yield f"{self._prefix}{name}:{_growth(self._last, name, value)}|c\n"
            else:
                yield f"{self._prefix}{name}:{value}|g\n"
        self._last = now

    def _samples(self) -> Iterator[Sample]:
        skip = self._config.statsd_exclude_ephemeral
        for topic in self._observer.topics() or []:
            if skip and topic.topic_name.endswith(EPHEMERAL):
                continue
            yield from _of_topic(topic)
            for channel in topic.channels:
                if not (skip and channel.channel_name.endswith(EPHEMERAL)):
                    yield from _of_channel(f"topic.{topic.topic_name}.channel.{channel.channel_name}", channel)
        if self._config.statsd_mem_stats:
            memory = memory_of_process()
            yield from (
                (f"mem.{field}", getattr(memory, field), False)
                for field in memory.__struct_fields__
                if field != "gc_total_runs"
            )
            yield "mem.gc_runs", memory.gc_total_runs, True


def prefix(pattern: str, host: str) -> str:
    """Return what stands before every name: `nsq.%s` with a host is `nsq.127_0_0_1_4151.`."""
    text = pattern.replace("%s", host.replace(".", "_").replace(":", "_"))
    return text if not text or text.endswith(".") else f"{text}."


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


def dialler(address: str) -> Dial:
    """Return what connects a UDP socket to "host:port"; an address is used at once, a name is asked for in a thread."""
    host, port = host_and_port(address)

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
    """Return how much a counter grew; one that fell started anew with its topic or channel."""
    before = last.get(name, 0)
    return value - before if value >= before else value


def _of_topic(topic: TopicStats) -> Iterator[Sample]:
    name = f"topic.{topic.topic_name}"
    yield f"{name}.message_count", topic.message_count, True
    yield f"{name}.message_bytes", topic.message_bytes, True
    yield f"{name}.depth", topic.depth, False
    yield f"{name}.backend_depth", topic.backend_depth, False
    yield from _of_latency(name, topic.e2e_processing_latency)


def _of_channel(name: str, channel: Channel) -> Iterator[Sample]:
    yield f"{name}.message_count", channel.message_count, True
    yield f"{name}.depth", channel.depth, False
    yield f"{name}.backend_depth", channel.backend_depth, False
    yield f"{name}.in_flight_count", channel.in_flight_count, False
    yield f"{name}.deferred_count", channel.deferred_count, False
    yield f"{name}.requeue_count", channel.requeue_count, True
    yield f"{name}.timeout_count", channel.timeout_count, True
    yield f"{name}.clients", channel.client_count, False
    yield from _of_latency(name, channel.e2e_processing_latency)


def _of_latency(name: str, latency: Percentiles) -> Iterator[Sample]:
    for one in latency.percentiles or []:
        yield f"{name}.e2e_processing_latency_{one.quantile * 100:.0f}", int(one.value), False
