"""A topic on the shared log, looked at by those who are not its owner: beside it, or without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from penstock.cli import doctor
from penstock.clock import SECOND
from penstock.config.tree import SharedLogConfig
from penstock.disk import LocalDisk
from penstock.log import label
from penstock.log.file_shard import FileShard
from penstock.log.kafka import librdkafka, part
from penstock.log.kafka.disk import SharedDisk
from penstock.log.kafka.look import Look, labels
from penstock.log.kafka.store import AwayError, Partition, Stored
from penstock.log.label import Label
from penstock.log.shard import open_shard
from penstock.message import Rows
from penstock.settings import TopicSettings
from tests.cli.program import Done, inside
from tests.cluster.fake_store import FakeStore
from tests.cluster.threads import InlineThreads
from tests.fakes import FakeClock
from tests.log.samples import in_files

SETTINGS = TopicSettings(durability="fsync", segment_bytes=16 << 10, log="kafka", shards=2, retention_bytes=1)
PARTITIONS = [Partition(f"c.1f.{kind}", number) for kind in ("log", "state") for number in (0, 1)]


class Owner:
    """A topic with two shards, open at its owner."""

    def __init__(self, store: FakeStore, root: Path, name: str = "orders", number: int = 1) -> None:
        self.topic = f"c.{30 + number:x}"
        self.clock = FakeClock()
        self.disk = SharedDisk(LocalDisk(), store, store.writer("c.slot.1"), str(root), self.topic, InlineThreads(), 2)
        self.disk.open_all()
        label.write(
            self.disk,
            str(root),
            Label(name=name, incarnation=30 + number, number=number, shards=2, durability="fsync"),
        )
        self.shards: list[FileShard] = [
            in_files(open_shard(self.disk, self.clock, f"{root}/{each}", each, SETTINGS)) for each in range(2)
        ]

    def publish(self, shard: int, *bodies: bytes) -> None:
        self.shards[shard].append(Rows.of(list(bodies), "nsq"), 1)
        told: list[BaseException | None] = []
        self.shards[shard].when_durable(told.append)
        assert told == [None]

    def close(self) -> None:
        self.disk.close()
        for shard in self.shards:
            shard.drop()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    """Return what the program finds where it looks for Kafka."""
    made = FakeStore()
    monkeypatch.setattr(librdkafka, "KafkaStore", lambda _, cluster: made if cluster == "c" else FakeStore())
    return made


@pytest.fixture
def owner(store: FakeStore, tmp_path: Path) -> Iterator[Owner]:
    with closing(Owner(store, tmp_path / "owner")) as made:
        yield made


def held(store: FakeStore) -> list[list[Stored]]:
    return [store.records(partition) for partition in PARTITIONS]


def read(tmp_path: Path, *arguments: str) -> Done:
    return asked(tmp_path, "log", *arguments)


def asked(tmp_path: Path, *arguments: str) -> Done:
    """Run a command with the configuration of a node of the cluster."""
    secret = tmp_path / "secret"
    secret.write_text("two words\n")
    (tmp_path / "penstock.toml").write_text(
        f'cluster = {{name = "c", secret_file = "{secret}"}}\nregistry = {{kind = "etcd"}}\n'
    )
    return inside(*arguments, cwd=tmp_path, PENSTOCK_CONFIG="penstock.toml")


def test_rows_are_read_beside_the_owner_which_goes_on(owner: Owner, store: FakeStore, tmp_path: Path) -> None:
    long = [b"%d " % number * 300 for number in range(40)]
    for body in long:
        owner.publish(0, body)
    owner.publish(1, b"one", b"two")
    before = held(store)
    assert read(tmp_path, "cat", "orders", "--shard", "0").raw == b"".join(body + b"\n" for body in long)
    assert read(tmp_path, "cat", "orders", "--shard", "1", "--from", "1").out == "two\n"
    [row] = read(tmp_path, "dump", "orders", "--shard", "1", "--to", "1").json_lines
    assert (row["topic"], row["shard"], row["offset"], row["body"]) == ("orders", 1, 0, "one")
    first, second = read(tmp_path, "verify", "orders", "--json").json
    assert (first["good"], second["good"]) == (True, True)
    assert len(first["report"]["segments"]) > 2
    assert sum(each["rows"] for each in first["report"]["segments"]) == 40
    assert held(store) == before, "who looks leaves nothing behind"
    owner.publish(1, b"three")
    assert read(tmp_path, "cat", "--shared", "--shard", "1").out == "one\ntwo\nthree\n"


def test_damage_in_kafka_is_named_and_the_rest_is_still_read(owner: Owner, store: FakeStore, tmp_path: Path) -> None:
    for body in (b"first", b"second", b"third"):
        owner.publish(0, body)
    log = PARTITIONS[0]
    [bad] = [each for each in store.records(log) if b"second" in each.value]
    store.damage(log, bad.offset, bad.value.replace(b"second", b"sEcond"))
    done = read(tmp_path, "verify", "orders")
    assert done.code == 1
    assert "orders/0: " in done.out
    assert "offsets 1 to 1 cannot be read" in done.out
    assert read(tmp_path, "cat", "orders").out == "first\nthird\n"


def test_what_the_retention_lets_go_meanwhile_is_no_damage(
    owner: Owner, store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "NOTE_BYTES", 300)  # so that closed segments come when they are read
    for number in range(60):
        owner.publish(0, b"%d " % number * 300)
    with closing(Look(store, owner.topic, str(tmp_path / "look"), FakeClock())) as look:
        owner.shards[0].retain(owner.shards[0].end, owner.clock.now())
        owner.clock.advance(700 * SECOND)
        owner.shards[0].tick(owner.clock.now())
        owner.disk.sync_directory(f"{owner.disk.root}/0")
        assert store.bounds(PARTITIONS[0])[0] > 0, "records went while somebody looked"
        assert look.report(0).good


def test_a_topic_that_was_made_again_is_the_new_one_and_others_are_offered(
    owner: Owner, store: FakeStore, tmp_path: Path
) -> None:
    owner.publish(0, b"old")
    with closing(Owner(store, tmp_path / "again", number=2)) as again:
        again.publish(0, b"new")
        assert [name for name, _ in labels(store)] == ["c.1f", "c.20"]
        assert read(tmp_path, "cat", "orders").out == "new\n"
    missing = read(tmp_path, "cat", "bills")
    assert (missing.code, "there are: orders" in missing.error) == (1, True)


def test_a_topic_of_which_somebody_removed_a_part_is_told_and_others_are_read(
    owner: Owner, store: FakeStore, tmp_path: Path
) -> None:
    owner.publish(0, b"here")
    with closing(Owner(store, tmp_path / "other", "bills", 2)) as other:
        other.publish(0, b"gone")
        store.drop("c.20.log")
        done = read(tmp_path, "verify", "--shared")
    assert done.code == 1
    assert "bills/0: c.20.log is not in Kafka any more: somebody deleted it" in done.out
    assert [line.split()[-1] for line in done.out.splitlines()[1:4]] == ["DAMAGED", "good", "good"]


def test_who_has_no_kafka_is_told_what_to_set(store: FakeStore, tmp_path: Path) -> None:
    alone = inside("log", "cat", "--shared", cwd=tmp_path)
    assert (alone.code, "set cluster.name and shared_log.brokers" in alone.error) == (2, True)
    store.is_away = True
    away = read(tmp_path, "verify", "orders")
    assert (away.code, "Kafka at 127.0.0.1:9092 cannot be read" in away.error) == (3, True)


def test_the_doctor_asks_kafka_and_a_registry_in_etcd_is_not_made_from_a_disk(
    owner: Owner, store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "etcd", lambda *_: iter(()))
    found = [each for each in asked(tmp_path, "doctor", "--json").json if each["what"].startswith("kafka")]
    assert [(each["verdict"], each["found"]) for each in found] == [("OK", "answers, holds 1 logs of cluster c")]
    store.few_copies["c.1.log"] = 1
    found = [each for each in asked(tmp_path, "doctor", "--json").json if each["what"].startswith("kafka")]
    assert [each["verdict"] for each in found] == ["WARN"]
    assert "c.1.log has 1" in found[0]["found"]
    store.is_away = True
    found = [each for each in asked(tmp_path, "doctor", "--json").json if each["what"].startswith("kafka")]
    assert [(each["verdict"], each["todo"]) for each in found] == [("FAIL", "start it, or correct [shared_log]")]
    (tmp_path / "penstock-data").mkdir()
    refused = asked(tmp_path, "registry", "rebuild")
    assert (refused.code, "what cluster c remembers is in its etcd" in refused.error) == (2, True)
    assert not list((tmp_path / "penstock-data").iterdir())


class Leaderless:
    """Kafka while it chooses leaders, and when a topic is gone."""

    def __init__(self, code: int | None) -> None:
        self._code = code

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        partitions = {0: SimpleNamespace(leader=-1), 1: SimpleNamespace(leader=1)}
        error = KafkaError(self._code) if self._code is not None else None
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=partitions)})


def test_a_topic_without_a_leader_is_away_and_not_deleted() -> None:
    found = librdkafka.KafkaStore(SharedLogConfig(patience_ns=SECOND // 10), "c")
    for code in (None, KafkaError.LEADER_NOT_AVAILABLE):
        found._admin_client = Leaderless(code)  # type: ignore[assignment]
        with pytest.raises(AwayError):
            found.partitions("c.1.log")
    found._admin_client = Leaderless(KafkaError.UNKNOWN_TOPIC_OR_PART)  # type: ignore[assignment]
    assert found.partitions("c.1.log") == 0
