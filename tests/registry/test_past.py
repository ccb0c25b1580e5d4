"""Records that older versions wrote are read, and mean what they meant."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from penstock.disk import LocalDisk
from penstock.registry import Catalog, EmbeddedRegistry
from penstock.registry.catalog import TOPICS
from penstock.registry.records import Measured, TopicRecord, read
from penstock.settings import Choice, Measure, TopicSettings
from tests.registry.parts import TurnClock, put

PLAIN, EXTENDED = Measure(30, None), Measure(31, 2)


def old(extend: str, extend_from: list[int] | None) -> dict[str, object]:
    """Return the fields of a record as they were when headers were a setting of every topic."""
    settings = {"shards": 2, "rate": 7, "extend": extend, "header_rules": "lenient", "ordered": True, "replicas": 3}
    return {
        "name": "t",
        "number": 4,
        "incarnation": 9,
        "settings": settings,
        "orphan_from": [0, 5],
        "gate": None,
        "extend_from": extend_from,
        "created_ns": 1,
    }


@pytest.mark.parametrize(
    ("extend", "extend_from", "measures"),
    [
        ("off", None, (Measured(PLAIN),)),
        ("auto", None, (Measured(EXTENDED),)),
        ("on", [3, 8], (Measured(PLAIN), Measured(EXTENDED, (3, 8)))),
    ],
)
def test_settings_of_a_dialect_go_under_its_name_and_rows_weigh_what_they_did(
    extend: str, extend_from: list[int] | None, measures: tuple[Measured, ...]
) -> None:
    record = read(old(extend, extend_from), TopicRecord)
    assert record.measures == measures
    own: dict[str, Choice] = {"extend": extend, "header_rules": "lenient", "replicas": 3}
    assert record.settings == TopicSettings(shards=2, rate=7, ordered=True, dialects={"nsq": own})
    assert (record.number, record.orphan_from) == (4, (0, 5))
    assert read(msgspec.to_builtins(record), TopicRecord) == record


def test_a_registry_with_old_records_opens_and_the_next_change_writes_a_new_one(tmp_path: Path) -> None:
    clock = TurnClock()
    registry = EmbeddedRegistry.open(LocalDisk(), clock, str(tmp_path / "registry"))
    put(registry, TOPICS + "t", msgspec.msgpack.encode(old("off", None)))
    catalog = Catalog(registry, clock, Random(1))
    [record] = catalog.topics()
    assert record.measures == (Measured(PLAIN),)
    changed = catalog.update_topic("t", orphan_from=(1, 1)).now()
    assert changed == catalog.topic("t") == msgspec.structs.replace(record, orphan_from=(1, 1))
    entry = registry.get(TOPICS + "t")
    assert entry is not None
    assert "extend" not in msgspec.msgpack.decode(entry.value)["settings"]
