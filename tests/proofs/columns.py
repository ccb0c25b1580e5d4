"""Proof that Python's work grows with batches, not with messages.

Counts the Python lines executed (`sys.settrace`) while messages are decoded, stored, delivered and finished, once
for 10,000 and once for 100,000 of them, in reads of 10,000. What the larger run executes more, per message, must
stay below a line in twenty for intake, log, delivery and its history, and below half a line for the codecs.

    python -m tests.proofs.columns
"""

from __future__ import annotations

import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import penstock
from tests.nsq.parts import Broker, Client, pub

BODY_BYTES = 100
FEW, MANY, READ_ROWS = 10_000, 100_000, 10_000
LIMITS = {"intake": 0.05, "log": 0.05, "delivery": 0.05, "events": 0.05, "dialects": 0.5}

ROOT = str(Path(penstock.__file__).parent) + "/"


class Lines:
    """Counts executed lines by package of the product."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Lines:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(ROOT):
            return None
        package = name[len(ROOT) :].split("/")[0].removesuffix(".py")
        counts = self.counts

        def line(frame: FrameType, event: str, arg: object) -> Any:
            if event == "line":
                counts[package] += 1
            return line

        counts[package] += 1
        return line


def lines_for(count: int, path: Path) -> Counter[str]:
    """Return the lines it takes to carry `count` messages from PUB to FIN."""
    broker = Broker(path, ack_flush_ns=10_000_000, max_rdy_count=READ_ROWS)
    consumer, producer = broker.client(), broker.client()
    consumer.identify()
    consumer.sub("t", "ch", READ_ROWS)
    body = b"x" * BODY_BYTES
    with Lines() as lines:
        for start in range(0, count, READ_ROWS):
            producer.connection.receive(pub("t", body) * min(READ_ROWS, count - start))
            broker.clock.run()
            producer.out.clear()
            while fins := _fins(consumer):
                consumer.connection.receive(fins)
                broker.clock.run()
        broker.advance(0.02)
    assert broker.node.topic("t").subscription("ch").counts()["acked"] == count
    return lines.counts


def _fins(consumer: Client) -> bytes:
    """Return a FIN for each message that came, cutting equal frames without looking into them."""
    frame = 8 + 26 + BODY_BYTES
    whole = bytes(consumer.out)
    consumer.out.clear()
    assert len(whole) % frame == 0
    size = struct.pack(">I", frame - 4)
    assert all(whole[at : at + 4] == size for at in range(0, len(whole), frame))
    return b"".join(b"FIN " + whole[at + 18 : at + 34] + b"\n" for at in range(0, len(whole), frame))


def main() -> int:
    """Run the proof and print one line per check."""
    with tempfile.TemporaryDirectory() as path:
        lines_for(1000, Path(path, "warm"))
        few = lines_for(FEW, Path(path, "few"))
        many = lines_for(MANY, Path(path, "many"))
    failed = 0
    for package, limit in LIMITS.items():
        extra = (many[package] - few[package]) / (MANY - FEW)
        held = extra < limit
        failed += not held
        print(f"{'ok  ' if held else 'FAIL'} {package:9} {extra:.4f} lines a message, allowed {limit}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
