from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.dialects.nsq.http.api import observe
from penstock.dialects.nsq.stats.document import Observer
from penstock.dialects.nsq.stats.printout import duration, printout
from tests.nsq.asking import ask, done, post, stats, topic_of
from tests.nsq.parts import SECOND, Broker, dpub
from tests.served import Served


class Watched(Broker):
    """A broker, and what its stats say."""

    def start(self) -> None:
        super().start()
        self.observer: Observer = observe(self.node, self.config, self.server)

    def stats(self, topic: str = "", channel: str = "", **more: Any) -> Any:
        return msgspec.json.decode(msgspec.json.encode(self.observer.stats(topic, channel, **more)))

    def topic(self, name: str = "t") -> Any:
        return self.stats(name)["topics"][0]

    def channel(self, name: str = "ch", topic: str = "t") -> Any:
        return self.stats(topic, name)["topics"][0]["channels"][0]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Watched]:
    broker = Watched(tmp_path)
    yield broker
    assert broker.node.bugs == 0


def test_stats_have_the_keys_of_nsqd(broker: Watched) -> None:
    client = broker.client()
    client.sub("t", "ch")
    client.pub("t", b"x")
    document = broker.stats()
    assert [*document] == ["version", "health", "start_time", "topics", "memory", "producers"]
    topic = document["topics"][0]
    assert {*topic} == {
        *("topic_name", "channels", "depth", "backend_depth", "message_count", "message_bytes", "paused"),
        *("e2e_processing_latency", "is_ext"),
    }
    channel = topic["channels"][0]
    assert {*channel} == {
        *("channel_name", "depth", "backend_depth", "in_flight_count", "deferred_count", "message_count"),
        *("requeue_count", "timeout_count", "client_count", "clients", "paused", "e2e_processing_latency"),
    }
    assert topic["e2e_processing_latency"] == channel["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    assert {
        *("client_id", "hostname", "version", "remote_address", "state", "ready_count", "in_flight_count"),
        *("message_count", "finish_count", "requeue_count", "connect_ts", "sample_rate", "deflate", "snappy"),
        *("user_agent", "tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
        *("tls_negotiated_protocol_is_mutual", "topology_zone", "topology_region", "desired_tag", "msg_timeout"),
    } <= {*channel["clients"][0]}
    assert {*document["memory"]} == {
        *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes", "gc_pause_usec_100"),
        *("gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs"),
    }
    assert document["memory"]["heap_in_use_bytes"] > 1 << 20


def test_counts_follow_a_message_through_its_life(broker: Watched) -> None:
    producer, client = broker.client(), broker.client()
    client.identify(msg_timeout=2000)
    client.sub("t", "ch", rdy=2)
    producer.pub("t", b"one", b"two", b"three")
    first, second = client.messages()
    channel = broker.channel()
    assert (channel["depth"], channel["in_flight_count"], channel["message_count"]) == (1, 2, 3)
    client.fin(first)
    client.send(b"REQ " + second.id + b" 5000\n")
    channel = broker.channel()
    assert (channel["in_flight_count"], channel["deferred_count"], channel["requeue_count"]) == (1, 1, 1)
    client.send(b"RDY 0\n")
    broker.advance(6)
    channel = broker.channel()
    assert (channel["timeout_count"], channel["deferred_count"], channel["message_count"]) == (1, 0, 3)
    topic = broker.topic()
    assert (topic["depth"], topic["message_count"], topic["message_bytes"]) == (0, 3, len("onetwothree"))


def test_nsq_case_08_deferred_message_is_counted_at_once(broker: Watched) -> None:
    client = broker.client()
    client.sub("t", "ch")
    client.send(dpub("t", 1000, b"later"))
    channel = broker.channel()
    assert (channel["deferred_count"], channel["message_count"], channel["depth"]) == (1, 1, 0)
    broker.advance(1)
    channel = broker.channel()
    assert (channel["deferred_count"], channel["message_count"], channel["depth"]) == (0, 1, 1)


def test_deferred_message_behind_others_that_nobody_took_is_deferred_too(broker: Watched) -> None:
    client = broker.client()
    client.sub("t", "ch")
    client.pub("t", b"x", b"y")
    client.send(dpub("t", 1000, b"later"))
    client.pub("t", *[b"z"] * 20)
    client.send(dpub("t", 500_000, b"much later") * 30)

    def counts() -> tuple[int, ...]:
        channel = broker.channel()
        return tuple(channel[key] for key in ("deferred_count", "depth", "message_count"))

    assert counts() == (31, 22, 53)
    broker.kill()
    assert counts() == (31, 22, 53)
    broker.advance(1)
    assert counts() == (30, 23, 53)
    client = broker.client()
    client.sub("t", "ch", 100)
    assert len(client.messages()) == 23
    assert counts() == (30, 0, 53)
    broker.node.topic("t").subscription("ch").empty()
    assert counts() == (0, 0, 53)


def test_deferred_messages_that_a_pause_keeps_back_are_the_topics(broker: Watched) -> None:
    client = broker.client()
    client.sub("t", "ch")
    client.pub("t", b"x")
    broker.node.topic("t").pause(paused=True).now()
    client.send(dpub("t", 500_000, b"later"))
    assert (broker.channel()["deferred_count"], broker.channel()["depth"], broker.topic()["depth"]) == (0, 1, 1)
    broker.node.topic("t").pause(paused=False).now()
    assert (broker.channel()["deferred_count"], broker.channel()["depth"], broker.topic()["depth"]) == (1, 1, 0)


def test_nsq_case_24_emptied_channel_shows_nothing_in_flight_or_deferred(broker: Watched) -> None:
    client = broker.client()
    client.sub("t", "ch", rdy=25)
    client.pub("t", *[b"x"] * 25)
    frames = [data for kind, data in client.frames() if kind == 2]
    client.send(b"REQ " + frames[0][10:26] + b" 100000\n")
    client.send(b"RDY 24\n")
    channel = broker.channel()
    assert (channel["in_flight_count"], channel["deferred_count"]) == (24, 1)
    broker.node.topics["t"].subscriptions["ch"].empty()
    channel = broker.channel()
    assert [channel[key] for key in ("depth", "in_flight_count", "deferred_count")] == [0, 0, 0]
    assert channel["clients"][0]["in_flight_count"] == 0


def test_client_shows_who_it_is_and_what_it_did(broker: Watched) -> None:
    client = broker.client()
    broker.advance(10)
    client.identify(client_id="me", hostname="here", user_agent="test/1", msg_timeout=2000)
    client.sub("t", "ch", rdy=3)
    client.pub("t", b"a", b"b", b"c")
    messages = [data for kind, data in client.frames() if kind == 2]
    client.send(b"FIN " + messages[0][10:26] + b"\nREQ " + messages[1][10:26] + b" 9000\n")
    shown = broker.channel()["clients"][0]
    assert (shown["client_id"], shown["hostname"], shown["user_agent"]) == ("me", "here", "test/1")
    assert (shown["version"], shown["remote_address"], shown["state"]) == ("V2", "127.0.0.1:5", 3)
    assert (shown["ready_count"], shown["in_flight_count"]) == (3, 1)
    assert (shown["message_count"], shown["finish_count"], shown["requeue_count"]) == (3, 1, 1)
    assert shown["connect_ts"] == (broker.clock.now() - 10 * SECOND) // SECOND
    assert shown["msg_timeout"] == 2 * SECOND
    client.send(b"CLS\n")
    assert broker.channel()["clients"][0]["state"] == 4
    client.hang_up()
    assert (broker.channel()["client_count"], broker.channel()["clients"]) == (0, [])


def test_client_that_did_not_identify_is_its_address(broker: Watched) -> None:
    client = broker.client()
    client.pub("t", b"x")
    producer = broker.stats()["producers"][0]
    assert (producer["client_id"], producer["hostname"]) == ("127.0.0.1", "127.0.0.1")
    client.frames()
    client.identify()
    producer = broker.stats()["producers"][0]
    assert (producer["client_id"], producer["hostname"]) == ("", "")


def test_client_shows_the_tag_and_filter_it_asked_for(broker: Watched) -> None:
    wanted = {"type": 1, "filter_ext_key": "a", "filter_data": "b"}
    client = broker.client()
    client.identify(extend_support=True, desired_tag="T", ext_filter=wanted, topology_zone="z")
    client.sub("t", "ch")
    shown = broker.channel()["clients"][0]
    assert (shown["desired_tag"], shown["topology_zone"]) == ("T", "z")
    assert shown["ext_filter"] | wanted == shown["ext_filter"]
    assert "authed" not in shown


def test_producers_show_what_they_published_where(broker: Watched) -> None:
    assert broker.stats()["producers"] is None
    first, second = broker.client(), broker.client()
    first.pub("t", b"x", b"y")
    first.mpub("u", [b"x"] * 20)
    second.sub("t", "ch")
    producers = broker.stats()["producers"]
    assert [one["pub_counts"] for one in producers] == [[{"topic": "t", "count": 2}, {"topic": "u", "count": 20}]]
    assert broker.stats("u")["producers"][0]["pub_counts"] == [{"topic": "u", "count": 20}]
    assert "pub_counts" not in broker.channel()["clients"][0]
    assert broker.stats(clients=False)["producers"] is None
    first.hang_up()
    assert broker.stats()["producers"] is None


def test_refused_publish_is_not_counted(broker: Watched) -> None:
    client = broker.client()
    broker.node.stop()
    client.pub("t", b"x")
    assert broker.stats()["producers"] is None


def test_filters_leave_the_rest_out(broker: Watched) -> None:
    assert broker.stats()["topics"] == []
    for topic, channel in (("b", "y"), ("b", "x"), ("a", "x")):
        broker.client().sub(topic, channel)
    assert [topic["topic_name"] for topic in broker.stats()["topics"]] == ["a", "b"]
    assert [channel["channel_name"] for channel in broker.stats("b")["topics"][0]["channels"]] == ["x", "y"]
    assert [topic["topic_name"] for topic in broker.stats(channel="y")["topics"]] == ["b"]
    broker.client().pub("a", b"x")
    assert (broker.stats("none")["topics"], broker.stats("none")["producers"]) == (None, None)
    assert broker.stats("a", "y")["topics"] == []
    assert "memory" not in broker.stats(memory=False)
    channel = broker.stats("a", clients=False)["topics"][0]["channels"][0]
    assert (channel["client_count"], channel["clients"]) == (1, None)


def test_backend_depth_is_what_is_on_disk(broker: Watched) -> None:
    client = broker.client()
    for name in ("t", "m#ephemeral"):
        client.pub(name, b"x")
        assert broker.topic(name)["depth"] == 1
        broker.client().sub(name, "ch")
        assert broker.channel("ch", name)["depth"] == 1
    assert broker.channel("ch", "t")["backend_depth"] == 1
    assert broker.channel("ch", "m#ephemeral")["backend_depth"] == 0


def test_names_that_nsq_cannot_spell_are_not_listed(broker: Watched) -> None:
    broker.node.create_topic("order events").now()
    broker.node.create_topic("t").now().create_subscription("à la carte").now()
    assert [(topic["topic_name"], topic["channels"]) for topic in broker.stats()["topics"]] == [("t", [])]
    assert broker.stats("order events")["topics"] is None


def test_consumer_of_another_dialect_is_shown_too(broker: Watched) -> None:

    topic = broker.node.create_topic("t").now()
    subscription = topic.create_subscription("ch").now()
    topic.attach(subscription, lambda deliveries: None, name="elsewhere")
    assert [client["client_id"] for client in broker.channel()["clients"]] == ["elsewhere"]


def test_text_is_laid_out_as_by_nsqd(broker: Watched) -> None:
    client = broker.client()
    client.identify(msg_timeout=2000)
    client.sub("one", "ch", rdy=1)
    client.pub("one", b"x", b"y")
    client.send(b"RDY 0\n")
    broker.client().sub("two", "paused-channel")
    broker.node.topics["two"].pause(paused=True).now()
    settings = broker.node.topics["two"].subscriptions["paused-channel"].settings
    broker.node.topics["two"].update_subscription(
        "paused-channel", msgspec.structs.replace(settings, paused=True)
    ).now()
    broker.advance(62.5)
    text = printout(broker.observer.stats(), broker.node.started_ns, broker.clock.now())
    lines = re.sub(r"\t\d+", "\t0", text).split("\n")
    assert lines[0].startswith("nsqd v1.3.0 (built w/penstock-")
    assert lines[1:] == [
        "start_time 2023-11-14T22:13:20Z",
        "uptime 1m2.5s",
        "",
        "Health: OK",
        "",
        "Memory:",
        "   heap_objects             \t0",
        "   heap_idle_bytes          \t0",
        "   heap_in_use_bytes        \t0",
        "   heap_released_bytes      \t0",
        "   gc_pause_usec_100        \t0",
        "   gc_pause_usec_99         \t0",
        "   gc_pause_usec_95         \t0",
        "   next_gc_bytes            \t0",
        "   gc_total_runs            \t0",
        "",
        "Topics:",
        "   [one            ] depth: 0     be-depth: 0     msgs: 2        e2e%: ",
        "      [ch                       ] depth: 2     be-depth: 2     inflt: 0    def: 0    "
        "re-q: 0     timeout: 1     msgs: 2        e2e%: ",
        "",
        "*P [two            ] depth: 0     be-depth: 0     msgs: 0        e2e%: ",
        "   *P [paused-channel           ] depth: 0     be-depth: 0     inflt: 0    def: 0    "
        "re-q: 0     timeout: 0     msgs: 0        e2e%: ",
        "",
        "Producers: None",
        "",
    ]


def test_text_shows_clients_in_a_line_each(broker: Watched) -> None:
    client, producer = broker.client(), broker.client()
    client.identify(client_id="me", hostname="here", user_agent="test/1")
    client.sub("one", "ch", rdy=1)
    producer.pub("one", b"x", b"y")
    broker.advance(3)
    text = printout(broker.observer.stats(memory=False), broker.node.started_ns, broker.clock.now())
    assert (
        "\n        [V2 here:5 test/1        ] state: 3 inflt: 1    rdy: 1    fin: 0        re-q: 0        "
        "msgs: 1        connected: 3s\n"
    ) in text
    assert text.endswith("\nProducers:\n   [V2 127.0.0.1:5          ] msgs: 2        topics: one=2 connected: 3s\n")
    assert "Memory" not in text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (999, "999ns"),
        (1_500, "1.5µs"),
        (250_000_000, "250ms"),
        (SECOND, "1s"),
        (61 * SECOND + 500_000_000, "1m1.5s"),
        (3600 * SECOND, "1h0m0s"),
        (90061 * SECOND + 1, "25h1m1.000000001s"),
    ],
)
def test_durations_read_as_in_go(ns: int, text: str) -> None:
    assert duration(ns) == text


# --- over HTTP --------------------------------------------------------------------------------------------------------


def test_nsq_case_30_stats_are_only_for_asking(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        answer = ask(served, "POST", "/stats", b"")
        assert (answer.status, answer.content) == (405, b'{"message":"METHOD_NOT_ALLOWED"}')


def test_stats_over_http_in_both_forms(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        done(served, "/topic/create?topic=t")
        done(served, "/channel/create?topic=t&channel=ch")
        post(served, "/mpub?topic=t", b"a\nb\n")
        channel = topic_of(served, "t")["channels"][0]
        assert (channel["depth"], channel["message_count"]) == (2, 2)
        assert stats(served, "&topic=none")["topics"] is None
        assert "memory" not in stats(served, "&include_mem=false")
        assert "memory" in stats(served, "&include_mem=junk")
        assert stats(served, "&include_clients=0")["topics"][0]["channels"][0]["clients"] is None
        assert [topic["channels"] for topic in stats(served, "&channel=none")["topics"]] == []
        answer = ask(served, "GET", "/stats")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert b"[t              ] depth: 0" in answer.content
        assert ask(served, "GET", "/stats?topic=none").content.count(b"Topics: None") == 1


def test_stats_over_http_show_connections(tmp_path: Path) -> None:
    import socket

    with Served(tmp_path) as served, socket.create_connection(("127.0.0.1", served.tcp_port)) as client:
        client.sendall(b"  V2SUB t ch\nPUB t\n" + struct.pack(">I", 1) + b"x")
        served.until(lambda: "t" in served.node.topics and served.node.topics["t"].published == 1)
        shown = topic_of(served, "t")["channels"][0]["clients"][0]
        assert shown["remote_address"] == "{}:{}".format(*client.getsockname())
        assert stats(served)["producers"][0]["pub_counts"] == [{"topic": "t", "count": 1}]


@pytest.mark.parametrize("path", ["/debug", "/debug/pprof/", "/debug/pprof/heap", "/debug/freememory"])
def test_go_profiles_do_not_exist(tmp_path: Path, path: str) -> None:
    with Served(tmp_path) as served:
        assert ask(served, "GET", path).status == 404
