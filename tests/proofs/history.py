"""What clients were promised and what they saw, over many lives of one node; the judge of the crash proof.

Owns the rules: what must come, what must not come again, what may not differ. Knows no socket and no file.
Threads call it; one lock makes each call whole.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

#: (connection, number): names one message for ever.
Key = tuple[int, int]
#: (topic, subscription)
Place = tuple[str, str]


def body_of(key: Key, size: int) -> bytes:
    """Return a body that tells its key and can be checked byte by byte."""
    head = b"%d.%d.%d|" % (*key, size)
    pattern = hashlib.blake2b(head).digest()
    return (head + pattern * (size // len(pattern) + 1))[: max(size, len(head))]


def key_of(body: bytes) -> Key | None:
    """Return the key of a body; None if it is not, to the last byte, one that was made."""
    try:
        connection, number, size = map(int, body[: body.index(b"|")].split(b"."))
    except ValueError:
        return None
    return (connection, number) if body_of((connection, number), size) == body else None


class History:
    """Everything that was published, delivered and finished."""

    def __init__(self, subscriptions: Mapping[str, Sequence[str]]) -> None:
        self._lock = threading.Lock()
        self._subscriptions = subscriptions
        self._connections = 0
        self.sent: dict[str, set[Key]] = {topic: set() for topic in subscriptions}
        self.acknowledged: dict[str, set[Key]] = {topic: set() for topic in subscriptions}
        #: Where each message was seen, and what each offset was seen to hold.
        self._offsets: dict[str, dict[Key, int]] = {topic: {} for topic in subscriptions}
        self._keys: dict[str, dict[int, Key]] = {topic: {} for topic in subscriptions}
        self._not_before_ns: dict[Key, int] = {}
        places = [(topic, name) for topic, names in subscriptions.items() for name in names]
        #: What must still be delivered: published and acknowledged, or seen, and no FIN was sent since.
        self.owed: dict[Place, set[Key]] = {place: set() for place in places}
        #: Messages whose FIN was followed by an answered PUB.
        self.final: dict[Place, set[Key]] = {place: set() for place in places}
        self._finishing: dict[Place, set[Key]] = {place: set() for place in places}
        self.counts: Counter[str] = Counter()
        #: What went wrong, by the rule it broke.
        self.violations: defaultdict[str, list[str]] = defaultdict(list)

    def connection(self) -> int:
        """Return a number for a new connection."""
        with self._lock:
            self._connections += 1
            return self._connections

    def publishing(self, topic: str, keys: Iterable[Key], not_before_ns: int = 0) -> None:
        """Note that messages are about to be sent."""
        with self._lock:
            self.sent[topic].update(keys)
            if not_before_ns:
                self._not_before_ns.update(dict.fromkeys(keys, not_before_ns))

    def published(self, topic: str, keys: Iterable[Key]) -> None:
        """Note that a publish was answered with OK: from now on the messages may not be lost."""
        with self._lock:
            keys = set(keys)
            self.acknowledged[topic] |= keys
            for name in self._subscriptions[topic]:
                place = (topic, name)
                self.owed[place] |= keys - self._finishing[place] - self.final[place]

    def delivered(self, place: Place, id_: bytes, body: bytes, now_ns: int) -> Key | None:
        """Note a delivery; return the key of the message, None if it cannot be one."""
        topic = place[0]
        with self._lock:
            key = self._seen(topic, int(id_, 16) - 1, body, f"delivered in {place}")
            if key is None:
                return None
            self.counts["deliveries"] += 1
            if key in self.final[place]:
                self.violations["back"].append(f"{key} of {place}, id {id_.decode()}")
            if now_ns < self._not_before_ns.get(key, 0):
                self.violations["early"].append(f"{key} of {place}: {self._not_before_ns[key] - now_ns} ns early")
            if key in self._finishing[place]:
                self.counts["unconfirmed"] += 1
                self._finishing[place].discard(key)
            self.owed[place].add(key)
            return key

    def finishing(self, place: Place, keys: Iterable[Key]) -> None:
        """Note that FINs are about to be sent: the messages may come again, and need not."""
        with self._lock:
            self._finishing[place].update(keys)
            self.owed[place].difference_update(keys)

    def finished(self, place: Place, keys: Iterable[Key]) -> None:
        """Note that a PUB behind these FINs was answered: the messages may not come again."""
        with self._lock:
            self._finishing[place].difference_update(keys)
            self.final[place].update(keys)

    def owing(self) -> list[str]:
        """Return what must still be delivered."""
        with self._lock:
            return [f"{key} of {place}" for place, keys in self.owed.items() for key in sorted(keys)]

    def surprise(self, what: str) -> None:
        """Note an answer that no client should have got."""
        with self._lock:
            self.violations["answers"].append(what)

    def stored(self, topic: str, offset: int, body: bytes) -> Key | None:
        """Note a row as it is read from the log on disk."""
        with self._lock:
            return self._seen(topic, offset, body, "read from the log")

    def check_order(self) -> None:
        """Compare the order of the offsets with the order in which each connection sent."""
        for topic, keys in self._keys.items():
            last: dict[int, int] = {}
            for offset in sorted(keys):
                connection, number = keys[offset]
                if number <= last.get(connection, -1):
                    self.violations["order"].append(f"{topic} offset {offset}: {keys[offset]} after {last[connection]}")
                last[connection] = number

    def _seen(self, topic: str, offset: int, body: bytes, where: str) -> Key | None:
        key = key_of(body)
        if key is None or key not in self.sent[topic]:
            self.violations["bodies"].append(f"{topic} offset {offset}, {where}: {body[:60]!r}")
            return None
        if self._keys[topic].setdefault(offset, key) != key:
            self.violations["reused"].append(f"{topic} offset {offset}: {self._keys[topic][offset]}, {where}: {key}")
        elif self._offsets[topic].setdefault(key, offset) != offset:
            self.violations["twice"].append(f"{topic}: {key} at {self._offsets[topic][key]}, {where}: at {offset}")
        return key
