"""Any filters, mappings and messages, as many as a test wants."""

from __future__ import annotations

import json
import random

from penstock.columns import Column, id_of
from penstock.filters.storage import HEADER
from penstock.message import Batch, Rows
from penstock.settings import SubscriptionSettings, TrafficSettings
from tests.filters.reference import Row

NAMES = [f"type{number}" for number in range(6)]
POLICIES = ["10s:2d", "10s@1ms:48h", "1m:40d", "1s:1m", "1h30m:1y"]


def policy(text: str) -> bytes:
    return json.dumps({HEADER: text}).encode()


def some_settings(chance: random.Random) -> SubscriptionSettings:
    """Return any combination of filters."""
    traffic = TrafficSettings(
        tuple(chance.sample(NAMES, chance.randrange(4))), chance.random() < 0.5, chance.random() < 0.3
    )
    return SubscriptionSettings(
        traffic=traffic if chance.random() < 0.7 else None,
        storage_policies=tuple(chance.sample(POLICIES, chance.choice((0, 0, 1, 2)))),
        percentage=chance.choice((1.0, 1.0, 0.5, 0.01, 0.999, 0.0)),
        shard_set=chance.choice(("", "", "0..511", "7", "3..5,9,100..200")),
    )


def some_mapping(chance: random.Random) -> dict[str, int]:
    return {name: chance.randrange(64) for name in chance.sample(NAMES, chance.choice((0, 3, 5, 6)))}


def some_rows(chance: random.Random, shard: int, first: int, count: int) -> list[Row]:
    return [
        Row(
            id_of(shard, first + number),
            chance.choice((None, 0, 1 << chance.randrange(64), chance.getrandbits(64))),
            chance.choice((None, b"{}", b'{"a":"b"}', *map(policy, POLICIES))),
            chance.choice((None, 0, 7, 511, 512, chance.randrange(1000))),
        )
        for number in range(count)
    ]


def signed(bits: int | None) -> int | None:
    return None if bits is None else bits - (bits >> 63 << 64)


def batch_of(rows: list[Row], first: int) -> Batch:
    columns: dict[str, Column] = {
        "traffic": [signed(row.traffic) for row in rows],
        "headers": [row.headers for row in rows],
        "route": [row.route for row in rows],
    }
    made = Rows.of([b"x"] * len(rows), "test", columns)
    return Batch(first, made.count, 1, made.cuts, made.body, "test", made.columns, 0)
