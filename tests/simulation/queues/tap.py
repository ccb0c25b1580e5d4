"""The tap at the node's end of connections that speak to queues: what is asked, what is answered, what must follow.

It hears an answer at the moment the node writes it, so a lease begins then, whether or not the client ever hears of
it. A receipt is (id, version); of Dynamiq's leases nobody is told a version, and whoever knows an id may delete it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.clock import MILLISECOND, SECOND
from penstock.delivery.leases import GRAIN_NS
from penstock.dialects.dynamiq.choices import DynamiqChoices
from penstock.node.topic import Topic
from penstock.shown import hidden_id
from tests.simulation.book import Book
from tests.simulation.extras import NOTHING
from tests.simulation.handing import handed_out
from tests.simulation.model import (
    Belongs,
    Handed,
    Message,
    Presence,
    Row,
    State,
    SubscriptionModel,
    TopicModel,
    is_spread,
)
from tests.simulation.network import Link
from tests.simulation.queues import wire
from tests.simulation.queues.wire import Ask, Entry, Got, Receipt, Reply, body_of, receipt, shown_in
from tests.simulation.wire import Command, Frame

#: The subscription that is a queue's.
QUEUE = "queue"
#: The version of a lease that has no receipt.
UNSEEN = -1

SENDS = ("SendMessage", "SendMessageBatch", "publish", "enqueue")
RECEIVES = ("ReceiveMessage", "lease", "take")
DELETES = ("DeleteMessage", "DeleteMessageBatch", "finish", "finish many")
CHANGES = (
    "ChangeMessageVisibility",
    "ChangeMessageVisibilityBatch",
    *("extend", "extend many", "release", "release many"),
)
DROPS = ("drop", "drop many")
#: Who reads what receives with receipts are answered.
WAYS: dict[str, wire.Ways] = {"ReceiveMessage": wire.Sqs(), "lease": wire.V2()}


class Claim(NamedTuple):
    """A receipt or an id that a request names, and what was known of it then."""

    row: Row
    version: int
    #: The row is as the request says, or certainly is not; None where that cannot be known.
    holds: bool | None


class Pending:
    """A request that is not answered yet."""

    def __init__(self, ask: Ask, link: int, topic: Topic | None) -> None:
        self.ask = ask
        self.link = link
        #: The incarnation that was there when it came.
        self.key = topic.record.incarnation if topic is not None else 0
        self.model: SubscriptionModel | None = None
        self.messages: list[Message] = []
        self.claims: list[Claim | None] = []


class QueueTap:
    """Listens to clients of queues and writes into the book."""

    def __init__(self, book: Book, find: Callable[[str], Topic | None], observe: Callable[[], None]) -> None:
        self.book = book
        self._find = find
        self._observe = observe
        self._pending: dict[int, deque[Pending]] = {}
        #: All receipts that were given, whatever became of them.
        self._given: set[tuple[SubscriptionModel, Receipt]] = set()
        #: When queues whose partitions stay as they are gave something, in this life.
        self._served: dict[TopicModel, deque[int]] = {}
        #: Queues whose partitions may have been cut anew.
        self._restless: set[str] = set()

    def connected(self, link: Link) -> None:
        """Begin to listen to a connection."""
        self._pending[link.number] = deque()
        self.book.record("connect", link.number)

    def stop(self) -> None:
        """Forget all connections: the process is gone, maybe after it wrote down what a receive found."""
        for pending in [each for waiting in self._pending.values() for each in waiting if each.ask.word in WAYS]:
            topic = self.book.topics.get(pending.ask.topic)
            for model in topic.subscriptions.values() if topic is not None else ():
                model.hidden = model.hidden or model.is_queue
        self._pending.clear()
        self._served.clear()

    # --- requests -------------------------------------------------------------------------------------------------

    def received(self, link: Link, commands: list[Command]) -> None:
        """The node is about to handle a read that completes these requests."""
        for command in commands:
            assert isinstance(command, Ask)
            self.book.record(
                command.word, link.number, command.topic, len(command.handles) or command.number, command.seconds
            )
            topic = self._find(command.topic)
            pending = Pending(command, link.number, topic)
            self._pending[link.number].append(pending)
            found = self.book.topics.get(command.topic)
            if found is None or topic is None or found.number != topic.record.number:
                continue
            pending.model = found.subscriptions.get(QUEUE)
            if pending.model is None:
                continue
            if command.word in SENDS:
                self._offer(pending, found)
            elif command.word == "configure":
                self._restless.add(command.topic)
            elif command.word not in RECEIVES:
                self._claim(pending, pending.model)

    def _offer(self, pending: Pending, topic: TopicModel) -> None:
        """Note that messages reached the node, or came to it again."""
        book, ask = self.book, pending.ask
        due_ns = book.scheduler.wall_ns() + ask.number * SECOND if ask.number else 0
        for body, extras in zip(ask.bodies, ask.extras or [NOTHING] * len(ask.bodies), strict=True):
            message = topic.messages.get(body)
            if message is not None and message.presence in (Presence.MAYBE, Presence.MUST):
                book.reused.add(topic.name)  # the first of them may be under way still
            else:
                message = book.offer(topic, body, f"connection {pending.link}", due_ns=due_ns, extras=extras)
            pending.messages.append(message)
        book.record("send", topic.name, ",".join(message.name for message in pending.messages))

    def _claim(self, pending: Pending, model: SubscriptionModel) -> None:
        """Note what is asked of messages that were handed out, as far as it certainly has an effect."""
        ask, named = pending.ask, dict.fromkeys(pending.ask.handles)  # one may be named twice
        if ask.word in DROPS:
            claims = {handle: self._dropped(model, hidden_id(int(handle), pending.key)) for handle in named}
        else:
            claims = {handle: self._claimed(model, receipt(handle), pending.key) for handle in named}
        pending.claims = [claims[handle] for handle in ask.handles]
        for claim in claims.values():
            if claim is not None and ask.word in DELETES:
                self._delete(model, claim)
            elif claim is not None and ask.word in CHANGES and ask.seconds == 0:
                self._release(model, claim)

    def _claimed(self, model: SubscriptionModel, named: Receipt, key: int) -> Claim | None:
        message = model.topic.ids.get(named.id) if named.incarnation == key else None
        if message is None:
            return None
        row = model.row(message)
        return Claim(row, named.version, self._holds(model, row, named.version))

    def _release(self, model: SubscriptionModel, claim: Claim) -> None:
        """Note that a message is given back, or may be: somebody may get it in the same moment."""
        row, now_ns = claim.row, self.book.now_ns
        if claim.holds:
            row.settle(self.book.written_ns, self.book.full_ns)
            row.release(now_ns)
            model.revoke_behind(row, now_ns)
        elif claim.holds is None and row.state is State.LEASED and row.version == claim.version:
            row.maybe, row.expires_ns = True, min(row.expires_ns, now_ns)
            model.revoke_behind(row, now_ns, surely=False)

    def _holds(self, model: SubscriptionModel, row: Row, version: int) -> bool | None:
        """Tell whether a receipt is that of the lease a message is on."""
        if row.maybe or not row.message.stored:
            return None
        if row.state is not State.LEASED or not row.session or row.version != version:
            return False
        if self.book.now_ns >= row.expires_ns or model.may_be_revoked(row, self.book.now_ns):
            return None
        return True

    def _delete(self, model: SubscriptionModel, claim: Claim) -> None:
        """Note a delete by receipt; one that is stale must change nothing."""
        row = claim.row
        if claim.holds:
            row.finish(self.book.now_ns)
            if model.acked is not None:
                model.acked += 1
        elif row.version == claim.version and row.state is not State.DONE:
            self._doubt(model, row)  # it is over and may be the last; then it deletes as well
        elif claim.holds is None:
            self._doubt(model, row)

    def _dropped(self, model: SubscriptionModel, id_: int) -> Claim | None:
        """Note a delete by id, whoever has the message."""
        message = model.topic.ids.get(id_)
        if message is None:
            return None
        row = model.row(message)
        there = row.belongs is Belongs.MUST and row.state is not State.DONE and message.stored and not row.maybe
        topic = model.topic
        lossy = topic.tight or topic.was_shaken or topic.settings.durability == "memory" or model.settings.ttl_ns
        refused = not model.takes(message, self.book.now_ns, MILLISECOND * 5)[1] or message.expires_ns
        if row.state is State.DONE and not row.maybe:
            return Claim(row, UNSEEN, False)
        if not there or lossy or refused:
            self._doubt(model, row)
            return Claim(row, UNSEEN, None)
        held = row.state is State.LEASED and row.session and row.version == UNSEEN
        if held and self.book.now_ns < row.expires_ns and not model.may_be_revoked(row, self.book.now_ns):
            model.acked = model.acked + 1 if model.acked is not None else None
        elif row.state is State.LEASED:
            model.acked = None
        row.finish(self.book.now_ns)
        return Claim(row, UNSEEN, True)

    def _doubt(self, model: SubscriptionModel, row: Row) -> None:
        if row.belongs is Belongs.MUST and row.state is not State.DONE:
            row.belongs = Belongs.MAY
        row.maybe = True
        model.acked = None

    # --- answers --------------------------------------------------------------------------------------------------

    def sent(self, link: Link, frame: Frame) -> None:
        """The node wrote an answer."""
        if self.book.broken is not None:
            return  # the parser has the violation in its hands
        assert isinstance(frame, Reply)
        waiting = self._pending.get(link.number)
        if not waiting:
            self.book.fail("one reply a command", f"connection {link.number} got {frame.data[:60]!r} for nothing")
        pending = waiting.popleft()
        ask = pending.ask
        self.book.record(
            "reply", link.number, ask.word, frame.status, frame.data[:60].decode() if frame.status > 299 else ""
        )
        if frame.status >= 500 and b"InternalFailure" in frame.data:
            self.book.fail("no bugs", f"{ask.word} got {frame.data[:200]!r}")
        if frame.status == 404 or b"QueueDoesNotExist" in frame.data:
            self._check_gone(pending, frame)
        if ask.word in SENDS:
            self._sent(pending, frame)
        elif pending.model is None or pending.model.deleted:
            return
        elif ask.word in RECEIVES and frame.status == 200:
            self._handed(pending, pending.model, frame)
        elif ask.word in DELETES:
            self._deleted(pending, frame)
        elif ask.word in CHANGES:
            self._changed(pending, pending.model, frame)
        elif ask.word in DROPS:
            self._check_dropped(pending, frame)

    def _check_gone(self, pending: Pending, frame: Reply) -> None:
        topic = self._find(pending.ask.topic)
        here = topic is not None and QUEUE in topic.subscriptions and topic.record.incarnation == pending.key
        if here and b"ReceiptHandleIsInvalid" not in frame.data:
            self.book.fail("what is there is found", f"{pending.ask.word} got {frame.data[:100]!r}")

    def _sent(self, pending: Pending, frame: Reply) -> None:
        if not pending.messages:
            return
        ids = self._ids(pending, frame)
        for number, message in enumerate(pending.messages):
            message.answered = True
            id_ = ids.get(number)
            if id_ is not None:
                self.book.named(message, id_)
                self.book.stored(message)
            elif pending.ask.word != "enqueue" and not is_spread(pending.messages):
                self._refused(message, frame)

    def _refused(self, message: Message, frame: Reply) -> None:
        if message.presence is Presence.MAYBE and message.life == self.book.life and not message.id:
            self.book.refused(message, frame.data.decode())

    def _ids(self, pending: Pending, frame: Reply) -> dict[int, int]:
        """Return the ids of what was stored, by number."""
        if frame.status != 200:
            return {}
        if pending.ask.word == "enqueue":  # no id says that it was not stored, or that nobody knows
            return {0: hidden_id(int(frame.data), pending.key)} if frame.data else {}
        said = frame.json
        if pending.ask.word == "publish":
            results = enumerate(said["data"]["results"])
            return {number: hidden_id(int(each["id"]), pending.key) for number, each in results if "id" in each}
        entries = said.get("Successful", ()) if pending.ask.word == "SendMessageBatch" else [{"Id": "0", **said}]
        return {int(entry["Id"]): hidden_id(shown_in(entry["MessageId"]), pending.key) for entry in entries}

    # --- what is handed out ---------------------------------------------------------------------------------------

    def _handed(self, pending: Pending, model: SubscriptionModel, frame: Reply) -> None:
        book, ask = self.book, pending.ask
        taken: list[Entry] = frame.json if ask.word == "take" else []
        leased = [] if ask.word == "take" else WAYS[ask.word].got(frame)
        count = len(taken) + len(leased)
        if count > ask.number:
            book.fail("credit", f"{ask.word} of {ask.number} got {count} messages")
        if count:
            book.looks += 1
        if count and ask.word != "lease":  # which locks nothing
            self._check_lock(model)
        for entry in taken:
            self._taken(model, entry, hidden_id(int(entry["id"]), pending.key))
        for got in leased:
            self._leased(pending, model, got)

    def _leased(self, pending: Pending, model: SubscriptionModel, got: Got) -> None:
        book, seconds = self.book, pending.ask.seconds
        named, body = receipt(got.receipt), got.body
        lease_ns = model.settings.lease_ns if seconds is None else seconds * SECOND
        book.record("receive", pending.link, f"{named.id:x}", got.attempts, body[:7].decode("latin-1"))
        if hidden_id(got.shown, pending.key) != named.id:
            book.fail("an id names one message", f"{body[:7]!r} has the id and the receipt of two")
        handed = Handed(
            *(named.id, got.attempts, got.time_ns, body, book.now_ns, lease_ns), grain_ns=got.grain_ns, look=book.looks
        )
        row = handed_out(book, model, handed, None)
        if (model, named) in self._given:
            book.fail("a receipt is for one lease", f"{body[:7]!r} has version {named.version} of another lease")
        self._given.add((model, named))
        row.version = named.version
        if got.key != row.message.extras.key:
            book.fail("headers come as sent", f"{row.message.name} has group {got.key!r}")

    def _taken(self, model: SubscriptionModel, entry: Entry, id_: int) -> None:
        """Note a message that came without its attempts and its time."""
        book, body = self.book, body_of(entry)
        book.record("take", f"{id_:x}", body[:7].decode("latin-1"))
        row = model.row(book.find(model.topic, body, id_))
        low = row.low + 1
        lease_ns = self._visibility_ns(model) - GRAIN_NS
        handed = Handed(id_, row.attempts + 1, 0, body, book.now_ns, lease_ns, grain_ns=0, look=book.looks)
        row = handed_out(book, model, handed, None)
        row.low, row.floor, row.version = low, min(row.floor, low), UNSEEN

    def _visibility_ns(self, model: SubscriptionModel) -> int:
        topic = self._find(model.topic.name)
        assert topic is not None
        return topic.chosen.of(DynamiqChoices).visibility_ns

    def _check_lock(self, model: SubscriptionModel) -> None:
        """Check that no more receives found something than there can be partitions, while each is locked."""
        topic = self._find(model.topic.name)
        if model.settings.policy != "partition-locked" or model.topic.name in self._restless or topic is None:
            return
        chosen, now_ns = topic.chosen.of(DynamiqChoices), self.book.now_ns
        served = self._served.setdefault(model.topic, deque())
        while served and now_ns - served[0] > chosen.visibility_ns:
            served.popleft()
        served.append(now_ns)
        if len(served) > chosen.max_partitions:
            text = f"{model.topic.name} has {chosen.max_partitions} partitions, and {len(served)} receives got messages"
            self.book.fail("a partition that gave is locked", text)

    # --- what came of claims --------------------------------------------------------------------------------------

    def _deleted(self, pending: Pending, frame: Reply) -> None:
        """A delete was answered: it is written down."""
        for number, claim in enumerate(pending.claims):
            if claim is None or not claim.holds:
                continue
            if not self._is_good(pending.ask, frame, number):
                text = f"{pending.ask.word} of {claim.row.message.name} is refused, and its receipt holds"
                self.book.fail("the holder may", text)
            if claim.row.state is State.DONE:
                claim.row.certain = not self.book.is_full

    def _changed(self, pending: Pending, model: SubscriptionModel, frame: Reply) -> None:
        for number, claim in enumerate(pending.claims):
            if claim is not None:
                self._check_changed(pending.ask, model, claim, good=self._is_good(pending.ask, frame, number))

    def _is_good(self, ask: Ask, frame: Reply, number: int) -> bool:
        if frame.status != 200 or not ask.word.endswith(("Batch", "many")):
            return frame.status == 200
        if ask.word.endswith("many"):
            return "error" not in frame.json["data"]["results"][number]
        return any(entry["Id"] == str(number) for entry in frame.json.get("Successful", ()))

    def _check_changed(self, ask: Ask, model: SubscriptionModel, claim: Claim, *, good: bool) -> None:
        book, row = self.book, claim.row
        if claim.holds and not good:
            book.fail("the holder may", f"{ask.word} of {row.message.name} is refused, and its receipt holds")
        if claim.holds is False and good and not book.jumpy:
            book.fail("only the holder may", f"{ask.word} of {row.message.name} by a stale receipt is accepted")
        mine = row.state is State.LEASED and row.session and row.version == claim.version
        if good and mine and ask.seconds:
            row.expires_ns = min(book.now_ns + ask.seconds * SECOND, row.leased_ns + model.settings.lease_max_ns)
            row.leased_ns = min(row.leased_ns, book.now_ns)

    def _check_dropped(self, pending: Pending, frame: Reply) -> None:
        if frame.status != 200:
            return
        known = [claim for claim in pending.claims if claim is not None]
        rows = {id(claim.row): claim for claim in known}  # one that is named twice counts once
        low = sum(claim.holds is True for claim in rows.values())
        high = low + sum(claim.holds is None for claim in rows.values())
        high += len({*pending.ask.handles}) - len({id(claim.row) for claim in known})
        count = int(frame.json) if pending.ask.word == "drop" else int(frame.json["deleted"])
        if not low <= count <= high:
            text = f"{count} of {len(pending.claims)} were deleted, which must be {low} to {high}"
            self.book.fail("a delete tells what it did", text)
        for claim in known:
            if claim.holds:
                claim.row.certain = not self.book.is_full

    # --- the end --------------------------------------------------------------------------------------------------

    def handled(self, link: Link) -> None:
        """The node has handled the read."""
        if self.book.broken is not None:
            raise self.book.broken
        self._observe()

    def hung_up(self, link: Link) -> None:
        """The node will write no more and listen no more."""
        self.book.record("hang up", link.number)

    def lost(self, link: Link) -> None:
        """The node is about to learn that the connection is gone."""
        self.book.record("lost", link.number)
        self._pending.pop(link.number, None)
