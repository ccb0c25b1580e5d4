from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from penstock.cli import import_nsq
from penstock.cli.printer import Printer
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.takeover import backlog, transfer
from tests.cli.nsqd import Consumer, Message, Nsqd
from tests.cli.program import Done, Node, environment, inside
from tests.nsq.parts import Broker
from tests.nsq.test_diskqueue import TIME_NS, file_of, plain, raw

Delivered = Counter[tuple[bytes, int]]


def brought(path: Path, *options: str, source: str = "nsqd", data: str = "data") -> Done:
    return inside("import", "nsq", source, "--data", data, *options, cwd=path)


def ok(path: Path, *options: str) -> dict[str, Any]:
    done = brought(path, "--json", *options)
    assert done.code == 0, done
    report: dict[str, Any] = done.json
    return report


def write(path: Path, topic: str, queues: dict[str | None, bytes], **paused: bool) -> None:
    """Write the files of a stopped nsqd with one topic."""
    path.mkdir(exist_ok=True)
    channels = [{"name": name, "paused": paused.get(name, False)} for name in queues if name is not None]
    listed = {"name": topic, "paused": paused.get("topic", False), "channels": channels}
    (path / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": [listed]}))
    for channel, content in queues.items():
        name = topic if channel is None else f"{topic}:{channel}"
        (path / f"{name}.diskqueue.000000.dat").write_bytes(content)
        (path / f"{name}.diskqueue.meta.dat").write_bytes(b"0\n0,0\n0,%d\n" % len(content))


def delivered(path: Path, topic: str, *channels: str, data: str = "data") -> dict[str, Delivered]:
    """Return what each channel gets, with attempts, from a node on these files."""
    broker = Broker(path / data)
    out = {}
    for channel in channels:
        client = broker.client()
        client.sub(topic, channel, rdy=2500)
        out[channel] = Counter((message.body, message.attempts) for message in client.messages())
        client.hang_up()
    broker.node.close()
    return out


def times(messages: list[Message]) -> dict[bytes, int]:
    return {message.body: message.attempts for message in messages}


# --- files of a real nsqd -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped nsqd's files.

    orders: `audit` finished 100 of 300, held 20 and deferred 5 when it stopped; `billing` has read everything;
    `stopped` is paused and has read nothing. alone: 40 messages and no channel. held: a paused topic, 10 messages in
    its channel and 15 in itself.
    """
    data = tmp_path_factory.mktemp("left") / "nsqd"
    with Nsqd(data, "--max-bytes-per-file=4096") as nsqd:
        for channel in ("audit", "billing", "stopped"):
            nsqd.post("/topic/create?topic=orders")
            nsqd.post(f"/channel/create?topic=orders&channel={channel}")
        nsqd.post("/channel/pause?topic=orders&channel=stopped")
        nsqd.publish("orders", [b"order %d" % number for number in range(300)])
        nsqd.publish("alone", [b"alone %d" % number for number in range(40)])
        nsqd.post("/topic/create?topic=held")
        nsqd.post("/channel/create?topic=held&channel=c")
        nsqd.publish("held", [b"through %d" % number for number in range(10)])
        nsqd.wait("held", lambda held: bool(held["channels"]["c"]["depth"] == 10))
        nsqd.post("/topic/pause?topic=held")
        nsqd.publish("held", [b"held back %d" % number for number in range(15)])
        with Consumer(nsqd.tcp_port, "orders", "billing") as billing:
            billing.finish(billing.take(300))
            nsqd.wait("orders", lambda orders: orders["channels"]["billing"]["in_flight_count"] == 0 == orders["depth"])
        with Consumer(nsqd.tcp_port, "orders", "audit") as audit:
            taken = audit.take(125)
            assert [message.body for message in taken] == [b"order %d" % number for number in range(125)]
            audit.finish(taken[:100])
            audit.requeue(taken[120:], 60_000)
            nsqd.wait("orders", lambda orders: bool(orders["channels"]["audit"]["deferred_count"] == 5))
            nsqd.end()
    assert len(list(data.glob("orders:audit.diskqueue.*.dat"))) > 2
    return data


def test_what_was_unread_in_nsqd_arrives_and_nothing_else(tmp_path: Path, left_behind: Path) -> None:
    first = inside("import", "nsq", left_behind, "--data", "data", cwd=tmp_path)
    assert first.code == 0, first
    assert first.out.splitlines() == [
        "topic   channel  unread",
        "alone   -            40",
        "held    -            15",
        "held    c            10",
        "orders  audit       200",
        "orders  billing       0",
        "orders  stopped     300",
        "365 messages imported, 0 were there from an earlier import; `penstock up --data data` serves them",
    ]
    again = inside("import", "nsq", left_behind, "--data", "data", cwd=tmp_path)
    assert again.out.splitlines()[-1].startswith("0 messages imported, 365 were there from an earlier import")
    with Node(tmp_path) as node:
        port = node.port("nsq.tcp_port")
        subscriptions = {one["name"]: one for one in node.ok("subscription", "list", "orders", "--json").json}
        assert {name: one["depth"] for name, one in subscriptions.items()} == {
            "audit": 200,
            "billing": 0,
            "stopped": 300,
        }
        assert subscriptions["stopped"]["settings"]["paused"] is True
        with Consumer(port, "orders", "audit") as audit:
            # What was out when nsqd stopped has been tried once; it kept that, and not how long it was to wait.
            tried = {b"order %d" % number: 2 for number in range(100, 125)}
            fresh = {b"order %d" % number: 1 for number in range(125, 300)}
            assert times(audit.take(200)) == tried | fresh
        node.ok("subscription", "resume", "orders", "stopped")
        with Consumer(port, "orders", "stopped") as stopped:
            assert [message.body for message in stopped.take(300)] == [b"order %d" % number for number in range(300)]
        with Consumer(port, "alone", "first") as alone:
            assert [message.body for message in alone.take(40)] == [b"alone %d" % number for number in range(40)]
        with Consumer(port, "held", "c") as held:
            through = held.take(10)
            assert times(through) == {b"through %d" % number: 1 for number in range(10)}
            held.finish(through)
            assert node.ok("topic", "show", "held", "--json").json["depth"] == 15
            node.ok("topic", "resume", "held")
            assert times(held.take(15)) == {b"held back %d" % number: 1 for number in range(15)}
        # The time in the log is Penstock's, the event time nsqd's.
        one = node.ok("peek", "orders", "--max", "1", "--json").json
        assert one["event_time"] < one["timestamp"]


def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path, left_behind: Path) -> None:
    done = inside("import", "nsq", left_behind, "--data", "data", "--dry-run", cwd=tmp_path)
    assert done.code == 0
    assert done.out.splitlines()[-1] == "365 messages, 0 of them imported before; nothing was changed"
    assert not (tmp_path / "data").exists()
    report = inside("import", "nsq", left_behind, "--data", "data", "--dry-run", "--json", cwd=tmp_path).json
    assert report["found"][2] == {
        "topic": "orders",
        "messages": 300,
        "earlier": 0,
        "unread": 0,
        "channels": {"audit": 200, "billing": 0, "stopped": 300},
    }


def test_a_running_nsqd_is_not_read(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "nsqd") as nsqd:
        nsqd.publish("orders", [b"one"])
        done = brought(tmp_path)
        assert (done.code, done.error) == (
            2,
            "penstock: an nsqd still runs on nsqd. Stop it first: it writes the rest to disk then.\n",
        )
        nsqd.end()
    assert ok(tmp_path)["messages"] == 1


def test_an_nsqd_that_was_killed_leaves_whole_records(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "nsqd", "--sync-every=1") as nsqd:
        nsqd.publish("orders", [b"order %d" % number for number in range(50)])
        nsqd.wait("orders", lambda orders: bool(orders["backend_depth"] == 50))
        nsqd.end(signal.SIGKILL)
    assert ok(tmp_path)["messages"] == 50
    assert delivered(tmp_path, "orders", "audit") == {
        "audit": Counter({(b"order %d" % number, 1): 1 for number in range(50)})
    }


# --- the target ---------------------------------------------------------------------------------------------------


def test_a_running_node_is_not_written_to(tmp_path: Path) -> None:
    write(tmp_path / "nsqd", "orders", {"audit": file_of(plain(b"one"))})
    with Node(tmp_path):
        done = brought(tmp_path)
        assert (done.code, done.error) == (
            2,
            "penstock: a node runs on data. Stop it for the time of the import, "
            "or import into another directory with --data.\n",
        )
        assert brought(tmp_path, "--dry-run").code == 0
        assert brought(tmp_path, data="other").code == 0
    assert delivered(tmp_path, "orders", "audit", data="other")["audit"] == Counter({(b"one", 1): 1})


def test_a_topic_in_use_keeps_what_it_has(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    client = broker.client()
    client.sub("orders", "mine")
    other = broker.client()
    other.sub("orders", "audit")
    producer = broker.client()
    producer.pub("orders", b"ours 1", b"ours 2")
    broker.node.close()
    write(tmp_path / "nsqd", "orders", {"audit": file_of(plain(b"theirs 1", 1)), "new": file_of(plain(b"theirs 2", 2))})
    assert ok(tmp_path)["messages"] == 2
    ours = {(b"ours 1", 1): 1, (b"ours 2", 1): 1}
    assert delivered(tmp_path, "orders", "mine", "audit", "new") == {
        "mine": Counter(ours),
        "audit": Counter({**ours, (b"theirs 1", 1): 1}),
        "new": Counter({(b"theirs 2", 1): 1}),
    }


def test_what_a_topic_itself_had_goes_to_all_channels(tmp_path: Path) -> None:
    write(tmp_path / "nsqd", "orders", {None: file_of(plain(b"new", 2)), "a": file_of(plain(b"old", 1)), "b": b""})
    ok(tmp_path)
    assert delivered(tmp_path, "orders", "a", "b") == {
        "a": Counter({(b"old", 1): 1, (b"new", 1): 1}),
        "b": Counter({(b"new", 1): 1}),
    }


def test_headers_tags_and_traces_of_youzans_become_columns(tmp_path: Path) -> None:
    header = b'{"##client_dispatch_tag":"blue","n":"1"}'
    extension = b"\x04" + len(header).to_bytes(2, "big") + header
    records = [raw(b"plain", 1), raw(b"tagged", 2, trace=(1 << 64) - 1, attempts=7, extension=extension)]
    write(tmp_path / "nsqd", "orders", {"audit": file_of(*records)})
    ok(tmp_path)
    broker = Broker(tmp_path / "data")
    topic = broker.node.topic("orders")
    assert topic.chosen.of(NsqChoices).extend == "on"
    batch = topic.shards[0].read(0)
    if batch is None:
        topic.shards[0].fetch(0, lambda: None)
        broker.clock.run()
        batch = topic.shards[0].read(0)
    assert batch is not None
    names = ("event_time", "headers", "tag", "trace")
    assert [batch.row_value(name, 0) for name in names] == [TIME_NS, None, None, None]
    assert [batch.row_value(name, 1) for name in names] == [TIME_NS, header, "blue", -1]
    assert topic.subscription("audit").cursors[0].states.pages.attempts(batch.first + np.arange(2)).tolist() == [
        0,
        7,
    ]
    broker.node.close()


def test_a_topic_that_lives_in_memory_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "nsqd", "orders", {"audit": file_of(plain(b"one"))})
    (tmp_path / "penstock.toml").write_text('[topic]\ndurability = "memory"\n')
    done = brought(tmp_path)
    assert (done.code, "is kept in memory only" in done.error) == (1, True), done


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_nsq, "SAY_EVERY_S", 0.0)
    for stream, wanted in ((Terminal(), "200/1000"), (io.StringIO(), "200 of 1,000 messages\n")):
        with import_nsq._progress(Printer(stream=stream), 1000) as told:
            told(200)
        assert wanted in stream.getvalue()
    silent = io.StringIO()
    with import_nsq._progress(Printer(json=True, stream=silent), 1000) as told:
        told(200)
    assert silent.getvalue() == ""


# --- damage -------------------------------------------------------------------------------------------------------


def test_damage_is_told_with_its_place_and_the_rest_comes_with_force(tmp_path: Path) -> None:
    good = file_of(plain(b"one", 1), plain(b"two", 2))
    write(tmp_path / "nsqd", "orders", {"audit": good + b"\0\0\1\0torn", "billing": good})
    done = brought(tmp_path)
    assert done.code == 1
    assert done.error == (
        f"penstock: the files are damaged: nsqd/orders:audit.diskqueue.000000.dat at byte {len(good)}: a record of "
        "256 bytes is cut off after 4. Nothing was imported; --force imports what is whole.\n"
    )
    assert not (tmp_path / "data").exists()
    report = ok(tmp_path, "--force")
    assert (report["messages"], len(report["problems"])) == (2, 1)
    both = Counter({(b"one", 1): 1, (b"two", 1): 1})
    assert delivered(tmp_path, "orders", "audit", "billing") == {"audit": both, "billing": both}


def test_what_is_no_nsqd_directory_says_so(tmp_path: Path) -> None:
    (tmp_path / "nsqd").mkdir()
    done = brought(tmp_path)
    assert (done.code, done.error.count("\n"), "holds no nsqd.dat" in done.error) == (2, 1, True)
    assert brought(tmp_path, source="nowhere").code == 2


# --- interruptions ------------------------------------------------------------------------------------------------


def three_channels(path: Path) -> dict[str, Delivered]:
    """Write a topic whose channels have read different parts, and return what each has left, with its next attempt."""
    random = Random(1)
    queues: dict[str | None, bytes] = {}
    left: dict[str, Delivered] = {}
    for name, share in (("all", 1.0), ("half", 0.5), ("few", 0.02)):
        kept = [number for number in range(200) if random.random() < share]
        tries = {number: random.choice((0, 0, 0, 1, 3)) for number in kept}
        records = [plain(b"%d" % number, number, tries[number], TIME_NS + number) for number in kept]
        random.shuffle(records)
        queues[name] = file_of(*records)
        left[name] = Counter((b"%d" % number, 1 + tries[number]) for number in kept)
    write(path, "orders", queues)
    return left


def bodies(of: dict[str, Delivered]) -> dict[str, Counter[bytes]]:
    return {name: Counter(body for body, _ in found.elements()) for name, found in of.items()}


def test_channels_with_different_parts_each_get_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "BATCH_ROWS_MAX", 7)
    left = three_channels(tmp_path / "nsqd")
    assert ok(tmp_path)["messages"] == 200
    assert delivered(tmp_path, "orders", *left) == left


@pytest.mark.parametrize("point", ["_settle", "_survive", "add"])
def test_a_failed_import_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setattr(backlog, "BATCH_ROWS_MAX", 7)
    left = three_channels(tmp_path / "nsqd")
    owner = transfer.Brought if point == "add" else transfer.Transfer
    real = getattr(owner, point)
    calls = 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 14:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(owner, point, failing)
        done = brought(tmp_path)
        assert (done.code, "Run it again to go on" in done.error) == (1, True), done
    report = ok(tmp_path)
    assert report["messages"] + report["earlier"] == 200
    assert report["earlier"] > 0
    assert bodies(delivered(tmp_path, "orders", *left)) == bodies(left)
    assert ok(tmp_path)["messages"] == 0


KILLED = """
import os, sys
from penstock.cli.app import run
from penstock.dialects.nsq.takeover import backlog, transfer
backlog.BATCH_ROWS_MAX = 7
real, calls = getattr(transfer.{owner}, "{point}"), 0
def dying(*arguments):
    global calls
    calls += 1
    if calls == 14:
        os._exit(9)
    return real(*arguments)
setattr(transfer.{owner}, "{point}", dying)
run(["import", "nsq", "nsqd", "--data", "data"])
"""


@pytest.mark.parametrize(("owner", "point"), [("Transfer", "_settle"), ("Transfer", "_survive"), ("Brought", "add")])
def test_a_killed_import_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, point: str
) -> None:
    monkeypatch.setattr(backlog, "BATCH_ROWS_MAX", 7)
    left = three_channels(tmp_path / "nsqd")
    script = KILLED.format(owner=owner, point=point)
    died = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment(), check=False, timeout=60)
    assert died.returncode == 9
    report = ok(tmp_path)
    assert report["messages"] + report["earlier"] == 200
    assert report["earlier"] > 0
    assert bodies(delivered(tmp_path, "orders", *left)) == bodies(left)
    assert ok(tmp_path)["messages"] == 0
