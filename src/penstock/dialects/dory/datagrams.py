"""Datagrams: a thread of their own takes them from the kernel in bursts and hands whole bursts to the loop.

The kernel keeps ten datagrams for us; the eleventh makes its sender wait. So the thread decodes nothing and asks
nobody. What it does need after each call is the interpreter lock, which a busy loop holds for half a millisecond: so
where senders are fast, one call takes hundreds, and the kernel empties its queue meanwhile without us.
Invariant: datagrams reach the loop in the order in which the kernel had them.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.budget import Share
from penstock.columns import SMALL
from penstock.dialects.dory.codec import Places

#: Datagrams taken with one call, and what their buffers may need: pages that nothing was received in cost nothing.
BURST_MAX = 1024
BUFFER_BYTES_MAX = 64 << 20
#: So little time since the last ones means that senders are fast: then it waits in the kernel for more, which needs no
#: interpreter lock and is an eighth of the work. One that comes alone is handed over at once.
FAST_NS = 1_000_000
#: No longer than this from one datagram to the next (the kernel's grain is coarser), nor than this in all.
GAP_NS = 1_000_000
WAIT_NS = 2_000_000
#: What is handled in one turn of the loop: others want their turns, too, and a listener accepts one connection in each.
TURN_BYTES_MAX = 256 << 10
TURN_MAX = 1024
#: How often it is looked whether the loop has come to what finds no room.
SPILLED_S = 0.001

#: Where struct mmsghdr of 64-bit Linux has what the kernel says of a datagram.
_ENTRY_BYTES, _IOV_AT, _IOV_COUNT_AT, _FLAGS_AT, _LENGTH_AT = 64, 16, 24, 48, 56


class Burst(NamedTuple):
    """Datagrams that were received together."""

    data: bytes
    lengths: list[int] | npt.NDArray[np.int64]
    #: Beginnings of such as were too large.
    cut: list[bytes]

    @property
    def size_bytes(self) -> int:
        """What it holds."""
        return len(self.data) + sum(map(len, self.cut))


#: Hears of all that came since it was last called; runs in the loop.
Deliver = Callable[[bytes, Places, Places, list[bytes]], None]


class Datagrams:
    """The thread of one socket."""

    def __init__(
        self,
        sock: socket.socket,
        bytes_max: int,
        waiting_bytes_max: int,
        memory: Share,
        deliver: Deliver,
        overflow: Deliver,
        failed: Callable[[Exception], None],
    ) -> None:
        """Take how large a datagram may be, how much may wait for the loop, of what, and whom to tell of the rest."""
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._deliver = deliver
        self._overflow = overflow
        self._waiting_bytes_max = waiting_bytes_max
        self._memory = memory
        self._bursts: deque[Burst] = deque()
        self._too_many: deque[Burst] = deque()
        #: Bytes handed over, by the thread, and taken, by the loop: each side writes its own alone.
        self._handed = self._taken = 0
        #: The same of those that found no room: a loop that comes to none of it would find ever more.
        self._spilled = self._told = 0
        #: What of them is counted in the memory, which is the loop's: the thread looks at it, and no more.
        self._counted = 0
        self._armed = False
        self._ending = False
        self._is_over = False
        self._receiver = Receiver(sock, bytes_max)
        self._thread = threading.Thread(target=self._run, name="dory-datagrams", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """What was received and the loop has not come to."""
        return self._handed - self._taken

    def end(self) -> None:
        """Take what was sent so far, and then nothing more: whoever sends now is told that nobody listens."""
        if self._ending:
            return
        self._ending = self._receiver.is_ending = True
        try:
            self._sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass
        self._thread.join()
        self._sock.close()
        while self._bursts or self._too_many:
            self._flush()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Receive until it is over; a bug must not leave senders waiting for nobody."""
        while not self._is_over:
            try:
                self._receive()
                self._is_over = True
            except Exception as failure:
                self._is_over = self._sock.fileno() < 0
                self._tell(failure)

    def _receive(self) -> None:
        receiver, poll = self._receiver, select.poll()
        poll.register(self._sock, select.POLLIN)
        last_ns = 0
        while True:
            now_ns = time.monotonic_ns()
            burst = receiver.receive(wait=now_ns - last_ns < FAST_NS and not self._ending)
            if burst is not None:
                last_ns = time.monotonic_ns()
                self._hand(burst)
                while self._spilled - self._told > self._waiting_bytes_max and not self._ending:
                    time.sleep(SPILLED_S)  # now the kernel makes senders wait
            elif self._ending:
                return
            else:
                poll.poll()

    def _tell(self, failure: Exception) -> None:
        try:
            self._loop.call_soon_threadsafe(self._failed, failure)
        except RuntimeError:
            self._is_over = True  # the loop is gone

    def _hand(self, burst: Burst) -> None:
        size, memory = burst.size_bytes, self._memory
        waiting = self.waiting_bytes + size
        if waiting > self._waiting_bytes_max or memory.used - self._counted + waiting > memory.bytes_max:
            self._spilled += size
            self._too_many.append(burst)
        else:
            self._handed += size
            self._bursts.append(burst)
        if not self._armed:
            self._armed = True
            try:
                self._loop.call_soon_threadsafe(self._flush)
            except RuntimeError:
                self._ending = True  # the loop is gone

    # --- the loop -------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._armed = False
        for bursts, tell in ((self._bursts, self._deliver), (self._too_many, self._overflow)):
            if bursts:
                self._give(bursts, tell)
        if (self._bursts or self._too_many) and not self._armed and not self._ending:
            self._armed = True
            self._loop.call_soon(self._flush)

    def _give(self, bursts: deque[Burst], tell: Deliver) -> None:
        some = [bursts.popleft()]
        size, count = some[0].size_bytes, len(some[0].lengths)
        while bursts and size < TURN_BYTES_MAX and count < TURN_MAX:
            some.append(bursts.popleft())
            size, count = size + some[-1].size_bytes, count + len(some[-1].lengths)
        data = some[0].data if len(some) == 1 else b"".join([each.data for each in some])
        if bursts is self._bursts:
            self._taken += size
            waiting = self._handed - self._taken
            self._memory.used += waiting - self._counted
            self._counted = waiting
        else:
            self._told += size
        tell(data, *_places(some), [piece for each in some for piece in each.cut])


def _places(bursts: list[Burst]) -> tuple[Places, Places]:
    if sum([len(each.lengths) for each in bursts]) <= SMALL:
        edges = [0]
        for each in bursts:
            for length in each.lengths:
                edges.append(edges[-1] + int(length))
        return edges[:-1], edges[1:]
    lengths = [np.asarray(each.lengths, np.int64) for each in bursts]
    stops = np.cumsum(np.concatenate(lengths))
    starts = np.empty_like(stops)
    starts[0], starts[1:] = 0, stops[:-1]
    return starts, stops


class Receiver:
    """Takes many datagrams from a socket with one call (recvmmsg, which Python does not have)."""

    def __init__(self, sock: socket.socket, bytes_max: int) -> None:
        #: Nothing is received any more: the kernel says so by datagrams without bytes, to a call that waits.
        self.is_ending = False
        self._slot = slot = -(-bytes_max // 8) * 8
        self._bytes_max = bytes_max
        self._count = count = max(1, min(BURST_MAX, BUFFER_BYTES_MAX // slot))
        self._buffer = mmap.mmap(-1, slot * count)
        self._view = memoryview(self._buffer)
        self._flat = np.frombuffer(self._buffer, np.uint8)
        base = self._flat.ctypes.data
        self._vectors = vectors = np.zeros((count, 2), np.uint64)
        vectors[:, 0] = base + slot * np.arange(count, dtype=np.uint64)
        vectors[:, 1] = bytes_max
        self._heads = heads = np.zeros(_ENTRY_BYTES * count, np.uint8)
        entries = vectors.ctypes.data + 16 * np.arange(count, dtype=np.uint64)
        np.ndarray((count,), np.uint64, heads, _IOV_AT, (_ENTRY_BYTES,))[:] = entries
        np.ndarray((count,), np.uint64, heads, _IOV_COUNT_AT, (_ENTRY_BYTES,))[:] = 1
        self._lengths = np.ndarray((count,), np.uint32, heads, _LENGTH_AT, (_ENTRY_BYTES,))
        self._call = ctypes.CDLL(None, use_errno=True).recvmmsg
        most = (ctypes.c_int(sock.fileno()), ctypes.c_void_p(heads.ctypes.data), ctypes.c_uint(count))
        self._now = (*most, ctypes.c_int(socket.MSG_DONTWAIT | socket.MSG_TRUNC), None)
        #: Seconds and nanoseconds; the kernel writes what is left of them.
        self._limit = np.zeros(2, np.int64)
        self._waiting = (*most, ctypes.c_int(socket.MSG_TRUNC), ctypes.c_void_p(self._limit.ctypes.data))
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, GAP_NS // 1000))
        self._starts = np.arange(0, slot * count, slot, dtype=np.int64)

    def receive(self, *, wait: bool = False) -> Burst | None:
        """Return what is there, in order; None if nothing is. If asked to, wait a moment for more of it."""
        if wait:
            self._limit[1] = WAIT_NS
        count: int = self._call(*(self._waiting if wait else self._now))
        if count < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                return None
            raise OSError(number, os.strerror(number))
        if self.is_ending:
            count = len(np.trim_zeros(self._lengths[:count], "b"))
        if not count:
            return None
        lengths = self._lengths[:count]
        if count <= SMALL:
            return self._few(lengths.tolist())
        if int(lengths.max()) > self._bytes_max:
            return self._few(lengths.tolist())
        first = int(lengths[0])
        if (lengths == first).all():
            rows = self._flat.reshape(self._count, self._slot)[:count, :first]
            return Burst(rows.tobytes(), lengths.astype(np.int64), [])
        return Burst(self._joined(lengths), lengths.astype(np.int64), [])

    def _few(self, lengths: list[int]) -> Burst:
        """Return them one by one; from such as were too large, what there is of them is told by itself."""
        view, slot, most = self._view, self._slot, self._bytes_max
        pieces = [
            view[at : at + length]
            for at, length in zip(range(0, slot * len(lengths), slot), lengths, strict=True)
            if length <= most
        ]
        cut = [
            bytes(view[at : at + most])
            for at, length in zip(range(0, slot * len(lengths), slot), lengths, strict=True)
            if length > most
        ]
        return Burst(b"".join(pieces), [length for length in lengths if length <= most] if cut else lengths, cut)

    def _joined(self, lengths: npt.NDArray[np.uint32]) -> bytes:
        count = len(lengths)
        edges = np.empty(2 * count, np.int32)
        edges[::2] = self._starts[:count]
        edges[1::2] = self._starts[:count] + lengths
        gaps = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(self._flat)])
        data = gaps.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))).buffers()[2]
        return data.to_pybytes() if data is not None else b""
