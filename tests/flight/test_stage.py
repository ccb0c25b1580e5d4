"""What is staged is invisible until its commit, and there once after it."""

from __future__ import annotations

import json
import os
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.wire import Staged, decoded
from tests.flight.parts import Flown, body_batch, limited, many


def stage(flown: Flown, attempt: str, *batches: pa.RecordBatch, batch: int = 0, **more: Any) -> Staged:
    document = {"query": "q", "batch": batch, "attempt": attempt, **more}
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"stage": document}))
    writer, answers = flown.client.do_put(descriptor, batches[0].schema, limited())
    with writer:
        for each in batches:
            writer.write_batch(each)
        writer.done_writing()
        return decoded(answers.read().to_pybytes(), Staged)


def commit(flown: Flown, *attempts: str, batch: int = 0, **more: Any) -> Any:
    return flown.act("commit", query="q", batch=batch, attempts=list(attempts), **more)


def staged_files(flown: Flown) -> list[str]:
    return sorted(os.listdir(flown.path / "staging"))


def test_staged_rows_appear_with_their_commit(flown: Flown) -> None:
    staged = stage(flown, "a0", many(3), many(2000, 3), topic="t")
    assert staged.rows == 2003
    stage(flown, "a1", many(5, 2003), topic="t")
    stage(flown, "lost", many(5), topic="t")
    assert "t" not in flown.node.topics
    assert commit(flown, "a0", "a1") == {"rows": 2008}
    assert sorted(flown.bodies("t")) == sorted(b"body %d" % number for number in range(2008))
    assert set(flown.read("t")["source"].to_pylist()) == {"spark"}
    assert staged_files(flown) == []


def test_due_time_beyond_the_limit_is_refused_before_it_is_staged(flown: Flown) -> None:
    far = pa.array([flown.clock.now() + 366 * 86_400 * 1_000_000_000])
    named = {"topic": pa.array(["t"])}
    for batch, topic in ((body_batch(b"x", due=far), "t"), (body_batch(b"x", due=far, **named), None)):
        with pytest.raises(flight.FlightServerError, match="due_too_far: a message is due at"):
            stage(flown, "a0", batch, topic=topic)
    assert staged_files(flown) == []


def test_rows_without_a_key_go_home_and_those_with_one_to_its_shard(flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"shards": 3})
    keys = pa.array([None, b"k"], pa.binary())
    for home in (2, 4):  # modulo the topic's shards
        stage(flown, f"home{home}", body_batch(b"home %d" % home, b"keyed", key=keys), topic="t", home=home)
    commit(flown, "home2", "home4")
    bodies = [flown.bodies("t", shard=shard) for shard in range(3)]
    assert bodies[2].count(b"home 2") == bodies[1].count(b"home 4") == 1
    assert [shard.count(b"keyed") for shard in bodies].count(2) == 1
    with pytest.raises(flight.FlightServerError, match="bad_request: 'home' of a stage is the number of a shard"):
        stage(flown, "a", many(1), batch=1, topic="t", home=-1)


def test_commit_twice_adds_nothing(flown: Flown) -> None:
    stage(flown, "a0", many(3), topic="t")
    commit(flown, "a0")
    assert commit(flown, "a0") == {"rows": 3, "already": True}
    stage(flown, "b0", many(3), topic="t")
    assert commit(flown, "b0") == {"rows": 3, "already": True}
    assert len(flown.bodies("t")) == 3


def test_commit_of_a_known_number_is_another_one_for_another_topic_and_an_error_for_other_rows(flown: Flown) -> None:
    stage(flown, "a0", many(3), topic="t")
    commit(flown, "a0")
    stage(flown, "b0", many(3), topic="copy")
    assert commit(flown, "b0") == {"rows": 3}
    stage(flown, "c0", many(3, 7), topic="t")
    with pytest.raises(flight.FlightServerError, match="conflict: batch 0 of query q was written to topic t"):
        commit(flown, "c0")
    assert commit(flown, "c0", any_rows=True) == {"rows": 3, "already": True}
    assert flown.bodies("t") == flown.bodies("copy")


def test_commit_of_an_unknown_stage_is_refused_and_changes_nothing(flown: Flown) -> None:
    stage(flown, "a0", many(3), topic="t")
    with pytest.raises(flight.FlightServerError, match="not_found: attempt a1"):
        commit(flown, "a0", "a1")
    assert "t" not in flown.node.topics
    assert commit(flown, "a0") == {"rows": 3}


def test_aborted_attempt_is_gone(flown: Flown) -> None:
    stage(flown, "a0", many(3), topic="t")
    assert flown.act("abort", query="q", batch=0, attempts=["a0"]) == {}
    assert staged_files(flown) == []
    with pytest.raises(flight.FlightServerError, match="not_found"):
        commit(flown, "a0")


def test_rows_name_their_topics(flown: Flown) -> None:
    topics = pa.array(["a", "b", "a"])
    stage(flown, "a0", body_batch(b"1", b"2", b"3", topic=topics, key=pa.array([b"k", None, None], pa.binary())))
    assert commit(flown, "a0") == {"rows": 3}
    assert flown.bodies("a") == [b"1", b"3"]
    assert flown.bodies("b") == [b"2"]


def test_stage_without_rows_can_be_committed(flown: Flown) -> None:
    assert stage(flown, "a0", many(0), topic="t") == Staged(rows=0, bytes=0)
    assert commit(flown, "a0") == {"rows": 0}


def test_batches_are_checked_before_they_are_staged(flown: Flown) -> None:
    bad = pa.record_batch({"body": pa.array([b"x", None], pa.binary())})
    with pytest.raises(flight.FlightServerError, match="bad_column: row 1 has no body"):
        stage(flown, "a0", bad, topic="t")
    with pytest.raises(flight.FlightServerError, match="bad_name: "):
        stage(flown, "a0", many(1), topic="a\tb")
    bad = body_batch(b"x", topic=pa.array(["a\tb"]))
    with pytest.raises(flight.FlightServerError, match="bad_name: "):
        stage(flown, "a0", bad)
    with pytest.raises(flight.FlightServerError, match="not_found: there is no topic 'none'"):
        stage(flown, "a0", many(1), topic="none", create=False)
    assert staged_files(flown) == []


def test_topic_is_made_by_the_commit_and_not_by_what_is_staged(flown: Flown) -> None:
    stage(flown, "a0", many(3), topic="new")
    assert "new" not in flown.node.topics
    flown.act("abort", query="q", batch=0, attempts=["a0"])
    stage(flown, "a1", body_batch(b"x", due=pa.array([flown.node.clock.now()], pa.int64())), topic="new")
    assert "new" not in flown.node.topics
    commit(flown, "a1")
    assert flown.bodies("new") == [b"x"]


def test_attempt_that_exists_is_not_written_over(flown: Flown) -> None:
    stage(flown, "a0", many(3), topic="t")
    with pytest.raises(flight.FlightServerError, match="conflict: attempt a0 of batch 0 is staged already"):
        stage(flown, "a0", many(1), topic="t")
    assert commit(flown, "a0") == {"rows": 3}


def test_stream_that_is_cut_leaves_nothing(flown: Flown) -> None:
    descriptor = flight.FlightDescriptor.for_command(
        json.dumps({"stage": {"query": "q", "batch": 0, "attempt": "a0", "topic": "t"}})
    )
    client = flown.connect()
    writer, answers = client.do_put(descriptor, many(1).schema, flight.FlightCallOptions(timeout=0.5))
    writer.write_batch(many(1000))
    flown.until(lambda: staged_files(flown) != [])
    assert answers.read() is None  # its time is up: the call is cancelled
    with pytest.raises(pa.ArrowException):
        writer.close()
    flown.until(lambda: staged_files(flown) == [])
    with pytest.raises(flight.FlightServerError, match="not_found"):
        commit(flown, "a0")


def test_attempt_whose_client_left_without_its_answer_is_gone(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(_: Staged) -> bytes:
        raise OSError("Unknown error writing metadata.")  # what Arrow raises where the connection is gone

    with monkeypatch.context() as patched:
        patched.setattr("penstock.dialects.flight.stage.encoded", cut)
        with pytest.raises(flight.FlightCancelledError):
            stage(flown, "a0", many(3), topic="t")
    assert staged_files(flown) == []
    with pytest.raises(flight.FlightServerError, match="not_found"):
        commit(flown, "a0")
    stage(flown, "a0", many(3), topic="t")
    assert commit(flown, "a0") == {"rows": 3}
