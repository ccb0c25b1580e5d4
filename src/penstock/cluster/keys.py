"""The names under which brokers of one cluster keep what they share in the registry.

Invariant: two things never have one name, whatever ids hold: ids have no control characters, so a slash in one becomes
one, and no name is longer than its ids say.
"""

from __future__ import annotations

import unicodedata

from penstock.client.timeline.wire import Kind
from penstock.cluster.denial import Denial

#: What ids may hold, by the category of their characters: what can be seen, and blanks.
GRAPHIC = frozenset("LMNPS")
TOPIC_ID_BYTES_MAX = 1024

_SLASH = "\x1f"


def check_id(text: str, what: str, bytes_max: int) -> None:
    """Refuse an id that could not be shown."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise Denial(Kind.PROTOCOL, f"{text!r} is no {what}: it is not UTF-8 text") from None
    if not 0 < length <= bytes_max:
        raise Denial(Kind.PROTOCOL, f"a {what} has 1 to {bytes_max} bytes, not {length}")
    for character in text:
        category = unicodedata.category(character)
        if category[0] not in GRAPHIC and category != "Zs":
            raise Denial(Kind.PROTOCOL, f"{text!r} is no {what}: it holds characters that cannot be shown")


class Keys:
    """The keys of one cluster."""

    def __init__(self, cluster: str) -> None:
        self.base = f"timeline/{_part(cluster)}/"
        self.topics = self.base + "topics/"
        self.deleted = self.base + "deleted/"
        self.masters = self.base + "masters/"
        self.brokers = self.base + "brokers/"
        self.known = self.base + "known/"
        self.consumers = self.base + "consumers/"
        self.producers = self.base + "producers/"
        self.tables = self.base + "tables/"

    def topic(self, ident: str) -> str:
        """Return where a topic is."""
        return self.topics + _part(ident)

    def deletion(self, ident: str, incarnation: str) -> str:
        """Return where the deletion of a topic is."""
        return f"{self.deleted}{_part(ident)}/{incarnation}"

    def fence(self, ident: str) -> str:
        """Return what is there while no topic of this name may be made."""
        return f"{self.base}fence/{_part(ident)}"

    def master(self, ident: str, incarnation: str) -> str:
        """Return what the broker has that does the work of making or deleting a topic."""
        return f"{self.masters}{_part(ident)}/{incarnation}"

    def broker(self, ident: str) -> str:
        """Return where a broker is that is alive."""
        return self.brokers + _part(ident)

    def known_broker(self, ident: str) -> str:
        """Return where a broker is that should return if it is not alive."""
        return self.known + _part(ident)

    def consumers_of(self, topic: str) -> str:
        """Return what the keys of a topic's consumers start with."""
        return f"{self.consumers}{_part(topic)}/"

    def producers_of(self, topic: str) -> str:
        """Return what the keys of a topic's producers start with."""
        return f"{self.producers}{_part(topic)}/"

    def consumer(self, topic: str, ident: str) -> str:
        """Return where a consumer is."""
        return self.consumers_of(topic) + _part(ident)

    def producer(self, topic: str, ident: str) -> str:
        """Return where a producer is."""
        return self.producers_of(topic) + _part(ident)

    def table(self, topic: str) -> str:
        """Return where it is told who has which buckets of a topic."""
        return self.tables + _part(topic)


def topic_in(key: str, prefix: str) -> str:
    """Return the topic whose id comes after a prefix of a key."""
    return key[len(prefix) :].partition("/")[0].replace(_SLASH, "/")


def _part(ident: str) -> str:
    return ident.replace("/", _SLASH)
