"""What the node answers on its connections: one reply a command, in order, and what each of them promises."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.book import Book
from tests.simulation.connection import PUBLISHES, RETURNS, Connection, Expected, Verdict
from tests.simulation.model import Message, is_spread
from tests.simulation.wire import traced

#: What is said of a header, or of a topic that takes none; the connection lives on.
REFUSALS = ("E_INVALID_JSON_HEADER", "E_EXT_NOT_SUPPORT", "INVALID_TRACE_ID")


class Answers:
    """Checks replies against what was asked."""

    def __init__(self, book: Book, settle: Callable[[Connection], None]) -> None:
        self.book = book
        self._settle = settle

    def answered(self, connection: Connection, data: bytes) -> None:
        """Take a response frame that is no heartbeat."""
        book = self.book
        if not connection.expected:
            book.fail("one reply a command", f"connection {connection.link.number} got {data[:40]!r} for nothing")
        expected = connection.expected.popleft()
        book.record("answer", connection.link.number, expected.word, data[:10].decode("latin-1"))
        if expected.word == "IDENTIFY":
            if connection.layered and data.startswith(b"{"):  # an OK through the layer comes next
                connection.expected.appendleft(Expected("layer", expected.index))
        elif not self._is_right(expected, data):
            book.fail("one reply a command", f"connection {connection.link.number}: {expected.word} got {data[:40]!r}")
        self._check_taken(connection, expected)
        for message in expected.messages:
            message.answered = True
            book.stored(message)
        self._replied(connection, expected)

    def failed(self, connection: Connection, text: str) -> None:
        """Take an error frame."""
        book = self.book
        code, _, rest = text.partition(" ")
        book.record("error", connection.link.number, text[:60])
        if not rest:
            book.fail("errors have two words", f"{text!r}")
        word = code.removeprefix("E_").removesuffix("_FAILED")
        if code in REFUSALS:
            self._turned_away(connection, code, text)
        elif code.startswith("E_SUB_EXTEND"):
            self._sent_away(connection, code)
        elif word in RETURNS:
            self._not_accepted(connection, word, int(rest.split(" ")[1], 16), text)
        elif word in PUBLISHES:
            self._not_published(connection, word, text)

    def placed(self, message: Message, place: tuple[int, int] | None) -> None:
        """Note where the node says a message stands."""
        if place is not None and message.place not in (None, place) and not message.topic.was_shaken:
            self.book.fail("a place in the queue is for good", f"{message.name} is at {place}, was at {message.place}")
        message.place = place or message.place

    def _is_right(self, expected: Expected, data: bytes) -> bool:
        """Tell whether an answer is the one to a command, and note where a message went if its publisher asked."""
        message = expected.messages[0] if expected.word == "PUB_EXT" else None
        if message is None or message.extras.trace is None:
            return data == (b"CLOSE_WAIT" if expected.word == "CLS" else b"OK")
        told = traced(data)
        if told is None or told[1] != message.extras.trace:
            return False
        self.book.named(message, told[0])
        self.placed(message, told[2])
        return True

    def _check_taken(self, connection: Connection, expected: Expected) -> None:
        """Check that what was accepted had to be, by what the topic says of headers."""
        extras = [message.extras for message in expected.messages]
        if any(extra.bad for extra in extras):
            self.book.fail("headers have rules", f"{expected.messages[0].name} was stored with a bad header")
        if expected.extend == "off" and any(extra.header is not None for extra in extras):
            self.book.fail("headers need a topic for them", f"{expected.messages[0].name} was stored with a header")
        wrong = "off" if connection.taste.extend else "on"
        if expected.word == "SUB" and expected.extend == wrong:
            text = f"connection {connection.link.number} joined a topic whose headers are {wrong}"
            self.book.fail("headers need a client for them", text)

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
            book.scheduler.soon(lambda: self._settle(connection))

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
        if not connection.expected or connection.expected[0].word.removesuffix("_EXT") != word:
            self.book.fail("one reply a command", f"connection {connection.link.number} got {text} for nothing")
        expected = connection.expected.popleft()
        for message in expected.messages:
            if is_spread(expected.messages):
                message.answered = True
            else:
                self.book.refused(message, text)
        self._replied(connection, expected)

    def _turned_away(self, connection: Connection, code: str, text: str) -> None:
        """A publish was refused because of its header, and its topic never heard of it."""
        if not connection.expected or not connection.expected[0].word.endswith("PUB_EXT"):
            self.book.fail("one reply a command", f"connection {connection.link.number} got {text} for nothing")
        expected = connection.expected.popleft()
        bad = any(message.extras.bad for message in expected.messages)
        if bad is (code == "E_EXT_NOT_SUPPORT") or (not bad and expected.extend not in ("off", "")):
            self.book.fail("headers have rules", f"{expected.messages[0].name} was refused: {text}")
        for message in expected.messages:
            self.book.turned_away(message)
        self._replied(connection, expected)

    def _sent_away(self, connection: Connection, code: str) -> None:
        """A client and its topic do not agree on headers: at its SUB, or at a message after an upgrade."""
        expected = connection.expected[0] if connection.expected else None
        if expected is not None and expected.word == "SUB":
            right = expected.extend in ("", "on" if code == "E_SUB_EXTEND_NEED" else "off")
        else:
            right = connection.outgrown
        if not right:
            self.book.fail("headers need a client for them", f"connection {connection.link.number} got {code}")
