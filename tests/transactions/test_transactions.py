"""What tasks stage becomes visible once for each (query, batch), whoever dies and whenever."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pyarrow as pa
import pytest

from penstock.config import Config
from penstock.errors import CorruptionError, Refusal
from penstock.intake.receipt import Published
from penstock.intake.staging import CHECK, digest, name_of
from penstock.message import Rows
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.settings import TopicSettings
from tests.simulation.disk import Died
from tests.simulation.machine import Machine

SCHEMA = pa.schema([("body", pa.binary()), ("key", pa.binary())])
DAY_S = 24 * 3600


class Site:
    """A node on a simulated machine, and a driver that stages and commits."""

    def __init__(self, shards: int = 1, durability: str = "os", seed: int = 0) -> None:
        self.machine = Machine(seed)
        self.settings = TopicSettings(shards=shards, durability=durability)  # type: ignore[arg-type]
        self.start()
        self.node.create_topic("t", self.settings).now()
        self.machine.run()

    def start(self) -> None:
        self.node = Node(Config(data_dir="data"), self.machine.clock, self.machine.disk, Random(1))

    def stage(self, batch: int, attempt: str, *bodies: bytes, topic: str | None = "t", parts: int = 2) -> None:
        """Stage bodies, which are their keys, too; without a topic each row goes to the one its first letter names."""
        schema = SCHEMA if topic is not None else SCHEMA.append(pa.field("topic", pa.string()))
        writer = self.node.staging.writer("q", batch, attempt, topic, schema)
        for low in range(0, len(bodies), parts):
            some = list(bodies[low : low + parts])
            columns = [pa.array(some, pa.binary()), pa.array(some, pa.binary())]
            if topic is None:
                columns.append(pa.array([body[:1].decode() for body in some]))
            writer.write(pa.record_batch(columns, schema=schema))
        writer.finish()
        self.node.staging.add("q", batch, attempt, self.machine.clock.now())

    def commit(self, batch: int, *attempts: str, any_rows: bool = False) -> tuple[int, bool]:
        told: list[tuple[tuple[int, bool] | None, BaseException | None]] = []
        self.node.transactions.commit(
            "q", batch, list(attempts), lambda *answer: told.append(answer), any_rows=any_rows
        )
        self.machine.run(0.5)
        assert len(told) == 1
        answer, error = told[0]
        if error is not None:
            raise error
        assert answer is not None
        return answer

    def rows(self, name: str = "t") -> Counter[bytes]:
        return Counter(read(self.machine, self.node.topic(name)))


def read(machine: Machine, topic: Topic) -> list[bytes]:
    bodies = []
    for shard in topic.shards:
        offset = shard.start
        while offset < shard.readable_end:
            batch = shard.read(offset)
            if batch is None:
                shard.fetch(offset, lambda: None)
                machine.run()
                batch = shard.read(offset)
                if batch is None:
                    break  # what a start cut left its offsets unused, up to the end
            bodies += [batch.row_body(row) for row in range(batch.count)]
            offset = batch.end
    return bodies


BODIES = tuple(b"%d" % n for n in range(9))


def test_staged_rows_are_invisible_until_their_commit() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    assert site.rows() == Counter()
    assert site.commit(0, "a") == (9, False)
    assert site.rows() == Counter(BODIES)
    assert len(site.node.staging) == 0


def test_commit_of_the_same_batch_with_other_attempts_adds_nothing() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    site.commit(0, "a")
    site.stage(0, "b", *BODIES[:4])
    site.stage(0, "c", *BODIES[4:])
    assert site.commit(0, "b", "c") == (9, True)
    assert site.rows() == Counter(BODIES)
    assert len(site.node.staging) == 0
    assert site.commit(0, "b", "c") == (9, True)  # the driver did not hear the answer, and asks again
    with pytest.raises(Refusal, match="attempt never-staged of batch 0 of query q is not staged"):
        site.commit(0, "never-staged")


def test_earlier_batch_is_known_to_be_committed() -> None:
    site = Site()
    for batch in range(3):
        site.stage(batch, f"a{batch}", b"%d" % batch)
        site.commit(batch, f"a{batch}")
    site.stage(1, "again", b"1")
    assert site.commit(1, "again") == (1, True)
    assert site.rows() == Counter([b"0", b"1", b"2"])
    assert len(site.node.staging) == 0


def test_copied_query_writes_to_another_topic_from_the_start() -> None:
    site = Site()
    for batch in range(3):
        site.stage(batch, f"a{batch}", b"%d" % batch)
        site.commit(batch, f"a{batch}")
    for batch in range(1, 3):
        site.stage(batch, f"b{batch}", b"%d" % batch, topic="copy")
        assert site.commit(batch, f"b{batch}") == (1, False)
    assert site.rows("copy") == Counter([b"1", b"2"])
    assert site.rows() == Counter([b"0", b"1", b"2"])
    site.stage(1, "c", b"t1", topic=None)  # now each row names its topic, and this one names the first query's
    assert site.commit(1, "c") == (1, False)
    assert site.rows() == Counter([b"0", b"1", b"2", b"t1"])


def test_query_that_is_committed_leaves_alone_what_its_copy_staged_for_another_topic() -> None:
    site = Site()
    site.stage(0, "a", b"first")
    site.stage(0, "b", b"second", topic="copy")
    site.commit(0, "a")
    assert site.commit(0, "b") == (1, False)
    assert site.rows("copy") == Counter([b"second"])


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("bodies", "found"),
    [
        ((b"0", b"1", b"2"), "3 rows"),
        ((b"0", b"9"), "2 other rows"),
        ((b"0",), "1 row,"),
    ],
)
@pytest.mark.parametrize("last", [0, 1, 5])
def test_batch_with_other_rows_than_the_one_of_its_number_is_refused(
    last: int, bodies: tuple[bytes, ...], found: str, restarts: bool
) -> None:
    site = Site()
    site.stage(0, "a", b"0", b"1")
    site.commit(0, "a")
    for batch in range(1, last + 1):
        site.stage(batch, f"a{batch}", b"more")
        site.commit(batch, f"a{batch}")
    before = site.rows()
    site.stage(0, "other", *bodies)
    if restarts:
        site.machine.start()
        site.start()
    with pytest.raises(Refusal, match=f"batch 0 of query q was written to topic t .* with 2 rows.*{found}.*of its own"):
        site.commit(0, "other")
    assert site.rows() == before
    site.node.transactions.abort("q", 0, ["other"])
    assert len(site.node.staging) == 0


def test_batch_with_as_many_rows_for_other_topics_is_refused() -> None:
    site = Site()
    site.stage(0, "a", b"a1", b"b1", topic=None)
    site.commit(0, "a")
    site.stage(0, "same", b"b1", b"a1", topic=None)
    assert site.commit(0, "same") == (2, True)
    site.stage(0, "other", b"a1", b"c1", topic=None)
    with pytest.raises(Refusal, match=r"batch 0 of query q was written to the topics its rows name .* 2 other rows"):
        site.commit(0, "other")


def test_last_batch_may_come_with_other_rows_if_the_query_says_so() -> None:
    site = Site()
    for batch in range(2):
        site.stage(batch, f"a{batch}", b"%d" % batch)
        site.commit(batch, f"a{batch}")
    site.stage(1, "b", b"another")
    assert site.commit(1, "b", any_rows=True) == (1, True)
    site.stage(0, "c", b"another")  # no query ever goes back so far
    with pytest.raises(Refusal, match="batch 0 of query q was written"):
        site.commit(0, "c", any_rows=True)
    assert site.rows() == Counter([b"0", b"1"])


def test_batch_from_before_what_is_remembered_is_refused() -> None:
    site = Site()
    for batch in (3, 5):
        site.stage(batch, f"a{batch}", b"%d" % batch)
        site.commit(batch, f"a{batch}")
    for batch in (2, 4):
        site.stage(batch, f"b{batch}", b"%d" % batch)
        with pytest.raises(Refusal, match=f"batch {batch} of query q is not among .* 5"):
            site.commit(batch, f"b{batch}")


def test_topic_made_anew_gets_the_batch_again() -> None:
    site = Site()
    for batch in range(2):
        site.stage(batch, f"a{batch}", b"%d" % batch)
        site.commit(batch, f"a{batch}")
    site.node.delete_topic("t").now()
    for batch in range(3):
        site.node.obtain("t").now()
        site.stage(batch, f"b{batch}", b"%d" % batch)
        assert site.commit(batch, f"b{batch}") == (1, False)
    assert site.rows() == Counter([b"0", b"1", b"2"])


def test_batch_for_topics_of_which_one_was_made_anew_is_refused() -> None:
    site = Site()
    site.stage(0, "a", b"a1", b"b1", topic=None)
    site.commit(0, "a")
    site.machine.run(1)
    site.node.delete_topic("b").now()
    site.node.obtain("b").now()
    site.stage(0, "again", b"a1", b"b1", topic=None)
    with pytest.raises(Refusal, match="topic b was made anew since"):
        site.commit(0, "again")


def test_topic_made_anew_during_a_commit_gets_all_of_it() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    site.node.transactions.commit("q", 0, ["a"], lambda *_: None)
    while not site.node.topic("t").shards[0].end:
        site.machine.scheduler.turn()
    site.node.delete_topic("t").now()
    site.machine.run(2)
    assert site.rows() == Counter(BODIES)


def test_driver_that_comes_in_the_middle_of_a_commit_with_other_rows_is_refused() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    site.stage(0, "same", *BODIES)
    site.stage(0, "other", *BODIES[1:])
    told: list[tuple[tuple[int, bool] | None, BaseException | None]] = []
    for attempt in ("a", "same", "other"):
        site.node.transactions.commit("q", 0, [attempt], lambda *answer: told.append(answer))
    site.machine.run(1)
    assert [answer for answer, _ in told] == [(9, False), (9, True), None]
    assert "8 rows" in str(told[2][1])
    assert site.rows() == Counter(BODIES)


def test_commit_of_an_earlier_version_is_known_by_number_and_count() -> None:
    site = Site()
    old = {"query": "q", "batch": 4, "attempts": ["x"], "done": True, "rows": 2, "reached": [1, 0], "parts": [],
           "changed_ns": site.machine.clock.now()}  # fmt: skip
    site.node.catalog.put(f"commit/{digest('q')}", msgspec.msgpack.encode(old)).now()
    site.stage(4, "a", b"1", b"2")
    assert site.commit(4, "a") == (2, True)
    for batch, told in ((3, "is not among"), (4, "with 2 rows")):
        site.stage(batch, "b", b"1")
        with pytest.raises(Refusal, match=told):
            site.commit(batch, "b")
    site.stage(5, "c", b"5")
    assert site.commit(5, "c") == (1, False)
    assert site.rows() == Counter([b"5"])
    # From here on it is a query like any other, and its copy has its own commits.
    site.stage(3, "d", b"3", topic="copy")
    assert site.commit(3, "d") == (1, False)


def test_unfinished_commit_of_an_earlier_version_is_finished() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    old = {"query": "q", "batch": 0, "attempts": ["a"], "changed_ns": 0}
    site.node.catalog.put(f"commit/{digest('q')}", msgspec.msgpack.encode(old)).now()
    site.machine.start()
    site.start()
    site.machine.run(1)
    assert site.rows() == Counter(BODIES)
    site.stage(0, "b", *BODIES)
    assert site.commit(0, "b") == (9, True)
    assert site.rows() == Counter(BODIES)


@pytest.mark.parametrize("at", range(0, 700, 7))
def test_staged_rows_that_are_damaged_are_not_committed(at: int) -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    (path,) = (name for name in site.machine.platter.files if name.startswith("data/staging/"))
    data = site.machine.platter.files[path].data
    data[at % len(data)] ^= 4
    with pytest.raises(CorruptionError, match=r"damaged.*the rows that were staged in it are lost"):
        site.commit(0, "a")
    assert site.rows() == Counter()


def test_staged_rows_of_a_version_that_wrote_no_check_are_committed() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    (path,) = (name for name in site.machine.platter.files if name.startswith("data/staging/"))
    del site.machine.platter.files[path].data[-CHECK.size :]
    assert site.commit(0, "a") == (9, False)
    assert site.rows() == Counter(BODIES)


def test_stages_of_one_name_at_once_are_refused() -> None:
    site = Site()
    first = site.node.staging.writer("q", 0, "a", "t", SCHEMA)
    with pytest.raises(Refusal, match="attempt a of batch 0 is being staged already"):
        site.node.staging.writer("q", 0, "a", "t", SCHEMA)
    first.finish()
    with pytest.raises(Refusal, match="attempt a of batch 0 is being staged already"):
        site.node.staging.writer("q", 0, "a", "t", SCHEMA)
    site.node.staging.add("q", 0, "a", 0)
    with pytest.raises(Refusal, match="attempt a of batch 0 is staged already"):
        site.node.staging.writer("q", 0, "a", "t", SCHEMA)
    cut = site.node.staging.writer("q", 0, "b", "t", SCHEMA)
    cut.discard()
    site.node.staging.writer("q", 0, "b", "t", SCHEMA).discard()


def test_attempt_that_lost_goes_with_the_commit() -> None:
    site = Site()
    site.stage(0, "slow", *BODIES)
    site.stage(0, "fast", *BODIES)
    site.commit(0, "fast")
    assert len(site.node.staging) == 0
    assert site.rows() == Counter(BODIES)


def test_rows_go_to_the_topic_that_each_names_and_to_the_shard_of_their_key() -> None:
    site = Site(shards=4)
    site.stage(0, "a", *BODIES, topic=None)
    assert site.commit(0, "a") == (9, False)
    for body in BODIES:
        assert site.rows(body.decode()) == Counter([body])
    site.stage(1, "a", *BODIES)
    site.commit(1, "a")
    assert sum(1 for shard in site.node.topic("t").shards if shard.end) > 1
    assert site.rows() == Counter(BODIES)


def test_commit_of_what_was_not_staged_changes_nothing() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    with pytest.raises(Refusal, match="attempt b of batch 0 of query q is not staged"):
        site.commit(0, "a", "b")
    with pytest.raises(Refusal, match="named twice"):
        site.commit(0, "a", "a")
    with pytest.raises(Refusal, match="no name of an attempt"):
        site.commit(0, "../a")
    assert site.rows() == Counter()
    site.commit(0, "a")
    assert site.rows() == Counter(BODIES)


def test_commit_without_attempts_adds_nothing() -> None:
    site = Site()
    assert site.commit(0) == (0, False)
    assert site.commit(0) == (0, False)


def test_aborted_attempt_is_gone() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    site.node.transactions.abort("q", 0, ["a"])
    with pytest.raises(Refusal, match="not staged"):
        site.commit(0, "a")


def test_commit_on_a_full_disk_says_so_and_finishes_by_itself_once_there_is_room() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    # Room for the registry's record of it, and not for all of its rows.
    site.machine.platter.capacity_bytes = site.machine.platter.used_bytes + 700
    with pytest.raises(Refusal):
        site.commit(0, "a")
    site.machine.make_room()
    site.machine.run(5)
    assert site.rows() == Counter(BODIES)
    assert site.commit(0, "a")[1]
    assert site.rows() == Counter(BODIES)


def test_what_nobody_committed_within_a_day_is_swept() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    site.machine.run(DAY_S - 60)
    assert len(site.node.staging) == 1
    site.machine.run(120)
    assert len(site.node.staging) == 0
    assert site.machine.disk.list("data/staging") == []


def test_next_batch_waits_for_one_that_is_not_finished() -> None:
    site = Site()
    site.stage(0, "a", *BODIES)
    site.stage(1, "b", b"next")
    first: list[object] = []
    second: list[BaseException | None] = []
    site.node.transactions.commit("q", 0, ["a"], lambda *answer: first.append(answer))
    site.node.transactions.commit("q", 1, ["b"], lambda _, error: second.append(error))
    while not second:
        site.machine.run(0.000_01)
    assert first == []
    assert isinstance(second[0], Refusal)
    assert "must wait" in str(second[0])
    site.machine.run(1)
    site.commit(1, "b")
    assert site.rows() == Counter([*BODIES, b"next"])


def test_commit_that_one_topic_refuses_for_long_adds_nothing_twice_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    taking, refusing = (site.node.create_topic(name, TopicSettings()).now() for name in "ab")

    def refuse(rows: Rows, publisher: object, done: Published, shard: int | None = None) -> None:
        done(None, Refusal("rate_limited", "not now"))

    monkeypatch.setattr(refusing, "publish", refuse)
    site.stage(0, "x", b"a1", b"b1", b"a2", b"b2", topic=None, parts=4)
    with pytest.raises(Refusal, match="not now"):
        site.commit(0, "x")
    others = [b"other %d" % minute for minute in range(10)]
    for body in others:  # for longer than the topic knows what was appended
        taking.publish(Rows.of([body], "test"), site, lambda *_: None)
        site.machine.run(60)
    assert site.rows("a") == Counter([b"a1", b"a2", *others])
    site.machine.start()
    site.start()
    site.machine.run(60)
    assert site.rows("b") == Counter([b"b1", b"b2"])
    assert site.rows("a") == Counter([b"a1", b"a2", *others])
    assert site.commit(0, "x") == (4, True)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("shards", [1, 3])
def test_node_that_dies_anywhere_in_a_commit_adds_every_row_once(power: bool, durability: str, shards: int) -> None:
    fuse = 0
    dies = True
    while dies:
        fuse += 1
        site = Site(shards, durability, seed=fuse)
        site.stage(0, "a", *BODIES[:5])
        site.stage(0, "b", *BODIES[5:])
        answers = die_in_commit(site, fuse)
        dies = not site.machine.clock.alive
        if power:
            site.machine.lose_power()
        else:
            site.machine.start()
        site.start()
        site.machine.run(1)
        there = site.rows()
        assert there in (Counter(), Counter(BODIES)), f"half a commit is there after operation {fuse}"
        assert there or not answers, f"a commit was answered and is gone after operation {fuse}"
        # The driver comes back and replays the batch with another number of tasks.
        site.stage(0, "c", *BODIES)
        assert site.commit(0, "c") == (9, bool(there))
        assert site.rows() == Counter(BODIES), f"after operation {fuse}"
    assert fuse > 10


def die_in_commit(site: Site, fuse: int) -> list[tuple[int, bool] | None]:
    """Commit what is staged, on a node that dies within the disk's operation of this number; return its answers."""
    answers: list[tuple[int, bool] | None] = []
    site.machine.platter.fuse = fuse
    try:
        site.node.transactions.commit("q", 0, ["a", "b"], lambda answer, _: answers.append(answer))
        site.machine.run(1)
    except Died:
        pass
    return answers


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_commit_that_is_taken_up_again_after_its_topic_grew_adds_what_is_missing(shards: int, long: bool) -> None:
    site = Site(shards)
    bodies = [b"%d" % n for n in range(40)]
    site.stage(0, "a", *bodies, parts=20)
    topic = site.node.topic("t")
    last, append = topic.shards[-1], topic.shards[-1].append
    taken = 0

    def full(rows: Rows, now_ns: int) -> object:
        nonlocal taken
        taken += 1
        if taken > 1 or shards > 1:
            raise Refusal("disk_full", "no room")
        return append(rows, now_ns)

    last.append = full  # type: ignore[method-assign, assignment]
    with pytest.raises(Refusal, match="no room"):
        site.commit(0, "a")
    assert 0 < sum(site.rows().values()) < 40
    for more in (shards + 1, shards + 3):
        topic.update(msgspec.structs.replace(topic.settings, shards=more)).now()
    if long:  # sequences are forgotten meanwhile, and the record of the commit is not
        site.machine.run(700)
        topic.publish(Rows.of([b"x"], "test"), site, lambda *_: None, 0)
    last.append = append  # type: ignore[method-assign]
    site.machine.run(120)
    assert site.rows() - Counter([b"x"]) == Counter(bodies)
    assert sum(not record.done for record in site.node.transactions._records.all()) == 0
    site.stage(1, "b", *bodies)
    site.commit(1, "b")
    assert {shard.number for shard in site.node.topic("t").shards if shard.end} == set(range(shards + 3))


@pytest.mark.parametrize("shards", [1, 3])
def test_node_that_dies_in_a_commit_and_whose_topic_grows_then_adds_every_row_once(shards: int) -> None:
    fuse = 0
    dies = True
    while dies:
        fuse += 1
        site = Site(shards, seed=fuse)
        site.stage(0, "a", *BODIES[:5])
        site.stage(0, "b", *BODIES[5:])
        die_in_commit(site, fuse)
        dies = not site.machine.clock.alive
        site.machine.start()
        site.start()
        topic = site.node.topic("t")
        topic.update(msgspec.structs.replace(topic.settings, shards=shards + 2)).now()  # before the commit goes on
        site.machine.run(1)
        site.stage(0, "c", *BODIES)
        site.commit(0, "c")
        assert site.rows() == Counter(BODIES), f"after operation {fuse}"
    assert fuse > 10


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("seed", range(8))
def test_commit_behind_a_failed_sync_is_there_after_a_power_loss_once_it_is_said_to(seed: int, durability: str) -> None:
    site = Site(2, durability, seed)
    site.stage(0, "a", *BODIES)
    site.machine.fail_syncs(1, "topics/1/")
    assert site.commit(0, "a") == (9, False)
    site.machine.run(5)
    site.machine.lose_power()
    site.start()
    assert site.rows() == Counter(BODIES)


@pytest.mark.parametrize("seed", range(8))
def test_commit_is_not_done_and_its_staged_copy_stays_while_the_log_cannot_be_synced(seed: int) -> None:
    site = Site(seed=seed)
    site.stage(0, "a", *BODIES)
    site.machine.fail_syncs(of=".arrows")
    with pytest.raises(OSError, match="Input/output error"):
        site.commit(0, "a")
    for _ in range(3):
        site.machine.run(5)
        assert [record.done for record in site.node.transactions._records.all()] == [False]
        assert len(site.node.staging) == 1
    site.machine.mend()
    site.machine.run(120)
    assert [record.done for record in site.node.transactions._records.all()] == [True]
    assert len(site.node.staging) == 0
    site.machine.lose_power()
    site.start()
    assert site.rows() == Counter(BODIES)


@pytest.mark.parametrize("seed", range(8))
def test_process_that_takes_up_a_commit_does_not_trust_what_the_one_before_could_not_sync(seed: int) -> None:
    site = Site(seed=seed)
    site.stage(0, "a", *BODIES)
    site.machine.fail_syncs(of=".arrows")
    with pytest.raises(OSError, match="Input/output error"):
        site.commit(0, "a")
    site.machine.start()
    site.machine.mend()
    site.start()
    site.machine.run(1)
    assert [record.done for record in site.node.transactions._records.all()] == [True]
    site.machine.lose_power()
    site.start()
    assert site.rows() == Counter(BODIES)


def test_stage_that_cannot_be_synced_is_refused_and_leaves_nothing() -> None:
    site = Site()
    site.machine.fail_syncs(1, "staging")
    with pytest.raises(Refusal, match="is not safe on the disk") as refusal:
        site.stage(0, "a", *BODIES)
    assert refusal.value.code == "disk_failed"
    site.stage(0, "a", *BODIES)
    assert site.commit(0, "a") == (9, False)


def damage(site: Site, attempt: str) -> None:
    """Turn around a bit of what is staged."""
    site.machine.platter.files[f"data/staging/{name_of('q', 0, attempt)}"].data[300] ^= 4


def half_committed(site: Site) -> None:
    """Let a node die in a commit of two attempts, and what the second staged be damaged then."""
    site.stage(0, "a", *BODIES[:4])
    site.stage(0, "b", *BODIES[4:])
    site.node.transactions.commit("q", 0, ["a", "b"], lambda *_: None)
    while not site.node.topic("t").published:
        site.machine.run(0.000_01)
    damage(site, "b")
    site.machine.start()
    site.start()
    site.machine.run(1)


def test_damaged_attempt_is_refused_before_anything_is_written_and_its_batch_may_come_again() -> None:
    site = Site()
    site.stage(0, "a", *BODIES[:4])
    site.stage(0, "b", *BODIES[4:])
    damage(site, "b")
    with pytest.raises(CorruptionError, match="is damaged"):
        site.commit(0, "a", "b")
    assert (site.rows(), site.node.transactions.failed) == (Counter(), 0)
    site.stage(0, "c", *BODIES)
    assert site.commit(0, "c") == (9, False)
    assert site.rows() == Counter(BODIES)


def test_commit_under_way_whose_staged_rows_are_damaged_fails_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    half_committed(site)
    assert site.node.transactions.failed == 1
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] != []
    assert "batch 0 of query q cannot be finished: data/staging/" in caplog.text
    assert "4 rows of it are in topic t." in caplog.text
    for batch, attempt in ((0, "c"), (1, "d")):
        site.stage(batch, attempt, *BODIES)
        with pytest.raises(Refusal, match=r"batch 0 of query q cannot be finished.*repeats set to any"):
            site.commit(batch, attempt)
    assert site.rows() == Counter(BODIES[:4])
    site.machine.run(3600)
    assert caplog.text.count("cannot be finished") == 1


def test_batch_of_a_commit_that_failed_is_written_anew_if_the_query_says_so() -> None:
    site = Site()
    half_committed(site)
    site.stage(0, "c", *BODIES)
    assert site.commit(0, "c", any_rows=True) == (9, False)
    assert site.rows() == Counter(BODIES) + Counter(BODIES[:4])
    assert (site.node.transactions.failed, len(site.node.staging)) == (0, 0)
    site.stage(1, "d", b"next")
    assert site.commit(1, "d") == (1, False)
