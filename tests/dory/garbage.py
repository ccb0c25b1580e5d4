"""A sender of garbage, as fast as it goes, until its standard input ends: DATAGRAM_PATH STREAM_PATH PORT.

By itself, in a process of its own: it would otherwise share an interpreter lock with the node it floods.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
import threading

GOOD = bytes.fromhex("0000002601000000000000066f7264657273000001a1dde85029000000026b31000000026869")


def wrong(dice: random.Random) -> bytes:
    """Return a message with something wrong with it, or nothing like one."""
    wire = bytearray(GOOD)
    wire[dice.randrange(len(wire))] = dice.randrange(256)
    if dice.random() < 0.3:
        wire = bytearray(dice.randbytes(dice.randrange(0, 3000)))
    if dice.random() < 0.7:
        wire[:4] = struct.pack(">i", max(len(wire), 4))
    return bytes(wire)


def numbered(dice: random.Random) -> bytes:
    """Return messages of API keys and versions that nobody knows, all different."""
    numbers = dice.sample(range(1, 32768), 1000)
    return b"".join(
        struct.pack(">ihh", 8, *((number, 0) if dice.random() < 0.5 else (256, number))) for number in numbers
    )


def flood(family: int, kind: int, place: object, seed: int) -> None:
    """Connect, send, and begin again."""
    dice = random.Random(seed)
    wires = [*(wrong(dice) for _ in range(1000)), *(numbered(dice) for _ in range(20))]
    while True:
        with socket.socket(family, kind) as sock:
            try:
                sock.connect(place)  # type: ignore[arg-type]
                for wire in dice.choices(wires, k=50):
                    sock.send(wire)
            except OSError:
                continue


def main() -> None:
    """Flood all three."""
    datagram, stream, port = sys.argv[1:]
    for seed, victim in enumerate(
        [
            (socket.AF_UNIX, socket.SOCK_DGRAM, datagram),
            (socket.AF_UNIX, socket.SOCK_STREAM, stream),
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(port))),
        ]
    ):
        threading.Thread(target=flood, args=(*victim, seed), daemon=True).start()
    print("flooding", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
