"""Proof that M3's own producer, unchanged, gets an ack for everything, and everything it was acked for is stored.

Upstream's producer (v1.5.0, in Go: its buffer, writers, retries and connections) sends to a node that is killed as by
`kill -9` and started again on the same port, several times while it sends. The producer must end by itself, which it
does with the last ack, and each value must be in the topic, at least once.

The second part is in m3msg_relay.py: out, to consumer services, with node, consumers and etcd's leader killed.

    python -m tests.proofs.m3msg [--messages 500000] [--kills 3] [--rounds 4]    (0 leaves a part out)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench import supply
from bench.ports import free_port
from penstock.client import Client
from tests.proofs import m3msg_relay
from tests.proofs.checks import Checks
from tests.proofs.process import Process

MESSAGES, KILLS, ROUNDS, SHARDS, SIZE = 500_000, 3, 4, 64, 64
TOPIC = "proof"
#: Between two kills; the producer needs some of it to find the node again.
STEP_S = 1.5
PATIENCE_S = 300.0


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    checks = Checks()
    if options.messages:
        received(options.messages, options.kills, checks)
    if options.rounds:
        with tempfile.TemporaryDirectory(prefix="penstock-m3msg-") as folder:
            m3msg_relay.prove(Path(folder), checks, options.rounds)
    return checks.code()


def received(messages: int, kills: int, checks: Checks) -> None:
    """Let upstream's producer send to a node that is killed meanwhile."""
    program = supply.m3msg()
    with tempfile.TemporaryDirectory(prefix="penstock-m3msg-") as folder:
        port = free_port()
        settings = (f"m3msg.port={port}", f"m3msg.topic={TOPIC}", "m3msg.payload=opaque")
        node = Process(Path(folder) / "data", *settings)
        node.start()
        try:
            said = produced(node, program, port, messages, kills)
            acked = f'{{"messages":{messages},'
            checks.check(said.startswith(acked), f"the producer, {kills} kills: {said}")
            found = stored(node)
        finally:
            node.abandon()
    missing = [f"value {number}" for number in range(messages) if not found[b"%08d" % number]]
    checks.check(not missing, f"all {messages} values are stored", *missing)
    again = sum(found.values()) - len(found)
    checks.check(len(found) == messages, f"and no other; {again} came again, as at-least-once has it")


def produced(node: Process, program: Path, port: int, messages: int, kills: int) -> str:
    """Let the producer send, kill the node meanwhile, and return what the producer says at its end."""
    command = [str(program), "produce", f"127.0.0.1:{port}", str(SHARDS), str(messages), str(SIZE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as producer:
        try:
            for _ in range(kills):
                time.sleep(STEP_S)
                node.kill()
                node.start()
            out, _ = producer.communicate(timeout=PATIENCE_S)
        finally:
            producer.kill()
    # Upstream logs to the same place.
    return (out.splitlines() or [f"it ended with {producer.returncode}"])[-1]


def stored(node: Process) -> Counter[bytes]:
    """Return the values in the topic, by the number they begin with, each with how often it is there."""
    found: Counter[bytes] = Counter()
    with Client(f"grpc://127.0.0.1:{node.ports['flight.port']}") as client:
        for batch in client.read(TOPIC, columns=["body"]):
            found.update(value[:8] for value in batch.column("body").to_pylist())
    return found


if __name__ == "__main__":
    sys.exit(main())
