"""One connection of a producer: messages in, acks out once they are stored.

Owns when it is read, what becomes of what was read, and its end. A connection gets one full read a turn (ruling 25),
and none while too much of it is not stored, its quota is used up, or it does not take its acks.
Invariant: a message is acked once it is as durable as its topic promises, and else not at all; its producer then
sends it again.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from penstock.budget import Wait
from penstock.callers import Caller
from penstock.callers.gate import host_of
from penstock.clock import SECOND, Timer
from penstock.dialects.m3msg.acks import Acks, Entries
from penstock.dialects.m3msg.columns import SOURCE, metrics, opaque
from penstock.errors import Refusal
from penstock.intake.gather import content_bytes
from penstock.intake.receipt import PartRefusal, Receipt
from penstock.intake.spread import picked
from penstock.m3.messages import MessageReader, Messages
from penstock.message import Rows
from penstock.peers.far import Target, target
from penstock.wire.reading import READ_BYTES_MAX, Reading
from penstock.wire.tls import common_name

if TYPE_CHECKING:
    from penstock.dialects.m3msg.running import M3Msg

#: Of a producer that fills its reads so much is put aside, a read a turn, before it is looked at: a thousand rows cost
#: nearly as much as four thousand. With one more read it is still what delivery hands out in one piece.
GATHERED_BYTES = 3 * READ_BYTES_MAX
#: After a fault the producer may take so long to hang up as well.
LINGER_NS = SECOND
#: How long nothing must have come before the kernel asks whether the producer is still there, as upstream's server.
KEEPALIVE_S = 10

#: Closing with this leaves nothing behind and resets the connection.
_RESET = struct.pack("ii", 1, 0)
#: Why a connection is not read: it had its turn, its topic is not there yet, too much of it is not stored, its quota
#: asks it to wait, it does not take its acks.
_TURN, _TOPIC, _PENDING, _RATE, _FULL = 1, 2, 4, 8, 16
#: Refusals after which nothing that this producer sends could be stored.
_HOPELESS = ("unauthorized", "forbidden", "bad_name", "not_found", "too_many_connections")

LISTENER = "m3msg.port"
_NONE: frozenset[int] = frozenset()


class Connection(asyncio.Protocol):
    """One socket."""

    def __init__(self, service: M3Msg) -> None:
        self._service = service
        self._node, self._config = service.node, service.config
        self._clock = service.node.clock
        self._reader = MessageReader(self._config.max_message_size)
        self._acks = Acks(
            self._clock,
            self._send,
            self._config.ack_buffer_size,
            self._config.ack_flush_interval_ns,
            self._config.max_message_size,
        )
        self._transport: asyncio.Transport | None = None
        self._topic: Target | None = None
        #: What was read before its topic was there.
        self._early: list[tuple[Rows, Entries]] = []
        self._reading = Reading()
        self._stop, self._start = self._reading.stop, self._reading.start
        self._reads = 0
        #: Bytes that were handed on and are not stored, and how many groups of rows they are.
        self._pending_bytes = self._pending = 0
        #: A part of a message, while there is only that.
        self._held: Wait | None = None
        #: Acks that it does not take, while there are many.
        self._unread: Wait | None = None
        self._timers: dict[int, Timer] = {}
        #: Nothing more is read of it, and it goes once what was read is stored.
        self._ending = False
        self._closed = False
        self.caller: Caller
        self.name = ""
        self.connected_ns = 0
        #: Messages that were acked.
        self.acked = 0

    # --- asyncio calls these --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._reading.begin(self._transport)
        peer = transport.get_extra_info("peername")
        self.name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer)
        self.connected_ns = self._clock.now()
        gate = self._node.gate
        name = common_name(transport.get_extra_info("peercert"))
        self.caller = Caller(gate, self.name, LISTENER)
        if name:
            self.caller = gate.noted(self.caller.showing(gate.certified(name)))
        address = host_of(self.name)
        why = self._service.crowd.refusal(address, transport)
        if why:
            self._node.count_fault("m3msg", "too_many_connections", why, self.name)
            self._closed = True
            self._transport.close()
            return
        self._service.enter(self, address)
        self.caller.on_change = self._changed
        gate.follow(self.caller)
        _keep_alive(transport)
        try:
            self.caller.enter()
        except Refusal as refusal:
            self._give_up(refusal.code, str(refusal))

    def data_received(self, data: bytes) -> None:
        """Handle one read."""
        if self._ending:
            return
        self._reads += 1
        if len(data) >= READ_BYTES_MAX and not self._reading.stopped & _TURN:
            self._stop(_TURN)
            self._clock.call_soon(self._next_turn)
            if self._reader.frames.held < GATHERED_BYTES:
                self._reader.frames.keep(data)
                self._hold()
                return
        self._digest(data)

    def _settle(self, reads: int) -> None:
        """Go on with what was read if nothing came behind it."""
        if reads == self._reads:
            self._digest(b"")

    def _digest(self, data: bytes) -> None:
        if self._ending:
            return
        try:
            messages, fault = self._reader.feed(data), self._reader.frames.fault
            self._hold(fresh=messages is not None)
            if messages is not None:
                self._take(messages)
            if fault and not self._ending:
                self._give_up("bad_message", fault)
        except Exception as failure:  # a bug must cost one connection, not the node
            self._node.report_bug("m3msg", failure)
            self._cut_off("bug", "")

    def eof_received(self) -> bool:
        """Send what may be acked, and let asyncio close the other half too."""
        self._digest(b"")
        self._acks.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._ending = self._closed = True
        self._transport = None
        self._reading.end()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._acks.forget()
        self._early.clear()
        self._reader.frames.forget()
        self._hold()
        self._count_unread(0)
        self._service.leave(self, host_of(self.name))
        self.caller.on_change = None
        self._node.gate.leave(self.caller)

    def pause_writing(self) -> None:
        """Read nothing more: the producer does not take its acks."""
        self._stop(_FULL)
        if self._transport is not None:
            self._count_unread(self._transport.get_write_buffer_size())
        timeout_ns = self._config.write_timeout_ns
        self._at(_FULL, timeout_ns, partial(self._cut_off, "slow_reader", "took none of its acks for too long"))

    def resume_writing(self) -> None:
        """Read on."""
        self._count_unread(0)
        self._cancel(_FULL)
        self._start(_FULL)

    # --- in -------------------------------------------------------------------------------------------------------

    def _take(self, messages: Messages) -> None:
        """Publish the messages of one read as one group of rows."""
        self._service.received += messages.count
        rows, entries = self._rows(messages)
        if not rows.count:
            return
        topic = self._topic
        if topic is None or topic.deleted:
            self._early.append((rows, entries))
            if not self._reading.stopped & _TOPIC:
                self._ask_topic()
            return
        self._publish(topic, rows, entries)

    def _rows(self, messages: Messages) -> tuple[Rows, Entries]:
        """Return what is to be stored, and what is acked for that."""
        rows, entries, left = self._read(messages)
        most = self._node.config.node.message_bytes
        if len(messages.values) > most:
            large = np.flatnonzero(np.diff(np.asarray(messages.cuts)) > most).tolist()
            if large:
                text = f"{len(large)} values above node.message_bytes = {most}; they are not acked"
                self._node.count_fault("m3msg", "message_too_big", text, self.name)
                left = left.union(large)
        if not left:
            return rows, entries
        kept = [row for row in range(messages.count) if row not in left]
        some = picked(rows, kept) if kept else Rows(0, [0], b"", SOURCE)
        return some, [_entry(entries, row) for row in kept]

    def _read(self, messages: Messages) -> tuple[Rows, Entries, frozenset[int]]:
        """Return rows, what acks say of them, and which of them are not stored."""
        if self._config.payload == "opaque":
            return opaque(messages), messages.entries, _NONE
        rows, bad = metrics(messages, self._clock.now())
        if not bad:
            return rows, messages.entries, _NONE
        self._service.unreadable += len(bad)
        text = f"{len(bad)} values are no metrics; the first: {next(iter(bad.values()))}"
        self._node.count_fault("m3msg", "unreadable", text, self.name)
        if self._config.unreadable == "store":
            return rows, messages.entries, _NONE
        if self._config.unreadable == "drop":
            self._acks.add([_entry(messages.entries, row) for row in bad])
        return rows, messages.entries, frozenset(bad)

    def _ask_topic(self) -> None:
        """Ask for the topic, and read nothing until it is there."""
        self._stop(_TOPIC)
        try:
            asked = self._node.obtain_for(self.caller, "publish", self._config.topic)
        except Refusal as refusal:
            self._no_topic(refusal)
            return
        target(self._node, asked).then(self._told_topic)

    def _told_topic(self, topic: Target | None, error: Exception | None) -> None:
        if self._closed:
            return
        if topic is None:
            self._no_topic(error or Refusal("unavailable", "there is no topic"))
            return
        self._topic = topic
        early, self._early = self._early, []
        for rows, entries in early:
            self._publish(topic, rows, entries)
        self._start(_TOPIC)

    def _no_topic(self, why: Exception) -> None:
        """Store nothing of what came: its producer sends it again, or may not send it at all."""
        code = why.code if isinstance(why, Refusal) else "unavailable"
        self._early.clear()
        self._start(_TOPIC)
        if code in _HOPELESS:
            self._give_up(code, str(why))
        else:
            self._node.count_fault("m3msg", code, str(why), self.name)

    def _publish(self, topic: Target, rows: Rows, entries: Entries) -> None:
        size = content_bytes(rows)
        self._pending += 1
        self._pending_bytes += size
        if self._pending_bytes >= self._config.max_pending_bytes:
            self._stop(_PENDING)
        done = partial(self._stored, rows.count, size, entries)
        meter = self.caller.meter
        if meter is not None:
            now_ns = self._clock.monotonic()
            try:
                wait_ns = meter.take(rows.count, size, now_ns)
            except Refusal as refusal:
                topic.intake.refuse(refusal, rows.count, done)
                return
            if wait_ns:
                self._stop(_RATE)
                self._at(_RATE, wait_ns, partial(self._start, _RATE))
        topic.publish(rows, self, done)

    def _stored(
        self, count: int, size: int, entries: Entries, receipt: Receipt | None, error: BaseException | None
    ) -> None:
        """Ack what is stored; what is not, its producer sends again."""
        self._pending -= 1
        self._pending_bytes -= size
        if self._pending_bytes < self._config.max_pending_bytes:
            self._start(_PENDING)
        if receipt is None:
            stored = sorted(error.ids) if isinstance(error, PartRefusal) else []
            self._service.refused += count - len(stored)
            entries = [_entry(entries, row) for row in stored]
        if not self._closed:
            self._acks.add(entries)
            if self._ending and not self._pending:
                self._finish()

    def _changed(self) -> None:
        """Ask anew whether it may publish: users have changed."""
        self._topic = None

    def _hold(self, *, fresh: bool = False) -> None:
        """Count what came of a message that is not all there; a fresh one has its own time."""
        bodies, held = self._node.budget.body, self._reader.frames.held
        if held or self._held is not None:
            paced = not self._reading.stopped
            self._held = bodies.keep(self._held, held, host_of(self.name), self._cut, fresh=fresh, paced=paced)

    def _cut(self, why: Refusal) -> None:
        self._reader.frames.forget()
        self._give_up(why.code, f"a message came too slowly: {why}")

    # --- out ------------------------------------------------------------------------------------------------------

    def _send(self, wire: bytes, count: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.acked += count
            self._service.acked += count
            self._transport.write(wire)

    def _count_unread(self, size_bytes: int) -> None:
        output, address = self._node.budget.output, host_of(self.name)
        self._unread = output.keep(self._unread, size_bytes, address, self._unread_too_much)

    def _unread_too_much(self, why: Refusal) -> None:
        self._cut_off(why.code, f"does not take its acks: {why}")

    # --- the end --------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Read nothing more; ack what was read once it is stored, and hang up."""
        if self._reader.frames.held and not self._reader.frames.fault:
            self._digest(b"")
        if self._ending:
            return
        self._ending = True
        self._reader.frames.forget()
        self._hold()
        if not self._pending:
            self._finish()

    def hang_up(self) -> None:
        """Ack what is stored, and hang up at once."""
        self._ending = True
        self._finish()

    def _give_up(self, code: str, why: str) -> None:
        """End it because of what its producer did."""
        self._node.count_fault("m3msg", code, why, self.name)
        self.end()

    def _finish(self) -> None:
        if self._closed:
            return
        self._acks.flush()
        self._closed = True
        if self._transport is None or self._transport.is_closing():
            return
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        # Closing with unread input would reset the connection, and the last acks might be lost with it: so close our
        # half, let the rest of its input run out, and end when it does or does not.
        self._transport.write_eof()
        self._start(_TURN | _TOPIC | _PENDING | _RATE | _FULL)
        self._at(0, LINGER_NS, self._transport.abort)

    def _cut_off(self, code: str, why: str) -> None:
        """End it at once, and leave nothing in the kernel that would be offered to a peer that does not read."""
        if why:
            self._node.count_fault("m3msg", code, why, self.name)
        self._ending = self._closed = True
        if self._transport is not None:
            wire = self._transport.get_extra_info("socket")
            if wire is not None:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()

    # --- reading or not -------------------------------------------------------------------------------------------

    def _next_turn(self) -> None:
        self._start(_TURN)
        self._clock.call_soon(partial(self._settle, self._reads))

    def _at(self, why: int, wait_ns: int, call: partial[None] | object) -> None:
        self._cancel(why)
        self._timers[why] = self._clock.call_at(self._clock.monotonic() + wait_ns, call)  # type: ignore[arg-type]

    def _cancel(self, why: int) -> None:
        timer = self._timers.pop(why, None)
        if timer is not None:
            timer.cancel()


def _entry(entries: Entries, row: int) -> bytes:
    found: bytes = entries[row] if isinstance(entries, list) else entries[row].as_py()
    return found


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel notice producers that are gone without a word."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
