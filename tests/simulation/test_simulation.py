"""A few seeds, and that a seed tells the same story every time."""

import os
import subprocess
import sys
from random import Random

import pytest

from penstock.delivery.receipts import written
from penstock.dialects.sqs.ids import message_id
from penstock.shown import shown_id
from tests.simulation.book import Book
from tests.simulation.clock import Scheduler
from tests.simulation.disk import Died
from tests.simulation.extras import Extras
from tests.simulation.history import History
from tests.simulation.machine import Machine
from tests.simulation.model import Message, Presence
from tests.simulation.queues.wire import Reply, ReplyReader, receipt, shown_in
from tests.simulation.runner import failure_of
from tests.simulation.survival import DEATH, LogContents, compare_log, crash
from tests.simulation.taste import EQUAL, GLOB, LIST, REGEX, HeaderTest
from tests.simulation.wire import Form, FrameReader, pub_ext, traced

DIGEST = (
    "import logging; logging.disable(logging.CRITICAL); from tests.simulation.runner import failure_of; "
    "outcome, failure = failure_of({seed}); print(failure or outcome.digest)"
)


@pytest.mark.parametrize("seed", range(1, 6))
def test_nothing_is_broken_in_a_seed(seed: int) -> None:
    _, failure = failure_of(seed)
    assert not failure, failure


def test_same_seed_gives_the_same_trace() -> None:
    first, second = failure_of(3)[0], failure_of(3)[0]
    assert first is not None
    assert second is not None
    assert first == second


def test_another_seed_gives_another_trace() -> None:
    first, second = failure_of(3)[0], failure_of(4)[0]
    assert first is not None
    assert second is not None
    assert first.digest != second.digest


@pytest.mark.parametrize("seed", [3, 8, 46])  # with a queue of Dynamiq, without, with a FIFO queue
def test_trace_does_not_depend_on_the_process(seed: int) -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGEST.format(seed=seed)]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(run.stdout)
    assert len(digests) == 1


def test_power_loss_keeps_what_was_synced_and_no_more_than_was_written() -> None:
    for number in range(200):
        machine = Machine(number)
        machine.disk.make("data")
        file = machine.disk.open("data/file", create=True)
        file.append([b"a" * 1000])
        file.sync()
        machine.disk.sync_directory("data")
        file.append([b"b" * 2000])
        machine.platter.lose_power()
        kept = bytes(machine.platter.files["data/file"].data)
        assert kept.startswith(b"a" * 1000)
        assert len(kept) <= 3000
        assert set(kept[1000:]) <= {0, ord("b")}


def test_power_loss_may_undo_a_rename_that_was_not_synced() -> None:
    contents = set()
    for number in range(50):
        machine = Machine(number)
        machine.disk.make("data")
        for name, content in (("old", b"old"), ("new", b"new")):
            file = machine.disk.open(f"data/{name}", create=True)
            file.append([content])
            file.sync()
        machine.disk.sync_directory("data")
        machine.disk.rename("data/new", "data/old")
        machine.platter.lose_power()
        contents.add(bytes(machine.platter.files["data/old"].data))
    assert contents == {b"old", b"new"}


def test_process_that_died_in_an_append_leaves_a_part_of_it_and_does_nothing_more() -> None:
    machine = Machine()
    machine.disk.make("data")
    file = machine.disk.open("data/file", create=True)
    machine.platter.fuse = 1
    with pytest.raises(Died):
        file.append([b"x" * 100])
    with pytest.raises(Died):
        file.append([b"y"])
    left = bytes(machine.platter.files["data/file"].data)
    assert left == b"x" * len(left)
    machine.start()
    assert machine.disk.open("data/file").size() == len(left)


def test_append_to_a_full_disk_leaves_nothing() -> None:
    machine = Machine()
    machine.disk.make("data")
    file = machine.disk.open("data/file", create=True)
    file.append([b"x" * 10])
    machine.platter.capacity_bytes = 15
    with pytest.raises(OSError, match="No space"):
        file.append([b"123456"])
    assert file.read(0, 100) == b"x" * 10
    machine.platter.capacity_bytes = 100
    assert file.append([b"123456"]) == 6


def test_work_takes_effect_before_it_is_reported() -> None:
    machine = Machine()
    machine.disk.make("data")
    file = machine.disk.open("data/file", create=True)
    file.append([b"first"])
    seen: list[int] = []
    machine.disk.submit("sync", file.sync, lambda _, error: seen.append(machine.platter.files["data/file"].synced))
    while not seen:
        if machine.platter.syncs and file.size() == 5:
            file.append([b"second"])  # after the sync began: it does not cover this
        machine.scheduler.turn()
    assert seen == [5]


def test_wall_clock_between_two_times_knows_its_jumps() -> None:
    scheduler = Scheduler(Random("turns"))
    start_ns = scheduler.wall_ns()
    scheduler.run_until(100)
    scheduler.jump(-50)
    scheduler.run_until(200)
    assert scheduler.wall_between(0, 200) == (start_ns, start_ns + 150)
    assert scheduler.wall_between(150, 200) == (start_ns + 100, start_ns + 150)


def test_key_of_a_message_that_died_with_the_process_is_taken_again() -> None:
    book = Book(Scheduler(Random("turns")), History(), 0)
    topic = book.topic("t")
    topic.tight = True

    def publish(body: bytes) -> Message:
        message = book.offer(topic, body, "publisher")
        message.dedup = b"key"
        topic.dedups.setdefault(message.dedup, []).append(message)
        return message

    lost = publish(b"m00001 ")
    crash(book, DEATH)
    compare_log(book, topic, LogContents([], [], set()))
    again = publish(b"m00002 ")
    book.stored_at(again, 1)
    assert (again.id, again.presence, lost.id) == (1, Presence.MUST, None)
    repeated = publish(b"m00003 ")
    book.stored_at(repeated, 1)
    assert repeated.presence is Presence.REFUSED


def test_frames_are_read_in_any_cuts() -> None:
    data = b"\x00\x00\x00\x06\x00\x00\x00\x00OK\x00\x00\x00\x06\x00\x00\x00\x01no"
    for cut in range(len(data)):
        reader = FrameReader()
        frames = [frame for frame, _ in [*reader.feed(data[:cut]), *reader.feed(data[cut:])]]
        assert [(frame.kind, frame.data) for frame in frames] == [(0, b"OK"), (1, b"no")]


def test_answers_of_queues_are_read_in_any_cuts() -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]HTTP/1.1 204 No Content\r\n\r\n"
    for cut in range(len(data)):
        reader = ReplyReader()
        found = [*reader.feed(data[:cut]), *reader.feed(data[cut:])]
        assert [(reply.status, reply.data) for reply, _ in found if isinstance(reply, Reply)] == [
            (200, b"[]"),
            (204, b""),
        ]


def test_receipts_and_ids_of_queues_are_taken_apart() -> None:
    assert receipt(written(0x1000000000005, 77, 9)) == (0x1000000000005, 77, 9)
    assert [shown_in(message_id(9, id_)) for id_ in (1, 1 << 40)] == [shown_id(1, 9), shown_id(1 << 40, 9)]


def test_extended_frames_are_taken_apart() -> None:
    # A message frame as the protocol's description spells it: raw id 7, trace 123, a header, its place, "hi".
    data = bytes.fromhex(
        "0000004f0000000214d1120d7b16000000010000000000000007000000000000007b0400207b222323636c69656e745f64697370617463"
        "685f746167223a2274616741227d0000000000000190000000376869"
    )
    reader = FrameReader()
    reader.form = Form(raw=True, extended=True, detailed=True)
    [(frame, end)] = reader.feed(data)
    assert end == len(data)
    assert (frame.id, frame.trace, frame.attempts, frame.data) == (7, 123, 1, b"hi")
    assert (frame.header, frame.place) == (b'{"##client_dispatch_tag":"tagA"}', (400, 55))


def test_publishes_with_headers_are_spelled_as_described() -> None:
    header = b'{"##client_dispatch_tag":"tagA"}'
    described = "5055425f4558542074310a0000002400207b222323636c69656e745f64697370617463685f746167223a2274616741227d6869"
    assert pub_ext("t1", b"hi", Extras(header=header)).data == bytes.fromhex(described)
    reply = bytes.fromhex("4f4b0000000000000007000000000000007b000000000000019000000037")
    assert traced(reply) == (7, 123, (400, 55))
    assert traced(b"OK") is None


@pytest.mark.parametrize(
    ("test", "taken"),
    [
        (HeaderTest(EQUAL, "shape", "round"), True),
        (HeaderTest(EQUAL, "shape", "flat"), False),
        (HeaderTest(REGEX, "shape", "^.o"), True),
        (HeaderTest(GLOB, "shape", "?[lq]*"), False),
        (HeaderTest(LIST, "any", "", (("shape", "flat"), ("size", "s"))), True),
        (HeaderTest(LIST, "all", "", (("shape", "flat"), ("size", "s"))), False),
    ],
)
def test_header_tests_judge_as_described_and_inverse_turns_them_round(test: HeaderTest, taken: bool) -> None:
    members = {"shape": "round", "size": "s"}
    assert test.takes(b"{...}", members) is taken
    assert test.takes(None, {}) is False
    assert test._replace(inverse=True).takes(b"{...}", members) is not taken
    assert test._replace(inverse=True).takes(None, {}) is True
