"""The receiver by itself."""

from __future__ import annotations

import socket
import struct
import threading

from penstock.dialects.dory.datagrams import Burst, Receiver
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
