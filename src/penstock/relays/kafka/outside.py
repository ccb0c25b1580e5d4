"""The way to Kafka over real connections: produce requests, and questions about what there is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from penstock.columns import Buffer
from penstock.config import host_and_port
from penstock.kafka import metadata, produce, producer_id
from penstock.kafka.codes import NONE, named
from penstock.kafka.exchange import Api
from penstock.kafka.produce import Outcome
from penstock.kafka.wire import BadAnswer, Reader
from penstock.relays.kafka.cluster import Broker, SaidTopic, cluster
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.relays.kafka.conversation import Conversation, Manner
from penstock.relays.kafka.learning import Learning, beside
from penstock.relays.kafka.line import Line, Trouble, Wire
from penstock.relays.kafka.records import Packed, Packer, Packing
from penstock.relays.kafka.sequences import Sequences
from penstock.relays.kafka.sets import Request
from penstock.relays.kafka.way import Found

_log = logging.getLogger("penstock.kafka")

MILLISECOND_NS = 1_000_000
#: Compressing as much as this stops the loop for a millisecond or two; a thread costs a tenth of one.
BESIDE_BYTES = 64 << 10

#: The user may not produce idempotently.
_FORBIDDEN = (31, 53)

Failed = Callable[[str], None]
#: Runs work beside the loop, then tells the loop what came of it.
Run: TypeAlias = Callable[[Callable[[], list[Packed]], Callable[[list[Packed]], None]], None]


class Work(NamedTuple):
    """What is done beside the loop, and from how many bytes on."""

    run: Run
    beside_bytes: int


class ProduceWire:
    """The connection of a line."""

    def __init__(
        self, line: Line, manner: Manner, packer: Packer, sequences: Sequences | None, timeout_ms: int, work: Work
    ) -> None:
        self._line = line
        self._work = work
        self._packer = packer
        self._sequences = sequences
        self._timeout_ms = timeout_ms
        self._is_closed = False
        #: Topics and errors; each is explained once.
        self._explained: set[tuple[str, int]] = set()
        #: A request that was packed beside the loop, while nothing can be asked: who we are is being said again.
        self._packed: list[Buffer] | None = None
        address = line.broker.host, line.broker.port
        self._conversation = Conversation(address, manner, ready=self._ready, failed=line.failed, hold=line.hold)

    @property
    def is_ready(self) -> bool:
        """Whether something can be sent."""
        return self._conversation.is_ready

    def produce(self, request: Request) -> bool:
        """Send; the answer comes to the line. What takes long to compress is sent later: False."""
        sets = [self._packer.begin(part, self._sequences) for part in request]
        if sum([each.bytes_to_compress for each in sets]) < self._work.beside_bytes:
            self._write(self._body(sets, [each.packed() for each in sets]))
            return True
        self._work.run(lambda: [each.packed() for each in sets], partial(self._compressed, sets))
        return False

    def close(self) -> None:
        """Hang up."""
        self._is_closed = True
        self._conversation.close()

    def _body(self, sets: Sequence[Packing], packed: Sequence[Packed]) -> list[Buffer]:
        parts = [
            produce.Part(each.topic, each.partition, self._packer.end(each, found))
            for each, found in zip(sets, packed, strict=True)
        ]
        version = self._conversation.version(Api.PRODUCE)
        return produce.request(version, parts, produce.ACKS_ALL, self._timeout_ms)

    def _compressed(self, sets: Sequence[Packing], packed: Sequence[Packed]) -> None:
        if not self._is_closed:
            self._packed = self._body(sets, packed)
            self._send_packed()

    def _send_packed(self) -> None:
        if self._packed is not None and self._conversation.is_ready:
            body, self._packed = self._packed, None
            self._write(body)
            self._line.written()

    def _write(self, body: list[Buffer]) -> None:
        self._conversation.ask(Api.PRODUCE, body, self._answered)

    def _ready(self) -> None:
        self._send_packed()
        self._line.wake()

    def _answered(self, reader: Reader, version: int) -> None:
        parts = produce.answer(reader, version).parts
        codes = {(part.topic, part.partition): part.error for part in parts}
        if len(codes) < len(parts):
            raise BadAnswer("it has a partition twice")
        for part in parts:
            self._explain(part)
        self._line.answered(codes)

    def _explain(self, part: Outcome) -> None:
        """Say why a broker refuses messages, where it does."""
        said = [why for why in (part.why, *(each.why for each in part.bad[:1])) if why]
        if part.error == NONE or not said or (part.topic, part.error) in self._explained:
            return
        self._explained.add((part.topic, part.error))
        where = f"topic {part.topic}, partition {part.partition}: broker {self._line.broker.id}"
        _log.warning("%s refuses messages with error %s: %s", where, named(part.error), "; ".join(said)[:500])


class _Inquiry:
    """One question, put to one broker after the other until one answers."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        manner: Manner,
        work: Callable[[_Inquiry], None],
        failed: Failed,
    ) -> None:
        self._addresses = list(addresses)
        self._manner = manner
        self._work = work
        self._failed = failed
        self._why = "there is no broker to ask"
        self.conversation: Conversation | None = None
        manner.clock.call_soon(self._next)

    def _next(self) -> None:
        if not self._addresses:
            self._failed(self._why)
            return
        address = self._addresses.pop(0)
        self.conversation = Conversation(
            address,
            self._manner,
            ready=partial(self._work, self),
            failed=partial(self._missed, address),
        )

    def _missed(self, address: tuple[str, int], why: str, _: Trouble) -> None:
        self._why = f"{address[0]}:{address[1]}: {why}"
        self._manner.clock.call_soon(self._next)

    def ask(self, api: Api, body: Callable[[int], Buffer], told: Callable[[Reader, int], None]) -> None:
        """Ask whoever is asked now."""
        if self.conversation is not None:
            self.conversation.ask(api, [body(self.conversation.version(api))], told)

    def close(self) -> None:
        """Ask nobody any more."""
        self._addresses.clear()
        self._failed = _nobody
        if self.conversation is not None:
            self.conversation.close()


class KafkaOutside:
    """Makes connections to brokers."""

    def __init__(
        self,
        config: KafkaRelayConfig,
        manner: Manner,
        learning: Learning | None = None,
        run: Run = beside,
        beside_bytes: int = BESIDE_BYTES,
    ) -> None:
        self._config = config
        self._work = Work(run, beside_bytes)
        self._manner = manner
        self._packer = Packer(config, learning or Learning(manner.clock, beside))
        self._first = [host_and_port(broker) for broker in config.brokers]
        self._inquiry: _Inquiry | None = None

    def open(self, line: Line, sequences: Sequences | None) -> Wire:
        """Connect a line to its broker."""
        timeout_ms = self._config.replication_timeout_ns // MILLISECOND_NS
        return ProduceWire(line, self._manner, self._packer, sequences, timeout_ms, self._work)

    def fetch(
        self, brokers: Sequence[Broker], *, producer: bool, found: Callable[[Found], None], failed: Failed
    ) -> None:
        """Ask what Kafka has, and for a new producer."""

        def work(inquiry: _Inquiry) -> None:
            inquiry.ask(Api.METADATA, lambda version: metadata.request(version, None), partial(said, inquiry))

        def said(inquiry: _Inquiry, reader: Reader, version: int) -> None:
            there = metadata.answer(reader, version)
            if not there.brokers:
                raise BadAnswer("it names no broker")
            if producer:
                inquiry.ask(Api.INIT_PRODUCER_ID, producer_id.request, partial(given, inquiry, there))
            else:
                done(inquiry, there, None)

        def given(inquiry: _Inquiry, there: metadata.Metadata, reader: Reader, _: int) -> None:
            answer = producer_id.answer(reader)
            if answer.error != NONE:
                way_out = "; kafka_relay.idempotence = false sends without" if answer.error in _FORBIDDEN else ""
                raise BadAnswer(f"error {named(answer.error)}{way_out}")
            done(inquiry, there, Sequences(answer.producer.id, answer.producer.epoch))

        def done(inquiry: _Inquiry, there: metadata.Metadata, sequences: Sequences | None) -> None:
            inquiry.close()
            topics = [SaidTopic(topic.name, topic.error, _partitions(topic)) for topic in there.topics]
            found(Found(cluster([Broker(*broker) for broker in there.brokers], topics), sequences))

        self._inquiry = _Inquiry(self._ring(brokers), self._manner, work, failed)

    def create(self, brokers: Sequence[Broker], topic: str, made: Callable[[int], None], failed: Failed) -> None:
        """Ask for one topic, which makes it."""

        def work(inquiry: _Inquiry) -> None:
            inquiry.ask(
                Api.METADATA,
                lambda version: metadata.request(version, [topic], autocreate=True),
                partial(said, inquiry),
            )

        def said(inquiry: _Inquiry, reader: Reader, version: int) -> None:
            there = metadata.answer(reader, version)
            error = next((each.error for each in there.topics if each.name == topic), None)
            if error is None:
                raise BadAnswer(f"it does not speak of {topic}")
            inquiry.close()
            made(error)

        self._inquiry = _Inquiry(self._ring(brokers), self._manner, work, failed)

    def close(self) -> None:
        """Ask nothing more."""
        if self._inquiry is not None:
            self._inquiry.close()

    def _ring(self, brokers: Sequence[Broker]) -> list[tuple[str, int]]:
        """Return whom to ask: those that are known from a random one on, at last those of the configuration."""
        known = [(broker.host, broker.port) for broker in brokers]
        if not known:
            known, rest = self._first, []
        else:
            rest = [address for address in self._first if address not in known]
        start = self._manner.random.randrange(len(known))
        return [*known[start:], *known[:start], *rest]


def _partitions(topic: metadata.Topic) -> tuple[tuple[int, int, int], ...]:
    return tuple((each.id, each.leader, each.error) for each in topic.partitions)


def _nobody(_: str) -> None:
    """Tell nobody."""
