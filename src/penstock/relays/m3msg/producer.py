"""M3Msg's producer inside any process: what is produced waits in memory and goes to the consumer services of a topic.

The way is the relay's own, service by service and connection by connection; in place of a node's log there is a buffer,
as upstream has it. For a program that wants upstream's guarantees and no more: what is not acked is gone with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

from penstock.clock import MILLISECOND, SECOND, Clock, LoopClock, Timer
from penstock.columns import Column
from penstock.errors import Refusal
from penstock.keyed import shard_of
from penstock.message import Rows
from penstock.registry.answer import Answer
from penstock.relays.m3msg.buffer import Buffer, Finished, Held, Limits
from penstock.relays.m3msg.config import RelayConfig
from penstock.relays.m3msg.memory import MemoryTopic
from penstock.relays.m3msg.relayed import Relayed, Way, followed
from penstock.relays.m3msg.topology import Topology
from penstock.wire.dial import Dialler, LoopDialler

#: How long a topic and the placements of its services are waited for at the start, as upstream does.
START_NS = 2 * SECOND
#: How often it is looked whether they are there.
_CHECK_NS = 5 * MILLISECOND


class Producer:
    """A buffer, and the services that it empties into."""

    def __init__(
        self,
        topic: str,
        topology: Topology,
        clock: Clock,
        dialler: Dialler,
        random: Random,
        *,
        config: RelayConfig | None = None,
        limits: Limits | None = None,
        traffic_types: Mapping[str, int] | None = None,
    ) -> None:
        config, self._limits = config or RelayConfig(), limits or Limits()
        self._clock = clock
        self.buffer = Buffer(self._limits, self._dropped, self._emptied)
        self._topic = MemoryTopic(topic, clock, self._finished, traffic_types or {})
        way = Way(clock, config, dialler, random)
        self._cancel = followed(config, topology, way)
        self.relayed = Relayed(self._topic, topology, way, config.connections)
        #: What was produced in this turn: rows that wait to be stored together.
        self._coming: list[tuple[Held, bytes, int, int, bytes | None]] = []
        #: Those that are stored, by offset and back.
        self._stored: dict[int, Held] = {}
        self._offsets: dict[Held, int] = {}
        self._dropping: Timer | None = None
        self._closing: Answer[None] | None = None

    # --- in -------------------------------------------------------------------------------------------------------

    def produce(
        self,
        value: bytes,
        *,
        id: bytes = b"",
        shard: int | None = None,
        traffic: int = 0,
        storage_policy: str = "",
        size: int | None = None,
        finished: Finished | None = None,
    ) -> None:
        """Take a message for its services; `finished` hears once whether it was consumed or dropped.

        Its shard is the given one or that of the metric's id. What cannot be is raised, and nothing is taken then.
        `size` is what it counts for where that is not the length of its value.
        """
        if self._closing is not None:
            raise Refusal("gone", f"the producer of {self._topic.name} is closed")
        shards = self.relayed.shards
        if not shards:
            raise Refusal("unavailable", f"topic {self._topic.name} is not known yet; wait for `begin`")
        shard = shard_of(id, shards) if shard is None else shard
        if not 0 <= shard < shards:
            raise Refusal("bad_request", f"there is no shard {shard}; topic {self._topic.name} has 0 to {shards - 1}")
        held = self.buffer.add(len(value) if size is None else size, finished)
        if self.buffer.is_over and self._dropping is None:
            at_ns = self._clock.monotonic() + self._limits.drop_interval_ns
            self._dropping = self._clock.call_at(at_ns, self._drop_over)
        headers = b'{"m3-storage-policy":"%s"}' % storage_policy.encode() if storage_policy else None
        if not self._coming:
            self._clock.call_soon(self._store)
        self._coming.append((held, value, shard, traffic - (traffic >> 63 << 64), headers))

    def _store(self) -> None:
        """Store what was produced in a turn as one batch, and send it."""
        coming = [each for each in self._coming if each[0].is_open]
        self._coming = []
        if not coming:
            return
        helds, values, shards, traffics, headers = (list(each) for each in zip(*coming, strict=True))
        columns: dict[str, Column] = {"route": shards}
        if any(traffics):
            columns["traffic"] = traffics
        if any(headers):
            columns["headers"] = headers
        waits = self._topic.waits
        batch = self._topic.append(Rows.of(values, "m3msg", columns))
        for offset, held in enumerate(helds, batch.first):
            held.waits = waits
            self._stored[offset] = held
            self._offsets[held] = offset
        if not waits:
            self._finished(0, batch.first, batch.end - 1)
        self._topic.offer()

    # --- out ------------------------------------------------------------------------------------------------------

    def _finished(self, bit: int, first: int, last: int) -> None:
        """Note that a subscription wants these rows no more; what no other wants is consumed."""
        stored = self._stored
        whole = last - first >= len(stored)
        for offset in [each for each in stored if first <= each <= last] if whole else range(first, last + 1):
            held = stored.get(offset)
            if held is not None:
                held.waits &= ~bit
                if not held.waits:
                    self._forget(held)
                    self.buffer.consume(held)

    def _dropped(self, held: Held) -> None:
        offset = self._offsets.get(held)
        if offset is not None:
            self._topic.remove(offset)
            self._forget(held)

    def _forget(self, held: Held) -> None:
        offset = self._offsets.pop(held, None)
        if offset is not None:
            del self._stored[offset]
            self._topic.kept.done(offset)

    def _drop_over(self) -> None:
        self._dropping = None
        self.buffer.drop_over()

    # --- begin and end --------------------------------------------------------------------------------------------

    def begin(self, timeout_ns: int = START_NS) -> Answer[None]:
        """Answer once the topic and the placements of its services are known; refuse if that takes too long."""
        begun: Answer[None] = Answer()
        self._await_topology(begun, self._clock.monotonic() + timeout_ns)
        return begun

    def _await_topology(self, begun: Answer[None], until_ns: int) -> None:
        if self.relayed.is_placed:
            begun.give(None)
        elif self._clock.monotonic() >= until_ns:
            what = "the placement of a service of" if self.relayed.shards else "the"
            why = f"{what} topic {self._topic.name} is not there; `penstock m3` makes it"
            begun.refuse(Refusal("unavailable", why))
        else:
            soon_ns = self._clock.monotonic() + _CHECK_NS
            self._clock.call_at(soon_ns, lambda: self._await_topology(begun, until_ns))

    def close(self, *, drop: bool = False) -> Answer[None]:
        """Take nothing more, and answer when everything is consumed, or (`drop`) dropped at once."""
        if self._closing is None:
            self._closing = Answer()
        if drop:
            self.buffer.drop_down_to(0)
        if not len(self.buffer):
            self._emptied()
        return self._closing

    def _emptied(self) -> None:
        if self._closing is not None and not self._closing.is_given:
            self._topic.close()
            self._cancel()
            self.relayed.close()
            if self._dropping is not None:
                self._dropping.cancel()
            self._closing.give(None)


@asynccontextmanager
async def producing(
    topic: str,
    topology: Topology,
    *,
    config: RelayConfig | None = None,
    limits: Limits | None = None,
    traffic_types: Mapping[str, int] | None = None,
) -> AsyncIterator[Producer]:
    """Produce on the running loop; the end waits until everything is consumed, after an exception it does not."""
    dialler = LoopDialler()
    producer = Producer(
        topic,
        topology,
        LoopClock(asyncio.get_running_loop()),
        dialler,
        Random(os.urandom(32)),
        config=config,
        limits=limits,
        traffic_types=traffic_types,
    )
    try:
        await producer.begin()
        yield producer
        await producer.close()
    finally:
        await producer.close(drop=True)
        await topology.close()
        await dialler.close()
