"""The receiver by itself."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

import pytest

from penstock.budget import Share
from penstock.dialects.dory.codec import Places
from penstock.dialects.dory.datagrams import Burst, Datagrams, Receiver
from tests.served import PATIENCE_S


def test_a_call_that_waits_at_the_end_takes_the_end_for_no_datagram() -> None:
    found: list[Burst | None] = []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        receiver = Receiver(ours, 100)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(PATIENCE_S), 0))
        thread = threading.Thread(target=lambda: found.append(receiver.receive(wait=True)))
        thread.start()
        receiver.is_ending = True
        ours.shutdown(socket.SHUT_RD)
        thread.join()
    assert found == [None]


@pytest.mark.parametrize("size", [50, 80], ids=["taken", "too large"])
def test_what_finds_no_room_is_not_kept_without_end_while_the_loop_stands_still(size: int) -> None:
    there, here = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    told = sent = 0

    def taken(data: bytes, starts: Places, stops: Places, cut: list[bytes]) -> None:
        nonlocal told
        told += len(starts) + len(cut)

    async def flood() -> None:
        nonlocal sent
        bounds = 64, 10_000, Share("input", 1 << 30)
        datagrams = Datagrams(here, *bounds, taken, taken, lambda failure: None)
        there.settimeout(1)
        try:
            while sent < 200_000:
                there.send(b"x" * size)
                sent += 1
        except TimeoutError:
            there.settimeout(None)
        # The loop comes to them now, and whoever sends may go on.
        await asyncio.to_thread(there.send, b"x" * size)
        sent += 1
        datagrams.end()

    with there, here:
        asyncio.run(flood())
    assert sent < 100_000
    assert told == sent
