"""The acceptance cases of Dynamiq's contract, each under its number.

25 is in tests/test_shown.py, 38 in tests/cli/test_config_import.py, 34 in tests/sqs/test_queues.py; 24 and 31 are here
as far as one node goes. How long 37 takes is a row of the benchmark (queue-depth); here its calls are counted.
"""

from __future__ import annotations

import re
import socket
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from penstock.config.tree import TopicConfig
from penstock.dialects.dynamiq.http import key_range
from penstock.shown import SPACE
from tests.dynamiq.desk import Desk, J, T
from tests.http.line import Line


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_dynamiq_case_1_a_queue_is_made_once(desk: Desk) -> None:
    assert desk.ask("PUT", "/v1/queues/a") == (201, J, b'"created"')
    assert desk.ask("PUT", "/v1/queues/a") == (422, J, b'{"error":"Queue already exists."}')
    assert desk.ask("GET", "/v1/queues") == (200, J, b'{"queues":["a"]}')


def test_dynamiq_case_2_a_topic_is_made_once(desk: Desk) -> None:
    assert desk.ask("PUT", "/v1/topics/t") == (201, J, b'{"Queues":[]}')
    assert desk.ask("PUT", "/v1/topics/t") == (422, J, b'{"error":"Topic already exists."}')
    assert desk.ask("GET", "/v1/topics") == (200, J, b'{"topics":["t"]}')


def test_dynamiq_case_3_a_queue_that_is_not_there(desk: Desk) -> None:
    assert desk.ask("GET", "/v1/queues/none") == (404, J, b'"There is no queue named none"')
    assert desk.ask("GET", "/v1/queues/none/messages/5") == (404, J, b'"There is no queue named none"')


def test_dynamiq_case_4_a_topic_that_is_not_there(desk: Desk) -> None:
    for method in ("DELETE", "GET"):
        assert desk.ask(method, "/v1/topics/none") == (404, J, b'{"error":"Topic did not exist."}')
    assert desk.ask("DELETE", "/v1/topics/none/queues/q") == (404, J, b'{"error":"Topic did not exist."}')
    assert desk.ask("GET", "/v1/topics").json == {"topics": []}


def test_dynamiq_case_5_an_id_is_a_number_below_the_range(desk: Desk) -> None:
    desk.queue("a")
    for _ in range(50):
        answer = desk.ask("PUT", "/v1/queues/a/message", b"x")
        assert (answer.status, answer.kind) == (200, T)
        assert re.fullmatch("0|[1-9][0-9]{0,18}", answer.content.decode())
        assert int(answer.content) < SPACE


def test_dynamiq_case_6_a_message_to_a_queue_that_is_not_there_has_no_id(desk: Desk) -> None:
    assert desk.ask("PUT", "/v1/queues/none/message", b"x") == (200, T, b"")
    assert desk.ask("PUT", "/queues/none/message", b"x") == (200, J, b'""')
    assert desk.ask("GET", "/v1/queues").json == {"queues": []}


def test_dynamiq_case_7_a_partition_that_gave_messages_is_locked_with_those_it_kept(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    for number in range(5):
        desk.send("a", b"%d" % number)
    got = desk.receive("a", 3)
    assert [list(each) for each in got] == [["id", "body"]] * 3
    assert [each["body"] for each in got] == ["0", "1", "2"]
    assert desk.ask("GET", "/v1/queues/a/messages/3") == (200, J, b"[]")


def test_dynamiq_case_8_the_lock_ends_just_after_the_visibility_timeout(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    desk.advance(0.0037)  # leases end in steps of 10 ms, locks do not
    for _ in range(5):
        desk.send("a")
    got = desk.ids("a", 3)
    assert len(got) == 3
    desk.advance(30)
    assert desk.ids("a", 3) == []
    desk.advance(0.001)
    assert desk.ids("a", 3) == got


def test_dynamiq_case_9_empty_polls_do_not_lock(desk: Desk) -> None:
    desk.queue("a", min_partitions=3)
    for _ in range(100):
        assert desk.ask("GET", "/v1/queues/a/messages/10") == (200, J, b"[]")
    id_ = desk.send("a")
    assert desk.ids("a") == [id_]


def test_dynamiq_case_10_one_message_in_each_partition(desk: Desk) -> None:
    desk.queue("a", min_partitions=4, max_partitions=4)
    kept: dict[int, str] = {}
    while len(kept) < 4:
        id_ = desk.send("a")
        if kept.setdefault(int(id_) * 4 // SPACE, id_) != id_:
            assert desk.delete("a", id_) == 1
    got = [desk.ids("a") for _ in range(4)]
    assert sorted(got) == sorted([id_] for id_ in kept.values())
    assert desk.ids("a") == []


def test_dynamiq_case_11_partitions_grow_one_at_a_time_and_repeat_no_message(desk: Desk) -> None:
    desk.queue("a", max_partitions=3)
    for _ in range(100):
        desk.send("a")
    got: list[str] = []
    for count in (1, 2, 3):
        ids = desk.ids("a", 5)
        assert ids
        got += ids
        assert desk.partitions("a") == count
    assert desk.ids("a", 5) == []
    assert desk.partitions("a") == 3
    assert len(set(got)) == len(got)


def test_dynamiq_case_12_deleting_does_not_unlock(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    for _ in range(5):
        desk.send("a")
    assert desk.delete("a", *desk.ids("a")) == 5
    later = desk.send("a")
    assert desk.ids("a") == []
    desk.advance(30.001)
    assert desk.ids("a") == [later]


def test_dynamiq_case_13_a_bad_batch_size_is_told_once_and_does_nothing(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    id_ = desk.send("a")
    for bad in ("abc", "1.5", "%20", "0x10", "-"):
        assert desk.ask("GET", f"/v1/queues/a/messages/{bad}") == (422, J, b'"batch size must be an integer"')
    for bad in ("0", "-5", "00"):
        told = b'"Batchsizes must be non-negative integers greater than 0"'
        assert desk.ask("GET", f"/v1/queues/a/messages/{bad}") == (422, J, told)
    assert desk.ids("a") == [id_]


def test_dynamiq_case_14_a_large_batch_is_clamped(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    for _ in range(1500):
        desk.send("a")
    assert len(desk.ids("a", 5000)) == 1000
    desk.advance(30.001)
    assert len(set(desk.ids("a", 99999999999999999999999))) == 1000


def test_dynamiq_case_15_deleting_one_tells_whether_it_was_there(desk: Desk) -> None:
    desk.queue("a")
    id_ = desk.send("a")
    assert desk.ask("DELETE", f"/v1/queues/a/message/{id_}") == (200, J, b"true")
    assert desk.ask("DELETE", f"/v1/queues/a/message/{id_}") == (200, J, b"false")
    assert desk.ask("DELETE", f"/v1/queues/none/message/{id_}") == (200, J, b"false")
    for bogus in ("x", str(SPACE), "-1", "01", "9" * 30, "%00"):
        assert desk.said("DELETE", f"/v1/queues/a/message/{bogus}") == (200, b"false")
    assert desk.ask("GET", "/v1/queues").json == {"queues": ["a"]}


def test_dynamiq_case_16_deleting_many_tells_how_many_there_were(desk: Desk) -> None:
    desk.queue("a")
    one, two, three = (desk.send("a") for _ in range(3))
    assert desk.ask("DELETE", f"/v1/queues/a/messages/{one},{two},bogus") == (200, J, b'{"deleted":2}')
    assert desk.ids("a") == [three]
    assert desk.said("DELETE", f"/v1/queues/a/messages/{three},{three},{one}") == (200, b'{"deleted":1}')
    answer = desk.ask("DELETE", "/v1/queues/none/messages/1,2")
    assert answer == (404, J, b'{"error":"There is no queue named none"}')
    many = ",".join(map(str, range(1001)))
    assert desk.ask("DELETE", f"/v1/queues/a/messages/{many}").status == 422


def test_dynamiq_case_17_settings_are_in_force_after_the_next_sync(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    desk.send("a")
    desk.patch("a", visibility_timeout=2)
    assert desk.ask("GET", "/v1/queues/a").json["VisibilityTimeout"] == 30
    desk.sync()
    assert desk.ask("GET", "/v1/queues/a").json["VisibilityTimeout"] == 2
    assert len(desk.ids("a")) == 1
    desk.advance(2)
    assert desk.ids("a") == []
    desk.advance(0.001)
    assert len(desk.ids("a")) == 1


def test_dynamiq_case_18_settings_of_the_wrong_type_or_out_of_bounds(desk: Desk) -> None:
    desk.queue("a", max_partitions="7")
    assert desk.ask("GET", "/v1/queues/a").json["MaxPartitions"] == 10
    desk.patch("a", max_partitions=7)
    desk.sync()
    shown = desk.ask("GET", "/v1/queues/a")
    assert shown.json["MaxPartitions"] == 7
    assert shown.json["MinPartitions"] == 1
    for bad in (
        b'{"min_partitions":9,"max_partitions":3}',
        b'{"visibility_timeout":1,"min_partitions":8}',
        b'{"visibility_timeout":43201}',
        b'{"visibility_timeout":-1}',
        b'{"visibility_timeout":1e300}',
        b'{"max_partitions":65537}',
        b'{"min_partitions":0}',
        b'{"max_partition_age":-1}',
    ):
        answer = desk.ask("PATCH", "/v1/queues/a", bad)
        assert (answer.status, answer.kind) == (422, J), bad
        assert any(name in answer.json["error"] for name in msgspec.json.decode(bad))
    desk.sync()
    assert desk.ask("GET", "/v1/queues/a") == shown


def test_dynamiq_case_19_settings_of_a_queue_that_is_not_there_and_no_json(desk: Desk) -> None:
    answer = desk.ask("PATCH", "/v1/queues/none", b'{"max_partitions":7}')
    assert answer == (404, J, b'{"error":"Queue did not exist."}')
    desk.queue("a")
    for bad in (b"", b"{", b"nothing", b'["a"]', b"\xff", b"[" * 50_000):
        answer = desk.ask("PATCH", "/v1/queues/a", bad)
        assert (answer.status, answer.kind) == (400, J), bad
        assert "error" in answer.json


def test_dynamiq_case_20_a_topic_feeds_its_queues(desk: Desk) -> None:
    for name in ("q1", "q2"):
        desk.queue(name)
    desk.ask("PUT", "/v1/topics/t")
    assert desk.ask("PUT", "/v1/topics/t/queues/q2") == (200, J, b'{"Queues":["q2"]}')
    for _ in range(2):
        assert desk.ask("PUT", "/v1/topics/t/queues/q1") == (200, J, b'{"Queues":["q1","q2"]}')
    assert desk.ask("GET", "/v1/topics/t") == (200, J, b'{"Queues":["q1","q2"]}')
    answer = desk.ask("PUT", "/v1/topics/t/message", b"hello")
    assert (answer.status, answer.kind) == (200, J)
    ids = answer.json
    assert list(ids) == ["q1", "q2"]
    assert ids["q1"] != ids["q2"]
    for name in ("q1", "q2"):
        assert desk.receive(name) == [{"id": ids[name], "body": "hello"}]
    assert desk.ask("DELETE", "/v1/topics/t/queues/q1") == (200, J, b'{"Queues":["q2"]}')
    assert desk.ask("DELETE", "/v1/topics/t/queues/q1") == (200, J, b'{"Queues":["q2"]}')
    assert list(desk.ask("PUT", "/v1/topics/t/message", b"more").json) == ["q2"]
    assert desk.ask("PUT", "/v1/topics/new/message", b"x") == (200, J, b"{}")
    assert desk.ask("GET", "/v1/topics/new") == (200, J, b'{"Queues":[]}')


def test_dynamiq_case_21_subscribing_what_is_not_there(desk: Desk) -> None:
    answer = desk.ask("PUT", "/v1/topics/t/queues/q")
    assert answer == (422, J, b'{"error":"Topic does not exist. Please create it first."}')
    desk.ask("PUT", "/v1/topics/t")
    answer = desk.ask("PUT", "/v1/topics/t/queues/q")
    assert answer == (422, J, b'{"error":"Queue does not exist. Please create it first"}')


def test_dynamiq_case_22_a_deleted_queue_is_fed_no_more_and_one_of_its_name_is_empty(desk: Desk) -> None:
    for name in ("q1", "q2"):
        desk.queue(name)
        desk.ask("PUT", "/v1/topics/t")
        desk.ask("PUT", f"/v1/topics/t/queues/{name}")
    old = desk.send("q2")
    assert desk.ask("DELETE", "/v1/queues/q2") == (200, J, b'{"Deleted":true}')
    assert desk.ask("DELETE", "/v1/queues/q2") == (404, J, b'{"error":"Queue did not exist."}')
    assert list(desk.ask("PUT", "/v1/topics/t/message", b"x").json) == ["q1"]
    assert desk.said("PUT", "/v1/queues/q2") == (201, b'"created"')
    assert desk.ids("q2") == []
    assert desk.said("DELETE", f"/v1/queues/q2/message/{old}") == (200, b"false")
    assert list(desk.ask("PUT", "/v1/topics/t/message", b"x").json) == ["q1"]


def test_dynamiq_case_23_compression_is_of_segments_and_no_reader_minds(tmp_path: Path) -> None:
    desk = Desk(tmp_path, TopicConfig(segment_bytes=64 << 10))
    sizes = {}
    for name in ("plain", "dense"):
        desk.queue(name, compressed_messages=name == "dense")
        assert desk.ask("GET", f"/v1/queues/{name}").json["CompressedMessages"] is (name == "dense")
        for number in range(100):
            desk.send(name, b"%04d" % number * 1000)
        desk.advance(5)
        files = (tmp_path / "topics" / str(desk.node.topics[name].record.number)).rglob("*.1.arrows")
        sizes[name] = sum(file.stat().st_size for file in files)
    assert sizes["dense"] < sizes["plain"] / 2
    desk.patch("dense", compressed_messages=False)
    desk.sync()
    bodies = [each["body"] for _ in range(9) for each in desk.receive("dense", 1000)]
    assert sorted(bodies) == [f"{number:04d}" * 1000 for number in range(100)]


def test_dynamiq_case_24_one_node_has_all_ids(desk: Desk) -> None:
    answer = desk.ask("GET", "/v1/status/partitionrange")
    assert answer == (200, J, b'{"bottom":"0","top":"9223372036854775807"}')


def test_dynamiq_case_24_ranges_of_several_members_are_contiguous_and_cover_all_ids() -> None:
    assert [key_range(at, 3) for at in range(3)] == [
        (0, 3074457345618258602),
        (3074457345618258602, 6148914691236517204),
        (6148914691236517204, 9223372036854775807),
    ]
    for count in range(1, 50):
        ranges = [key_range(at, count) for at in range(count)]
        assert (ranges[0][0], ranges[-1][1]) == (0, (1 << 63) - 1)
        assert all(first[1] == second[0] for first, second in pairwise(ranges))


def test_dynamiq_case_26_a_lower_maximum_merges_partitions_and_loses_no_message(desk: Desk) -> None:
    desk.queue("a", min_partitions=5, max_partitions=5, visibility_timeout=1)
    sent = {desk.send("a") for _ in range(60)}
    desk.patch("a", min_partitions=1, max_partitions=2)
    desk.sync()
    assert desk.partitions("a") == 2
    got = [set(desk.ids("a", 100)) for _ in range(3)]
    assert got[0] | got[1] == sent
    assert got[2] == set()


def test_dynamiq_case_27_partitions_that_nobody_polls_go(tmp_path: Path) -> None:
    desk = Desk(tmp_path, sync_interval_ns=1_000_000_000)
    desk.queue("a", max_partitions=6, max_partition_age=10, visibility_timeout=3)
    for _ in range(200):
        desk.send("a")
    for _ in range(6):
        assert desk.ids("a", 5)
    assert desk.partitions("a") == 6
    for _ in range(20):
        for _ in range(6):
            desk.ids("a", 5)
        desk.advance(3.5)
        assert desk.partitions("a") == 6
    desk.advance(12)
    assert desk.partitions("a") == 1


def test_dynamiq_case_28_statsd_hears_it_under_dynamiqs_names(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.settimeout(60)
        desk = Desk(tmp_path, statsd_address=f"127.0.0.1:{ear.getsockname()[1]}")
        desk.queue("a", min_partitions=3, max_partitions=3)
        id_ = desk.send("a")
        assert desk.ids("a", 4) == [id_]
        assert desk.said("DELETE", f"/v1/queues/a/message/{id_}") == (200, b"true")
        assert desk.said("DELETE", f"/v1/queues/a/message/{id_}") == (200, b"false")
        desk.advance(2)
        assert ear.recv(65536).decode().splitlines() == [
            "dynamiq.a.sent.count:1|c",
            "dynamiq.a.depth.count:+1|g",
            "dynamiq.a.received.count:1|c",
            "dynamiq.a.fill.count:25|g",
            "dynamiq.a.approximate_depth.count:3|g",
            "dynamiq.a.deleted.count:1|c",
            "dynamiq.a.depth.count:-1|g",
        ]


def test_dynamiq_case_29_bytes_that_are_no_text_and_no_bytes_at_all(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    binary = desk.send("a", b"\xff\xfe")
    empty = desk.send("a", b"")
    text = desk.send("a", 'née "x"\n\0'.encode())
    assert desk.receive("a") == [
        {"id": binary, "body": "//4=", "encoding": "base64"},
        {"id": empty, "body": ""},
        {"id": text, "body": 'née "x"\n\0'},
    ]


def test_dynamiq_case_30_many_polls_at_once_get_ten_partitions(desk: Desk) -> None:
    desk.queue("a", min_partitions=10, max_partitions=10)
    for _ in range(300):
        desk.send("a")
    lines = [Line(desk.dynamiq.listener, port) for port in range(1, 51)]
    for line in lines:
        line.send(b"GET /v1/queues/a/messages/5 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    desk.advance(0.1)
    got = [[each["id"] for each in msgspec.json.decode(line.answer()[2])] for line in lines]
    ids = [id_ for each in got for id_ in each]
    assert sum(map(bool, got)) == 10
    assert len(ids) == len(set(ids)) >= 10


def test_dynamiq_case_32_a_failed_store_is_told_and_leaves_no_lock(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.queue("a", max_partitions=1)
    sent = [desk.send("a") for _ in range(3)]
    (shard,) = desk.node.topics["a"].shards

    def broken(*_: object) -> None:
        raise OSError("the disk is gone")

    for broken_part in (shard, desk.node.topics["a"].subscription("queue").cursors[0].states.journal._journal):
        with monkeypatch.context() as patch:
            patch.setattr(broken_part, "read" if broken_part is shard else "append", broken)
            answer = desk.ask("GET", "/v1/queues/a/messages/2")
            assert (answer.status, answer.kind) == (500, J)
            assert isinstance(answer.json, str)
    assert desk.ids("a", 2) == sent[:2]


def test_dynamiq_case_33_peeking_locks_nothing(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    one, two = desk.send("a", b"one"), desk.send("a", b"two")
    answer = desk.ask("GET", f"/v1/queues/a/message/{two}")
    assert answer == (200, J, msgspec.json.encode({"messages": [{"id": two, "body": "two"}]}))
    both = desk.ask("GET", f"/v1/queues/a/message/{two}%20{one}%20123")
    assert [each["id"] for each in both.json["messages"]] == [two, one]
    answer = desk.ask("GET", "/v1/queues/a/message/123")
    assert answer == (404, J, b'{"error":"Messages with id: 123 not found."}')
    answer = desk.ask("GET", "/v1/queues/none/message/123")
    assert answer == (404, J, b'{"error":"There is no queue named none"}')
    assert desk.ids("a") == [one, two]
    assert desk.ask("GET", f"/v1/queues/a/message/{one}").status == 200
    assert desk.delete("a", one) == 1
    assert desk.ask("GET", f"/v1/queues/a/message/{one}").status == 404


def test_dynamiq_case_35_bare_paths_answer_as_the_manual_and_v1_as_the_service(desk: Desk) -> None:
    desk.queue("q1", max_partitions=1)
    assert desk.ask("PUT", "/topics/t") == (201, J, b'"created"')
    assert desk.ask("PUT", "/topics/t/queues/q1") == (200, J, b'{"Queues":["q1"]}')
    assert desk.ask("GET", "/topics/t") == (200, J, b'["q1"]')
    assert desk.ask("GET", "/v1/topics/t") == (200, J, b'{"Queues":["q1"]}')
    answer = desk.ask("PUT", "/queues/q1/message", b"x")
    assert (answer.status, answer.kind) == (200, J)
    assert re.fullmatch(b'"[0-9]+"', answer.content)
    assert len(desk.ask("GET", "/queues/q1/messages/1").json) == 1
    desk.line.send(b"GET /queues/q1/messages/1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    status, headers, content = desk.line.answer()
    assert (status, content) == (204, b"")  # HTTP has no room for the JSON string but the head
    assert headers["x-dynamiq-message"] == '"There are no available partitions"'
    assert desk.ask("GET", "/v1/queues/q1/messages/1") == (200, J, b"[]")
    desk.advance(30.001)
    (found,) = desk.ask("GET", "/queues/q1/messages/1").json
    assert desk.ask("DELETE", f"/queues/q1/message/{found['id']}") == (200, J, b"true")
    assert desk.ask("DELETE", "/queue/q1") == (200, J, b'{"Deleted":true}')


def test_dynamiq_case_36_a_topic_and_a_queue_of_one_name_are_two_things(desk: Desk) -> None:
    desk.queue("a")
    desk.queue("b")
    assert desk.ask("PUT", "/v1/topics/a") == (201, J, b'{"Queues":[]}')
    desk.ask("PUT", "/v1/topics/a/queues/b")
    assert list(desk.ask("PUT", "/v1/topics/a/message", b"x").json) == ["b"]
    assert desk.ids("a") == []
    assert desk.said("DELETE", "/v1/topics/a") == (200, b'{"Deleted":true}')
    assert desk.ask("GET", "/v1/queues").json == {"queues": ["a", "b"]}


def test_dynamiq_case_31_one_node_serves_every_id_it_took(desk: Desk) -> None:
    desk.queue("a", min_partitions=7, max_partitions=7)
    sent = sorted(int(desk.send("a")) for _ in range(200))
    got = sorted(int(id_) for _ in range(7) for id_ in desk.ids("a", 1000))
    assert got == sent


def test_dynamiq_case_37_a_deep_queue_costs_a_receive_and_a_delete_no_more_than_a_shallow_one(desk: Desk) -> None:
    def calls() -> int:
        count = 0

        def called(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(called)
        try:
            got = desk.ids("a", 10)
            desk.said("DELETE", f"/queues/a/messages/{','.join(got)}")
        finally:
            sys.setprofile(None)
        assert len(got) == 10
        return count

    desk.queue("a", min_partitions=1, max_partitions=1)

    def deepen(messages: int) -> None:
        for _ in range(messages):
            desk.send("a")
        desk.advance(31)

    deepen(100)
    calls()  # what the first use alone makes
    desk.advance(31)
    shallow = calls()
    deepen(4_000)
    assert calls() <= 2 * shallow
