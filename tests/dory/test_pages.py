"""Dory's status pages, over real HTTP, fed by real inputs and by a relay that is made up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SECOND
from penstock.config import DiscardsConfig
from penstock.dialect import Peer, Sample
from penstock.dialects.dory.config import HTTP
from penstock.dialects.dory.forwarder import MetadataTimes, Queue, Watch
from penstock.dory import encode
from penstock.node.node import Served as NodeServed
from tests.dory.senders import TIME_MS, M, Sockets, dory
from tests.served import Answer

#: Every counter that upstream's monitoring script looks up: one that is missing is an error to it.
_NAMES = """
MsgUnprocessedDestroy NoDiscardQuery MetadataHasEmptyTopicList MetadataHasEmptyBrokerList GetMetadataFail
BugDispatchBatchOutOfRangeIndex BugDispatchMsgOutOfRangeIndex TopicHasNoAvailablePartitions MetadataSanityCheckFail
StreamClientWorkerStdException StreamClientWorkerUnknownException MetadataResponseBadTopicNameLen
MetadataResponseBadBrokerHostLen MetadataResponseNegativeCaughtUpReplicaNodeId
MetadataResponseNegativePartitionCaughtUpReplicaCount MetadataResponseNegativeReplicaNodeId
MetadataResponseNegativePartitionReplicaCount MetadataResponseInvalidLeaderNodeId MetadataResponseNegativePartitionId
MetadataResponseNegativePartitionCount MetadataResponseNegativeTopicCount MetadataResponseBadBrokerPort
MetadataResponseNegativeBrokerNodeId MetadataResponseNegativeBrokerCount ShortMetadataResponse BadMetadataResponseSize
BadMetadataResponse ProduceResponseBadPartitionCount ProduceResponseBadTopicNameLength ProduceResponseBadTopicCount
BadKafkaResponseSize BugGetAckWaitQueueOutOfRangeIndex ProduceResponseUnexpectedTopic
ProduceResponseUnexpectedPartition ProduceResponseShortPartitionList ProduceResponseShortTopicList
CorrelationIdMismatch BadProduceResponseSize BadProduceResponse BugAllTopicsEmpty BugMsgListMultipleTopics
BugMsgSetEmpty BugMultiPartitionGroupEmpty BugProduceRequestEmpty MsgSetCompressionError ConnectorTruncateLongTimeout
UnixStreamInputUncleanDisconnect TcpInputUncleanDisconnect TcpInputInvalidSizeField TcpInputMsgBodyTooLarge
UnixStreamInputInvalidSizeField UnixStreamInputMsgBodyTooLarge ConnectFailOnTryGetMetadata ConnectorConnectFail
ConnectorSocketBrokerClose ConnectorSocketError ConnectorSocketTimeout MetadataResponseReadLostTcpConnection
MetadataResponseReadTimeout SendMetadataRequestFail SendMetadataRequestLostTcpConnection UnixStreamInputSocketError
TcpInputSocketError MongooseUrlDecodeError MongooseStdException MongooseUnknownException MsgCreate MsgDestroy
GetMetadataSuccess
"""
LOOKED_UP = _NAMES.split()


class FakeRelay:
    """A relay as far as the pages ask it."""

    def __init__(self) -> None:
        self.watch: Watch | None = None
        self.held: list[Queue] = []
        self.new = 0
        self.times = MetadataTimes(0, 0)
        self.updates = 0
        self.figures: list[Sample] = []

    def queues(self) -> Iterable[Queue]:
        return self.held

    def waiting(self) -> int:
        return self.new

    def metadata_times(self) -> MetadataTimes:
        return self.times

    def update_metadata(self) -> None:
        self.updates += 1

    async def drain(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def samples(self) -> Iterable[Sample]:
        return self.figures

    def peers(self) -> Iterable[Peer]:
        return []


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Sockets]:
    config = {"discards": DiscardsConfig(report_interval_ns=3600 * SECOND, sample_bytes=16)}
    (tmp_path / "debug").mkdir()
    with dory(tmp_path / "data", config, msg_debug_path=str(tmp_path / "debug"), msg_debug_bytes=1000) as node:
        yield node


@pytest.fixture
def relay(node: Sockets) -> FakeRelay:
    relay = FakeRelay()
    node.served.do(lambda: node.served.node.served.__setitem__("kafka_relay", NodeServed(relay, [])))
    return relay


def ask(node: Sockets, path: str, method: str = "GET") -> Answer:
    return node.served.ask(method, path, port=node.served.ports[HTTP])


def page(node: Sockets, path: str) -> str:
    answer = ask(node, path)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8"), answer
    return answer.content.decode()


def document(node: Sockets, path: str) -> dict[str, Any]:
    answer = ask(node, path)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json"), answer
    found = json.loads(answer.content)
    assert isinstance(found, dict)
    return found


def counters(node: Sockets) -> dict[str, int]:
    found = document(node, "/counters/json")["counters"]
    assert all(set(each) == {"location", "name", "value"} for each in found)
    assert len({each["name"] for each in found}) == len(found)
    return {each["name"]: each["value"] for each in found}


def test_dory_case_36_what_is_not_known_is_answered_as_dory_did(node: Sockets) -> None:
    index = ask(node, "/nosuch")
    assert (index.status, index.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert index.content == ask(node, "/").content
    for path in ("server_info", "counters", "discards", "queues", "metadata_fetch_time"):
        assert f'href="/{path}/plain"'.encode() in index.content
        assert f'href="/{path}/json"'.encode() in index.content
        page(node, f"/{path}/plain")
        document(node, f"/{path}/json")
    refused = [ask(node, "/x", "POST"), ask(node, "/", "PUT")]
    assert [each.status for each in refused] == [404, 501]
    assert {each.headers["content-type"] for each in refused} == {"text/plain; charset=utf-8"}


def test_discards_tell_of_every_category_plain_and_in_json(node: Sockets) -> None:
    with node.open("datagram") as line:
        line.say(b"", b"\x00" * 40, b"\x00\x00\x00\x08\x01\x2c\x00\x00")
        for version in (b"\x00\x01", b"\xff\xff"):
            line.say(M[:6] + version + M[8:])
    with node.open("tcp") as line:
        line.say(M[:20])
    node.served.until(lambda: node.served.node.discards.total() == 6)

    def throw() -> None:
        discards = node.served.node.discards
        discards.add("bad_topic", 'no "such"\n\x00topic', [1, 2])
        discards.add("rate_limit", "t", [5] * 7)
        discards.add("too_long", "t", [9], bodies=[b"x" * 100])
        discards.add_duplicates("t", [4, 8])

    node.served.do(throw)
    report = document(node, "/discards/json")
    assert report["interval"] == 3600
    assert "finished_report" not in report
    found = report["unfinished_report"]
    assert found["id"] == 0
    assert found["start_time"] in (report["since"], report["since"] + 1)
    assert {name: count for name, count in found.items() if name.endswith("_count")} == {
        "malformed_msg_count": 2,
        "unix_stream_unclean_disconnect_count": 0,
        "tcp_unclean_disconnect_count": 1,
        "unsupported_api_key_msg_count": 1,
        "unsupported_version_msg_count": 2,
        "bad_topic_msg_count": 2,
    }
    assert found["recent_malformed"] == ["AAAAAAAAAAAAAAAAAAAAAA==", ""]  # case 5: an empty datagram
    assert found["unix_stream_unclean_disconnect"] == []
    assert len(found["tcp_unclean_disconnect"]) == 1
    assert found["unsupported_msg_version"] == [{"version": -1, "count": 1}, {"version": 1, "count": 1}]  # case 8
    assert found["recent_bad_topic"] == ['no "such"\n\x00topic']
    assert found["rate_limit_discard"] == [{"topic": "t", "count": 7}]  # case 21
    assert found["discard_topic"] == [{"topic": "t", "min_timestamp": 5, "max_timestamp": 9, "count": 8}]
    assert found["possible_duplicate_topic"] == [{"topic": "t", "min_timestamp": 4, "max_timestamp": 8, "count": 2}]
    text = page(node, "/discards/plain")
    for line_of_text in (
        "report interval in seconds: 3600",
        "current (unfinished) reporting period:",
        "    report ID: 0",
        "    malformed msg count: 2",
        "    TCP unclean disconnect count: 1",
        '    recent bad topic: 16[no "such"\\x0a\\x00topic]',
        "    rate limit discard topic: 1[t] count 7",
        "    discard topic: 1[t] begin [5] end [9] count 8",
        "    possible duplicate topic: 1[t] begin [4] end [8] count 2",
    ):
        assert line_of_text in text.splitlines()


def test_dory_case_31_a_finished_report_holds_what_the_interval_before_lost(node: Sockets) -> None:
    node.served.do(lambda: node.served.node.discards.add("error_ack", "t", [1]))
    node.served.advance(3600)
    report = document(node, "/discards/json")
    assert (report["finished_report"]["id"], report["unfinished_report"]["id"]) == (0, 1)
    assert report["finished_report"]["discard_topic"][0]["count"] == 1
    assert report["unfinished_report"]["discard_topic"] == []
    assert "latest finished reporting period:" in page(node, "/discards/plain")


def test_that_nobody_asks_for_discards_is_counted(node: Sockets, caplog: pytest.LogCaptureFixture) -> None:
    assert counters(node)["NoDiscardQuery"] == 0
    node.served.advance(3601)
    assert counters(node)["NoDiscardQuery"] == 1
    assert counters(node)["NoDiscardQuery"] == 1
    page(node, "/discards/plain")
    node.served.advance(3599)
    assert counters(node)["NoDiscardQuery"] == 1
    assert any("nobody has asked for /discards" in record.message for record in caplog.records)


def test_nobody_is_told_to_ask_for_a_page_that_is_switched_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with dory(tmp_path / "data", http=False) as node:
        assert node.running.pages is None
        node.served.advance(24 * 3600)
    assert not any("nobody has asked" in record.message for record in caplog.records)


def test_the_monitoring_script_finds_every_counter_it_looks_up(node: Sockets, relay: FakeRelay) -> None:
    before = counters(node)
    assert [name for name in LOOKED_UP if name not in before] == []
    with node.open("tcp") as line:
        line.say(M, M, M)
        node.until("TcpInputForwardMsg", 3)
    relay.new, relay.held = 1, [Queue("t", 0, 0, 1)]
    relay.figures = [
        Sample("acked_total", "counter", "", 1),
        Sample("metadata_fetches_total", "counter", "", 2),
        Sample("connection_failures_total", "counter", "", 5, {"kind": "connect"}),
        Sample("connection_failures_total", "counter", "", 6, {"kind": "silent"}),
        Sample("metadata_unchanged_total", "counter", "", 7),
        Sample("errors_total", "counter", "", 3, {"code": "6"}),
        Sample("errors_total", "counter", "", 4, {"code": "99"}),
    ]
    node.served.do(lambda: node.served.node.discards.add("no_available_partitions", "t", [1, 2]))
    after = counters(node)
    assert set(after) == set(before)
    assert [name for name in before if after[name] < before[name]] == []
    assert (after["MsgCreate"], after["MsgDestroy"]) == (3, 1)
    assert (after["AckOk"], after["GetMetadataSuccess"]) == (1, 2)
    assert (after["AckErrorNotLeaderForPartition"], after["AckErrorUndocumented"]) == (3, 4)
    assert after["TopicHasNoAvailablePartitions"] == 2
    assert (after["ConnectorConnectFail"], after["ConnectorSocketTimeout"], after["ConnectorSocketError"]) == (5, 6, 0)
    assert after["MetadataUnchangedOnRefresh"] == 7
    assert after["NewTcpClient"] == 1
    relay.new = 100  # what came before the start, or from elsewhere, is nothing that scripts know of
    assert counters(node)["MsgDestroy"] == 1
    lines = page(node, "/counters/plain").splitlines()
    assert lines[0].startswith("now=")
    assert any(each.endswith("].TcpInputForwardMsg=3") and each.startswith("[inputs, ") for each in lines)


def test_queues_are_those_of_the_relay(node: Sockets, relay: FakeRelay) -> None:
    relay.new, relay.held = 5, [Queue("b", 1, 2, 3), Queue("a\n", 0, 1, 0), Queue("idle", 0, 0, 0)]
    found = document(node, "/queues/json")
    assert found["new"] == 5
    assert found["sending"] == [
        {"topic": "a\n", "batch": 0, "send_wait": 1, "ack_wait": 0},
        {"topic": "b", "batch": 1, "send_wait": 2, "ack_wait": 3},
    ]
    lines = page(node, "/queues/plain").splitlines()
    assert "batch:          1  send_wait:          2  ack_wait:          3  topic: [b]" in lines
    assert "        12 total (all states: new + batch + send_wait + ack_wait)" in lines


def test_metadata_is_updated_on_demand_and_its_times_are_told(node: Sockets, relay: FakeRelay) -> None:
    relay.times = MetadataTimes(1_700_000_005_000, 1_700_000_001_000)
    found = document(node, "/metadata_fetch_time/json")
    assert (found["last_updated"], found["last_modified"]) == relay.times
    assert found["now"] // 1000 - found["since"] < 3600
    line = "metadata last updated at (milliseconds since epoch): 1700000005000 Tue Nov 14 22:13:25 2023"
    assert line in page(node, "/metadata_fetch_time/plain")
    for path in ("/metadata_update", "/sys/metadata_update"):
        answer = ask(node, path, "POST")
        assert answer.status == 200
        assert answer.content.startswith(b"Metadata update initiated at ")
    assert relay.updates == 2


def test_metadata_cannot_be_updated_where_nothing_is_relayed(node: Sockets) -> None:
    assert ask(node, "/metadata_update", "POST").status == 503


def test_message_debug_writes_only_topics_that_were_asked_for(node: Sockets, relay: FakeRelay, tmp_path: Path) -> None:
    def pass_by(topic: str, body: bytes = b"hi") -> None:
        if relay.watch is not None:
            relay.watch("receive", topic, [TIME_MS], [b"k"], [body])

    received = tmp_path / "debug" / "msg_receive"
    assert page(node, "/msg_debug/get_topics") == "No topics are logged\n"
    assert relay.watch is None
    assert "is on" in page(node, "/msg_debug/add_topic/a%20b")
    assert "was not changed" in page(node, "/msg_debug/add_topic/a%20b")
    assert page(node, "/msg_debug/get_topics") == "a b\n"
    pass_by("other")
    pass_by("a b")
    assert received.read_text() == f"ts: {TIME_MS} topic: 3[a b] key: 4[aw==] value: 4[aGk=]\n"
    assert "is on" in page(node, "/msg_debug/add_all_topics")
    assert "no change" in page(node, "/msg_debug/add_all_topics")
    assert page(node, "/msg_debug/get_topics") == "All topics are logged\n"
    assert "was not changed" in page(node, "/msg_debug/add_topic/x")
    pass_by("other")
    assert received.read_text().count("\n") == 2
    assert "off" in page(node, "/msg_debug/del_all_topics")
    assert "no change" in page(node, "/msg_debug/del_all_topics")
    pass_by("other")
    assert received.read_text().count("\n") == 2
    page(node, "/msg_debug/add_topic/t")  # from off to on: the files are made anew
    assert received.read_text() == ""
    pass_by("t", b"x" * 300)
    assert received.read_text().count("\n") == 1
    pass_by("t", b"x" * 600)  # more than the bytes that are left: it ends
    assert received.read_text().count("\n") == 1
    assert page(node, "/msg_debug/get_topics") == "No topics are logged\n"
    page(node, "/msg_debug/add_topic/t")
    pass_by("t")
    assert "files are empty" in page(node, "/msg_debug/truncate_files")
    assert received.read_text() == ""
    assert relay.watch is None
    page(node, "/msg_debug/add_topic/t")
    node.served.advance(3601)
    pass_by("t")
    assert received.read_text() == ""
    pages = node.running.pages
    assert pages is not None
    assert not pages.debug.is_on
    assert sorted(path.name for path in received.parent.iterdir()) == ["msg_got_ack", "msg_receive", "msg_send"]


def test_message_debug_is_refused_where_it_has_no_place_and_to_foreign_pages(tmp_path: Path) -> None:
    with dory(tmp_path / "data") as node:
        for path in ("add_topic/t", "del_topic/t", "add_all_topics", "del_all_topics", "truncate_files"):
            answer = ask(node, f"/msg_debug/{path}")
            assert answer.status == 403
            assert b"dory.msg_debug_path" in answer.content
        foreign = {"sec-fetch-site": "cross-site"}
        port = node.served.ports[HTTP]
        assert node.served.ask("POST", "/metadata_update", headers=foreign, port=port).status == 403


def test_a_message_that_came_is_among_the_counters(node: Sockets) -> None:
    with node.open("datagram") as line:
        line.say(encode("t", b"hello"))
    node.until("UnixDgInputAgentForwardMsg", 1)
    assert counters(node)["UnixDgInputAgentForwardMsg"] == 1
