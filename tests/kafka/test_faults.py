"""A broker of bytes: it answers with garbage, with too little or too much, or hangs up, and nothing is lost."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable
from random import Random
from struct import pack
from typing import TypeVar

import pytest
from msgspec.structs import replace

from penstock.clock import MILLISECOND, SECOND
from penstock.dialects.dory.figures import Figures
from penstock.kafka.exchange import Api
from penstock.kafka.sasl import Plain
from penstock.message import Rows
from penstock.relays.kafka import records as relay_records
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.relays.kafka.conversation import Manner
from penstock.relays.kafka.learning import Learning
from penstock.relays.kafka.outside import KafkaOutside
from penstock.relays.kafka.relay import Relay
from penstock.wire.dial import Dialling, Failed
from tests.kafka.broker import ByteBroker, Fault, Session
from tests.nsq.certificates import certificates
from tests.simulation.clock import SimClock
from tests.simulation.network import Weather
from tests.simulation.outgoing import Outside
from tests.site import Site

FAULTS: dict[str, Fault] = {
    "hangs up": lambda answer: None,
    "answers another question": lambda answer: answer[:4] + pack(">i", 99) + answer[8:],
    "answers garbage": lambda answer: pack(">i", len(answer)) + answer[4:8] + b"\xff" * (len(answer) - 4),
    "answers nothing": lambda answer: pack(">i", 0),
    "claims a huge answer": lambda answer: pack(">i", 1 << 30),
    "claims less than nothing": lambda answer: pack(">i", -5),
    "leaves the end off": lambda answer: pack(">i", len(answer) - 6) + answer[4:-2],
    "says more than it should": lambda answer: pack(">i", len(answer) + 3) + answer[4:] + b"\0" * 7,
    "is silent": lambda answer: b"",
}
#: The oldest answer about versions may be followed by anything.
FORGIVEN = {(Api.API_VERSIONS, "says more than it should")}


T = TypeVar("T")
PLAIN = KafkaRelayConfig(topics=("t",), brokers=("10.0.0.1:9092",), restart_max_delay_ns=SECOND)


class Way:
    """A node, its relay, and a broker beyond a simulated network."""

    def __init__(
        self, config: KafkaRelayConfig = PLAIN, *, user: str = "", lifetime_ms: int = 0, tls: bool = False
    ) -> None:
        #: What is done beside the loop, when a test says so.
        self.work: list[Callable[[], None]] = []
        self.site = Site()
        self._outside = Outside(self.site.machine.scheduler, Weather(Random(7), MILLISECOND, 0.3))
        clock = SimClock(self.site.machine.scheduler, 0, Random(9092))
        self.broker = ByteBroker(9092, "t", clock)
        login = Plain(user, "secret")
        self.broker.said = login.first() if user else b""
        self.broker.lifetime_ms = lifetime_ms
        context = certificates().client_context() if tls else None
        if context is not None:
            context.check_hostname = False  # it is at an address here
            self.broker.tls = certificates().server_context()
        self._outside.listen(9092, lambda: Session(self.broker), clock)
        manner = Manner(
            self.site.machine.clock,
            self,
            Random(3),
            client_id="test",
            timeout_ns=2 * SECOND,
            tls=context,
            login=(lambda: login) if user else None,
        )
        learning = Learning(self.site.machine.clock, lambda work, done: done(work()))
        outside = KafkaOutside(config, manner, learning, self._beside)
        self.relay = Relay(self.site.node, config, outside, Random(3), learning=learning)
        self.run(0.1)
        self.topic = self.site.node.topics["t"]

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Dialling:
        return self._outside.dial(self.site.machine.clock, port, protocol, failed)

    def _beside(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self.work.append(lambda: done(work()))

    def run(self, seconds: float) -> None:
        self.site.machine.run(seconds)

    def until_stored(self, count: int) -> None:
        for _ in range(20_000):
            if len(self.broker.stored) >= count and not self.relay.router.held:
                return
            self.run(0.05)
        raise AssertionError(f"{len(self.broker.stored)} of {count} messages arrived: {self.relay.router.trouble}")


@pytest.mark.parametrize(
    "api",
    [
        *(Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE),
        *(Api.METADATA, Api.INIT_PRODUCER_ID, Api.PRODUCE),
    ],
)
def test_whatever_a_broker_answers_everything_arrives_once(api: Api) -> None:
    way = Way(user="me")
    sent: list[bytes] = []
    for name, fault in FAULTS.items():
        if api is not Api.PRODUCE:  # asked before anything can be sent: have it asked again
            way.broker.faults[Api.PRODUCE].append(FAULTS["hangs up"])
        if api is Api.INIT_PRODUCER_ID:
            way.relay.router.numbering.sequences = None
        before = way.broker.sessions
        way.broker.faults[api] += [fault, fault]
        bodies = [b"%s %d" % (name.encode(), number) for number in range(40)]
        assert way.site.offer(way.topic, *bodies) == [None]
        sent += bodies
        way.until_stored(len(sent))
        assert (api, name) in FORGIVEN or not way.broker.faults[api], name
        assert way.broker.sessions > before
    counts = way.relay.router.books.counts
    if api is not Api.INIT_PRODUCER_ID:  # a producer that is made anew may send twice
        assert Counter(way.broker.stored) == Counter(sent)
    assert set(way.broker.stored) == set(sent)
    assert (counts.taken, counts.acked, counts.discarded) == (len(sent), len(sent), 0)


def test_what_is_empty_is_absent_where_dory_took_it_and_nowhere_else() -> None:
    way = Way(replace(PLAIN, batching="per_topic", batch_messages=40))
    for source in ("dory", "test"):
        rows = Rows.of([b""] * 10 + [b"x"] * 10, source, {"key": [b"", b"k"] * 10})
        way.topic.publish(rows, way.site, lambda _, error: None)
    way.until_stored(40)
    assert len(way.broker.codecs) == 1
    absent = [(None, None), (b"k", None)] * 5 + [(None, b"x"), (b"k", b"x")] * 5
    empty = [(b"", b""), (b"k", b"")] * 5 + [(b"", b"x"), (b"k", b"x")] * 5
    assert way.broker.records == absent + empty


KEY_FAULTS: dict[str, Fault] = {
    **{name: FAULTS[name] for name in ("hangs up", "answers garbage", "is silent")},
    "says half and no more": lambda answer: answer[: len(answer) // 2],
}


@pytest.mark.parametrize("fault", KEY_FAULTS)
def test_keys_that_a_broker_does_not_agree_on_cost_nothing(fault: str) -> None:
    way = Way(tls=True)
    assert way.site.offer(way.topic, b"before") == [None]
    way.until_stored(1)
    way.broker.greetings += [KEY_FAULTS[fault]] * 2
    way.broker.faults[Api.PRODUCE].append(FAULTS["hangs up"])
    assert way.site.offer(way.topic, b"after") == [None]
    way.until_stored(2)
    assert not way.broker.greetings
    assert way.broker.stored == [b"before", b"after"]


def test_who_logged_in_does_so_again_before_its_time_is_over() -> None:
    way = Way(user="me", lifetime_ms=5000)
    sent = [b"%d" % number for number in range(600)]
    for number, body in enumerate(sent, 1):
        assert way.site.offer(way.topic, body) == [None]
        way.until_stored(number)
    assert way.site.machine.clock.monotonic() > 15 * SECOND
    assert way.broker.stored == sent
    counts = way.relay.router.books.counts
    assert (way.broker.sessions, counts.pauses, sum(counts.connection_failures.values())) == (2, 0, 0)


KINDS = {
    "hangs up": "closed",
    "answers another question": "answer",
    "answers nothing": "answer",
    "claims a huge answer": "answer",
    "leaves the end off": "answer",
    "is silent": "silent",
}


@pytest.mark.parametrize(("fault", "kind"), KINDS.items())
def test_connections_that_fail_are_counted_by_how(fault: str, kind: str) -> None:
    way = Way()
    way.broker.faults[Api.PRODUCE].append(FAULTS[fault])
    assert way.site.offer(way.topic, b"x") == [None]
    way.until_stored(1)
    failures = way.relay.router.books.counts.connection_failures
    assert {name: count for name, count in failures.items() if count} == {kind: 1}
    said = [each for each in way.relay.samples() if each.name == "connection_failures_total" and each.value]
    assert [(each.labels, each.value) for each in said] == [({"kind": kind}, 1)]


def test_a_broker_that_cannot_be_connected_to_is_counted_as_that() -> None:
    way = Way()
    way.broker.port = 9093  # where it says that it is, and nobody listens
    way.relay.update_metadata()
    way.run(5)
    failures = way.relay.router.books.counts.connection_failures
    assert failures["connect"] > 0
    assert sum(failures.values()) == failures["connect"]
    assert way.relay.router.books.counts.metadata_changed == 1


def codecs(*bodies: bytes) -> list[str]:
    """Send these one by one where sets from 128 bytes on are compressed, and return how each of them went."""
    way = Way(replace(PLAIN, compression="gzip", compression_min_bytes=128, compression_percent=75))
    for count, body in enumerate(bodies, 1):
        assert way.site.offer(way.topic, body) == [None]
        way.until_stored(count)
    return list(way.broker.codecs)


def test_dory_case_29_a_set_is_compressed_from_a_size_on() -> None:
    assert codecs(b"A" * 101, b"A" * 102) == ["none", "gzip"]


LARGE = [b"%0100000d" % number for number in range(3)]


def test_what_takes_long_to_compress_is_compressed_beside_the_loop_and_nothing_overtakes_it() -> None:
    way = Way(replace(PLAIN, compression="gzip"))
    for body in (b"before", LARGE[0], b"behind"):
        assert way.site.offer(way.topic, body) == [None]
    way.run(1)
    assert (way.broker.stored, len(way.work)) == ([b"before"], 1)
    way.work.pop()()
    way.until_stored(3)
    assert way.broker.stored == [b"before", LARGE[0], b"behind"]
    assert way.broker.codecs[:2] == ["none", "gzip"]


def test_a_connection_that_breaks_while_messages_are_compressed_sends_them_once() -> None:
    way = Way(replace(PLAIN, compression="gzip"))
    assert way.site.offer(way.topic, b"before") == [None]
    way.until_stored(1)
    assert way.site.offer(way.topic, LARGE[0]) == [None]
    (line,) = way.relay.router.lines.values()
    line.failed("it hung up")
    way.run(5)
    assert len(way.work) == 2
    for work in way.work:
        work()
    way.until_stored(2)
    assert way.broker.stored == [b"before", LARGE[0]]


def test_a_login_that_is_renewed_while_messages_are_compressed_goes_before_them() -> None:
    way = Way(replace(PLAIN, compression="gzip"), user="me", lifetime_ms=5000)
    for number, body in enumerate(LARGE, 1):
        assert way.site.offer(way.topic, body) == [None]
        (line,) = way.relay.router.lines.values()
        while line.wire is not None and line.wire.is_ready:
            way.run(0.001)
        way.work.pop()()
        way.until_stored(number)
    assert way.broker.stored == LARGE
    counts = way.relay.router.books.counts
    assert (way.broker.sessions, counts.pauses) == (2, 0)


def test_a_codec_that_fails_costs_a_set_its_compression_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise zlib.error("no room")

    way = Way(replace(PLAIN, compression="gzip"))
    monkeypatch.setattr(zlib, "compress", fails)
    for count in range(1, 4):
        assert way.site.offer(way.topic, b"A" * 500) == [None]
        way.until_stored(count)
    assert way.broker.codecs == ["none"] * 3
    assert way.broker.sessions == 2  # one to ask, one to send: nothing broke
    figures = Figures().read({}, way.site.node.discards, way.relay.samples(), 0, 0, {})
    assert {each.name: each.value for each in figures}["MsgSetCompressionError"] == 3


def test_what_cannot_be_packed_goes_once_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise ValueError("nobody foresaw this")

    way = Way()
    assert way.site.offer(way.topic, b"before") == [None]
    way.until_stored(1)
    with monkeypatch.context() as broken:
        broken.setattr(relay_records, "laid_out", fails)
        assert way.site.offer(way.topic, b"x") == [None]
        way.run(1)
    assert way.relay.hindrances()
    assert way.site.offer(way.topic, b"after") == [None]
    way.until_stored(3)
    assert way.broker.stored == [b"before", b"x", b"after"]
    assert way.site.node.discards.duplicates == {}
    assert not way.relay.hindrances()


def test_dory_case_30_a_set_that_would_hardly_be_smaller_goes_plain() -> None:
    assert codecs(Random(1).randbytes(500)) == ["none"]
