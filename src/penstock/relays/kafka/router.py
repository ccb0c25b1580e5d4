"""Dory's router: from rows on lease to the queues of brokers, and from their answers to what becomes of the rows.

Knows no sockets: an `Outside` opens connections and asks what Kafka has. Time and chance are passed in.
Invariant: every message in hand is in a lane's batch, in a line, set aside, or finished; finished is what Kafka has, or
what was told to the discards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

from penstock.budget import Share
from penstock.clock import MILLISECOND, SECOND, Clock, Timer
from penstock.delivery.source import Delivery
from penstock.discards import Discards, Reason
from penstock.relays.kafka.admission import Admission
from penstock.relays.kafka.books import Books
from penstock.relays.kafka.cluster import Broker, Cluster
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.relays.kafka.creation import Creation
from penstock.relays.kafka.group import Group
from penstock.relays.kafka.knowledge import Knowledge
from penstock.relays.kafka.lane import LEASE_NS, Lane
from penstock.relays.kafka.leftovers import Leftovers
from penstock.relays.kafka.line import Line, Trouble
from penstock.relays.kafka.numbering import Numbering
from penstock.relays.kafka.pauses import Pauses
from penstock.relays.kafka.recall import Recall
from penstock.relays.kafka.routes import Routes
from penstock.relays.kafka.verdicts import Verdicts
from penstock.relays.kafka.way import Found, Outside

_log = logging.getLogger("penstock.kafka")

#: Memory that others have filled is looked at this often: nobody says when there is room again.
ROOM_NS = 100 * MILLISECOND


class Router:
    """Decides; one for each relay."""

    def __init__(
        self,
        config: KafkaRelayConfig,
        clock: Clock,
        random: Random,
        outside: Outside,
        discards: Discards,
        memory: Share,
    ) -> None:
        self.routes = Routes(config, clock, lambda: self._state in ("running", "pausing"))
        self.lanes, self.lines = self.routes.lanes, self.routes.lines
        self.books = Books(clock, discards, memory, self._freed)
        #: Why nothing is sent; empty while it is.
        self.trouble = "it was not asked yet what Kafka has"
        self._config = config
        self._memory = memory
        #: Half of the memory is left to clients, whatever happens to Kafka.
        self._held_bytes_max = min(config.in_flight_bytes, memory.bytes_max // 2)
        self._clock = clock
        self._random = random
        self._outside = outside
        self.numbering = Numbering(config.idempotence)
        self.knowledge = Knowledge(
            config.metadata_refresh_ns, clock, random, outside, self.numbering, self.books.counts
        )
        self.verdicts = Verdicts(config, self.books, self.numbering, self.lines, self._pause)
        self._admission = Admission(config.message_max_bytes, self.books, clock)
        self.leftovers = Leftovers(self.lanes, clock)
        self._recall = Recall(self.books, self.numbering, self.lines)
        self._pauses = Pauses(config.pause_initial_ns, config.pause_doublings, config.pause_min_ns, random)
        self._creation: Creation | None = None
        #: starting, running, pausing (in a while lines are stopped), stopping (until answers are in), asking, creating.
        self._state = "starting"
        self._is_full = False
        self._is_draining = False
        #: What came while nothing is sent.
        self._late: list[tuple[Lane, Group]] = []
        #: Lanes of topics that are gone.
        self._leaving: list[Lane] = []
        #: What was found while lines still wait for answers.
        self._found: Found | None = None
        #: What went wrong while a topic was made.
        self._pending = ""
        self._idle: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._stop_timer: Timer | None = None
        self._renew_timer: Timer | None = None
        self._room_timer: Timer | None = None

    # --- from outside ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Ask what Kafka has, for as long as it takes, and begin to send."""
        self._renew_timer = self._after(LEASE_NS // 3, self._renew)
        self._ask()

    def add(self, lane: Lane) -> None:
        """Send messages of one more topic."""
        self.lanes[lane.name] = lane
        if self.knowledge.cluster is not None:
            lane.learn(self.knowledge.cluster, self._config.partition_keys, self._random)
        if self._state == "running" and not self._is_full:
            lane.unblock()

    def remove(self, lane: Lane) -> None:
        """Be done with a topic that is gone, once nothing of it is in hand."""
        lane.close()
        self._leaving.append(lane)
        self._clock.call_soon(self._let_go)

    def _let_go(self) -> None:
        for lane in [lane for lane in self._leaving if not lane.held]:
            self._leaving.remove(lane)
            if self.lanes.get(lane.name) is lane:
                del self.lanes[lane.name]

    def take(self, lane: Lane, deliveries: list[Delivery]) -> None:
        """Route what was handed out."""
        for delivery in deliveries:
            group = self.books.take(lane, delivery)
            if self.leftovers.are_lost:
                self.books.discard(group, "shutdown")
            elif self._state == "running":
                self._receive(lane, group)
            else:
                self._late.append((lane, group))
        memory = self._memory
        if not self._is_full and (self.books.held_bytes >= self._held_bytes_max or memory.used >= memory.bytes_max):
            self._is_full = True
            self._block()
            memory.refused += memory.used >= memory.bytes_max
            if self._room_timer is None:
                self._room_timer = self._after(ROOM_NS, self._look_for_room)

    def refresh(self) -> None:
        """Ask again what Kafka has."""
        if self._state == "running" and not self.knowledge.is_asking:
            self.knowledge.ask(self._refreshed, self._not_refreshed)

    @property
    def held(self) -> int:
        """How many messages are in hand."""
        return self.books.held

    def drain(self, idle: Callable[[], None]) -> None:
        """Take nothing more, let nothing wait for company, and tell when nothing is in hand."""
        self._is_draining = True
        for lane in self.lanes.values():
            if not lane.is_fleeting:
                lane.end()
        if self.knowledge.cluster is None:  # nobody to send to, and nothing in hand
            self._clock.call_soon(idle)
            return
        self._idle = idle
        self._flush()
        self._tell_idle()

    def close(self) -> None:
        """Hang up; what is in hand stays in the log, or where there is none, is lost and told of."""
        self.routes.close()
        if self._creation is not None:
            self._creation.cancel()
        self.knowledge.close()
        for timer in (self._timer, self._stop_timer, self._renew_timer, self._room_timer):
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
            if self._clock.monotonic() < lane.refused_until_ns:
                self.books.discard(group, "topic_autocreate_failed")
                return
            self._late.append((lane, group))
            self._create(lane)
            return
        valid = self._admission.new(lane, group)
        if valid is not None:
            self.books.show("receive", (valid,))
            self.routes.route(lane, valid, batches=not self._is_draining)

    def _flush(self) -> None:
        if self._state == "running":
            self.routes.let_go(None)

    # --- lines tell these -----------------------------------------------------------------------------------------

    def trouble_of(self, line: Line, why: str, kind: Trouble) -> None:
        """Stop, because a broker cannot be spoken to."""
        self.books.counts.connection_failures[kind] += 1
        self._pause(f"broker {line.broker.id} at {line.broker.host}:{line.broker.port}: {why}")
        self._if_settled()

    def settled(self, line: Line) -> None:
        """Go on with a restart that waits for answers."""
        self._if_settled()

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
        if not self.knowledge.is_asking:
            self.knowledge.ask(self._restart, self._not_found)

    def _not_found(self, why: str) -> None:
        wait_ns = max(self._pauses.next_ns(self._clock.monotonic()), 10 * MILLISECOND)
        if self.trouble != why:
            _log.warning("Kafka does not say what it has: %s; asking again", why)
        self.trouble = why
        self._timer = self._after(wait_ns, self._ask)

    def _refreshed(self, found: Found) -> None:
        if self._state != "running":
            if self._state == "asking":  # it paused meanwhile, and waits for this
                self._restart(found)
            return
        if found.cluster == self.knowledge.cluster and self._config.metadata_compare and not self._recall.stranded:
            self.books.counts.metadata_unchanged += 1
            self.knowledge.arm(self.refresh)
            return
        self.books.counts.metadata_changed += found.cluster != self.knowledge.cluster
        self._found = found
        self._stop_lines()

    def _not_refreshed(self, why: str) -> None:
        if self._state == "asking":
            self._ask()
        else:
            _log.warning("Kafka does not say what it has: %s; asking again", why)
            self.knowledge.arm(self.refresh, self._pauses.next_ns(self._clock.monotonic()))

    def _restart(self, found: Found) -> None:
        """Connect anew, and send again what was not acked, then what was not sent."""
        if self.numbering.is_lacking and found.sequences is None:
            self._ask()  # it was asked before the producer was lost
            return
        self._pending = ""
        waiting = self._recall.collect()
        cluster = self.knowledge.learn(found)
        self.lines.update(
            (number, self._line(cluster, cluster.brokers[number])) for number in sorted(cluster.in_service)
        )
        for lane in self.lanes.values():
            lane.learn(cluster, self._config.partition_keys, self._random)
            self._admission.reconcile(lane)
        self._state = "running"
        self.trouble = ""
        for group in (*self._recall.place(cluster), *waiting):
            self._reroute(group)
        late, self._late = self._late, []
        for lane, group in late:
            if self._state == "running":
                self._receive(lane, group)
            else:
                self._late.append((lane, group))
        if self._is_draining:
            self._flush()
            self._tell_idle()
        self.knowledge.arm(
            self.refresh, self._pauses.next_ns(self._clock.monotonic()) if self._recall.stranded else None
        )
        if self._state == "running" and not self._is_full:
            self._unblock()

    def _line(self, cluster: Cluster, broker: Broker) -> Line:
        line = Line(broker, cluster, self._config, self._clock, _Judge(self))
        line.wire = self._outside.open(line, self.numbering.sequences)
        return line

    def _reroute(self, group: Group) -> None:
        group.partition = None
        valid = self._admission.valid(group.lane, group)
        if valid is not None:
            self.books.counts.resent += valid.count
            self.routes.route(group.lane, valid, batches=False)

    # --- topics that Kafka does not have --------------------------------------------------------------------------

    def _create(self, lane: Lane) -> None:
        """Ask for a topic; meanwhile nothing is sent, as nothing may overtake."""
        cluster = self.knowledge.cluster
        if self._state != "running" or cluster is None:
            return
        self._state = "creating"
        self._block()
        self._creation = Creation(lane, self._outside, self._clock, self.knowledge, self)
        self._creation.begin(list(cluster.brokers.values()))

    def came(self, found: Found) -> None:
        """Go on with a topic that is there now."""
        self._found = found
        self._stop_lines()

    def not_asked(self, why: str) -> None:
        """Stop, because Kafka cannot be asked for a topic."""
        self._state = "running"
        self._pause(why)

    def not_made(self, lane: Lane, reason: Reason) -> None:
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
        if self._is_draining:
            self._flush()
            self._tell_idle()
        if self._state == "running":
            self.knowledge.arm(self.refresh)  # its time may have come meanwhile
        if self._state == "running" and not self._is_full:
            self._unblock()

    # --- ends -----------------------------------------------------------------------------------------------------

    def _freed(self) -> None:
        """Take more, or be idle, as there is room now."""
        if self._leaving:
            self._clock.call_soon(self._let_go)
        if (
            self._is_full
            and self.books.held_bytes < self._held_bytes_max // 2
            # Where others have filled the memory, it goes on with one delivery at a time.
            and (self._memory.used < self._memory.bytes_max or not self.books.held)
        ):
            self._take_more()
        if self._idle is not None:
            self._tell_idle()

    def _look_for_room(self) -> None:
        self._room_timer = None
        if not self._is_full:
            return
        if self.books.held_bytes < self._held_bytes_max and self._memory.used < self._memory.bytes_max:
            self._take_more()
        else:
            self._room_timer = self._after(ROOM_NS, self._look_for_room)

    def _take_more(self) -> None:
        self._is_full = False
        if self._state == "running":
            self._unblock()

    def _tell_idle(self) -> None:
        if self._idle is not None and not self.held and not self.leftovers.waiting:
            idle, self._idle = self._idle, None
            idle()

    def _lose_memory(self) -> None:
        """Say which messages end with this process."""
        groups = [
            *self.routes.groups(),
            *(group for part in self._recall.stranded for group in part.groups),
            *(group for _, group in self._late),
        ]
        for group in groups:
            if group.lane.is_fleeting:
                self.books.discard(group, "shutdown")

    # --- small things ---------------------------------------------------------------------------------------------

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
        self.number = router.numbering.number
        self.sent = router.books.sent
        self.answered = router.verdicts.answered
        self.trouble = router.trouble_of
        self.settled = router.settled
