"""What became of the messages of a timeline, as its node told it, and what must be true of that.

Everything is noted at the moment at which the node says it, whoever hears it later. Times are the world's, which never
jump; what the node's own clock showed is asked of the scheduler.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from penstock.clock import MILLISECOND, SECOND
from tests.simulation.clock import Scheduler
from tests.simulation.history import History, Violation
from tests.simulation.timelines.plan import Plan

#: A lease is chosen, written down and told within this time by the node's process, unless that stands still.
TELLING_NS = 300 * MILLISECOND
#: What is available goes out within this time, if nothing is the matter.
SERVED_NS = 400 * MILLISECOND


class Lease(msgspec.Struct):
    """A message with a consumer."""

    consumer: str
    version: int
    given_ns: int
    #: By the world's time, and as the consumer was told.
    ends_ns: int
    expiration_ms: int
    life: int
    #: By when it is over for sure, whatever the node's process and its clock went through.
    over_ns: int
    #: Another version may be in force, until another time: the node died while it was extended.
    is_unclear: bool = False


class Message(msgspec.Struct):
    """One that a producer wanted created."""

    id: str
    due_ms: int
    first_due_ms: int
    #: "under way", "stored", "unknown", "refused"
    state: str = "under way"
    stored_ns: int = 0
    lease: Lease | None = None
    pushes: int = 0
    #: Since when nobody should get it; what was answered shortly before a crash may not be so.
    deleted_ns: int | None = None
    #: Somebody asked for its end, or for another time, and does not know what became of that.
    is_unclear: bool = False
    #: It was asked for again by somebody who heard no answer; once it is deleted, that makes another one.
    is_repeated: bool = False
    #: What was answered last, for as long as a crash may take it back.
    changed_ns: int = 0


class Book:
    """All of it."""

    def __init__(self, history: History, scheduler: Scheduler, plan: Plan, slack_ns: int) -> None:
        self._history = history
        self._scheduler = scheduler
        self._slack_ns = slack_ns
        self._lead_ns = plan.settings["prefetch_max_ms"] * MILLISECOND
        self._window_ns = plan.settings["time_window_ms"] * MILLISECOND
        self.messages: dict[str, Message] = {}
        self.life = 0
        self.checks = 0
        #: When something last went on that tables or consumers have to follow.
        self.disturbed_ns = 0
        #: How long tables may take beyond their windows, where the registry is far away.
        self.patience_ns = 0
        #: The node's process stood still from then on, until then.
        self.paused_ns = self.woke_ns = -TELLING_NS

    def record(self, kind: str, *fields: object) -> None:
        """Note an event."""
        self._history.record(self._scheduler.time_ns, kind, *fields)

    def fail(self, rule: str, text: str) -> NoReturn:
        """Report a broken promise."""
        raise Violation(rule, text)

    def disturb(self) -> None:
        """Hear that consumers or tables are others now, or that the node could not do its work."""
        self.disturbed_ns = self._scheduler.time_ns

    # --- in -------------------------------------------------------------------------------------------------------

    def create(self, id_: str, due_ms: int) -> Message:
        """Take note of a message that is on its way."""
        message = self.messages[id_] = Message(id_, due_ms, due_ms)
        return message

    def created(self, message: Message, kind: int) -> None:
        """Hear what its producer was told."""
        self.record("created", message.id, message.due_ms, kind)
        if kind in (0, 415):
            if kind == 415 and message.state == "under way":
                self.fail("an id is new until it is used", f"{message.id} was refused as known and never created")
            message.state, message.stored_ns = "stored", self._scheduler.time_ns
        elif message.state == "under way":
            message.state = "refused"

    # --- out ------------------------------------------------------------------------------------------------------

    def pushed(self, consumer: str, row: dict[str, Any], *, hydrates: bool) -> Message:
        """Hear of a lease as it is told."""
        self.checks += 1
        now_ns, wall_ns = self._scheduler.time_ns, self._scheduler.wall_ns()
        id_, version = row["message_id"].decode(), row["version"]
        due_ms, expiration_ms = row["timestamp_ms"], row["expiration_ts_ms"]
        self.record("pushed", consumer, id_, version, due_ms, expiration_ms - wall_ns // MILLISECOND, hydrates)
        message = self.messages.get(id_)
        if message is None or message.state == "refused":
            self.fail("nothing comes of itself", f"{id_} was never stored, and came to {consumer}")
        if message.deleted_ns is not None and message.is_repeated:
            message.deleted_ns = message.lease = None
            message.due_ms = message.first_due_ms
        if message.deleted_ns is not None:
            self.fail("what was deleted stays so", f"{id_} came to {consumer}")
        if due_ms not in (message.due_ms, message.first_due_ms) and not message.is_unclear:
            self.fail("a message keeps its time", f"{id_} is due at {due_ms}, not at {message.due_ms}")
        self._check_time(consumer, message, hydrates=hydrates)
        ends_ns = now_ns + expiration_ms * MILLISECOND - wall_ns
        lease = Lease(consumer, version, now_ns, ends_ns, expiration_ms, self.life, ends_ns)
        self._check_alone(message, lease, hydrates=hydrates)
        if message.lease is not None and message.lease.version == version:
            # What is written down is what it was told at first; after a process stood still it is told more.
            lease.expiration_ms = min(lease.expiration_ms, message.lease.expiration_ms)
        if not hydrates or message.lease is None or message.lease.version != version:
            message.pushes += 1
        message.lease, message.is_unclear = lease, False
        return message

    def _check_time(self, consumer: str, message: Message, *, hydrates: bool) -> None:
        """See that a message is not early, by what the node's clock showed while it may have chosen it."""
        if hydrates or message.is_unclear or (message.pushes and self._scheduler.jumps):
            return  # what was out before goes out again although the clock was set back behind its new time
        now_ns = self._scheduler.time_ns
        since_ns = self.paused_ns if now_ns - self.woke_ns < TELLING_NS else now_ns
        _, wall_ns = self._scheduler.wall_between(max(min(since_ns, now_ns) - TELLING_NS, 0), now_ns)
        early_ns = message.due_ms * MILLISECOND - self._lead_ns - wall_ns
        if early_ns > 0:
            self.fail("never early", f"{message.id} came to {consumer} {early_ns / 1e6:.3f} ms before its time")

    def _check_alone(self, message: Message, lease: Lease, *, hydrates: bool) -> None:
        other = message.lease
        if other is None or other.is_unclear:
            return
        same = other.consumer == lease.consumer and other.version == lease.version
        if same:
            if other.life == lease.life and abs(other.ends_ns - lease.ends_ns) > 2 * MILLISECOND and not hydrates:
                self.fail("a lease is given once", f"{message.id} came to {lease.consumer} again")
            return
        if self.is_active(other):
            left_ns = other.ends_ns - lease.given_ns
            text = f"{message.id} is with {other.consumer} (version {other.version}) for {left_ns / 1e6:.3f} ms more"
            self.fail("one lease at a time", f"{text}, and came to {lease.consumer} (version {lease.version})")
        if other.version == lease.version:
            self.fail("a version is given once", f"{message.id} came to {lease.consumer} by version {lease.version}")

    def is_active(self, lease: Lease) -> bool:
        """Tell whether a lease holds for sure: by time as it passes, and after a restart by the clock as well."""
        now_ns = self._scheduler.time_ns
        if now_ns >= lease.ends_ns:
            return False
        if lease.life == self.life:
            return True
        _, most_ns = self._scheduler.wall_between(lease.given_ns, now_ns)
        return most_ns < lease.expiration_ms * MILLISECOND

    # --- what is done with them -----------------------------------------------------------------------------------

    def changed(
        self, message: Message, command: str, who: str, version: int, kind: int, reply: dict[str, Any], new_ms: int
    ) -> None:
        """Hear what somebody was told who wanted to change a message."""
        now_ns, wall_ns = self._scheduler.time_ns, self._scheduler.wall_ns()
        self.record("changed", command, who, message.id, version, kind)
        if kind:
            return
        lease = message.lease
        if who and lease is not None and not lease.is_unclear and (lease.consumer, lease.version) != (who, version):
            by = f"{lease.consumer} by version {lease.version}"
            self.fail("only who holds a message changes it", f"{who} did by version {version}: {command}, held by {by}")
        if not who and lease is not None and self.is_active(lease) and now_ns + MILLISECOND < lease.ends_ns:
            self.fail("nobody breaks a lease", f"the owner deleted {message.id}, which {lease.consumer} holds")
        message.changed_ns = now_ns
        if command == "delete":
            message.deleted_ns, message.is_unclear = now_ns, False
        elif command == "release":
            message.lease, message.is_unclear = None, False
            message.due_ms = max(new_ms, wall_ns // MILLISECOND)
            message.stored_ns = now_ns
        elif lease is not None:
            ends_ns = now_ns + reply["expiration_ts_ms"] * MILLISECOND - wall_ns
            expiration_ms = reply["expiration_ts_ms"]
            message.lease = Lease(who, reply["version"], now_ns, ends_ns, expiration_ms, self.life, ends_ns)

    def asked(self, message: Message, command: str, who: str) -> None:
        """Hear that somebody asked for a change; what came of it is not known yet."""
        message.is_unclear = True

    def unknown(self, message: Message) -> None:
        """Hear that nobody knows what became of a change."""
        message.is_unclear = True
        if message.lease is not None:
            message.lease.is_unclear = True

    def stood_still(self, duration_ns: int) -> None:
        """Hear that the node's process did not see a time pass: leases end so much later."""
        for message in self.messages.values():
            if message.lease is not None:
                message.lease.over_ns += duration_ns

    # --- lives ----------------------------------------------------------------------------------------------------

    def booted(self) -> None:
        """Hear that the node is there again: leases end by its clock, as their holders were told."""
        left_ns = self._scheduler.time_ns - self._scheduler.wall_ns()
        for message in self.messages.values():
            if message.lease is not None:
                over_ns = left_ns + message.lease.expiration_ms * MILLISECOND
                message.lease.over_ns = max(message.lease.over_ns, over_ns)
        self.disturb()

    def crashed(self) -> None:
        """Take back what was answered too shortly before a crash."""
        self.life += 1
        now_ns = self._scheduler.time_ns
        for message in self.messages.values():
            if message.state == "under way":
                message.state = "unknown"
            if message.changed_ns and now_ns - message.changed_ns <= self._slack_ns:
                message.deleted_ns = None
                self.unknown(message)

    def stopped(self) -> None:
        """Hear that the node ended in good order."""
        self.life += 1
        for message in self.messages.values():
            if message.state == "under way":
                message.state = "unknown"

    def forget(self) -> None:
        """Hear that the topic is going, with everything in it."""
        for message in self.messages.values():
            message.is_unclear = True

    # --- at any moment --------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """See that nothing that is available waits longer than until the table after the next."""
        now_ns, wall_ns = self._scheduler.time_ns, self._scheduler.wall_ns()
        since_ns = self.disturbed_ns + self._window_ns * 3 // 2 + self.patience_ns
        if now_ns - since_ns < SERVED_NS:
            return
        for message in self.messages.values():
            if message.state != "stored" or message.deleted_ns is not None or message.is_unclear:
                continue
            available_ns = max(since_ns, message.stored_ns, now_ns - wall_ns + message.due_ms * MILLISECOND)
            if message.lease is not None:
                if message.lease.is_unclear:
                    continue
                available_ns = max(since_ns, message.lease.over_ns)
            if now_ns - available_ns > SERVED_NS:
                late_ns = now_ns - available_ns
                self.fail("every bucket is served", f"{message.id} is available and waits for {late_ns / SECOND:.3f} s")

    def missing(self) -> list[Message]:
        """Return what was stored, is not deleted and never went out."""
        return [
            each
            for each in self.messages.values()
            if each.state == "stored" and each.deleted_ns is None and not each.pushes and not each.is_unclear
        ]

    def left(self) -> list[Message]:
        """Return what is not deleted yet, as far as it is stored for sure."""
        return [each for each in self.messages.values() if each.state == "stored" and each.deleted_ns is None]
