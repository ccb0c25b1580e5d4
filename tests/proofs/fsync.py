"""Proof that every OK of an fsync topic follows an fdatasync that covers it, and that many OKs share one.

A node runs under strace. Each publish carries a token, so the trace tells when its bytes were written to the segment,
which fdatasync of that file began afterwards and returned, and when the OK left for its connection.

    python -m tests.proofs.fsync
"""

from __future__ import annotations

import selectors
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

from tests.proofs.checks import Checks
from tests.proofs.client import Client, pub
from tests.proofs.process import Died, Process
from tests.proofs.trace import Call, Trace

#: Long enough for everything one write of the proof can hold, so that no token is cut off.
STRING_BYTES_MAX = 1 << 20
CALLS = "write,writev,pwrite64,pwritev,sendto,sendmsg,fsync,fdatasync"

#: The disk of the second part needs this long for an fdatasync; and so many publishers wait for it.
DELAY_US = 2000
PUBLISHERS = 64
OKS_PER_SYNC_MIN = 20

#: Sent by the first part: messages a connection, and how many it lets wait for their OK.
LONE, PIPELINED = (60, 1), (600, 24)


class Publisher:
    """A connection that keeps some publishes on their way, and counts what was answered."""

    def __init__(self, port: int, name: int, messages: int, window: int, size: int) -> None:
        self._client = Client(port)
        self.port: int = self._client.socket.getsockname()[1]
        self.tokens = [b"<p%d.%d>" % (name, number) for number in range(messages)]
        self._window = window
        self._size = size
        self._sent = 0
        self.answered = 0

    def fill(self) -> None:
        """Publish as much as may be on its way."""
        end = min(self.answered + self._window, len(self.tokens))
        commands = [pub("safe", token.ljust(self._size, b".")) for token in self.tokens[self._sent : end]]
        if commands:
            self._client.send(b"".join(commands))
        self._sent = end

    def run(self, selector: selectors.BaseSelector) -> None:
        """Begin; `turn` goes on whenever something came."""
        selector.register(self._client.socket, selectors.EVENT_READ, self.turn)
        self.fill()

    def turn(self) -> None:
        """Take the answers that came and publish more."""
        self._client.receive()
        while (frame := self._client.ready_frame()) is not None:
            if frame[1] != b"OK":
                raise Died(f"a publish was answered with {frame[1][:100]!r}")
            self.answered += 1
        self.fill()

    @property
    def done(self) -> bool:
        """Whether everything was answered."""
        return self.answered == len(self.tokens)


def traced(path: Path, *options: str, publishers: Callable[[int], list[Publisher]]) -> tuple[Trace, list[Publisher]]:
    """Run a node under strace until all publishers are answered; return what it did."""
    trace = path / "trace"
    strace = ("strace", "-f", "--seccomp-bpf", "-yy", "-s", str(STRING_BYTES_MAX), "-o", str(trace))
    process = Process(path / "data", "topic.segment_bytes=64KiB", before=(*strace, "-e", f"trace={CALLS}", *options))
    try:
        process.start()
        process.call("POST", "/topics", {"name": "safe", "settings": {"durability": "fsync"}})
        made = publishers(process.ports["nsq.tcp_port"])
        with selectors.DefaultSelector() as selector:
            for publisher in made:
                publisher.run(selector)
            while not all(publisher.done for publisher in made):
                ready = selector.select(30.0)
                if not ready:
                    raise Died("no publish was answered for 30 s")
                for key, _ in ready:
                    key.data()
        process.stop()
    finally:
        process.abandon()
    return Trace.read(trace), made


def every_ok_is_covered(path: Path, checks: Checks) -> None:
    """Compare each OK with the syncs before it."""
    random = Random(1)
    sizes = (40, 300, 5000)

    def publishers(port: int) -> list[Publisher]:
        shapes = [LONE] * 6 + [PIPELINED] * 2
        return [Publisher(port, name, *shape, random.choice(sizes)) for name, shape in enumerate(shapes)]

    trace, made = traced(path, publishers=publishers)
    writes = [call for call in trace.calls if call.writes and is_segment(call)]
    written = {token: call for call in writes for token in call.tokens()}
    made_at = {call.path: call.end for call in reversed(writes)}  # a segment's first bytes are its schema
    syncs = [call for call in trace.calls if call.name == "fdatasync" and is_segment(call) and call.good]
    names = [call for call in trace.calls if call.name == "fsync" and call.good]
    early, unnamed, total = [], [], 0
    for publisher in made:
        oks = trace.oks_to(publisher.port)
        if len(oks) != len(publisher.tokens):
            early.append(f"{len(oks)} OKs in the trace for {len(publisher.tokens)} publishes")
        for token, ok in zip(publisher.tokens, oks, strict=False):
            total += 1
            write = written.get(token)
            if write is None or not between(write.end, ok.begin, write.path, syncs):
                early.append(f"{token.decode()}: {write}, OK at line {ok.begin}")
            elif not between(made_at[write.path], ok.begin, write.path.rpartition("/")[0], names):
                unnamed.append(f"{token.decode()}: {write}, OK at line {ok.begin}")
    checks.check(not early, f"{total} OKs, each after an fdatasync that began after its write had ended", *early)
    checks.check(not unnamed, f"{len(made_at)} segments, each named by a synced directory before an OK", *unnamed)


def between(after: int, before: int, path: str, calls: list[Call]) -> bool:
    """Tell whether one of the calls, on this path, began and ended between two lines of the trace."""
    return any(after < call.begin and call.end < before for call in calls if call.path == path)


def syncs_are_shared(path: Path, checks: Checks) -> None:
    """Count syncs and OKs on a slow disk, and look for syncs at the same time."""

    def publishers(port: int) -> list[Publisher]:
        return [Publisher(port, name, 40, 1, 100) for name in range(PUBLISHERS)]

    trace, made = traced(path, "-e", f"inject=fdatasync:delay_exit={DELAY_US}", publishers=publishers)
    oks = sum(len(trace.oks_to(publisher.port)) for publisher in made)
    syncs = [call for call in trace.calls if call.name == "fdatasync" and is_segment(call)]
    together = [
        f"lines {one.begin}-{one.end} and {two.begin}-{two.end}" for one, two in pairwise(syncs) if two.begin < one.end
    ]
    checks.check(
        oks >= OKS_PER_SYNC_MIN * len(syncs) > 0,
        f"{PUBLISHERS} publishers and a disk that needs {DELAY_US / 1000:.0f} ms: {oks} OKs, {len(syncs)} fdatasyncs, "
        f"{oks / max(len(syncs), 1):.0f} a sync",
    )
    checks.check(not together, "never two of them in flight", *together)


def is_segment(call: Call) -> bool:
    """Tell whether a call concerns the data of a segment that is appended to."""
    return call.path.endswith(".0.arrows")


def main() -> int:
    """Run the proof and print one line per check."""
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="penstock-fsync-") as path:
        try:
            every_ok_is_covered(Path(path, "covered"), checks)
            syncs_are_shared(Path(path, "shared"), checks)
        except Died as died:
            checks.check(False, str(died))
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
