from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.dialects.nsq.config import NsqConfig
from tests.nsq.asking import ask, done, post, refused, stats, topic_of
from tests.served import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", nsq=NsqConfig(tcp_port=0, http_port=0)) as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0


def test_nsq_case_31_topics_and_channels_come_pause_and_go_over_http(served: Served) -> None:
    done(served, "/topic/create?topic=t")
    done(served, "/channel/create?topic=t&channel=ch")
    assert [channel["channel_name"] for channel in topic_of(served, "t")["channels"]] == ["ch"]
    assert refused(post(served, "/topic/pause")) == (400, "MISSING_ARG_TOPIC")
    assert refused(post(served, "/topic/pause?topic=tabc")) == (404, "TOPIC_NOT_FOUND")
    done(served, "/topic/pause?topic=t")
    assert topic_of(served, "t")["paused"] is True
    done(served, "/topic/unpause?topic=t")
    assert topic_of(served, "t")["paused"] is False
    done(served, "/channel/pause?topic=t&channel=ch")
    assert topic_of(served, "t")["channels"][0]["paused"] is True
    done(served, "/channel/unpause?topic=t&channel=ch")
    assert topic_of(served, "t")["channels"][0]["paused"] is False
    done(served, "/channel/delete?topic=t&channel=ch")
    assert topic_of(served, "t")["channels"] == []
    done(served, "/topic/delete?topic=t")
    assert stats(served)["topics"] == []


@pytest.mark.parametrize("word", ["create", "delete", "empty", "pause", "unpause"])
def test_nsq_case_31_a_topic_must_be_named_and_named_well(served: Served, word: str) -> None:
    assert refused(post(served, f"/topic/{word}")) == (400, "MISSING_ARG_TOPIC")
    for name in ("", "a%20b", "x" * 65, "a%0A", "t:ephemeral"):
        looked_at = word in ("create", "empty")  # as in nsqd, which looks for the others as they are
        expected = (400, "INVALID_TOPIC") if looked_at else (404, "TOPIC_NOT_FOUND")
        assert refused(post(served, f"/topic/{word}?topic={name}")) == expected
    assert refused(ask(served, "GET", f"/topic/{word}?topic=t")) == (405, "METHOD_NOT_ALLOWED")
    if word != "create":
        assert refused(post(served, f"/topic/{word}?topic=t")) == (404, "TOPIC_NOT_FOUND")
    assert stats(served)["topics"] == []


@pytest.mark.parametrize("word", ["create", "delete", "empty", "pause", "unpause", "setoffset"])
def test_nsq_case_31_a_channel_must_be_named_and_named_well(served: Served, word: str) -> None:
    done(served, "/topic/create?topic=t")
    path = f"/channel/{word}"
    assert refused(post(served, f"{path}?channel=ch")) == (400, "MISSING_ARG_TOPIC")
    assert refused(post(served, f"{path}?topic=a%20b&channel=ch")) == (400, "INVALID_ARG_TOPIC")
    assert refused(post(served, f"{path}?topic=t")) == (400, "MISSING_ARG_CHANNEL")
    assert refused(post(served, f"{path}?topic=t&channel=a%20b")) == (400, "INVALID_ARG_CHANNEL")
    assert refused(post(served, f"{path}?topic=other&channel=ch")) == (404, "TOPIC_NOT_FOUND")
    assert refused(ask(served, "PUT", f"{path}?topic=t&channel=ch")) == (405, "METHOD_NOT_ALLOWED")
    if word != "create":
        assert refused(post(served, f"{path}?topic=t&channel=ch")) == (404, "CHANNEL_NOT_FOUND")
    assert topic_of(served, "t")["channels"] == []


def test_made_twice_is_made_once(served: Served) -> None:
    for _ in range(2):
        done(served, "/topic/create?topic=t")
        done(served, "/channel/create?topic=t&channel=ch")
    assert len(topic_of(served, "t")["channels"]) == 1


@pytest.mark.parametrize("path", ["/topic/create", "/topic/creat"])
@pytest.mark.parametrize(
    ("query", "extend"), [("", "off"), ("&extend=true", "on"), ("&extend=1", "on"), ("&extend=0", "off")]
)
def test_topic_made_here_takes_headers_only_if_asked_to(served: Served, path: str, query: str, extend: str) -> None:
    done(served, f"{path}?topic=t{query}")
    assert served.get("topics/t").json["settings"]["dialects"]["nsq"]["extend"] == extend
    assert topic_of(served, "t")["is_ext"] is (extend == "on")


def test_a_publish_makes_a_topic_without_headers(served: Served) -> None:
    post(served, "/pub?topic=t", b"x")
    assert served.get("topics/t").json["settings"]["dialects"]["nsq"]["extend"] == "off"


def test_ephemeral_names_live_as_over_tcp(served: Served) -> None:
    done(served, "/topic/create?topic=t%23ephemeral&extend=true")
    settings = served.get("topics/t%23ephemeral").json["settings"]
    assert (settings["ephemeral"], settings["dialects"]["nsq"]["extend"]) == (True, "on")
    done(served, "/channel/create?topic=t%23ephemeral&channel=c%23ephemeral")
    done(served, "/channel/delete?topic=t%23ephemeral&channel=c%23ephemeral")
    assert stats(served)["topics"] == []


def test_channel_made_here_keeps_the_configured_timeouts(tmp_path: Path) -> None:
    nsq = NsqConfig(tcp_port=0, http_port=0, msg_timeout_ns=5 * 10**9, max_msg_timeout_ns=7 * 10**9)
    with Served(tmp_path, nsq=nsq) as served:
        done(served, "/topic/create?topic=t")
        done(served, "/channel/create?topic=t&channel=ch")
        settings = served.node.topics["t"].subscriptions["ch"].settings
        assert (settings.lease_ns, settings.lease_max_ns) == (5 * 10**9, 7 * 10**9)


def test_nsq_case_19_paused_topic_keeps_what_comes(served: Served) -> None:
    done(served, "/topic/create?topic=t")
    done(served, "/channel/create?topic=t&channel=ch")
    done(served, "/topic/pause?topic=t")
    post(served, "/pub?topic=t", b"x")
    topic = topic_of(served, "t")
    assert (topic["depth"], topic["channels"][0]["depth"]) == (1, 0)
    assert topic["channels"][0]["message_count"] == 0
    done(served, "/topic/unpause?topic=t")
    topic = topic_of(served, "t")
    assert (topic["depth"], topic["channels"][0]["depth"]) == (0, 1)
    assert topic["channels"][0]["message_count"] == 1


def test_nsq_case_28_a_publish_after_the_last_channel_stays_in_the_topic(served: Served) -> None:
    done(served, "/topic/create?topic=t")
    done(served, "/channel/create?topic=t&channel=ch")
    done(served, "/channel/delete?topic=t&channel=ch")
    post(served, "/pub?topic=t", b"x")
    assert topic_of(served, "t")["depth"] == 1
    done(served, "/topic/empty?topic=t")
    assert topic_of(served, "t")["depth"] == 0


def test_emptying_a_channel_leaves_the_paused_topic_its_own(served: Served) -> None:
    done(served, "/topic/create?topic=t")
    done(served, "/channel/create?topic=t&channel=ch")
    post(served, "/pub?topic=t", b"in the channel")
    done(served, "/topic/pause?topic=t")
    post(served, "/pub?topic=t", b"in the topic")
    done(served, "/channel/empty?topic=t&channel=ch")
    topic = topic_of(served, "t")
    assert (topic["depth"], topic["channels"][0]["depth"]) == (1, 0)
    done(served, "/topic/unpause?topic=t")
    assert topic_of(served, "t")["channels"][0]["depth"] == 1


def test_pause_survives_a_restart(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        done(served, "/topic/create?topic=t")
        done(served, "/channel/create?topic=t&channel=ch")
        done(served, "/topic/pause?topic=t")
        done(served, "/channel/pause?topic=t&channel=ch")
    with Served(tmp_path) as served:
        topic = topic_of(served, "t")
        assert topic["paused"] is topic["channels"][0]["paused"] is True


def test_stopping_node_makes_no_topic(served: Served) -> None:
    served.do(served.node.stop)
    assert refused(post(served, "/topic/create?topic=t")) == (503, "EXITING")
