"""How much a run does: the full set in about sixteen minutes on two cores, the quick one in about six."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that every row reads its own from."""

    rounds: int = 3
    #: Length of one turn where a row goes by time.
    seconds: float = 2.0
    #: Messages that wait to be delivered: as many as make a turn of about this length for each server.
    deliver_peer: int = 600_000
    deliver_ours: int = 4_000_000
    backlog: int = 10_000_000
    #: Truly lone messages are published at the speed of one round trip each.
    backlog_lone: int = 10_000_000
    due: int = 5_000_000
    late_seconds: float = 10.0
    #: Batches that warm ElasticMQ's Java up, messages in 1,000 queues, queues that nobody uses, and how deep one is.
    queue_warm: int = 100_000
    queue_messages: int = 1_000_000
    queues: int = 10_000
    queue_depth: int = 10_000_000
    #: Senders of Dory's that are connected and quiet.
    senders: int = 10_000
    #: Messages of a timeline in one turn, and those that wait over a year.
    timeline: int = 500_000
    timeline_waiting: int = 10_000_000
    #: Messages of each shard that a killed node had.
    lost: int = 1_000_000
    #: Messages that Spark reads; micro-batches hold a million.
    spark: int = 5_000_000


FULL = Plan()
QUICK = Plan(
    rounds=2,
    seconds=1.0,
    deliver_peer=300_000,
    deliver_ours=2_000_000,
    backlog=1_000_000,
    backlog_lone=300_000,
    late_seconds=5.0,
    queue_warm=20_000,
    queue_messages=600_000,
    queues=1_000,
    queue_depth=1_000_000,
    senders=2_000,
    timeline=200_000,
    timeline_waiting=1_000_000,
    lost=10_000,
    spark=2_000_000,
)
