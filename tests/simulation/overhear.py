"""The tap at the node's end of every connection: commands in, frames out, and what one must follow from the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from penstock.clock import MILLISECOND
from penstock.settings import SubscriptionSettings
from tests.simulation.answers import Answers
from tests.simulation.book import Book
from tests.simulation.choices import Order
from tests.simulation.connection import PUBLISHES, RETURNS, Check, Connection, Expected, Verdict
from tests.simulation.extras import NOTHING
from tests.simulation.handing import handed_out
from tests.simulation.model import Belongs, Handed, Presence, Row, State, SubscriptionModel
from tests.simulation.network import LAYERS, Link
from tests.simulation.wire import ERROR, MESSAGE, Command, Frame

SUBSCRIBES = ("SUB", "SUB_ORDERED")


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
        self._answers = Answers(book, self._settle_later)
        self._reading: list[Check] = []
        self._made: SubscriptionModel | None = None
        #: Those that somebody asked for in this life; a registry elsewhere may be slow to have them.
        self._asked: list[SubscriptionModel] = []
        #: A SUB_ORDERED may be changing it.
        self._reordered: SubscriptionModel | None = None

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
            elif command.word in SUBSCRIBES:
                self._subscribed(connection, command)
            elif command.word == "RDY":
                self._credited(connection, command)
            else:
                self._other(connection, command)

    def _credited(self, connection: Connection, command: Command) -> None:
        connection.credit = command.number
        if connection.subscription is not None and connection.taste.picky and command.number:
            connection.subscription.pickies[connection.taste] = None
        self.book.record("rdy", connection.link.number, command.number)

    def _other(self, connection: Connection, command: Command) -> None:
        if command.word == "IDENTIFY":
            timeout_ms = command.fields.get("msg_timeout", 0)
            connection.lease_ns = (
                timeout_ms * MILLISECOND if isinstance(timeout_ms, int) and timeout_ms else connection.lease_ns
            )
            connection.taste = command.taste
            connection.layered = any(command.fields.get(layer) for layer in LAYERS)
        elif command.word == "CLS":
            connection.credit = 0
            connection.closing = True
        elif command.word == "junk" and connection.subscription is not None:
            connection.closing = True
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
        extras = command.extras or [NOTHING] * len(command.bodies)
        messages = [
            book.offer(topic, body, publisher, due_ns=due_ns, extras=extra)
            for body, extra in zip(command.bodies, extras, strict=True)
        ]
        if topic.number is None:  # if the topic cannot be made, there is none that counts what was refused
            book.reused.add(topic.name)
        extend = topic.extend if topic.number is not None else ""
        connection.expected.append(Expected(command.word, connection.index, messages, extend))
        if connection.owing_ns is None:
            connection.owing_ns = book.now_ns
        names = ",".join(message.name for message in messages)
        book.record(command.word.lower(), connection.link.number, topic.name, names, command.number)

    def _subscribed(self, connection: Connection, command: Command) -> None:
        book, asked = self.book, connection.taste
        ordered = command.word == "SUB_ORDERED"
        taste = replace(asked, ordered=ordered, shard=command.shard)
        topic = book.topic(command.topic)
        extend = topic.extend if topic.number is not None and connection.link.headers else ""
        headers = extend != "off" if extend else asked.extend
        connection.taste = taste if headers else taste.without_headers()
        connection.fragile = not headers and connection.link.headers
        connection.joined_ns = book.now_ns
        book.record("sub", connection.link.number, command.topic, command.channel, connection.taste)
        subscription = topic.subscriptions.get(command.channel)
        if subscription is None:
            ephemeral = command.channel.endswith("#ephemeral")
            order: Order = "shard" if ordered else "none"
            settings = msgspec.structs.replace(self._settings, ephemeral=ephemeral, order=order)
            subscription = self._made = book.make_subscription(topic, command.channel, settings)
            self._asked.append(subscription)
        elif ordered and subscription.settings.order != "shard":
            self._reordered = subscription
        connection.subscription = subscription
        connection.expected.append(Expected("SUB", connection.index, extend=extend))

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
            late = late or row.is_open() or subscription.may_be_revoked(row, self.book.now_ns)
            return (Verdict.EITHER if late else Verdict.ACCEPT), row
        # Behind an unanswered publish a frame may wait that hands it to this very connection.
        return (Verdict.EITHER if connection.owes or connection.outgrown else Verdict.REFUSE), row

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
            if connection.subscription is not None:
                connection.subscription.revoke_behind(row, book.now_ns)
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
        if self._made is not None:  # with settings of its maker's, which differ between dialects
            settings = self._find(self._made.topic.name, self._made.name)
            if settings is not None and settings != self._made.settings:
                self.book.adopt(self._made, settings)
            self._made = None
        if self._reordered is not None:
            settings = self._find(self._reordered.topic.name, self._reordered.name)
            if settings is not None and settings != self._reordered.settings:
                self.book.adopt(self._reordered, settings)
            self._reordered = None
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
        if row.belongs is Belongs.MUST and row.state is not State.DONE:
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
            if check.word == "FIN":
                self._may_be_done(connection, check.row)
        connection.checks.clear()

    # --- frames ---------------------------------------------------------------------------------------------------

    def sent(self, link: Link, frame: Frame) -> None:
        """The node wrote a frame."""
        connection = self._connection(link)
        if frame.kind == MESSAGE:
            self._delivered(connection, frame)
        elif frame.kind == ERROR:
            self._answers.failed(connection, frame.data.decode())
        elif frame.data != b"_heartbeat_":
            self._answers.answered(connection, frame.data)

    def _delivered(self, connection: Connection, frame: Frame) -> None:
        book, subscription = self.book, connection.subscription
        body = frame.data
        book.record("deliver", connection.link.number, f"{frame.id:x}", frame.attempts, body[:7].decode("latin-1"))
        if subscription is None:
            book.fail("only to subscribers", f"connection {connection.link.number} got {body[:40]!r}")
        since_ns = connection.since_ns(book.now_ns)
        handed = Handed(frame.id, frame.attempts, frame.time_ns, body, since_ns, connection.lease_ns)
        message = handed_out(book, subscription, handed, connection).message
        extras = message.extras
        if frame.trace is not None and frame.trace != (extras.trace or 0):
            book.fail("headers come as sent", f"{message.name} has the trace {frame.trace}, not {extras.trace}")
        if connection.taste.extend and frame.header != extras.header and not message.is_letter:
            book.fail("headers come as sent", f"{message.name} has {frame.header!r}, not {extras.header!r}")
        self._answers.placed(message, frame.place)

    def _settle_later(self, connection: Connection) -> None:
        if not connection.owes and not connection.deaf and not connection.link.node_gone:
            self._settle(connection)

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

    def ending(self) -> None:
        """The process is about to be gone: what it was asked for and does not have may be there later, or not."""
        for asked in self._asked:
            asked.doubtful = asked.doubtful or self._find(asked.topic.name, asked.name) is None
        self._asked = []

    def stop(self) -> None:
        """Forget all connections: the process is gone."""
        for connection in self.book.connections.values():
            self._forget(connection)
        if self._made is not None:
            self._made.doubtful = True
        self.book.connections.clear()
        self._reading = []
        self._made = self._reordered = None


def unanswered(book: Book) -> list[str]:
    """Return the publishes that got no answer although their connection is alive."""
    return [
        f"{expected.word} of {','.join(m.name for m in expected.messages)} on connection {connection.link.number}"
        for connection in book.connections.values()
        for expected in connection.expected
        if not connection.deaf and any(m.presence is Presence.MAYBE for m in expected.messages)
    ]
