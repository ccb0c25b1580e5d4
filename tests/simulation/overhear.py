"""The tap at the node's end of every connection: commands in, frames out, and what one must follow from the other."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.clock import MILLISECOND
from penstock.settings import SubscriptionSettings
from tests.simulation.book import Book, Handed
from tests.simulation.model import (
    Belongs,
    Check,
    Connection,
    Expected,
    Presence,
    Row,
    State,
    SubscriptionModel,
    Verdict,
)
from tests.simulation.network import Link
from tests.simulation.wire import ERROR, MESSAGE, Command, Frame

#: Commands that the node answers in order, and those it only answers by refusing.
PUBLISHES = ("PUB", "MPUB", "DPUB")
RETURNS = ("FIN", "REQ", "TOUCH")


class Overhear:
    """Listens to all connections and writes into the book."""

    def __init__(
        self,
        book: Book,
        subscribe_settings: SubscriptionSettings,
        find: Callable[[str, str], SubscriptionSettings | None],
        observe: Callable[[], None],
    ) -> None:
        self.book = book
        self.unanswered: set[str] = set()
        self._settings = subscribe_settings
        self._find = find
        self._observe = observe
        self._reading: list[Check] = []
        self._made: SubscriptionModel | None = None

    def connected(self, link: Link, lease_ns: int) -> None:
        """Begin to listen to a connection."""
        self.book.connections[link.number] = Connection(link, lease_ns)
        self.book.record("connect", link.number)

    def _connection(self, link: Link) -> Connection:
        return self.book.connections[link.number]

    # --- commands -------------------------------------------------------------------------------------------------

    def received(self, link: Link, commands: list[Command]) -> None:
        """The node is about to handle a read that completes these commands."""
        connection = self._connection(link)
        self._reading = []
        for command in commands:
            connection.index += 1
            if connection.deaf:
                continue
            if command.word in RETURNS:
                self._returned(connection, command)
            elif command.word in PUBLISHES:
                self._published(connection, command)
            elif command.word == "SUB":
                self._subscribed(connection, command)
            elif command.word == "RDY":
                connection.credit = command.number
                self.book.record("rdy", link.number, command.number)
            else:
                self._other(connection, command)

    def _other(self, connection: Connection, command: Command) -> None:
        if command.word == "IDENTIFY":
            connection.lease_ns = command.number * MILLISECOND or connection.lease_ns
        elif command.word == "CLS":
            connection.credit = 0
        elif command.word == "junk" and connection.subscription is not None:
            connection.subscription.hidden = connection.subscription.hidden or connection.owes
            self._released(connection)
        if command.word in ("IDENTIFY", "CLS"):
            connection.expected.append(Expected(command.word, connection.index))
        if command.word != "NOP":
            self.book.record(command.word.lower(), connection.link.number)

    def _published(self, connection: Connection, command: Command) -> None:
        book = self.book
        topic = book.topic(command.topic)
        due_ns = book.scheduler.wall_ns() + command.number * MILLISECOND if command.number else 0
        publisher = f"connection {connection.link.number}"
        messages = [book.offer(topic, body, publisher, due_ns=due_ns) for body in command.bodies]
        connection.expected.append(Expected(command.word, connection.index, messages))
        if connection.owing_ns is None:
            connection.owing_ns = book.now_ns
        names = ",".join(message.name for message in messages)
        book.record(command.word.lower(), connection.link.number, topic.name, names, command.number)

    def _subscribed(self, connection: Connection, command: Command) -> None:
        book = self.book
        book.record("sub", connection.link.number, command.topic, command.channel)
        topic = book.topic(command.topic)
        subscription = topic.subscriptions.get(command.channel)
        if subscription is None:
            ephemeral = command.channel.endswith("#ephemeral")
            settings = msgspec.structs.replace(self._settings, ephemeral=ephemeral)
            subscription = self._made = book.make_subscription(topic, command.channel, settings)
        connection.subscription = subscription
        connection.expected.append(Expected("SUB", connection.index))

    def _returned(self, connection: Connection, command: Command) -> None:
        verdict, row = self._judge(connection, command)
        due_ns = self.book.scheduler.wall_ns() + command.number * MILLISECOND if command.number else 0
        attempts = row.attempts if row is not None else 0
        check = Check(command.word, command.id, verdict, row, due_ns, self.book.now_ns, connection.index, attempts)
        self.book.record(command.word.lower(), connection.link.number, f"{command.id:x}", command.number, verdict.value)
        connection.checks.append(check)
        self._reading.append(check)
        if verdict is Verdict.ACCEPT:
            self._apply(connection, check)

    def _judge(self, connection: Connection, command: Command) -> tuple[Verdict, Row | None]:
        subscription = connection.subscription
        if subscription is None:
            return Verdict.EITHER, None
        message = subscription.topic.ids.get(command.id)
        row = subscription.row(message) if message is not None else None
        if row is not None and row.state is State.LEASED and row.holder is connection:
            late = self.book.now_ns >= row.expires_ns or row.maybe
            late = late or any(check.row is row and check.verdict is Verdict.EITHER for check in connection.checks)
            return (Verdict.EITHER if late else Verdict.ACCEPT), row
        # Behind an unanswered publish a frame may wait that hands it to this very connection.
        return (Verdict.EITHER if connection.owes else Verdict.REFUSE), row

    def _apply(self, connection: Connection, check: Check) -> None:
        row, book = check.row, self.book
        if row is None:
            return
        if check.word == "FIN":
            row.finish(check.at_ns)
            connection.acks.append((check.index, row))
            subscription = connection.subscription
            if subscription is not None and subscription.acked is not None:
                subscription.acked += 1
        elif check.word == "REQ":
            row.settle(book.written_ns, book.full_ns)
            row.release(check.at_ns, check.due_ns)
        else:
            check.before_ns = row.expires_ns
            lease_max_ns = connection.subscription.settings.lease_max_ns if connection.subscription else 0
            row.expires_ns = max(row.expires_ns, min(check.at_ns + connection.lease_ns, row.leased_ns + lease_max_ns))

    # --- after the node has handled it ----------------------------------------------------------------------------

    def handled(self, link: Link) -> None:
        """The node has handled the read."""
        connection = self.book.connections.get(link.number)
        if connection is not None:
            if connection.deaf:
                self._forget(connection)
            elif not connection.owes:
                self._settle(connection)
        self._reading = []
        self._made = None
        self._observe()

    def _settle(self, connection: Connection) -> None:
        """Take what was not refused for accepted."""
        for check in connection.checks:
            if check.verdict is Verdict.REFUSE:
                self.book.fail(
                    "only the holder may",
                    f"{check.word} {check.id:x} of connection {connection.link.number} was accepted",
                )
            if check.verdict is Verdict.EITHER and check.row is not None:
                self._apply_late(connection, check, check.row)
        connection.checks.clear()

    def _apply_late(self, connection: Connection, check: Check, row: Row) -> None:
        held = row.state is State.LEASED and row.holder is connection
        if held and row.attempts == check.attempts:
            self._apply(connection, check)
        elif held and row.leased_ns <= check.at_ns:
            # Its frame was held up by a publish: it may have come back before anybody saw it go out.
            row.maybe, row.expires_ns = True, self.book.now_ns
            if check.word == "FIN":
                self._may_be_done(connection, row)
        elif check.word == "FIN":  # by a lease whose frame was never seen
            row.maybe = True
            self._may_be_done(connection, row)

    def _may_be_done(self, connection: Connection, row: Row) -> None:
        if row.belongs is Belongs.MUST:
            row.belongs = Belongs.MAY
        if connection.subscription is not None:
            connection.subscription.acked = None

    def _forget(self, connection: Connection) -> None:
        """Take it as open whether the last commands had an effect: the node hung up among them."""
        for check in [*connection.checks, *self._reading]:
            if check.row is None:
                continue
            if check.word == "TOUCH" and check.before_ns:
                check.row.expires_ns = check.before_ns
            check.row.maybe = check.row.due_maybe = True
            if check.word == "FIN" and check.verdict is Verdict.EITHER:
                self._may_be_done(connection, check.row)
        connection.checks.clear()

    # --- frames ---------------------------------------------------------------------------------------------------

    def sent(self, link: Link, frame: Frame) -> None:
        """The node wrote a frame."""
        connection = self._connection(link)
        if frame.kind == MESSAGE:
            self._delivered(connection, frame)
        elif frame.kind == ERROR:
            self._failed(connection, frame.data.decode())
        elif frame.data != b"_heartbeat_":
            self._answered(connection, frame.data)

    def _delivered(self, connection: Connection, frame: Frame) -> None:
        book, subscription = self.book, connection.subscription
        body = frame.data
        book.record("deliver", connection.link.number, f"{frame.id:x}", frame.attempts, body[:7].decode("latin-1"))
        if subscription is None:
            book.fail("only to subscribers", f"connection {connection.link.number} got {body[:40]!r}")
        since_ns = connection.since_ns(book.now_ns)
        handed = Handed(frame.id, frame.attempts, frame.time_ns, body, since_ns, connection.lease_ns)
        book.handed_out(subscription, handed, connection)

    def _answered(self, connection: Connection, data: bytes) -> None:
        book = self.book
        if not connection.expected:
            book.fail("one reply a command", f"connection {connection.link.number} got {data[:40]!r} for nothing")
        expected = connection.expected.popleft()
        book.record("answer", connection.link.number, expected.word, data[:10].decode("latin-1"))
        if expected.word != "IDENTIFY" and data != (b"CLOSE_WAIT" if expected.word == "CLS" else b"OK"):
            book.fail("one reply a command", f"connection {connection.link.number}: {expected.word} got {data[:40]!r}")
        for message in expected.messages:
            message.answered = True
            book.stored(message)
        self._replied(connection, expected)

    def _replied(self, connection: Connection, expected: Expected) -> None:
        """A reply to a command: acks before it are written down, where the node is told to."""
        book = self.book
        while connection.acks and connection.acks[0][0] < expected.index:
            row = connection.acks.popleft()[1]
            row.certain = book.ack_flush_ns == 0 and not book.is_full and row.done_ns > book.full_ns
        if connection.owes and not any(other.word in PUBLISHES for other in connection.expected):
            connection.paid_since_ns, connection.paid_ns = connection.owing_ns or 0, book.now_ns
            connection.owing_ns = None
            # Checks are settled by the frames that this reply held up, which come right behind it.
            book.scheduler.soon(lambda: self._settle_later(connection))

    def _settle_later(self, connection: Connection) -> None:
        if not connection.owes and not connection.deaf and not connection.link.node_gone:
            self._settle(connection)

    def _failed(self, connection: Connection, text: str) -> None:
        book = self.book
        code, _, rest = text.partition(" ")
        book.record("error", connection.link.number, text[:60])
        if not rest:
            book.fail("errors have two words", f"{text!r}")
        word = code.removeprefix("E_").removesuffix("_FAILED")
        if word in RETURNS:
            self._not_accepted(connection, word, int(rest.split(" ")[1], 16), text)
        elif word in PUBLISHES:
            self._not_published(connection, word, text)

    def _not_accepted(self, connection: Connection, word: str, id_: int, text: str) -> None:
        same = [check for check in connection.checks if check.word == word and check.id == id_]
        if not same:
            self.book.fail("one reply a command", f"connection {connection.link.number} got {text} for nothing")
        # The same id twice behind an unanswered publish: the one that may be refused is meant.
        check = next((check for check in same if check.verdict is not Verdict.ACCEPT), same[0])
        if check.verdict is Verdict.ACCEPT:
            self.book.fail("the holder may", f"connection {connection.link.number} holds it, and got {text}")
        connection.checks.remove(check)

    def _not_published(self, connection: Connection, word: str, text: str) -> None:
        if not connection.expected or connection.expected[0].word != word:
            self.book.fail("one reply a command", f"connection {connection.link.number} got {text} for nothing")
        expected = connection.expected.popleft()
        for message in expected.messages:
            self.book.refused(message, text)
        self._replied(connection, expected)

    # --- the end --------------------------------------------------------------------------------------------------

    def hung_up(self, link: Link) -> None:
        """The node will write no more and listen no more."""
        connection = self._connection(link)
        connection.deaf = True
        connection.expected.clear()
        self.book.record("hang up", link.number)
        self._released(connection)
        if self._made is not None and connection.subscription is self._made:
            # The SUB that was to make it failed.
            if self._find(self._made.topic.name, self._made.name) is None:
                self._made.topic.subscriptions.pop(self._made.name, None)
            self._made = None
        self._observe()

    def lost(self, link: Link) -> None:
        """The node is about to learn that the connection is gone."""
        book = self.book
        connection = book.connections.pop(link.number)
        book.record("lost", link.number)
        if connection.owes and connection.subscription is not None:
            connection.subscription.hidden = True
        self._forget(connection)
        self._released(connection)

    def _released(self, connection: Connection) -> None:
        for row in list(connection.held):
            if self.book.stopping:
                row.state, row.due_ns = State.READY, 0
                row.let_go()
            else:
                row.settle(self.book.written_ns, self.book.full_ns)
                row.release(self.book.now_ns)

    def stop(self) -> None:
        """Forget all connections: the process is gone."""
        for connection in self.book.connections.values():
            self._forget(connection)
        if self._made is not None:
            self._made.doubtful = True
        self.book.connections.clear()
        self._reading = []
        self._made = None


def unanswered(book: Book) -> list[str]:
    """Return the publishes that got no answer although their connection is alive."""
    return [
        f"{expected.word} of {','.join(m.name for m in expected.messages)} on connection {connection.link.number}"
        for connection in book.connections.values()
        for expected in connection.expected
        if not connection.deaf and any(m.presence is Presence.MAYBE for m in expected.messages)
    ]
