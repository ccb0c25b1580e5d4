"""The writer chain in memory, without a node, by the numbers of the specification's cases."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.errors import ConfigError, Refusal
from penstock.m3.topic import Filters, RoutingFilter
from penstock.relays.m3msg.buffer import BufferFull, Limits, MessageTooLarge
from penstock.relays.m3msg.config import RelayConfig
from penstock.relays.m3msg.producer import producing
from penstock.relays.m3msg.topology import FileTopology, read
from tests.m3msg.chain import Chain
from tests.m3msg.consumers import Consumer, placed, service, topic
from tests.m3msg.receiver import Receiver

ALL = [0, 1, 2, 3]


def away(limits: Limits | None = None, config: RelayConfig | None = None) -> Chain:
    """Return a chain whose one service is not there, so that everything waits."""
    chain = Chain(limits, config)
    gone = chain.consumer()
    gone.die()
    chain.topology.placements = {"one": placed({gone: ALL})}
    chain.topology.say(topic(service("one")))
    chain.run()
    return chain


def room(spill: float = 0.2, *, refuse: bool = False) -> Limits:
    return Limits(bytes_max=300, message_bytes_max=200, spill=spill, on_full="refuse" if refuse else "drop")


THREE = (b"1", b"2", b"3")


@pytest.mark.parametrize("stored", [True, False])
def test_m3msg_case_10_above_the_spill_limit_the_oldest_are_dropped_before_the_new_one_is_in(stored: bool) -> None:
    chain = away(room(0.2))
    chain.produce(*THREE, size=100)
    if stored:
        chain.run()
    chain.produce(b"4", size=200)
    assert chain.fates == [(b"1", "dropped"), (b"2", "dropped")]
    assert (chain.producer.buffer.total, len(chain.producer.buffer)) == (300, 2)
    chain.run()
    assert chain.producer.relayed.stream.subscriptions["m3msg.one"].depth() == 2


def test_m3msg_case_11_below_it_they_are_dropped_at_the_next_interval() -> None:
    chain = away(room(0.8))
    chain.produce(*THREE, size=100)
    chain.run()
    chain.produce(b"4", size=200)
    assert (chain.fates, chain.producer.buffer.total) == ([], 500)
    chain.run(0.9)
    assert chain.fates == []
    chain.run(0.2)
    assert chain.fates == [(b"1", "dropped"), (b"2", "dropped")]
    assert chain.producer.buffer.total == 300


def test_m3msg_case_12_where_nothing_is_dropped_the_new_one_is_refused() -> None:
    chain = away(room(refuse=True))
    chain.produce(*THREE, size=100)
    with pytest.raises(BufferFull):
        chain.produce(b"4", size=100)
    assert (chain.fates, chain.producer.buffer.total) == ([], 300)


def test_m3msg_case_13_a_message_above_the_limit_is_refused_and_a_limit_above_the_buffer_is_none() -> None:
    chain = away(room())
    with pytest.raises(MessageTooLarge):
        chain.produce(b"4", size=201)
    assert chain.producer.buffer.total == 0
    with pytest.raises(ConfigError, match="above bytes_max"):
        Chain(Limits(bytes_max=300, message_bytes_max=301))


def test_m3msg_case_14_who_closes_without_waiting_drops_everything() -> None:
    chain = away()
    chain.produce(*THREE)
    chain.run()
    chain.produce(b"4")
    assert chain.producer.close(drop=True).is_given
    assert chain.fates == [(each, "dropped") for each in (*THREE, b"4")]
    assert chain.producer.buffer.total == 0
    chain.run()


def test_m3msg_case_15_a_message_is_consumed_once_when_the_last_service_has_acked_it() -> None:
    chain = Chain()
    one, other = chain.consumer(), chain.consumer()
    other.acks = False
    chain.topology.placements = {"one": placed({one: ALL}), "other": placed({other: ALL})}
    chain.topology.say(topic(service("one"), service("other")))
    chain.run()
    chain.produce(*THREE, shard=1)
    chain.run()
    assert set(one.got) == set(other.got) == set(THREE)
    assert chain.fates == []
    other.acks = True
    chain.until(lambda: len(chain.producer.buffer) == 0)
    assert sorted(chain.fates) == [(each, "consumed") for each in THREE]
    chain.run(60)
    assert (len(chain.fates), one.got[b"1"]) == (3, 1)


def test_a_message_that_no_service_takes_is_consumed_at_once() -> None:
    chain = away()
    chain.topology.say(topic(service("one", filters=Filters(routing=RoutingFilter(("production",), False)))))
    chain.run()
    chain.produce(b"unwanted")
    chain.run()
    assert chain.fates == [(b"unwanted", "consumed")]
    chain.topology.say(topic())
    chain.run()
    chain.produce(b"for nobody")
    chain.run()
    assert chain.fates[1:] == [(b"for nobody", "consumed")]


def test_m3msg_case_16_a_shard_that_there_is_not_and_whatever_comes_after_the_end_are_refused() -> None:
    chain = away()
    with pytest.raises(Refusal, match="no shard 4"):
        chain.produce(b"1", shard=4)
    assert chain.producer.buffer.total == 0
    assert chain.producer.close().is_given
    with pytest.raises(Refusal, match="closed"):
        chain.produce(b"1")


def test_m3msg_case_18_a_topic_or_a_placement_that_is_not_there_fails_the_start_after_its_time() -> None:
    chain = Chain()
    begun = chain.producer.begin()
    chain.run(1.9)
    assert not begun.is_given
    chain.run(0.2)
    with pytest.raises(Refusal, match="the topic aggregated_metrics is not there"):
        begun.now()
    chain.topology.say(topic(service("one")))
    begun = chain.producer.begin()
    chain.run(2.1)
    with pytest.raises(Refusal, match="the placement of a service"):
        begun.now()
    chain.topology.place("one", placed({chain.consumer(): ALL}))
    begun = chain.producer.begin()
    chain.run(0.1)
    begun.now()


def test_m3msg_case_20_a_time_to_live_lets_go_of_what_nobody_takes() -> None:
    chain = away()
    chain.produce(*THREE)
    chain.run()
    assert chain.fates == []
    chain.topology.say(topic(service("one", ttl_ns=50 * MILLISECOND)))
    chain.run(0.5)
    assert chain.fates == [(each, "consumed") for each in THREE]
    chain.topology.say(topic(service("one")))
    chain.produce(b"4")
    chain.run(3600)
    assert len(chain.producer.buffer) == 1


def test_m3msg_case_23_new_messages_go_out_before_those_that_go_out_again() -> None:
    chain = Chain()
    one = chain.consumer()
    one.acks = False
    chain.topology.placements = {"one": placed({one: ALL})}
    chain.topology.say(topic(service("one")))
    chain.run()
    chain.produce(b"1", b"2")
    chain.run()
    assert list(one.got) == [b"1", b"2"]
    one.die()
    chain.run()
    chain.produce(b"3", b"4")
    chain.run()
    again = Consumer(chain, one.port)
    chain.until(lambda: len(again.got) == 4)
    assert list(again.got) == [b"3", b"4", b"1", b"2"]


def test_m3msg_case_28_a_service_that_leaves_lets_go_at_once_or_is_waited_for_until_that_is_switched_off() -> None:
    for graceful in (False, True):
        chain = Chain(config=RelayConfig(graceful_close=graceful, graceful_close_key="grace"))
        one = chain.consumer()
        one.acks = False
        chain.topology.placements = {"one": placed({one: ALL})}
        chain.topology.say(topic(service("one")))
        chain.run()
        chain.produce(*THREE)
        chain.run()
        chain.topology.say(topic())
        chain.run(5)
        chain.produce(b"later")
        chain.run()
        assert chain.fates[-1] == (b"later", "consumed")
        assert len(chain.fates) == (1 if graceful else 4)
        if graceful:
            chain.topology.flag(False)
            chain.run(1.1)
        assert sorted(chain.fates) == [*((each, "consumed") for each in THREE), (b"later", "consumed")]
        assert not chain.producer.relayed.leaving
        assert not one.got[b"later"]


def test_m3msg_case_28_a_service_that_leaves_and_is_waited_for_goes_when_it_has_acked_all() -> None:
    chain = Chain(config=RelayConfig(graceful_close=True))
    one = chain.consumer()
    one.acks = False
    chain.topology.placements = {"one": placed({one: ALL})}
    chain.topology.say(topic(service("one")))
    chain.run()
    chain.produce(*THREE)
    chain.run()
    chain.topology.say(topic())
    chain.run(1)
    one.acks = True
    chain.until(lambda: not chain.producer.relayed.leaving)
    assert len(chain.fates) == 3
    assert not one.sessions
    chain.topology.say(topic(service("one")))
    chain.run()
    chain.produce(b"again")
    chain.run()
    assert one.got[b"again"] == 1


def test_the_end_waits_for_what_was_produced() -> None:
    chain = Chain()
    one = chain.consumer()
    one.acks = False
    chain.topology.placements = {"one": placed({one: ALL})}
    chain.topology.say(topic(service("one")))
    chain.run()
    chain.produce(*[b"%d" % number for number in range(100)])
    ended = chain.producer.close()
    chain.run()
    assert not ended.is_given
    one.acks = True
    chain.until(lambda: ended.is_given)
    assert {fate for _, fate in chain.fates} == {"consumed"}
    assert chain.producer.buffer.total == 0


def test_memory_follows_what_waits_and_not_what_came_with_it() -> None:
    chain = Chain()
    one, slow = chain.consumer(), chain.consumer()
    slow.die()
    chain.topology.placements = {"one": placed({one: ALL[:3], slow: ALL[3:]})}
    chain.topology.say(topic(service("one")))
    chain.run()
    for number in range(100):
        chain.produce(b"%d" % number, shard=3 if number % 10 == 0 else 0)
    chain.run()
    assert len(chain.producer.buffer) == 10
    kept = chain.producer.relayed.stream.subscriptions["m3msg.one"].cursors[0].source
    assert kept.rows_between(0, kept.readable_end) == 10
    again = Consumer(chain, slow.port)
    chain.until(lambda: len(chain.producer.buffer) == 0)
    assert set(again.got) == {b"%d" % number for number in range(0, 100, 10)}


def test_a_program_sends_to_a_service_over_sockets(tmp_path: Path) -> None:
    file = tmp_path / "m3.toml"
    fates: list[str] = []

    async def send() -> None:
        async with producing("metrics", FileTopology(read(str(file)))) as producer:
            for number in range(1000):
                producer.produce(b"value %d" % number, id=b"id %d" % (number % 7), finished=fates.append)

    with Receiver() as receiver:
        file.write_text(
            '[topics.metrics]\nshards = 8\n[[topics.metrics.services]]\nname = "store"\n'
            f'[placements.store.instances.a]\nendpoint = "{receiver.endpoint}"\n'
        )
        asyncio.run(send())
    assert fates == ["consumed"] * 1000
    assert set(receiver.got) == {b"value %d" % number for number in range(1000)}


@pytest.mark.parametrize("at_once", [True, False])
def test_an_instance_that_accepts_and_never_reads_is_written_little_and_delays_nobody(
    tmp_path: Path, at_once: bool
) -> None:
    file = tmp_path / "m3.toml"
    count, size = 120, 256 << 10
    config = RelayConfig(retry_initial_ns=600 * SECOND, write_timeout_ns=200 * MILLISECOND)

    async def send() -> tuple[int, int]:
        topology = FileTopology(read(str(file)))
        async with producing("metrics", topology, config=config) as producer:
            mute = next(each for key, each in producer.relayed.services.items() if key.name == "mute")
            for number in range(count):
                producer.produce(b"%8d" % number * (size // 8), id=b"id")
                if not at_once:
                    await asyncio.sleep(0)
            async with asyncio.timeout(60):
                while len(reads.got) < count or mute.counts.resets < 3:
                    await asyncio.sleep(0.01)
            await producer.close(drop=True)
            return mute.counts.sent * size, mute.counts.resets + 1

    with Receiver() as reads, socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        mute.bind(("127.0.0.1", 0))
        mute.listen(64)
        services = {"reads": reads.endpoint, "mute": f"127.0.0.1:{mute.getsockname()[1]}"}
        file.write_text(
            "[topics.metrics]\nshards = 1\n"
            + "".join(f'[[topics.metrics.services]]\nname = "{name}"\n' for name in services)
            + "".join(f'[placements.{name}.instances.a]\nendpoint = "{at}"\n' for name, at in services.items())
        )
        sent, connections = asyncio.run(send())
    # The kernel takes up to some MiB of each connection, and one hand-out is about 1 MiB.
    assert sent <= connections * 8 << 20
