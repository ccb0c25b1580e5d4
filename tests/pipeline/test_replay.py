"""Replays into a real node: every chosen message once, whoever died, in the order and with the times asked for."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.columns import OPTIONAL_COLUMNS
from penstock.errors import ConfigError, Refusal
from penstock.pipeline.jobs.archive import dated
from penstock.pipeline.jobs.replay import Progress, Replay, ends_on, planned, replay
from penstock.pipeline.jobs.replay import plan as plans
from penstock.pipeline.jobs.replay import run as running
from penstock.pipeline.jobs.replay.condition import condition
from penstock.pipeline.jobs.replay.plan import Book, Bucket, steps_of
from penstock.pipeline.jobs.replay.run import Spark
from penstock.pipeline.lake.table import table
from tests.cli.program import environment
from tests.flight.parts import Flown, body_batch, many
from tests.pipeline.conftest import ROOT
from tests.proofs.process import Process

SECOND_NS = 1_000_000_000
SHARDS = 3


@pytest.fixture(scope="module")
def module_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flown]:
    with Flown(tmp_path_factory.mktemp("replay") / "node") as made:
        yield made
        assert made.do(lambda: made.node.bugs) == 0


@pytest.fixture
def node(module_node: Flown) -> Iterator[Flown]:
    """The one node of this module, without the topics of the test before."""
    yield module_node
    for info in module_node.act("topics")["topics"]:
        module_node.act("delete-topic", name=info["name"])


def never() -> SparkSession:
    """Start Spark for a replay that must not need it."""
    raise AssertionError("Spark was started")


@pytest.fixture(params=["here", "spark"])
def engine(request: pytest.FixtureRequest) -> Spark:
    """Who reads and writes: what either does the other must do, too."""
    if request.param == "here":
        return never
    session: SparkSession = request.getfixturevalue("spark")
    return session


def url(node: Flown) -> str:
    return f"grpc://127.0.0.1:{node.flight.port}"


def options(node: Flown, **more: Any) -> Replay:
    return msgspec.convert({"node": {"url": url(node)}, "topics": ["in"], "to": "out", **more}, Replay)


def rows(node: Flown, topic: str, shards: int = 1) -> list[list[dict[str, Any]]]:
    """What a topic has, shard by shard, without what the node says of its own."""
    found = []
    for shard in range(shards):
        table_ = node.read(topic, shard=shard).drop_columns(["offset", "timestamp", "source"])
        found.append(table_.to_pylist())
    return found


def shares(node: Flown) -> list[tuple[str, str, int, int]]:
    """What the two shards of topic `in` have to offer."""
    bodies = [node.bodies("in", shard=shard) for shard in range(2)]
    return sorted(("in", "in.again", len(some), sum(map(len, some))) for some in bodies if some)


class Heard:
    """Progress, and a stop after some steps."""

    def __init__(self, stop_after: int = 0) -> None:
        self.told: list[Progress] = []
        self.stop = threading.Event()
        self._stop_after = stop_after

    def __call__(self, progress: Progress) -> None:
        self.told.append(progress)
        if len(self.told) == self._stop_after:
            self.stop.set()


class FakePace:
    """Time that passes only when somebody rests, and a little with every look."""

    def __init__(self) -> None:
        self.at_ns = 1_800_000_000 * SECOND_NS
        self.rests_ns: list[int] = []

    def now(self) -> int:
        return self.at_ns

    def monotonic(self) -> int:
        return self.at_ns

    def rest(self, rest_ns: int) -> None:
        self.rests_ns.append(rest_ns)
        self.at_ns += rest_ns


def fill(node: Flown, count: int, topic: str = "in", chance: random.Random | None = None) -> None:
    """Publish messages with all columns, some of them null, into several shards; keys stay within theirs."""
    chance = chance or random.Random(5)
    node.act("create-topic", name=topic, settings={"shards": SHARDS})
    now_us = node.do(node.clock.now) // 1000
    for first in range(0, count, 100):
        some = range(first, min(first + 100, count))

        def maybe(values: list[Any], kind: pa.DataType) -> pa.Array:
            return pa.array([value if chance.random() < 0.7 else None for value in values], kind)

        batch = body_batch(
            *(b"body %d" % number for number in some),
            key=maybe([b"key %d" % (number % 7) for number in some], pa.binary()),
            tag=maybe([f"tag {number % 3}" for number in some], pa.string()),
            headers=maybe([b'{"n": "%d"}' % number for number in some], pa.binary()),
            traffic=maybe([chance.getrandbits(63) * chance.choice((-1, 1)) for _ in some], pa.int64()),
            event_time=pa.array([(now_us - number) * 1000 for number in some], pa.int64()),
            due=maybe([(now_us + number) * 1000 for number in some], pa.int64()),
            expires=maybe([(now_us * 2) * 1000 for _ in some], pa.int64()),
            bucket=maybe([number % 100 for number in some], pa.int32()),
            route=maybe(list(some), pa.int64()),
            message_id=maybe([b"id %d" % number for number in some], pa.binary()),
            trace=maybe(list(some), pa.int64()),
            group=maybe([b"group" for _ in some], pa.binary()),
            dedup=pa.array([b"dedup %d" % number for number in some], pa.binary()),
        )
        # Without a key, a row goes where its connection's rows go: here it says so itself.
        if first // 100 % 2:
            keyless = batch.drop_columns(["key"])
            node.put(topic, keyless, shard=first // 100 % SHARDS)
        else:
            node.put(topic, batch.filter(batch["key"].is_valid()))


def test_replay_of_a_topic_is_the_topic(
    engine: Spark, node: Flown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STEP_ROWS", 600)
    fill(node, 2000)
    wanted = rows(node, "in", SHARDS)
    assert all(wanted)
    assert {name for shard in wanted for row in shard for name in row if row[name] is not None} >= set(OPTIONAL_COLUMNS)
    heard = Heard()
    outcome = replay(engine, options(node), str(tmp_path), told=heard)
    for shard in wanted:
        for row in shard:
            row["dedup"] = None  # it would make the node drop what repeats one of the last minutes
    assert rows(node, "out", SHARDS) == wanted
    assert outcome.finished
    assert outcome.rows == sum(map(len, wanted)) == heard.told[-1].rows_done
    assert [each.step for each in heard.told] == list(range(1, heard.told[0].steps + 1))
    assert len(heard.told) > 2
    assert node.do(lambda: len(node.node.holds)) == 0


def test_repeated_replay_adds_nothing_also_when_the_topic_grew(
    spark: SparkSession, node: Flown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STEP_ROWS", 100)
    node.put("in", many(350))
    chosen = options(node, to="{topic}.replay", rate=1000)
    stopped = Heard(stop_after=2)
    outcome = replay(spark, chosen, str(tmp_path), told=stopped, stop=stopped.stop)
    assert not outcome.finished
    assert "2 of 4 steps left; run it again to go on" in outcome.message
    written = outcome.rows
    assert node.bodies("in.replay") == node.bodies("in")[:written]
    node.put("in", many(50, 350))
    # As after a kill between the node's commit and our own note of it.
    book = Book(str(tmp_path), chosen.chosen_name())
    done = book.done()
    book.note(msgspec.structs.replace(done, steps=done.steps - 1))
    # What Spark began is ended without it.
    assert replay(never, chosen, str(tmp_path)).finished
    assert node.bodies("in.replay") == [b"body %d" % number for number in range(350)]
    again = replay(never, chosen, str(tmp_path))
    assert (again.finished, again.rows) == (True, 0)
    assert again.message.startswith(f"nothing to do: {chosen.chosen_name()} was replayed on 20")
    assert "350 messages of in, from earliest until latest, taken 20" in again.message
    assert f"give it another name: --name {chosen.chosen_name()}-2" in again.message
    with pytest.raises(ConfigError, match=r"was planned on .* with other words \(where\)"):
        replay(never, options(node, where="offset > 3", name=chosen.chosen_name(), to=chosen.to), str(tmp_path))
    node.act("delete-topic", name="in")
    book.note(done)
    with pytest.raises(Refusal, match="topic in was deleted since replay"):
        replay(never, chosen, str(tmp_path))


def test_dry_run_counts_and_writes_nothing(engine: Spark, node: Flown, tmp_path: Path) -> None:
    node.act("create-topic", name="in", settings={"shards": 2})
    node.put("in", many(30))
    node.put("in", many(20), shard=1)
    node.advance(60)
    middle_ns = node.do(node.clock.now)
    node.put("in", many(5, 100))
    whole = planned(engine, options(node, to="{topic}.again"), str(tmp_path))
    assert (whole.rows, len(whole.steps)) == (55, 1)
    assert sorted((share.topic, share.to, share.rows, share.bytes) for share in whole.shares) == shares(node)
    first_ns, last_ns = (f(node.read("in", shard=0)["timestamp"].to_pylist()) for f in (min, max))
    (share,) = (share for share in whole.shares if share.shard == 0)
    assert (share.first_us, share.last_us) == (first_ns // 1000, last_ns // 1000)
    text = datetime.fromtimestamp(middle_ns / 1e9, UTC).isoformat()
    assert planned(engine, options(node, **{"from": text}), str(tmp_path)).rows == 5
    assert planned(engine, options(node, until=text, where="shard = 1 AND offset < 7"), str(tmp_path)).rows == 7
    assert planned(engine, options(node, **{"from": {"1": 15}, "until": {"0": 10}}), str(tmp_path)).rows == 15
    names = [info["name"] for info in node.act("topics")["topics"]]
    assert [name for name in names if not name.startswith("_penstock.")] == ["in"]
    assert os.listdir(tmp_path) == []
    none = replay(engine, options(node, where="offset < 0"), str(tmp_path))
    assert (none.rows, none.message) == (0, "nothing to do: no message matches, from earliest until latest")
    with pytest.raises(ConfigError, match=r"where cannot be used: .*colour"):
        planned(engine, options(node, where="colour = 'red'"), str(tmp_path))
    with pytest.raises(ConfigError, match="from: offset 99 of shard 1 of topic in is not kept; there are 0 to 2"):
        planned(engine, options(node, **{"from": {"1": 99}}), str(tmp_path))


def test_times_stay_move_or_go(engine: Spark, node: Flown, tmp_path: Path) -> None:
    event_ns = 1_700_000_000_123_456_000
    columns = {"event_time": pa.array([event_ns, None]), "due": pa.array([None, event_ns], pa.int64())}
    node.put("in", body_batch(b"a", b"b", **columns))
    taken_ns = node.read("in")["timestamp"].to_pylist()[0] // 1000 * 1000

    def times(**more: Any) -> list[tuple[int | None, int | None, int | None]]:
        name = f"out{len(os.listdir(tmp_path))}"
        pace = FakePace()
        replay(engine, options(node, to=name, **more), str(tmp_path), pace=pace)
        found = node.read(name).to_pylist()
        return [(row["event_time"], row["due"], row["expires"]) for row in found]

    assert times() == [(event_ns, None, None), (taken_ns, event_ns, None)]
    assert times(times="none") == [(None, None, None)] * 2
    day_ns = 86_400 * SECOND_NS
    assert times(times="shift", shift="-1d") == [
        (event_ns - day_ns, None, None),
        (taken_ns - day_ns, event_ns - day_ns, None),
    ]
    shift_ns = FakePace().now() - taken_ns
    assert times(times="shift") == [
        (event_ns + shift_ns, None, None),
        (FakePace().now(), event_ns + shift_ns, None),
    ]


def test_rate_is_kept_on_the_clock_and_a_signal_stops_between_steps(node: Flown, tmp_path: Path) -> None:
    node.put("in", many(120))
    pace, told = FakePace(), []

    def hear(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    heard: list[int] = []
    with ends_on(signal.SIGTERM, told=lambda: heard.append(len(told))) as stop:
        outcome = replay(never, options(node, rate=30), str(tmp_path), told=hear, stop=stop, pace=pace)
    assert heard == [3]  # at once, and not when the step is done
    assert (outcome.finished, outcome.rows) == (False, told[2].rows_done)
    # The first step goes at once; each later one when the rows before it have had their time.
    assert pace.rests_ns == [
        each.rows_done * SECOND_NS // 30 - sum(pace.rests_ns[:n]) for n, each in enumerate(told[:2])
    ]
    assert told[2].rows == 120
    assert told[2].rows_per_s == pytest.approx(told[2].rows_done * SECOND_NS / sum(pace.rests_ns))
    assert told[2].eta_s == pytest.approx((120 - told[2].rows_done) / told[2].rows_per_s)
    assert len(node.bodies("out")) == outcome.rows
    assert replay(never, options(node, rate=1_000_000), str(tmp_path), pace=pace).finished  # the pace may change
    assert node.bodies("out") == node.bodies("in")


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_archive_table_is_replayed_in_the_order_of_its_shards(
    spark: SparkSession, engine: Spark, node: Flown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(running, "STEP_ROWS", 400)
    fill(node, 1000)
    lake = table(str(tmp_path / "lake"), format=kind)
    reader = spark.read.format("penstock").options(url=url(node), subscribe="in", columns="*")
    archived = dated(reader.load().drop("timestamp_ns"))
    lake.append(archived.where("shard = 0"), "archive", 1)
    lake.append(archived.where("shard > 0").orderBy("body"), "archive", 2)
    version = lake.facts().version if kind == "delta" else None
    chosen = options(node, table=str(tmp_path / "lake"), format=kind, topics=[], to="{topic}.old")
    assert planned(engine, chosen, str(tmp_path)).version == version
    replay(engine, chosen, str(tmp_path))
    wanted = rows(node, "in", SHARDS)
    for shard in wanted:
        for row in shard:
            row["dedup"] = None
    assert rows(node, "in.old", SHARDS) == wanted
    first = wanted if version is None else wanted[:1]
    earlier = {"version": version - 1} if version is not None else {}
    some: dict[str, Any] = {
        "table": str(tmp_path / "lake"),
        "format": kind,
        "topics": ["in"],
        "to": "x",
        "where": "tag = 'tag 1'",
    }
    assert planned(engine, options(node, **some, **earlier), str(tmp_path)).rows == sum(
        row["tag"] == "tag 1" for shard in first for row in shard
    )
    bounded: list[tuple[dict[str, Any], int | None]] = [
        ({"from": 10, "until": 20}, 10 * SHARDS),
        ({"from": {"1": 15}, "until": {"0": 0, "2": 0}}, None),
    ]
    for bounds, count in [*bounded, ({"from": "latest"}, 0), ({"until": "earliest"}, 0), ({"topics": ["other"]}, 0)]:
        plan = planned(engine, options(node, **some | {"where": ""} | bounds), str(tmp_path))
        assert plan.rows == (len(wanted[1]) - 15 if count is None else count), bounds


def test_a_table_of_an_archive_is_replayed_between_times_and_by_its_own_columns(
    spark: SparkSession, node: Flown, tmp_path: Path
) -> None:
    node.put("in", many(10))
    node.advance(600)
    middle = datetime.fromtimestamp(node.do(node.clock.now) / SECOND_NS, UTC).isoformat()
    node.advance(600)
    node.put("in", many(5, 10))
    reader = spark.read.format("penstock").options(url=url(node), subscribe="in")
    table(str(tmp_path / "lake")).append(dated(reader.load()), "archive", 1)
    chosen = {"table": str(tmp_path / "lake"), "topics": []}
    for bounds, rows_ in (({"from": middle}, 5), ({"until": middle}, 10)):
        assert planned(never, options(node, **chosen, **bounds), str(tmp_path)).rows == rows_
        assert planned(spark, options(node, **chosen, **bounds), str(tmp_path)).rows == rows_
    assert replay(never, options(node, **chosen, **{"from": middle}), str(tmp_path)).rows == 5
    assert node.bodies("out") == node.bodies("in")[10:]
    # What only the table has is Spark's to judge.
    by_day = options(node, **chosen, where="day > '2000-01-01'")
    with pytest.raises(AssertionError, match="Spark was started"):
        planned(never, by_day, str(tmp_path))
    assert planned(spark, by_day, str(tmp_path)).rows == 15


def test_a_time_counted_back_from_now_means_other_messages_later(node: Flown, tmp_path: Path) -> None:
    chosen, pace = options(node, **{"from": "2m"}), FakePace()

    def run(more: Replay = chosen) -> tuple[int, str]:
        pace.at_ns = node.do(node.clock.now)
        outcome = replay(never, more, str(tmp_path), pace=pace)
        return outcome.rows, outcome.message

    node.put("in", many(10))
    assert run()[0] == 10
    node.advance(600)
    node.put("in", many(5, 10))
    rows_, message = run()
    assert rows_ == 5
    from_ = datetime.fromtimestamp((pace.at_ns - 120 * SECOND_NS) // SECOND_NS, UTC)
    assert f"5 messages were replayed, from {from_:%Y-%m-%dT%H:%M:%S}" in message
    assert node.bodies("out") == node.bodies("in")
    # Under a name it is the one replay that it was the first time.
    named = msgspec.structs.replace(chosen, name="mine")
    assert run(named)[0] == 5
    from_ = datetime.fromtimestamp((pace.at_ns - 120 * SECOND_NS) // SECOND_NS, UTC)
    node.advance(600)
    node.put("in", many(1))
    rows_, message = run(named)
    assert rows_ == 0
    assert message.startswith("nothing to do: mine was replayed on 20")
    assert f"5 messages of in, from {from_:%Y-%m-%dT%H:%M:%S}" in message
    assert message.endswith("To replay them again, give it another name: --name mine-2")
    assert run(msgspec.structs.replace(chosen, name="mine-2"))[0] == 1


def test_a_command_that_is_interrupted_says_at_once_that_it_stops(node: Flown, tmp_path: Path) -> None:
    node.put("in", many(3000))
    words = ["-m", "penstock.cli", "pipeline", "replay", "in", "--to", "out", "--rate", "100", "--url", url(node)]
    command = [sys.executable, *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()) as process:
        assert process.stderr is not None
        assert "messages" in process.stderr.readline()  # of the first step
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 0
    assert said.startswith("Stopping after the step that is under way.\n")


def test_replays_that_cannot_be_meant_again_are_not_kept_for_ever(
    node: Flown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = FakePace()

    def run(**words: Any) -> str:
        """Replay something, and return the name that it had."""
        node.put("in", many(1))
        pace.at_ns = node.do(node.clock.now)
        name = replay(never, options(node, **words), str(tmp_path), pace=pace).plan.name
        node.advance(3600)
        return name

    def kept() -> set[str]:
        return {path.name.removeprefix("replay-") for path in tmp_path.iterdir()}

    lasting = {run(), run(name="mine", **{"from": "2m"})}
    old = run(**{"from": "2m"})
    assert kept() == {*lasting, old}
    node.advance(40 * 24 * 3600)
    monkeypatch.setattr(plans, "KEPT_MAX", 2)
    names = [run(**{"from": "2m"}) for _ in range(4)]
    # The last two that were done when the last one began, and that; what the same words mean later is kept.
    assert kept() == {*lasting, *names[1:]}
    assert replay(never, options(node), str(tmp_path), pace=pace).rows == 0
    # What is not done can be gone on with, and is kept.
    stopped = Heard(stop_after=0)
    stopped.stop.set()
    pace.at_ns = node.do(node.clock.now)
    node.put("in", many(1))
    waits = replay(never, options(node, **{"from": "5h"}), str(tmp_path), stop=stopped.stop, pace=pace).plan.name
    node.advance(40 * 24 * 3600)
    last = run(**{"from": "2m"})
    assert kept() == {*lasting, waits, last}


def test_a_replay_of_nothing_leaves_nothing(node: Flown, tmp_path: Path) -> None:
    node.put("in", many(1))
    outcome = replay(never, options(node, **{"from": "latest"}), str(tmp_path))
    assert outcome.message.startswith("nothing to do")
    assert list(tmp_path.iterdir()) == []


def test_a_replay_from_a_time_back_says_how_to_go_on_with_it(node: Flown, tmp_path: Path) -> None:
    node.put("in", many(90))
    chosen, pace = options(node, rate=30, **{"from": "2m"}), FakePace()
    pace.at_ns = node.do(node.clock.now)
    stopped = Heard(stop_after=1)
    outcome = replay(never, chosen, str(tmp_path), told=stopped, stop=stopped.stop, pace=pace)
    assert not outcome.finished
    assert f"run it again with --name {outcome.plan.name} to go on" in outcome.message
    assert stopped.told[0].name == outcome.plan.name
    node.advance(600)
    pace.at_ns = node.do(node.clock.now)
    named = msgspec.structs.replace(chosen, name=outcome.plan.name)
    assert replay(never, named, str(tmp_path), pace=pace).finished
    assert node.bodies("out") == node.bodies("in")


def test_little_is_replayed_where_spark_is_not_installed(node: Flown, tmp_path: Path) -> None:
    node.put("in", many(100))
    script = "import sys\nsys.modules['pyspark'] = None\nfrom penstock.cli.app import run\nsys.exit(run(sys.argv[1:]))"
    words = ["pipeline", "replay", "in", "--to", "out", "--where", "offset >= 50", "--url", url(node), "--json"]
    child = [sys.executable, "-c", script, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for extra in (["--dry-run"], []):
        done = subprocess.run(
            [*child, *extra], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=120
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["rows"], said["from"]) == (50, "earliest")
    # A command says its own lines on standard error, and nothing else is there.
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [said["name"]]
    assert node.bodies("out") == node.bodies("in")[50:]


UNDERSTOOD = (
    "tag = 'tag 1'",
    "tag <> 'tag 1' OR traffic IS NULL",
    "NOT (tag = 'tag 1' AND shard = 1)",
    "not tag = 'tag 1' and bucket >= 40",
    "tag IN ('tag 0', 'tag 2') AND offset < 200",
    "tag NOT IN ('tag 0')",
    "Bucket BETWEEN 10 AND 20",
    "bucket NOT BETWEEN 10 AND 90",
    "traffic < -5 or route == 7",
    "key IS NOT NULL AND headers IS NULL",
    "topic = 'in' AND (due IS NULL OR event_time IS NULL)",
    "source != 'nsq'",
)


def test_a_condition_that_needs_no_spark_chooses_what_spark_does(
    spark: SparkSession, node: Flown, tmp_path: Path
) -> None:
    fill(node, 700)
    reader = spark.read.format("penstock").options(url=url(node), subscribe="in", columns="*")
    counts = [f"count_if({text}) AS c{number}" for number, text in enumerate(UNDERSTOOD)]
    wanted = dict(zip(UNDERSTOOD, reader.load().selectExpr(*counts).collect()[0], strict=True))
    found = {text: planned(never, options(node, where=text), str(tmp_path)).rows for text in UNDERSTOOD}
    assert found == wanted
    assert len(set(found.values())) > len(found) // 2


@pytest.mark.parametrize(
    "text",
    [
        "key = 'k'",
        "body = 'x'",
        "tag LIKE 'a%'",
        "timestamp > '2026-01-01'",
        "length(tag) > 3",
        "offset > 1.5",
        "offset > 5L",
        "offset > '5'",
        "tag > 5",
        'tag = "x"',
        "tag = 'it''s'",
        "tag = 'a\\'b'",
        "tag = 'x' -- or not",
        "tag = 'x' AND",
        "offset > 99999999999999999999",
        "tag <=> 'x'",
        "true",
        "offset NOT = 5",
        "tag = NULL",
    ],
)
def test_a_condition_that_is_not_surely_the_same_is_left_to_spark(text: str) -> None:
    assert condition(text) is None


def test_replay_that_is_killed_and_run_again_writes_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    node = Process(tmp_path / "data", "log.level=warning")
    node.start()
    try:
        lines = b"\n".join(json.dumps({"body": f"{number}", "key": f"{number % 5}"}).encode() for number in range(2000))
        node.call("POST", "/topics/in/messages?create=true", lines)
        chosen = {"node": {"path": str(tmp_path / "data")}, "topics": ["in"], "to": "out", "rate": 400}
        command = [sys.executable, "-m", "tests.pipeline.replaying", json.dumps(chosen), str(tmp_path / "home")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True) as child:
            assert child.stdout is not None
            # The second step is under way as soon as the first is told.
            assert child.stdout.readline() == b"1\n"
            os.killpg(child.pid, signal.SIGKILL)
        again = msgspec.convert({**chosen, "rate": None}, Replay)
        outcome = replay(spark, again, str(tmp_path / "home"))
        assert outcome.finished
        assert 0 < outcome.rows < 2000
        found = spark.read.format("penstock").options(path=str(tmp_path / "data"), subscribe="out").load()
        assert [row.body for row in found.orderBy("offset").collect()] == [b"%d" % number for number in range(2000)]
    finally:
        node.abandon()


buckets = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50), st.integers(0, 1000)), max_size=30)


@given(buckets, st.integers(1, 200))
def test_steps_have_every_row_once_and_keep_the_order_of_shards(
    drawn: list[tuple[int, int, int]], rows_max: int
) -> None:
    ends = [0, 0, 0]
    given_buckets = []
    for shard, count, time_us in drawn:
        first = ends[shard]
        ends[shard] += count
        given_buckets.append(Bucket("t", shard, first, ends[shard] - 1, count, count, time_us, time_us))
    steps = steps_of(given_buckets, rows_max, 1 << 30)
    assert sum(step.rows for step in steps) == sum(ends)
    for shard in range(3):
        stretches = [each for step in steps for each in step.stretches if each.shard == shard]
        assert [each.start for each in stretches] == [0, *(each.end for each in stretches)][: len(stretches)]
        assert (stretches[-1].end if stretches else 0) == ends[shard]
    assert all(step.rows <= max(rows_max, 50) for step in steps)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"topics": []}, "what is to be replayed"),
        ({"node": {}}, "where are the topics"),
        ({"node": {}, "table": "lake"}, "which node gets the messages"),
        ({"version": 3}, "version is of a table"),
        ({"format": "orc"}, "tables are delta or parquet"),
        ({"to": ""}, "to is empty"),
        ({"rate": 0}, "one row a second at least"),
        ({"shift": "1h"}, 'set times to "shift"'),
        ({"times": "shift", "shift": "soon"}, "shift: .*is not a duration"),
        ({"name": "../x"}, "name is '../x'"),
        ({"where": "timestamp > now()"}, "where uses now, which says something else at each step"),
        ({"times": "later"}, "Invalid enum value"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match=told):
        msgspec.convert({"node": {"url": "grpc://x"}, "topics": ["in"], "to": "out", **more}, Replay)


def test_name_comes_from_the_words_and_from_no_secret() -> None:
    def name(**more: Any) -> str:
        given_ = {"node": {"url": "grpc://x", "token": "t"}, "topics": ["a/b c"], "to": "out", **more}
        return msgspec.convert(given_, Replay).chosen_name()

    assert name() == name(rate=5) == name(node={"url": "grpc://x", "token": "other"})
    assert name().startswith("a-b-c-")
    assert name() != name(where="tag = 'now'") != name(to="other")
    assert name(name="mine") == "mine"


def test_two_processes_do_not_run_one_replay(tmp_path: Path) -> None:
    book = Book(str(tmp_path), "r")
    told = "replay r is under way in another process"
    with book.held(), pytest.raises(ConfigError, match=told), book.held():
        pass
    (tmp_path / "replay-r" / "plan.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        book.plan()
