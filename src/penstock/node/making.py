"""The files of a topic as they are made, opened and removed: blocking work, for the loop or for a thread.

A shard waits for the disk some five times when it is made, so many of them are made in a thread, and are the topic's
once they are there. Knows nothing of the registry: the record is written before, and taken back by whoever asked.
Invariant: what is made in a thread is nobody's before it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.disk import Disk
from penstock.log import label
from penstock.log.kafka.disk import SharedDisk
from penstock.log.label import Label
from penstock.log.quota import Quota
from penstock.log.shard import Shard, open_shard
from penstock.log.weight import Measures
from penstock.node.opening import check_shards
from penstock.registry.answer import Answer
from penstock.registry.records import TopicRecord
from penstock.settings import TopicSettings

if TYPE_CHECKING:
    from penstock.node.node import Node

#: So many are made at once, on the loop: a topic that is needed now, a few dozens of milliseconds.
AT_ONCE = 4


class Made(NamedTuple):
    """What a topic stands on."""

    quota: Quota
    shards: list[Shard]
    disk: Disk
    path: str


def quota_of(node: Node, record: TopicRecord) -> Quota:
    """Return how much a topic may store, within what its owner may, or the node; on the loop."""
    within = node.gate.accounts.named(record.owner).stored if record.owner else node.quota
    return Quota(record.settings.quota_bytes, within)


def opened(node: Node, disk: Disk, record: TopicRecord, path: str, quota: Quota, written: Label) -> Made:
    """Return the files of a topic, opened, or made where they are not there; blocking. All of them, or none."""
    disk.make(path)
    check_shards(disk, node.config, record, path)
    label.write(disk, path, written)
    numbers = range(record.settings.shards)
    made: list[Shard] = []

    def shard(number: int) -> Shard:
        found = _shard(node, disk, record, path, quota, number, record.settings)
        made.append(found)
        return found

    try:
        shards = disk.each(shard, numbers) if isinstance(disk, SharedDisk) else [shard(number) for number in numbers]
    except BaseException:
        for each in made:
            each.drop()
        raise
    return Made(quota, shards, disk, path)


def more(
    node: Node,
    disk: Disk,
    record: TopicRecord,
    path: str,
    quota: Quota,
    numbers: Iterable[int],
    settings: TopicSettings,
    *,
    named: bool = False,
) -> list[Shard]:
    """Return shards that a topic gets besides those it has, made; blocking. All of them, or none.

    Those that the record may have `named` already stay on the disk, whatever happens.
    """
    made: list[Shard] = []
    try:
        for number in numbers:
            made.append(_shard(node, disk, record, path, quota, number, settings))  # noqa: PERF401 - those before it go
    except Exception:
        for shard in made:
            with suppress(OSError):  # whoever makes them again finds them empty
                shard.drop() if named else shard.delete()
        raise
    return made


def unmake(node: Node, topic: str, disk: Disk, shards: list[Shard]) -> Answer[None]:
    """Remove shards that nobody has used; answered, if they are not on this disk, once they are gone."""
    answer: Answer[None] = Answer()

    def done(failed: dict[int, OSError] | None, error: BaseException | None) -> None:
        for number, each in (failed or {}).items():  # they are empty, and whoever makes them again finds them so
            node.report_bug(f"shard {number} of topic {topic}", each)
        answer.give(None)

    if disk.is_shared:
        disk.submit("make", partial(_removed, shards), done)
    else:
        done(_removed(shards), None)
    return answer


def _removed(shards: list[Shard]) -> dict[int, OSError]:
    failed = {}
    for shard in shards:
        try:
            shard.delete()
        except OSError as error:
            failed[shard.number] = error
    return failed


def measures(record: TopicRecord, shard: int) -> Measures:
    """Return what rows of a shard weigh, and weighed."""
    return tuple((each.starts[shard] if shard < len(each.starts) else 0, each.measure) for each in record.measures)


def _shard(
    node: Node, disk: Disk, record: TopicRecord, path: str, quota: Quota, number: int, settings: TopicSettings
) -> Shard:
    return open_shard(
        disk,
        node.clock,
        f"{path}/{number}",
        number,
        settings,
        strict=node.config.node.recovery == "strict",
        measures=measures(record, number),
        cache_bytes=node.cache_bytes,
        quota=quota,
        memory=node.budget.topic,
    )
