"""Topics' logs on a real Kafka: one writer at a time, and whoever comes next finds all that was promised."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import ClassVar

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from penstock.config.tree import SharedLogConfig
from penstock.disk import LocalDisk
from penstock.errors import CorruptionError, Refusal
from penstock.log.file_shard import FileShard
from penstock.log.kafka import writer as writers
from penstock.log.kafka.disk import SharedDisk
from penstock.log.kafka.ending import end_earlier
from penstock.log.kafka.librdkafka import KafkaStore
from penstock.log.kafka.look import Look
from penstock.log.kafka.store import AwayError, FencedError, GoneError, Partition, Record, TooLargeError
from penstock.log.reader import Reader
from penstock.log.shard import open_shard
from penstock.log.verify import cat
from penstock.message import Rows
from penstock.settings import TopicSettings
from tests.cluster.threads import InlineThreads
from tests.fakes import FakeClock
from tests.kafka.brokers import PATIENCE_S, USERS, Brokers, wait_for
from tests.log.samples import in_files

SETTINGS = TopicSettings(durability="fsync", segment_bytes=256 << 10, log="kafka")


def config(brokers: Brokers, patience_s: float = PATIENCE_S) -> SharedLogConfig:
    return SharedLogConfig(brokers=tuple(brokers.addresses.split(",")), patience_ns=int(patience_s * 1e9))


def secured(brokers: Brokers, folder: Path) -> SharedLogConfig:
    secret = folder / "password"
    secret.write_text(USERS["alice"] + "\n")
    return SharedLogConfig(
        brokers=(f"127.0.0.1:{brokers.members[0].sasl_tls_port}",),
        tls=True,
        tls_ca=str(brokers.ca),
        sasl="SCRAM-SHA-512",
        user="alice",
        password_file=str(secret),
        compression="zstd",
    )


class TurnThreads(InlineThreads):
    """The test's own thread is the loop: what a thread of the writer's tells is called here while something is awaited.

    Called there it could begin the next sync there, which would wait for the answer that this very thread takes.
    """

    told: ClassVar[SimpleQueue[Callable[[], None]]] = SimpleQueue()

    def tell(self, what: Callable[[], None]) -> None:
        """Have it called by whoever awaits something."""
        self.told.put(what)

    @classmethod
    def until(cls, holds: Callable[[], bool], what: str) -> None:
        """Wait until something is true that may hang on what is told."""

        def heard() -> bool:
            while not cls.told.empty():
                cls.told.get()()
            return holds()

        wait_for(heard, what)


def opened(store: KafkaStore, folder: Path, topic: str, slot: str, *, made: bool) -> tuple[SharedDisk, FileShard]:
    writer = store.writer(slot)
    disk = SharedDisk(LocalDisk(), store, writer, str(folder), topic, TurnThreads())
    try:
        disk.open_all(made=made)
    except BaseException:
        writer.close()
        raise
    return disk, in_files(open_shard(disk, FakeClock(), f"{folder}/0", 0, SETTINGS))


def closed(disk: SharedDisk, shard: FileShard) -> None:
    TurnThreads.until(lambda: True, "what was told")
    disk.close()
    shard.drop()
    disk._writer.close()


def bodies(shard: FileShard) -> list[bytes]:
    found: list[bytes] = []
    for batch in Reader(shard.path, shard.view()).batches(columns=("body",)):
        found += batch.column(0).to_pylist()
    return found


def published(shard: FileShard, count: int, size: int = 100) -> list[bytes]:
    """Publish batches, each told to be kept before the next."""
    sent = []
    for number in range(count):
        rows = [b"%d-%d-" % (number, each) + bytes(size) for each in range(50)]
        shard.append(Rows.of(rows, "nsq"), 1)
        told: list[BaseException | None] = []
        shard.when_durable(told.append)
        TurnThreads.until(lambda told=told: bool(told), "the batch to be kept")  # type: ignore[misc]
        assert told == [None]
        sent += rows
    return sent


def test_a_writer_that_could_not_begin_leaves_no_thread_behind() -> None:
    config = SharedLogConfig(brokers=("127.0.0.1:1",), patience_ns=10**8)
    before = of_librdkafka()
    gc.disable()  # the node's collector comes by only some day, and it tries again every second
    try:
        for _ in range(2):
            with pytest.raises(AwayError):
                writers.KafkaWriter(config, "nobody")
        end_s = time.monotonic() + 10
        while (left := of_librdkafka() - before) and time.monotonic() < end_s:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert not left


def of_librdkafka() -> set[str]:
    """Return the threads of this process that are librdkafka's."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ended
            if (task / "comm").read_text().startswith("rdk:"):
                found.add(task.name)
    return found


def test_a_topic_that_gets_more_partitions_is_written_to_by_a_writer_that_knew_fewer(
    one: Brokers, name: Callable[[str], str]
) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    topic = f"{cluster}.1.log"
    with closing(store):
        store.make(topic, 1)
        with closing(store.writer(name("slot"))) as writer:
            record = Record(b"value", {})
            writer.send(Partition(topic, 0), [record])
            store.make(topic, 3)
            assert len(writer.send(Partition(topic, 2), [record])) == 1
            assert len(writer.send(Partition(topic, 0), [record])) == 1


def test_topics_come_grow_are_cut_and_go(one: Brokers, name: Callable[[str], str]) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    topic = f"{cluster}.1.log"
    assert store.partitions(topic) == 0
    with pytest.raises(GoneError):
        store.bounds(Partition(topic, 0))
    store.make(topic, 1)
    store.make(topic, 3)
    store.make(topic, 2)
    assert (store.partitions(topic), store.topics()) == (3, [topic])
    place = Partition(topic, 2)
    writer = store.writer(f"{cluster}.slot.1")
    large = bytes(3 << 20)
    records = [Record(b"v%d" % each, {"n": b"%d" % each}) for each in range(2000)]
    offsets = list(writer.send(place, [*records, Record(large, {})]))
    assert offsets == sorted(set(offsets))
    found = list(store.read(place, *store.bounds(place)))
    assert [each.offset for each in found] == offsets
    assert [(each.value, each.headers["n"]) for each in found[:-1]] == [
        (each.value, each.headers["n"]) for each in records
    ]
    assert found[-1].value == large
    store.cut(place, offsets[1990])
    assert [each.value for each in store.read(place, *store.bounds(place))][:10] == [
        b"v%d" % n for n in range(1990, 2000)
    ]
    with pytest.raises(GoneError):
        list(store.read(place, 0, offsets[-1]))
    with pytest.raises(TooLargeError):
        writer.send(place, [Record(bytes(101 << 20), {})])
    writer.close()
    store.drop(topic)
    store.drop(topic)
    assert store.partitions(topic) == 0
    store.close()


def test_a_new_writer_under_load_loses_nothing_and_hears_nothing_more(
    one: Brokers, name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    topic = f"{cluster}.1.log"
    store.make(topic, 2)
    monkeypatch.setattr(writers, "POLL_S", 0.01)
    monkeypatch.setattr(writers, "ROLL_S", 0.1)  # transactions end and begin all the while
    first = store.writer(f"{cluster}.slot.1")
    told: dict[int, list[tuple[int, bytes]]] = {0: [], 1: []}
    errors: list[OSError] = []
    warm = threading.Semaphore(0)

    def load(number: int, partition: int) -> None:
        for count in range(1_000_000):
            value = b"%d %d" % (number, count)
            try:
                (offset,) = first.send(Partition(topic, partition), [Record(value, {})])
            except OSError as error:
                errors.append(error)
                return
            told[partition].append((offset, value))
            if count == 100:
                warm.release()

    threads = [threading.Thread(target=load, args=(number, number % 2)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert warm.acquire(timeout=PATIENCE_S)
    second = store.writer(f"{cluster}.slot.1")
    (begun,) = second.send(Partition(topic, 0), [Record(b"second", {})])
    for thread in threads:
        thread.join(PATIENCE_S)
    # A commit that meets the new writer's beginning may be told otherwise; no more is sent in either case.
    assert [error for error in errors if isinstance(error, FencedError | AwayError)] == errors
    assert len(errors) == 4
    for partition in (0, 1):
        place = Partition(topic, partition)
        found = [(each.offset, each.value) for each in store.read(place, *store.bounds(place))]
        assert set(told[partition]) <= set(found)
        if partition == 0:
            assert max(told[0])[0] < begun
            assert found[-1] == (begun, b"second")
    with pytest.raises((FencedError, AwayError)):
        first.send(Partition(topic, 0), [Record(b"late", {})])
    first.close()  # shut out or not, and whatever librdkafka says to it
    second.close()
    store.close()


def test_a_whole_shard_moves_with_all_that_was_promised_and_anybody_can_read_it(
    one: Brokers, name: Callable[[str], str], tmp_path: Path
) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    topic = f"{cluster}.2a"
    disk, shard = opened(store, tmp_path / "a", topic, f"{cluster}.slot.1", made=False)
    sent = published(shard, 60)
    shard.append(Rows.of([b"never promised"], "nsq"), 1)
    new_disk, new_shard = opened(store, tmp_path / "b", topic, f"{cluster}.slot.1", made=True)
    late: list[BaseException | None] = []
    shard.when_durable(late.append)
    TurnThreads.until(lambda: bool(late), "the one who waits to hear")
    assert isinstance(late[0], OSError)
    closed(disk, shard)
    assert bodies(new_shard) == sent
    sent += published(new_shard, 10)
    assert bodies(new_shard) == sent
    with closing(Look(store, topic, str(tmp_path / "look"), FakeClock())) as look:
        assert look.report(0).good
        assert list(cat(look.reader(0))) == sent
    sent += published(new_shard, 1)  # nobody was shut out by who looked

    streams = as_anybody_reads(one.addresses, f"{topic}.log")
    read: dict[int, bytes] = {}
    for batches in streams:
        for batch in batches:
            read.update(zip(batch.column("offset").to_pylist(), batch.column("body").to_pylist(), strict=True))
    assert [read[offset] for offset in sorted(read)] == sent

    new_shard.close()
    new_disk.drop()
    assert not store.topics()
    new_disk._writer.close()
    store.close()


def as_anybody_reads(brokers: str, topic: str) -> list[list[pa.RecordBatch]]:
    """Return the batches of each file, with nothing but a Kafka client and Arrow."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "anybody",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: dict[bytes, list[bytes]] = {}
    ended = False
    while not ended:
        for message in consumer.consume(1000, timeout=1):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended = True
                continue
            headers = dict(message.headers() or [])
            values.setdefault(bytes(headers["file"]), []).append(message.value() or b"")  # type: ignore[arg-type]
    consumer.close()
    # A file that still grows has no end yet; Arrow takes that for one.
    return [list(pa.ipc.open_stream(b"".join(each))) for each in values.values()]


class Scripted:
    """A consumer that says what it is told to, and then nothing."""

    def __init__(self, *said: int | tuple[int, int]) -> None:
        self._said = [Said(each) for each in said]

    def poll(self, _: float) -> Said | None:
        return self._said.pop(0) if self._said else None

    def consume(self, _: int, timeout: float) -> list[Said]:
        return []

    def list_topics(self, _: str, timeout: float) -> None: ...

    def assign(self, _: object) -> None: ...

    def unassign(self) -> None: ...

    def close(self) -> None: ...


class Said:
    """A record at an offset; or (offset, code) of an error."""

    def __init__(self, what: int | tuple[int, int]) -> None:
        self._offset, self._code = what if isinstance(what, tuple) else (what, 0)

    def error(self) -> KafkaError | None:
        return KafkaError(self._code) if self._code else None

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> list[tuple[str, bytes]]:
        return []


def read_of(*said: int | tuple[int, int]) -> tuple[list[int], str]:
    """Return the offsets that a store reads of records 0 to 9 from a consumer, and what it raises."""
    store = KafkaStore(SharedLogConfig(brokers=("127.0.0.1:1",), patience_ns=10**8), "c")
    store._idle.append(Scripted(*said))  # type: ignore[arg-type]
    found: list[int] = []
    try:
        found += [each.offset for each in store.read(Partition("c.1.log", 0), 0, 10)]
    except AwayError as error:
        return found, str(error)
    return found, ""


def test_an_end_that_a_new_leader_does_not_know_yet_is_not_the_end() -> None:
    end = KafkaError._PARTITION_EOF
    assert read_of(*range(7), (7, end), 7, 8, (10, end)) == ([*range(9)], "")
    found, error = read_of(*range(7), (7, end))
    assert found == []
    assert "c.1.log partition 0" in error
    assert "to be read up to 10, and was shown up to 7" in error


def test_marks_of_transactions_are_records_to_the_end_of_a_partition(one: Brokers, name: Callable[[str], str]) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    topic, slot = f"{cluster}.1.log", f"{cluster}.slot.1"
    store.make(topic, 1)
    place = Partition(topic, 0)
    sent: list[int] = []
    for is_committed in (True, False, False):
        writer = store.writer(slot)
        sent += writer.send(place, [Record(b"v", {})] * 3)
        if is_committed:
            writer.close()
    store.writer(slot).close()
    start, end = store.bounds(place)
    assert end == sent[-1] + 2  # the mark of what was ended for its writer
    assert [each.offset for each in store.read(place, start, end)] == sent
    assert list(store.read(place, end - 1, end)) == []
    store.drop(topic)
    store.close()


def test_what_is_done_behind_its_back_is_said_and_the_others_go_on(
    one: Brokers, name: Callable[[str], str], tmp_path: Path
) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    slot = f"{cluster}.slot.1"
    sent = {}
    for topic in ("cut", "dropped", "forged", "small", "well"):
        disk, shard = opened(store, tmp_path / topic, f"{cluster}.{topic}", slot, made=False)
        sent[topic] = published(shard, 5)
        closed(disk, shard)
    one.admin.delete_records([TopicPartition(f"{cluster}.cut.log", 0, 3)])
    one.delete(f"{cluster}.dropped.log")
    stranger = Producer({"bootstrap.servers": one.addresses})
    stranger.produce(f"{cluster}.forged.state", b"x", headers={"penstock": b"1", "op": b"open", "crc": b"00000000"})
    for each in ("log", "state"):
        stranger.produce(f"{cluster}.well.{each}", b"hello?")
    stranger.flush()
    one.configure(f"{cluster}.small.log", "max.message.bytes", "3000000")

    with pytest.raises(CorruptionError, match="somebody deleted records"):
        opened(store, tmp_path / "cut", f"{cluster}.cut", slot, made=True)
    with pytest.raises(CorruptionError, match="is not in Kafka any more"):
        opened(store, tmp_path / "dropped", f"{cluster}.dropped", slot, made=True)
    with pytest.raises(CorruptionError, match="the CRC of the record at"):
        opened(store, tmp_path / "forged", f"{cluster}.forged", slot, made=True)
    with pytest.raises(Refusal, match=r"max\.message\.bytes=3000000.*Set max\.message\.bytes=100000000"):
        opened(store, tmp_path / "small", f"{cluster}.small", slot, made=True)
    disk, shard = opened(store, tmp_path / "well", f"{cluster}.well", slot, made=True)
    assert bodies(shard) == sent["well"]
    published(shard, 1)
    closed(disk, shard)
    store.close()


def test_a_kafka_that_is_away_is_not_waited_for_longer_than_was_said(
    one: Brokers, name: Callable[[str], str], tmp_path: Path
) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    impatient = KafkaStore(config(one, 1.0), cluster)
    topic, slot = f"{cluster}.1", f"{cluster}.slot.1"
    disk, shard = opened(store, tmp_path / "a", topic, slot, made=False)
    sent = published(shard, 3)
    shard.close()
    disk.close()
    disk._writer.close()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            writer = impatient.writer(slot)
            break
        except AwayError:  # a second is short on a busy machine, and for a coordinator that was not asked before
            assert time.monotonic() < deadline
    one.members[0].pause()
    with pytest.raises(AwayError):
        writer.send(Partition(f"{topic}.log", 0), [Record(b"", {"penstock": b"1"})])
    with pytest.raises(AwayError):
        writer.send(Partition(f"{topic}.log", 0), [Record(b"", {"penstock": b"1"})])
    with pytest.raises(AwayError):
        impatient.bounds(Partition(f"{topic}.log", 0))
    writer.close()
    one.members[0].resume()
    impatient.close()
    disk, shard = opened(store, tmp_path / "b", topic, slot, made=True)
    assert bodies(shard) == sent
    closed(disk, shard)
    store.close()


def test_whoever_waits_for_a_writer_that_is_closed_waits_no_longer(one: Brokers, name: Callable[[str], str]) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    store.make(f"{cluster}.1.log", 1)
    writer = store.writer(f"{cluster}.slot.1")
    heard: list[BaseException] = []

    def send() -> None:
        with pytest.raises(AwayError) as raised:
            writer.send(Partition(f"{cluster}.1.log", 0), [Record(b"", {"penstock": b"1"})])
        heard.append(raised.value)

    one.members[0].pause()
    thread = threading.Thread(target=send)
    thread.start()
    try:
        wait_for(lambda: bool(writer._under_way), "the record to be under way")
        writer.close()
        thread.join(30)
        assert "was closed" in str(*heard)
    finally:
        one.members[0].resume()
        thread.join()
    store.close()


def test_one_of_three_brokers_goes_and_nothing_is_lost(
    three: Brokers, name: Callable[[str], str], tmp_path: Path
) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(three), cluster)
    topic, slot = f"{cluster}.1", f"{cluster}.slot.1"
    disk, shard = opened(store, tmp_path / "a", topic, slot, made=False)
    assert len(three.in_sync(f"{topic}.log")) == 3
    sent = published(shard, 3)
    three.leader(f"{topic}.log").kill()
    sent += published(shard, 3)
    closed(disk, shard)
    disk, shard = opened(store, tmp_path / "b", topic, slot, made=True)
    assert bodies(shard) == sent
    closed(disk, shard)
    store.close()


def test_it_comes_in_by_tls_and_with_a_password(one: Brokers, name: Callable[[str], str], tmp_path: Path) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(secured(one, tmp_path), cluster)
    disk, shard = opened(store, tmp_path / "a", f"{cluster}.1", f"{cluster}.slot.1", made=False)
    sent = published(shard, 2)
    closed(disk, shard)
    disk, shard = opened(store, tmp_path / "b", f"{cluster}.1", f"{cluster}.slot.1", made=True)
    assert bodies(shard) == sent
    closed(disk, shard)
    store.close()


def test_what_is_sent_without_waiting_comes_in_order_and_is_told_of(one: Brokers, name: Callable[[str], str]) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    place = Partition(f"{cluster}.1.log", 0)
    with closing(store):
        store.make(place.topic, 1)
        with closing(store.writer(name("slot"))) as writer:
            heard: list[int | OSError] = []
            for number in range(100):
                record = Record(b"%d" % number, {"a": b"b"})
                if number % 10 == 0 or not writer.send_soon(place, record, heard.append):
                    heard += writer.send(place, [record])
                    if number == 50:
                        writer.roll()
            wait_for(lambda: len(heard) == 100, "all to be told")
            offsets = [each for each in heard if isinstance(each, int)]
            assert len(set(offsets)) == 100
            stored = list(store.read(place, *store.bounds(place)))
            assert [each.value for each in stored] == [b"%d" % number for number in range(100)]
            assert sorted(offsets) == [each.offset for each in stored]
            heard.clear()
            store.writer(writer.name).close()
            assert writer.send_soon(place, record, heard.append)
            wait_for(lambda: bool(heard), "the one who was shut out to hear so")
            assert [type(each) for each in heard] == [FencedError]
            assert not writer.send_soon(place, record, heard.append)


def test_whoever_sent_without_waiting_hears_that_the_writer_is_closed(one: Brokers, name: Callable[[str], str]) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    place = Partition(f"{cluster}.1.log", 0)
    store.make(place.topic, 1)
    writer = store.writer(name("slot"))
    writer.send(place, [Record(b"first", {})])
    heard: list[int | OSError] = []
    one.members[0].pause()
    try:
        assert writer.send_soon(place, Record(b"second", {}), heard.append)
        writer.close()
        assert [type(each) for each in heard] == [AwayError]
    finally:
        one.members[0].resume()
    store.close()


def test_the_end_of_an_earlier_writer_is_asked_for_before_the_next_one_begins(
    one: Brokers, name: Callable[[str], str], tmp_path: Path
) -> None:
    cluster = name("c").replace(".", "-")
    store = KafkaStore(config(one), cluster)
    place, slot = Partition(f"{cluster}.1.log", 0), name("slot")
    store.make(place.topic, 1)
    for settings in (config(one), secured(one, tmp_path)):
        writer = store.writer(slot)
        writer.send(place, [Record(b"value", {})])
        _, before = store.bounds(place)
        end_earlier(settings, slot, writers.TRANSACTION_MS)
        assert store.bounds(place)[1] == before + 1, "the mark of the end is there"
        with pytest.raises(FencedError):
            writer.send(place, [Record(b"value", {})])
        writer.close()
    store.close()


@pytest.mark.parametrize("said", [b"", b"what is that?" * 100, bytes(4)])
def test_a_broker_that_does_not_tell_who_ends_it_is_left_to_librdkafka(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(65536)
                line.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        end_earlier(SharedLogConfig(brokers=("127.0.0.1:1", address)), "nobody", 1000)
        thread.join(PATIENCE_S)
    end_earlier(SharedLogConfig(brokers=("127.0.0.1:1",)), "nobody", 1000)


def copies(brokers: Brokers, topic: str) -> int:
    found = brokers.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return min(len(each.replicas) for each in found.values())


def test_a_topic_that_is_made_while_a_broker_is_down_has_three_copies(
    three: Brokers, name: Callable[[str], str]
) -> None:
    topic = f"{name('c')}.log"
    three.members[2].kill()
    with closing(KafkaStore(config(three), "c")) as store:
        wait_for(lambda: len(store._admin.list_topics(timeout=5).brokers) == 2, "Kafka to miss it")
        store.make(topic, 2)
        assert copies(three, topic) == 3
        assert store.few() == {}


def test_fewer_copies_than_three_are_told_and_fewer_than_were_asked_for_not_made(
    one: Brokers, name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = name("c")
    with closing(KafkaStore(config(one), cluster)) as store:
        store.make(f"{cluster}.1.log", 1)
        assert copies(one, f"{cluster}.1.log") == 1
        assert caplog.text.count("1 copy in Kafka, not 3") == 1
        store.make(f"{cluster}.1.log", 1)
        assert store.few() == {f"{cluster}.1.log": 1}
    with closing(KafkaStore(msgspec.structs.replace(config(one), replication=3), cluster)) as store:
        with pytest.raises(Refusal, match=r"shared_log\.replication"):
            store.make(f"{cluster}.2.log", 1)
        assert store.partitions(f"{cluster}.2.log") == 0
        caplog.clear()
        store.make(f"{cluster}.1.log", 1)
        assert "1 copy in Kafka, not 3" in caplog.text, "one that was made before"
    with closing(KafkaStore(msgspec.structs.replace(config(one), replication=1), cluster)) as store:
        caplog.clear()
        store.make(f"{cluster}.2.log", 1)
        assert store.few() == {}
        assert "copy" not in caplog.text
