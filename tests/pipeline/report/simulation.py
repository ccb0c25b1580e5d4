"""A day at a node that never was: messages of several topics and the events of their deliveries, from a seed.

What it makes has the form of the source's frames, so a report cannot tell it from a node's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.jobs.report.options import Report
from penstock.pipeline.schema import struct

START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US

WORDS = b"order payment basket customer refund shipped delivered pending invoice carrier parcel address".split()

#: Topic, share of the messages, dialects, shards, subscriptions with their usual latency and lease in milliseconds.
TOPICS: Sequence[tuple[str, float, Sequence[str], int, Sequence[tuple[str, float, float]]]] = (
    ("orders", 0.42, ("nsq", "flight", "sqs"), 4, (("billing", 2, 40), ("search", 15, 8), ("audit", 900, 3))),
    ("metrics", 0.30, ("dory", "m3msg"), 2, (("relay", 1, 5),)),
    ("clicks", 0.16, ("nsq",), 1, (("sessions", 4, 12), ("archive", 60_000, 2))),
    ("reminders", 0.08, ("timeline", "dynamiq"), 1, (("mailer", 30, 400),)),
    ("thumbnails", 0.04, ("sqs",), 2, (("resize", 80, 2500),)),
)


class Simulation:
    """Messages and events of some hours."""

    def __init__(self, count: int, *, hours: float = 24, one_in: int = 1, seed: int = 7) -> None:
        self.random = random.Random(seed)
        self.one_in = one_in
        self.span_us = int(hours * HOUR_US)
        self.messages: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        for topic, share, sources, shards, subscriptions in TOPICS:
            self._topic(topic, int(count * share), sources, shards, subscriptions)
        self.events.append(self._discard("metrics", "rate limit", 9 * HOUR_US, 4210))
        self.events.append(self._discard("metrics", "rate limit", int(9.5 * HOUR_US), 2880))
        self.events.append(self._discard("clicks", "malformed", 13 * HOUR_US, 37))
        self.events.append(self._discard("no-such-topic", "unknown topic", 15 * HOUR_US, 512))

    def _topic(self, topic: str, count: int, sources: Sequence[str], shards: int, subscriptions: Any) -> None:
        draw = self.random
        noon = draw.uniform(0.35, 0.8)
        times = sorted(self._time(noon) for _ in range(count))
        ends = [0] * shards
        made: list[tuple[int, int, int, int]] = []
        for at in times:
            key = b"customer-%d" % int(draw.paretovariate(0.7)) if topic in ("orders", "clicks") else None
            shard = hash_of(key) % shards if key else draw.randrange(shards)
            due = at + int(draw.expovariate(1 / (3 * HOUR_US))) if topic == "reminders" else None
            self.messages.append(
                {
                    "topic": topic, "shard": shard, "offset": ends[shard], "timestamp": START_US + at,
                    "source": draw.choices(sources, weights=range(len(sources), 0, -1))[0], "key": key,
                    "tag": draw.choices(("blue", "green", None), (5, 2, 3))[0] if topic == "orders" else None,
                    "bucket": draw.choice((7, 7, 7, *range(64))) if topic == "reminders" else None,
                    "due": None if due is None else START_US + due, "body": self._body(topic),
                }
            )  # fmt: skip
            made.append((shard, ends[shard], at, at if due is None else due))
            ends[shard] += 1
        kept = [each for each in made if draw.random() * self.one_in < 1]
        self._run("published", topic, [(shard, offset, at) for shard, offset, at, _ in kept], source=sources[0])
        for subscription, latency_ms, lease_ms in subscriptions:
            self._deliver(topic, subscription, kept, latency_ms, lease_ms)

    def _time(self, noon: float) -> int:
        """Return a time of the day: busy around the topic's noon, with a burst that all have."""
        draw = self.random
        share = draw.gauss(0.37, 0.008) if draw.random() < 0.08 else draw.gauss(noon, 0.2)
        return int(share % 1 * self.span_us)

    def _deliver(self, topic: str, subscription: str, made: Any, latency_ms: float, lease_ms: float) -> None:
        draw = self.random
        names = ("delivered", "acked", "released", "expired", "dead")
        found: dict[str, list[tuple[int, ...]]] = {event: [] for event in names}
        for shard, offset, _, ready in made:
            at = ready + int(draw.lognormvariate(0, 0.7) * latency_ms * 1000)
            for attempt in range(1, 6):
                if at >= self.span_us:
                    break
                lease = int(draw.lognormvariate(0, 0.5) * lease_ms * 1000)
                found["delivered"].append((shard, offset, at, attempt))
                luck = draw.random() ** (0.6 if topic == "thumbnails" else 1) / (8 if topic == "thumbnails" else 1)
                if luck > 0.03:
                    found["acked"].append((shard, offset, at + lease, attempt))
                    break
                found["released" if luck > 0.01 else "expired"].append((shard, offset, at + lease, attempt))
                at += lease + SECOND_US
            else:
                found["dead"].append((shard, offset, at, 5))
        for event, rows in found.items():
            self._run(event, topic, rows, subscription=subscription)

    def _run(self, event: str, topic: str, rows: Sequence[tuple[int, ...]], **more: str) -> None:
        """Write events as a node does, some hundred in a message."""
        rows = sorted(rows, key=lambda row: row[2])
        for first in range(0, len(rows), 500):
            some = rows[first : first + 500]
            run = {
                "event": event, "topic": topic, **more, "one_in": self.one_in, "count": len(some),
                "shard": [row[0] for row in some], "offset": [row[1] for row in some],
                "at_us": [START_US + row[2] for row in some],
            }  # fmt: skip
            if len(some[0]) > 3:
                run["attempts"] = [row[3] for row in some]
            self.events.append({"timestamp": START_US + some[-1][2], "body": json.dumps(run).encode()})

    def _discard(self, topic: str, reason: str, at: int, count: int) -> dict[str, Any]:
        run = {"event": "discarded", "topic": topic, "reason": reason, "one_in": 1, "count": count}
        return {"timestamp": START_US + at % self.span_us, "body": json.dumps(run).encode()}

    def _body(self, topic: str) -> bytes:
        draw = self.random
        if topic == "thumbnails":
            return draw.randbytes(int(draw.lognormvariate(9, 0.8)))
        if topic == "metrics":
            return b"host%03d.cpu.%s:%d|c" % (draw.randrange(400), draw.choice(WORDS), draw.randrange(1000))
        words = b" ".join(draw.choices(WORDS, k=int(draw.lognormvariate(2.5, 0.8)) + 1))
        return b'{"id":%d,"customer":"%d","text":"%b"}' % (draw.randrange(1 << 40), draw.randrange(9999), words)

    def frames(self, spark: SparkSession) -> tuple[DataFrame, DataFrame]:
        """Return both as Spark's."""
        return frame(spark, self.messages), frame(spark, self.events, Report.EVENT_COLUMNS)


def hash_of(key: bytes) -> int:
    return sum(key) * 2_654_435_761 >> 7


def frame(spark: SparkSession, rows: Sequence[dict[str, Any]], columns: Sequence[str] = Report.COLUMNS) -> DataFrame:
    """Return rows of messages, times in microseconds, as a frame with these columns."""
    types = struct(columns)
    table = pa.table({name: pa.array([row.get(name) for row in rows], _arrow(name)) for name in columns})
    return spark.createDataFrame(table, types) if rows else spark.createDataFrame([], types)


def _arrow(name: str) -> pa.DataType:
    kinds: dict[str, pa.DataType] = {
        "topic": pa.string(), "source": pa.string(), "tag": pa.string(), "shard": pa.int32(), "bucket": pa.int32(),
        "offset": pa.int64(), "key": pa.binary(), "body": pa.binary(),
    }  # fmt: skip
    return kinds.get(name, pa.timestamp("us", "UTC"))


def runs(*given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return runs of events as messages."""
    for run in given:
        at = run.get("at_us") or [run.pop("written_us", START_US)]
        yield {"timestamp": at[-1], "body": json.dumps(run).encode()}
