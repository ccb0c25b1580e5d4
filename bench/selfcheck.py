"""Is the load generator the bottleneck? It runs against partners that do nothing but answer.

Both sides share the machine, so the ceiling beside a real server is higher than what this prints.
"""

from __future__ import annotations

from bench import generator
from bench.generator import Run
from bench.ports import free_port
from bench.report import Goal, Result, at_least, rate_words, table_row

#: Above what any row asks of Penstock on this class of machine (20 times nsqd's PUB).
PUBLISH_MIN = 3.0
DELIVER_MIN = 3.0
TOPIC = "bench1"
BODY_BYTES = 100
MILLION = 1e6
DELIVERIES = 10_000_000


def run() -> Result:
    """Publish into a sink in each protocol, and consume from a source."""
    singles = {dialect: _publish(dialect, _unit_bytes(dialect)) for dialect in ("nsq", "redis", "nats")}
    batch = _publish("nsq", len(f"MPUB {TOPIC}\n") + 8 + 1000 * (4 + BODY_BYTES), batch=1000)
    taken = _consume()
    readings = {f"{dialect} publish": rate_words(seen.rate) for dialect, seen in singles.items()}
    readings |= {"nsq MPUB of 1,000": rate_words(batch.rate), "nsq deliver + FIN": rate_words(taken.rate)}
    goals: list[Goal] = [
        at_least(PUBLISH_MIN, singles["nsq"].rate / MILLION, " M/s", "pipelined PUB "),
        at_least(DELIVER_MIN, taken.rate / MILLION, " M/s", "deliver + FIN "),
    ]
    return table_row("self-check", "the load generator alone, against dumb partners", readings, goals, {})


def _unit_bytes(dialect: str) -> int:
    """Return the bytes of one publish as the generator writes it."""
    heads = {
        "nsq": f"PUB {TOPIC}\n0000",
        "redis": f"*5\r\n$4\r\nXADD\r\n${len(TOPIC)}\r\n{TOPIC}\r\n$1\r\n*\r\n$1\r\nb\r\n$100\r\n\r\n",
        "nats": f"PUB {TOPIC} _INBOX.b 100\r\n\r\n",
    }
    return len(heads[dialect]) + BODY_BYTES


def _publish(dialect: str, unit_bytes: int, batch: int = 0) -> Run:
    port = free_port()
    sink = generator.started("sink", dialect=dialect, port=port, unit=unit_bytes)
    try:
        return generator.load(
            "pub", dialect=dialect, port=port, topic=TOPIC, batch=batch, seconds=1.5, patience=5, size=BODY_BYTES
        )
    finally:
        generator.finished(sink)


def _consume() -> Run:
    port = free_port()
    source = generator.started("source", port=port, count=DELIVERIES)
    try:
        return generator.load("sub", port=port, topic=TOPIC, count=DELIVERIES, patience=5)
    finally:
        generator.finished(source)
