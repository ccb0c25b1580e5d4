"""The checker of a relay to Kafka: what was published, what Kafka has, what was given up, and what must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.discards import Thrown
from penstock.relays.kafka.relay import Relay
from tests.simulation.host import Host
from tests.simulation.kafka.partition import Partition, Records
from tests.simulation.kafka.plan import Plan
from tests.simulation.survival import CLEAN, JOURNAL_SYNCED_NS, POWER


class Message:
    """One message."""

    __slots__ = ("acked_ns", "discarded", "durability", "is_kept", "is_safe", "is_synced", "key", "number", "times")

    def __init__(self, number: int, key: int | None, durability: str) -> None:
        self.number = number
        #: Its partition key.
        self.key = key
        self.durability = durability
        #: Its publisher was told that it is stored, and nothing since took that back.
        self.is_kept = False
        #: When the relay heard that Kafka has it; -1 where it did not.
        self.acked_ns = -1
        #: That is written down, and so that the power may go: it must not be sent again.
        self.is_safe = self.is_synced = False
        #: Why it was given up.
        self.discarded = ""
        #: How often Kafka has it, by the life of the node that sent it.
        self.times: Counter[int] = Counter()


class Book:
    """All of them."""

    def __init__(self, host: Host, plan: Plan) -> None:
        self.messages: dict[bytes, Message] = {}
        self.checks = 0
        self._host = host
        self._plan = plan
        #: What may have been sent twice, as the relay says, in this life.
        self._doubted: set[bytes] = set()
        #: The last message of each key in each partition.
        self._last: dict[tuple[str, int, int], int] = {}

    # --- what happens ---------------------------------------------------------------------------------------------

    def publish(self, body: bytes, key: int | None, durability: str) -> None:
        """Note a message that is offered."""
        self.messages[body] = Message(len(self.messages), key, durability)

    def told(self, bodies: Sequence[bytes], error: BaseException | None) -> None:
        """Note what a publisher was told."""
        self._host.record("stored", bodies[0], len(bodies), error)
        if error is not None:
            self._host.fail("a publish is taken", str(error))
        for body in bodies:
            self.messages[body].is_kept = True

    def committed(self, partition: Partition, batches: list[Records]) -> None:
        """Check what Kafka has from now on."""
        for records in batches:
            for body in records.bodies:
                self.checks += 1
                self._check_new(partition, records.life, body)

    def watch(
        self, stage: str, topic: str, _: Sequence[int], __: Sequence[bytes | None], bodies: Sequence[bytes]
    ) -> None:
        """Check what the relay takes for done."""
        if stage != "got_ack":
            return
        self._host.record("acked", topic, bodies[0], len(bodies))
        for body in bodies:
            message = self.messages[body]
            message.acked_ns = self._host.scheduler.time_ns
            if not message.times:
                self._host.fail("a message is finished when Kafka has it", f"{body!r} is not in Kafka")

    def thrown(self, thrown: Thrown) -> None:
        """Note what is given up, or may be sent twice."""
        self._host.record(thrown.event, thrown.reason, thrown.topic, len(thrown.bodies))
        bodies = [bytes(body) for body in thrown.bodies]
        if thrown.event == "duplicate":
            self._doubted.update(bodies)
            return
        for body in bodies:
            self.messages[body].discarded = str(thrown.reason)

    def crash(self, kind: str) -> None:
        """Note that the node ended, and what of its acks is written down."""
        now_ns, booted_ns, slack_ns = self._host.scheduler.time_ns, self._host.booted_ns, self._host.slack_ns
        self._doubted.clear()
        for message in self.messages.values():
            acked_ns = message.acked_ns
            if acked_ns >= 0:
                synced_ns = max(acked_ns, booted_ns) + JOURNAL_SYNCED_NS
                message.is_synced = message.is_synced or kind == CLEAN or synced_ns < now_ns
                message.is_safe = message.is_safe or acked_ns + slack_ns <= now_ns
            if kind == POWER:
                message.is_safe = message.is_synced
                message.is_kept = message.is_kept and message.durability != "os"
            message.is_safe = message.is_safe or message.is_synced
            if not message.is_safe:
                message.acked_ns = -1

    # --- what must hold -------------------------------------------------------------------------------------------

    def _check_new(self, partition: Partition, life: int, body: bytes) -> None:
        message = self.messages[body]
        if message.is_safe and life == self._host.life:
            self._host.fail("what is acked and written down never goes again", f"{body!r} in life {life}")
        message.times[life] += 1
        if not self._plan.relay.idempotence:
            return
        if message.times[life] > 1 and not (self._plan.is_forgetful and body in self._doubted):
            self._host.fail("no record twice in the life of a node", f"{body!r} in {partition.topic} in life {life}")
        if message.key is not None and message.times.total() == 1 and not self._plan.is_forgetful:
            where = partition.topic, partition.number, message.key
            if self._last.get(where, -1) > message.number:
                text = f"{body!r} came after message {self._last[where]} to {where}"
                self._host.fail("messages of a key stay in order", text)
            self._last[where] = message.number

    def check_sums(self, relay: Relay) -> bool:
        """Check that every message in hand is accounted for; what is given up leaves in the next turn."""
        counts, held = relay.router.books.counts, relay.router.held
        if counts.acked + counts.discarded + held < counts.taken:
            text = f"{counts.taken} taken, {counts.acked} acked, {counts.discarded} discarded, {held} held"
            self._host.fail("taken = acked + held + discarded", text)
        return counts.acked + counts.discarded + held == counts.taken

    def missing(self) -> list[bytes]:
        """Return what Kafka should have and has not, unless it was given up with a reason."""
        return [
            body
            for body, message in self.messages.items()
            if message.is_kept and not message.times and not message.discarded
        ]

    def check_arrived(self) -> None:
        """Check that nothing was lost, and that nothing was given up without need."""
        missing = self.missing()
        if missing:
            self._host.fail("nothing is lost", f"{len(missing)} messages, such as {missing[0]!r}")
        allowed = {"attempt_limit", "no_available_partitions", *(("error_ack",) if self._plan.costly else ())}
        for body, message in self.messages.items():
            if message.discarded and message.discarded not in allowed:
                self._host.fail("nothing is given up without a reason", f"{body!r} because of {message.discarded}")
