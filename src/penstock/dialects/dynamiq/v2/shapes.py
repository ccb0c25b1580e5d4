"""What is sent and answered under /v2, as types: requests are read by them, and the OpenAPI document tells them.

Times that a client chooses are seconds, whole or in parts; points in time are ISO.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.dialects.dynamiq.choices import AGE_NS_MAX, PARTITIONS_MAX, VISIBILITY_NS_MAX
from penstock.rest.problem import Problem
from penstock.rest.record import ShownColumns, fields
from penstock.settings import SECOND_NS

VISIBILITY_S_MAX = VISIBILITY_NS_MAX // SECOND_NS
PAGE_MAX = 1000
RECEIVES_MAX = 1000
#: As far as a due time may be away by default, and far from the end of the numbers.
DELAY_S_MAX = 10 * 365 * 24 * 3600
REDRIVE_MAX = 1_000_000

Visibility = Annotated[float, Meta(ge=0, le=VISIBILITY_S_MAX)]
Delay = Annotated[float, Meta(ge=0, le=DELAY_S_MAX)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}$")]


# --- lists ------------------------------------------------------------------------------------------------------------


class PageQuery(msgspec.Struct):
    """Which part of a list by name."""

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100


class QueueQuery(PageQuery):
    """Which part of the queues: of all, or with `here` only of those that this node of a cluster has."""

    here: bool = False


class NamePage(msgspec.Struct):
    """Names in order; `next` is the `after` of the following page, null at the end."""

    items: list[str]
    next: str | None


# --- queues -----------------------------------------------------------------------------------------------------------


class SettingsIn(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a queue to choose; the others stay. They are in force at once."""

    visibility_timeout: Visibility | UnsetType = UNSET
    min_partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | UnsetType = UNSET
    max_partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | UnsetType = UNSET
    max_partition_age: Annotated[float, Meta(ge=0, le=AGE_NS_MAX // SECOND_NS)] | UnsetType = UNSET
    compressed_messages: bool | UnsetType = UNSET
    max_receives: Annotated[int, Meta(ge=0, le=RECEIVES_MAX)] | UnsetType = UNSET
    dead_letter_queue: Name | UnsetType | None = UNSET


class QueueIn(msgspec.Struct):
    """A queue to make."""

    name: Name
    settings: SettingsIn = msgspec.field(default_factory=SettingsIn)


class Settings(msgspec.Struct):
    """Settings of a queue, as they are in force.

    A message that was received `max_receives` times goes to `dead_letter_queue`; 0 and null say that none does.
    """

    visibility_timeout: float
    min_partitions: int
    max_partitions: int
    max_partition_age: float
    compressed_messages: bool
    max_receives: int
    dead_letter_queue: str | None


class Counts(msgspec.Struct):
    """Messages of a queue: those that can be received now, are out on lease, wait for their time; and all of them."""

    ready: int
    in_flight: int
    delayed: int
    total: int


class Queue(msgspec.Struct):
    """A queue."""

    name: str
    created: str
    settings: Settings
    #: How many it has now; they lock for receives under /v1 and change nothing here.
    partitions: int
    counts: Counts
    #: Where there is a cluster and another node has it: which, and why that does not tell more.
    node: str | msgspec.UnsetType = msgspec.UNSET
    problem: str | msgspec.UnsetType = msgspec.UNSET


class QueuePage(msgspec.Struct):
    """Queues by name; `next` is the `after` of the following page, null at the end."""

    items: list[Queue]
    next: str | None


class Deleted(msgspec.Struct):
    """What went: how many messages, or the one thing that was named."""

    deleted: int


class DeadLetters(msgspec.Struct):
    """Where messages of a queue go that were received too often, and what is there; null if nowhere.

    `sources` are the queues whose dead letters come to this one.
    """

    queue: str | None
    max_receives: int
    counts: Counts | None
    sources: list[str]


# --- messages ---------------------------------------------------------------------------------------------------------

MessageIn = msgspec.defstruct(
    "MessageIn",
    [*fields(), ("delay", Delay | None, None)],
    namespace={"__doc__": "A message to publish: `body` or `body_base64`, and what else it shall bring."},
    module=__name__,
    forbid_unknown_fields=True,
)


class MessagesIn(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to publish; each is stored or refused by itself."""

    messages: Annotated[list[msgspec.Raw], Meta(min_length=1)]


#: The same for the document: what is read one by one is told as what it is.
MessagesInShown = msgspec.defstruct(
    "MessagesIn",
    [("messages", Annotated[list[MessageIn], Meta(min_length=1)])],  # type: ignore[valid-type]
    namespace={"__doc__": MessagesIn.__doc__},
    module=__name__,
)


class Message(ShownColumns, kw_only=True):
    """A message. `attempts` and `receipt` are of one that was received."""


class Sent(msgspec.Struct, omit_defaults=True):
    """What became of one message: its id, or why it was refused."""

    id: str | UnsetType = UNSET
    error: Problem | UnsetType = UNSET


class SentAll(msgspec.Struct):
    """What became of each message, in their order.

    `duplicates` of those that were stored repeat an earlier message by their dedup key, and have its id.
    """

    stored: int
    refused: int
    duplicates: int
    results: list[Sent]


class Copied(msgspec.Struct, omit_defaults=True):
    """What became of one message that was published to a topic: an id or an error by queue, or why it was refused."""

    ids: dict[str, str] | UnsetType = UNSET
    errors: dict[str, Problem] | UnsetType = UNSET
    error: Problem | UnsetType = UNSET


class CopiedAll(msgspec.Struct):
    """What became of each message, in their order; `stored` counts copies."""

    stored: int
    refused: int
    results: list[Copied]


# --- leases -----------------------------------------------------------------------------------------------------------


class Receive(msgspec.Struct):
    """How many messages at most, how long to wait for the first, and for how long they are nobody else's."""

    max: Annotated[int, Meta(ge=1)] = 1
    wait: Annotated[float, Meta(ge=0)] = 0
    visibility: Visibility | None = None


class Received(msgspec.Struct):
    """Messages on lease, each with the receipt that answers for it; none if none came in time."""

    messages: list[Message]


Receipts = Annotated[list[str], Meta(min_length=1)]


class Finish(msgspec.Struct):
    """Receipts of messages to delete."""

    receipts: Receipts


class ExtendOne(msgspec.Struct):
    """For how long from now a message stays nobody else's; the queue's visibility timeout by default."""

    visibility: Visibility | None = None


class Extend(msgspec.Struct):
    """Receipts, and for how long from now their messages stay nobody else's."""

    receipts: Receipts
    visibility: Visibility | None = None


class ReleaseOne(msgspec.Struct):
    """When a message may be received again."""

    delay: Delay = 0


class Release(msgspec.Struct):
    """Receipts, and when their messages may be received again."""

    receipts: Receipts
    delay: Delay = 0


class Held(msgspec.Struct, omit_defaults=True):
    """What became of one receipt: nothing is said of one that held, else why it did not."""

    receipt: str
    error: Problem | UnsetType = UNSET


class HeldAll(msgspec.Struct):
    """What became of each receipt, in their order."""

    held: int
    refused: int
    results: list[Held]


# --- topics -----------------------------------------------------------------------------------------------------------


class TopicIn(msgspec.Struct):
    """A topic to make."""

    name: Name


class Topic(msgspec.Struct):
    """A topic: what is published to it is copied to its queues."""

    name: str
    queues: list[str]


class TopicPage(msgspec.Struct):
    """Topics by name; `next` is the `after` of the following page, null at the end."""

    items: list[Topic]
    next: str | None


class Subscription(msgspec.Struct):
    """A queue that gets copies of what is published to a topic."""

    topic: str
    queue: str


# --- redrives ---------------------------------------------------------------------------------------------------------


class RedriveIn(msgspec.Struct):
    """Where to (null: each message to the queue it came from), and how many at most (null: all there are now)."""

    to: Name | None = None
    max: Annotated[int, Meta(ge=1, le=REDRIVE_MAX)] | None = None


class Redrive(msgspec.Struct):
    """Dead letters on their way back: running, cancelling, cancelled, failed or completed."""

    id: str
    queue: str
    to: str | None
    status: str
    wanted: int
    moved: int
    started: str
    problem: str | None


class RedriveList(msgspec.Struct):
    """The latest redrives from a queue, the last one first; what there was is forgotten when the node ends."""

    items: list[Redrive]


class Index(msgspec.Struct):
    """Where to go from here."""

    version: str
    openapi: str
    docs: str
    endpoints: dict[str, str]
