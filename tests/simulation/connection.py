"""One connection as the checker sees it: what it asked for, what it holds, and which replies are still to come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tests.simulation.network import Link
from tests.simulation.taste import Taste

if TYPE_CHECKING:
    from tests.simulation.model import Message, Row, SubscriptionModel

#: Commands that the node answers in order, and those it only answers by refusing.
PUBLISHES = ("PUB", "MPUB", "DPUB", "PUB_EXT", "MPUB_EXT")
RETURNS = ("FIN", "REQ", "TOUCH")


class Verdict(Enum):
    """What the node must say to an ack, a release or an extend."""

    ACCEPT = "accept"
    REFUSE = "refuse"
    EITHER = "either"


@dataclass(eq=False, slots=True)
class Check:
    """An ack, release or extend that the node has not refused so far."""

    word: str
    id: int
    verdict: Verdict
    row: Row | None
    #: The wall-clock time a release asks for, 0 for now.
    due_ns: int
    at_ns: int
    index: int
    #: The attempt it is about.
    attempts: int
    #: When the lease would have ended without an extend.
    before_ns: int = 0


@dataclass(eq=False, slots=True)
class Expected:
    """A reply that must come."""

    word: str
    index: int
    messages: list[Message] = field(default_factory=list)
    #: What the topic said of headers when the command came; empty where that is not known.
    extend: str = ""


@dataclass(eq=False, slots=True)
class Connection:
    """One link, as the checker sees it."""

    link: Link
    lease_ns: int
    subscription: SubscriptionModel | None = None
    #: What it asked for, and from its SUB on what of that holds on its topic.
    taste: Taste = field(default_factory=Taste)
    joined_ns: int = -1
    #: It was told that it gets no more, or is about to be: it asks for no tag any more.
    closing: bool = False
    #: It knows no headers and its topic had none when it came: it must go once that changes.
    fragile: bool = False
    layered: bool = False
    credit: int = 0
    index: int = 0
    expected: deque[Expected] = field(default_factory=deque)
    checks: list[Check] = field(default_factory=list)
    held: dict[Row, None] = field(default_factory=dict)
    #: Acks in order, until a later command was answered.
    acks: deque[tuple[int, Row]] = field(default_factory=deque)
    #: Since when the node owes a publish reply here; frames behind it are seen late.
    owing_ns: int | None = None
    #: When it last ceased to owe one, and since when it had.
    paid_ns: int = -1
    paid_since_ns: int = 0
    deaf: bool = False

    @property
    def owes(self) -> bool:
        """Whether a publish is unanswered."""
        return self.owing_ns is not None

    @property
    def outgrown(self) -> bool:
        """Whether it is to be sent away: messages are chosen for it that it never sees."""
        return self.fragile and self.subscription is not None and self.subscription.topic.extend == "on"

    def leaves_open(self, row: Row) -> bool:
        """Tell whether something it said about a row may have been accepted or not."""
        return any(check.row is row and check.verdict is Verdict.EITHER for check in self.checks)

    def since_ns(self, now_ns: int) -> int:
        """Return how long ago a frame seen now may have been made."""
        if self.owing_ns is not None:
            return self.owing_ns
        return self.paid_since_ns if self.paid_ns == now_ns else now_ns
