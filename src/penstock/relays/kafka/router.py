"""Dory's router: from rows on lease to the queues of brokers, and from their answers to what becomes of the rows.

Knows no sockets: an `Outside` opens connections and asks what Kafka has. Time and chance are passed in.
Invariant: every message in hand is in a lane's batch, in a line, set aside, or finished; finished is what Kafka has, or
what was told to the discards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from random import Random
from typing import Protocol

from penstock.clock import MILLISECOND, SECOND, Clock, Timer
from penstock.delivery.source import Delivery
from penstock.dialect import MetadataTimes, Queue
from penstock.discards import Discards, Reason
from penstock.relays.kafka.actions import Action, Actions, changes
from penstock.relays.kafka.assembly import MESSAGE_BYTES
from penstock.relays.kafka.books import Books
from penstock.relays.kafka.cluster import Broker, Cluster
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.relays.kafka.group import Group
from penstock.relays.kafka.lane import LEASE_NS, Lane
from penstock.relays.kafka.line import Line, Wire
from penstock.relays.kafka.pauses import Pauses
from penstock.relays.kafka.routes import Routes
from penstock.relays.kafka.sequences import DUPLICATE, OUT_OF_ORDER, REFUSED, UNKNOWN_PRODUCER, Sequences
from penstock.relays.kafka.sets import MessageSet

_log = logging.getLogger("penstock.kafka")

#: After a topic was asked for, Kafka's other brokers hear of it: looked for after each of these.
CREATION_NS = (3 * SECOND, 6 * SECOND, 12 * SECOND)
#: What an answer to asking for a topic may say: it is there, or it is and has no leader yet.
CREATED = (0, 5)


class Found:
    """An answer about what Kafka has."""

    def __init__(self, cluster: Cluster, sequences: Sequences | None) -> None:
        self.cluster = cluster
        #: A new producer, where one was asked for.
        self.sequences = sequences


class Outside(Protocol):
    """The way to Kafka."""

    def open(self, line: Line, sequences: Sequences | None) -> Wire:
        """Connect a line to its broker."""

    def fetch(
        self,
        brokers: Sequence[Broker],
        *,
        producer: bool,
        found: Callable[[Found], None],
        failed: Callable[[str], None],
    ) -> None:
        """Ask what Kafka has, and for a new producer; one broker after the other, until one answers."""

    def create(
        self, brokers: Sequence[Broker], topic: str, made: Callable[[int], None], failed: Callable[[str], None]
    ) -> None:
        """Ask for one topic, which makes it; answers with its error."""

    def close(self) -> None:
        """Ask nothing more."""


class Router:
    """Decides; one for each relay."""

    def __init__(
        self, config: KafkaRelayConfig, clock: Clock, random: Random, outside: Outside, discards: Discards
    ) -> None:
        self.routes = Routes(config, clock, lambda: self._state in ("running", "pausing"))
        self.lanes, self.lines = self.routes.lanes, self.routes.lines
        self.books = Books(clock, discards, self._freed)
        self.times = MetadataTimes(0, 0)
        #: Why nothing is sent; empty while it is.
        self.trouble = "it was not asked yet what Kafka has"
        self._config = config
        self._clock = clock
        self._random = random
        self._outside = outside
        self._actions = Actions(changes(config.error_actions))
        self._pauses = Pauses(config.pause_initial_ns, config.pause_doublings, config.pause_min_ns, random)
        self._cluster: Cluster | None = None
        self._sequences: Sequences | None = None
        #: starting, running, pausing (in a while lines are stopped), stopping (until answers are in), asking, creating.
        self._state = "starting"
        self._is_full = False
        self._is_draining = False
        #: Sets whose partition nobody leads now: they go there, or nowhere.
        self._stranded: list[MessageSet] = []
        #: What came while nothing is sent.
        self._late: list[tuple[Lane, Group]] = []
        #: What was found while lines still wait for answers.
        self._found: Found | None = None
        self._is_asking = False
        #: What went wrong while a topic was made.
        self._pending = ""
        self._idle: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._stop_timer: Timer | None = None
        self._refresh_timer: Timer | None = None
        self._renew_timer: Timer | None = None
        self._is_closed = False

    # --- from outside ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Ask what Kafka has, for as long as it takes, and begin to send."""
        self._renew_timer = self._after(LEASE_NS // 3, self._renew)
        self._ask()

    def add(self, lane: Lane) -> None:
        """Send messages of one more topic."""
        self.lanes[lane.name] = lane
        if self._cluster is not None:
            lane.learn(self._cluster, self._config.partition_keys, self._random)
        if self._state == "running" and not self._is_full:
            lane.unblock()

    def take(self, lane: Lane, deliveries: list[Delivery]) -> None:
        """Route what was handed out."""
        for delivery in deliveries:
            group = self.books.take(lane, delivery)
            if self._state == "running":
                self._receive(lane, group)
            else:
                self._late.append((lane, group))
        if self.books.held_bytes >= self._config.in_flight_bytes and not self._is_full:
            self._is_full = True
            self._block()

    def refresh(self) -> None:
        """Ask again what Kafka has."""
        if self._state == "running" and not self._is_asking:
            self._is_asking = True
            self._fetch(self._refreshed, self._not_refreshed)

    def queues(self) -> Iterator[Queue]:
        """Return the topics of which something is in hand."""
        batched = {name: lane.batched for name, lane in self.lanes.items()}
        for line in self.lines.values():
            for batcher in line.batchers.values():
                for group in batcher.groups:
                    batched[group.topic] = batched.get(group.topic, 0) + group.count
        for name, lane in self.lanes.items():
            if lane.held:
                yield Queue(name, batched[name], max(lane.held - lane.ack_wait - batched[name], 0), lane.ack_wait)

    @property
    def held(self) -> int:
        """How many messages are in hand."""
        return sum(lane.held for lane in self.lanes.values())

    def drain(self, idle: Callable[[], None]) -> None:
        """Take nothing more, let nothing wait for company, and tell when nothing is in hand."""
        self._is_draining = True
        for lane in self.lanes.values():
            if lane.topic.settings.durability != "memory":
                lane.end()
        if self._cluster is None:  # nobody to send to, and nothing in hand
            self._clock.call_soon(idle)
            return
        self._idle = idle
        self._flush()
        self._tell_idle()

    def close(self) -> None:
        """Hang up; what is in hand stays in the log, or where there is none, is lost and told of."""
        self._is_closed = True
        self.routes.close()
        for timer in (self._timer, self._stop_timer, self._refresh_timer, self._renew_timer):
            if timer is not None:
                timer.cancel()
        for line in self.lines.values():
            for request in line.out:
                for part in request:
                    self.books.doubt(part)
            line.close()
        if self._is_draining:
            self._lose_memory()
        self._outside.close()
        for lane in self.lanes.values():
            lane.close()

    # --- new messages ---------------------------------------------------------------------------------------------

    def _receive(self, lane: Lane, group: Group) -> None:
        if lane.known is None and self._config.topic_autocreate:
            self._late.append((lane, group))
            self._create(lane)
            return
        valid = self._valid(lane, group)
        if valid is not None and lane.window is not None:
            valid = self._admitted(lane, valid)
        if valid is not None:
            self.books.show("receive", (valid,))
            self.routes.route(lane, valid, batches=not self._is_draining)

    def _valid(self, lane: Lane, group: Group) -> Group | None:
        """Return the messages that can be sent."""
        if lane.known is None:
            self.books.discard(group, "bad_topic")
            return None
        too_long = group.sizes + MESSAGE_BYTES > self._config.message_max_bytes
        if too_long.any():
            self.books.discard(group.picked(too_long), "too_long")
            group = group.picked(~too_long)
        if lane.spread is None:
            self.books.discard(group, "no_available_partitions")
            return None
        return group if group.count else None

    def _admitted(self, lane: Lane, group: Group) -> Group | None:
        """Return as many messages as the rate allows."""
        if lane.window is None:
            return group
        count = lane.window.admit(group.count, self._clock.monotonic())
        if count < group.count:
            self.books.discard(group.cut(count, group.count), "rate_limit")
        return group.cut(0, count) if count else None

    def _flush(self) -> None:
        if self._state == "running":
            self.routes.let_go(None)

    # --- lines tell these -----------------------------------------------------------------------------------------

    def number(self, sets: Sequence[MessageSet]) -> None:
        """Give new sets their numbers."""
        if self._sequences is not None:
            for part in sets:
                part.sequence = self._sequences.take(part.place, part.count)

    def answered(self, line: Line, part: MessageSet, code: int) -> None:
        """Do what follows from what a broker says of one set."""
        self._waits(part, -part.count)
        if code == 0 or (code == DUPLICATE and part.sequence >= 0):
            self.books.deliver(part)
            return
        self.books.counts.errors[code] = self.books.counts.errors.get(code, 0) + 1
        part.is_doubtful = part.is_doubtful or (part.sequence >= 0 and code not in REFUSED)
        if part.sequence >= 0 and self._is_of_numbers(line, part, code):
            return
        action = self._actions.of(code)
        if action.discards:
            self._give_up(line, part, part.groups, "error_ack")
        else:
            self._count_failure(line, part)
            if part.groups and action is Action.RESEND:
                self.books.counts.resent += part.count
                line.put_again((part,))
            elif part.groups:
                line.returned.append(part)
        if action.pauses:
            self._pause(f"broker {line.broker.id} answered with error {code} for {part.topic}/{part.partition}")

    def trouble_of(self, line: Line, why: str) -> None:
        """Stop, because a broker cannot be spoken to."""
        self.books.counts.connection_failures += 1
        self._pause(f"broker {line.broker.id} at {line.broker.host}:{line.broker.port}: {why}")
        self._if_settled()

    def settled(self, line: Line) -> None:
        """Go on with a restart that waits for answers."""
        self._if_settled()

    def _is_of_numbers(self, line: Line, part: MessageSet, code: int) -> bool:
        """Tell whether an answer is about the number of a set only, and see to it."""
        if code == OUT_OF_ORDER and (part.moved or line.awaits(part.place, part.number)):
            part.moved = False
            line.put_again((part,))
            return True
        if code == OUT_OF_ORDER or code in UNKNOWN_PRODUCER:
            # Kafka forgot what it had of this producer: only a new one can go on, and nothing goes before.
            self._sequences = None
            for each in self.lines.values():
                each.stop()
            line.returned.append(part)
            self._pause(f"broker {line.broker.id} does not know this producer any more (error {code})")
            return True
        part.moved = False
        return False

    def _count_failure(self, line: Line, part: MessageSet) -> None:
        """Count an attempt that failed; messages with too many are given up."""
        most = self._config.failed_attempts_max
        over = [group for group in part.groups if group.failures >= most]
        for group in part.groups:
            group.failures += 1
        if part.is_doubtful and part.sequence >= 0 and len(over) < len(part.groups):
            return  # the broker knows it by its number only as a whole
        if over:
            self._give_up(line, part, over, "attempt_limit")

    def _give_up(self, line: Line, part: MessageSet, groups: list[Group], reason: Reason) -> None:
        """Throw messages of a set away that the broker does not have."""
        for group in groups:
            self.books.discard(group, reason)
        part.groups = [group for group in part.groups if group not in groups]
        if self._sequences is not None and part.sequence >= 0 and not part.is_doubtful:
            count = sum(group.count for group in groups)
            self._sequences.give_up(part.place, count, line.later(part))

    # --- pause, ask, restart --------------------------------------------------------------------------------------

    def _pause(self, why: str) -> None:
        if self._state == "creating":
            self._pending = why
        if self._state != "running":
            return
        self._state = "pausing"
        self.trouble = why
        self.books.counts.pauses += 1
        self._block()
        wait_ns = self._pauses.next_ns(self._clock.monotonic())
        _log.warning("sending to Kafka pauses for %.1f s: %s", wait_ns / SECOND, why)
        self._timer = self._after(wait_ns, self._stop_lines)

    def _stop_lines(self) -> None:
        """Start no request any more, and wait for the answers to those that are out."""
        self._state = "stopping"
        self._block()
        for line in self.lines.values():
            line.stop()
        self._stop_timer = self._after(self._config.restart_max_delay_ns, self._stopped)
        self._if_settled()

    def _if_settled(self) -> None:
        if self._state == "stopping" and all(line.is_settled for line in self.lines.values()):
            self._stopped()

    def _stopped(self) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
            self._stop_timer = None
        for line in self.lines.values():
            line.close()
        self._state = "asking"
        if self._found is not None:
            found, self._found = self._found, None
            self._restart(found)
        else:
            self._ask()

    def _ask(self) -> None:
        if not self._is_asking:
            self._is_asking = True
            self._fetch(self._restart_with, self._not_found)

    def _fetch(self, found: Callable[[Found], None], failed: Callable[[str], None]) -> None:
        known = list(self._cluster.brokers.values()) if self._cluster is not None else []
        self._outside.fetch(
            known, producer=self._config.idempotence and self._sequences is None, found=found, failed=failed
        )

    def _restart_with(self, found: Found) -> None:
        self._is_asking = False
        self._fetched()
        if not self._is_closed:
            self._restart(found)

    def _not_found(self, why: str) -> None:
        self._is_asking = False
        if self._is_closed:
            return
        self.books.counts.metadata_failed += 1
        wait_ns = max(self._pauses.next_ns(self._clock.monotonic()), 10 * MILLISECOND)
        if self.trouble != why:
            _log.warning("Kafka does not say what it has: %s; asking again", why)
        self.trouble = why
        self._timer = self._after(wait_ns, self._ask)

    def _refreshed(self, found: Found) -> None:
        self._is_asking = False
        self._fetched()
        if self._is_closed:
            return
        if self._state != "running":
            if self._state == "asking":  # it paused meanwhile, and waits for this
                self._restart(found)
            return
        if found.cluster == self._cluster and self._config.metadata_compare and not self._stranded:
            self._arm_refresh()
            return
        self._found = found
        self._stop_lines()

    def _not_refreshed(self, why: str) -> None:
        self._is_asking = False
        self.books.counts.metadata_failed += 1
        if self._is_closed:
            return
        if self._state == "asking":
            self._ask()
        else:
            _log.warning("Kafka does not say what it has: %s; asking again", why)
            self._arm_refresh(self._pauses.next_ns(self._clock.monotonic()))

    def _fetched(self) -> None:
        self.books.counts.metadata_fetched += 1
        self.times = self.times._replace(updated_ms=self._clock.now() // MILLISECOND)

    def _restart(self, found: Found) -> None:
        """Connect anew, and send again what was not acked, then what was not sent."""
        if self._config.idempotence and self._sequences is None and found.sequences is None:
            self._ask()  # it was asked before the producer was lost
            return
        self._pending = ""
        waiting = self._collected()
        if found.cluster != self._cluster:
            self.times = self.times._replace(modified_ms=self._clock.now() // MILLISECOND)
        self._cluster = cluster = found.cluster
        if found.sequences is not None:
            self._sequences = found.sequences
        self.lines.update((number, self._line(cluster.brokers[number])) for number in sorted(cluster.in_service))
        for lane in self.lanes.values():
            lane.learn(cluster, self._config.partition_keys, self._random)
            self._reconcile(lane)
        self._state = "running"
        self.trouble = ""
        frozen, self._stranded = self._stranded, []
        for part in sorted(frozen, key=lambda each: each.number):
            waiting[:0] = self._placed(part)
        for lane, group in waiting:
            self._reroute(lane, group)
        late, self._late = self._late, []
        for lane, group in late:
            if self._state == "running":
                self._receive(lane, group)
            else:
                self._late.append((lane, group))
        if self._is_draining:
            self._flush()
            self._tell_idle()
        self._arm_refresh(self._pauses.next_ns(self._clock.monotonic()) if self._stranded else None)
        if self._state == "running" and not self._is_full:
            self._unblock()

    def _line(self, broker: Broker) -> Line:
        if self._cluster is None:
            raise RuntimeError("nobody said what Kafka has")
        line = Line(broker, self._cluster, self._config, self._clock, _Judge(self))
        line.wire = self._outside.open(line, self._sequences)
        return line

    def _collected(self) -> list[tuple[Lane, Group]]:
        """Take back what the lines have: first what was sent, then what was not, batch by batch from each of them."""
        back: list[list[Group]] = []
        for line in self.lines.values():
            lost = [part for request in line.out for part in request]
            for part in lost:
                self._waits(part, -part.count)
                part.is_doubtful = True
            refused = [*line.returned, *line.again]
            if self._sequences is not None:  # under their numbers, so that nobody has them twice
                self._stranded += lost + refused
            else:
                parts = sorted((*lost, *refused), key=lambda each: each.number)
                for part in parts:
                    self._doubt(part)
                back.append([group for part in parts for group in part.groups])
        if self._sequences is None:
            for part in self._stranded:
                self._doubt(part)
            back.append([group for part in self._stranded for group in part.groups])
            self._stranded = []
        unsent = [list(line.unsent()) for line in self.lines.values()]
        self.lines.clear()
        return [(group.lane, group) for group in chain(_interleaved(back), _interleaved(unsent))]

    def _placed(self, part: MessageSet) -> list[tuple[Lane, Group]]:
        """Let a numbered set go to whoever leads its partition; return what has to go elsewhere."""
        topic = self._cluster.topics.get(part.topic) if self._cluster is not None else None
        if topic is not None:
            leader = next((each.leader for each in topic.partitions if each.id == part.partition), None)
            if leader is not None and leader in self.lines:
                self.lines[leader].put_again((part,))
                return []
            if part.partition in topic.numbers:
                self._stranded.append(part)
                return []
        # The topic is gone, or is another one of the same name.
        if self._sequences is not None:
            self._sequences.forget(part.topic)
        self._doubt(part)
        return [(group.lane, group) for group in part.groups]

    def _reroute(self, lane: Lane, group: Group) -> None:
        group.partition = None
        valid = self._valid(lane, group)
        if valid is not None:
            self.books.counts.resent += valid.count
            self.routes.route(lane, valid, batches=False)

    def _reconcile(self, lane: Lane) -> None:
        """Throw away what waits for company and cannot be sent any more."""
        if lane.batcher is not None and lane.batcher.groups and lane.spread is None:
            reason: Reason = "bad_topic" if lane.known is None else "no_available_partitions"
            for group in lane.batcher.flush():
                self.books.discard(group, reason)

    def _arm_refresh(self, wait_ns: int | None = None) -> None:
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        if wait_ns is None:
            wait_ns = int(self._config.metadata_refresh_ns * self._random.uniform(0.8, 1.2))
        self._refresh_timer = self._after(wait_ns, self.refresh)

    # --- topics that Kafka does not have --------------------------------------------------------------------------

    def _create(self, lane: Lane) -> None:
        """Ask for a topic; meanwhile nothing is sent, as nothing may overtake."""
        if self._state != "running" or self._cluster is None:
            return
        self._state = "creating"
        self._block()
        known = list(self._cluster.brokers.values())
        self._outside.create(known, lane.name, partial(self._made, lane), partial(self._not_made, lane))

    def _made(self, lane: Lane, error: int) -> None:
        if self._is_closed:
            return
        if error in CREATED:
            self._timer = self._after(CREATION_NS[0], partial(self._look_for, lane, CREATION_NS[1:]))
        else:
            _log.warning("topic %s cannot be made in Kafka: error %d", lane.name, error)
            self._not_there(lane, "topic_autocreate_failed")

    def _not_made(self, lane: Lane, why: str) -> None:
        if not self._is_closed:
            self._state = "running"
            self._pause(f"topic {lane.name} cannot be made: {why}")

    def _look_for(self, lane: Lane, waits: Sequence[int]) -> None:
        self._is_asking = True
        self._fetch(partial(self._looked, lane, waits), partial(self._not_seen, lane, waits))

    def _not_seen(self, lane: Lane, waits: Sequence[int], why: str) -> None:
        self._is_asking = False
        self.books.counts.metadata_failed += 1
        if not self._is_closed:
            self._not_made(lane, why)

    def _looked(self, lane: Lane, waits: Sequence[int], found: Found) -> None:
        self._is_asking = False
        self._fetched()
        if self._is_closed:
            return
        if lane.name in found.cluster.topics:
            self._found = found
            self._stop_lines()
        elif waits:
            self._timer = self._after(waits[0], partial(self._look_for, lane, waits[1:]))
        else:
            self._not_there(lane, "bad_topic")

    def _not_there(self, lane: Lane, reason: Reason) -> None:
        """Throw away what came for a topic that cannot be had, and go on with the others."""
        self._state = "running"
        late, self._late = self._late, []
        for owner, group in late:
            if owner is lane:
                self.books.discard(group, reason)
            elif self._state == "running":
                self._receive(owner, group)
            else:
                self._late.append((owner, group))
        pending, self._pending = self._pending, ""
        if pending:
            self._pause(pending)
        if self._state == "running" and not self._is_full:
            self._unblock()

    # --- ends -----------------------------------------------------------------------------------------------------

    def _freed(self) -> None:
        """Take more, or be idle, as there is room now."""
        if self._is_full and self.books.held_bytes < self._config.in_flight_bytes // 2:
            self._is_full = False
            if self._state == "running":
                self._unblock()
        if self._idle is not None:
            self._tell_idle()

    def _tell_idle(self) -> None:
        if (
            self._idle is not None
            and not self.held
            and not any(lane.waiting for lane in self.lanes.values() if lane.topic.settings.durability == "memory")
        ):
            idle, self._idle = self._idle, None
            idle()

    def _lose_memory(self) -> None:
        """Say which messages end with this process."""
        groups = [
            *(
                group
                for line in self.lines.values()
                for request in line.out
                for part in request
                for group in part.groups
            ),
            *(group for line in self.lines.values() for part in (*line.again, *line.returned) for group in part.groups),
            *(group for line in self.lines.values() for group in line.unsent()),
            *(group for lane in self.lanes.values() if lane.batcher is not None for group in lane.batcher.groups),
            *(group for part in self._stranded for group in part.groups),
            *(group for _, group in self._late),
        ]
        for group in groups:
            if group.lane.topic.settings.durability == "memory":
                self.books.discard(group, "shutdown")

    # --- small things ---------------------------------------------------------------------------------------------

    def _doubt(self, part: MessageSet) -> None:
        """Say that a set goes again under another number, or none, and that Kafka may have it."""
        if part.is_doubtful:
            self.books.doubt(part)

    def _waits(self, part: MessageSet, count: int) -> None:
        part.groups[0].lane.ack_wait += count

    def _block(self) -> None:
        for lane in self.lanes.values():
            lane.block()

    def _unblock(self) -> None:
        for lane in list(self.lanes.values()):
            if self._state == "running" and not self._is_full:
                lane.unblock()

    def _renew(self) -> None:
        for lane in self.lanes.values():
            lane.renew()
        self._renew_timer = self._after(LEASE_NS // 3, self._renew)

    def _after(self, wait_ns: int, call: Callable[[], None]) -> Timer:
        return self._clock.call_at(self._clock.monotonic() + wait_ns, call)


class _Judge:
    """What lines may tell a router."""

    def __init__(self, router: Router) -> None:
        self.number = router.number
        self.sent = router.books.sent
        self.answered = router.answered
        self.trouble = router.trouble_of
        self.settled = router.settled


def _interleaved(queues: Iterable[Sequence[Group]]) -> Iterator[Group]:
    """Yield from each in turn, so that what is rerouted keeps its order as far as can be."""
    return (group for turn in zip_longest(*queues) for group in turn if group is not None)
