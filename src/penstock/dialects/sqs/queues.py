"""Queues: made, found, listed, changed, emptied and deleted.

A queue is a topic with the subscription `queue`; its messages are `messages.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from penstock.callers import Action, Caller
from penstock.clock import SECOND
from penstock.delivery.subscription import Subscription
from penstock.dialects.sqs import attributes, permissions
from penstock.dialects.sqs.attributes import Kept
from penstock.dialects.sqs.choices import SqsChoices
from penstock.dialects.sqs.codec import shapes
from penstock.dialects.sqs.faults import Fault, invalid, missing, no_queue, within
from penstock.dialects.sqs.names import FIFO, Names, check_name, is_name
from penstock.errors import Refusal
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.peers.far import Reached, Unreached, reached
from penstock.registry.answer import Answer
from penstock.settings import SubscriptionSettings

#: The subscription that is a queue's.
QUEUE = "queue"
#: A name is free again so long after a queue of it was deleted, and a queue may be purged again so long after that.
PAUSE_NS = 60 * SECOND
#: What is remembered of that; beyond it the oldest is forgotten.
PAUSES_MAX = 10_000
LISTED_MAX = 1000
TAGS_MAX = 50
#: Subscriptions that do not keep a deleted queue's topic.
_OWN = frozenset((QUEUE, "redrive"))

#: Makes the address of a queue for whoever asks.
UrlOf = Callable[[str], str]


class Queue(NamedTuple):
    """A topic and its subscription `queue`."""

    topic: Topic
    subscription: Subscription

    @property
    def name(self) -> str:
        """Its name, which is the topic's."""
        return self.topic.name

    @property
    def choices(self) -> SqsChoices:
        """What is chosen of it and is no setting of the core."""
        return self.topic.chosen.of(SqsChoices)


class Queues:
    """The queues of one node."""

    def __init__(self, node: Node, names: Names) -> None:
        self.node = node
        self.names = names
        #: When queues were deleted and purged, by name.
        self._deleted: dict[str, int] = {}
        self._purged: dict[str, int] = {}
        #: Queues whose groups will share fairly in a moment.
        self._sharing: set[str] = set()

    # --- finding --------------------------------------------------------------------------------------------------

    def find(self, caller: Caller, action: Action, url: str) -> Queue:
        """Return the queue of an address to somebody who may do this with it."""
        return self.named(caller, action, self.names.of_url(url))

    def named(self, caller: Caller, action: Action, name: str) -> Queue:
        """Return the queue of a name to somebody who may do this with it."""
        caller.check(action, name)
        queue = self.known(name)
        if queue is None:
            raise no_queue()
        return queue

    def known(self, name: str) -> Queue | None:
        """Return the queue of a name, whoever asks; one that another node has raises where."""
        topic = self.node.find(name)
        subscription = topic.subscriptions.get(QUEUE) if topic is not None else None
        return Queue(topic, subscription) if topic is not None and subscription is not None else None

    def all(self) -> Iterator[tuple[str, SubscriptionSettings]]:
        """Yield every queue there is, by name, with its settings; other nodes may have some."""
        for name in self.node.known.names():
            if is_name(name) and (settings := self.node.known.subscription(name, QUEUE)) is not None:
                yield name, settings

    def is_queue(self, name: str) -> bool:
        """Tell whether there is a queue of a name, here or on another node."""
        return self.node.known.subscription(name, QUEUE) is not None

    def reach(self, name: str) -> Reached | None:
        """Return a queue, wherever it is, or what cannot be reached and may be one; None if there is no such queue."""
        found = reached(self.node, name)
        return found if isinstance(found, Unreached) or self.is_queue(name) else None

    def _target(self, name: str) -> SqsChoices | None:
        return self.node.known.chosen(name, SqsChoices) if self.is_queue(name) else None

    def share(self, queue: Queue) -> None:
        """Let groups of messages share a standard queue fairly, from the first that has one on."""
        settings = queue.subscription.settings
        if settings.policy != "shared" or queue.choices.fifo or queue.name in self._sharing:
            return
        self._sharing.add(queue.name)
        shared = queue.topic.update_subscription(QUEUE, msgspec.structs.replace(settings, policy="fair"))
        # If it is refused, the next message tries again; order is not what a standard queue promises.
        shared.then(lambda _, __: self._sharing.discard(queue.name))

    # --- operations -----------------------------------------------------------------------------------------------

    def create(self, caller: Caller, asked: shapes.CreateQueue, url_of: UrlOf) -> Answer[shapes.QueueUrl]:
        """Make a queue, or find the one that is as it is asked for."""
        name, given = asked.queue_name, asked.attributes
        check_name(name)
        if name.endswith(FIFO) and given.get("FifoQueue", "").lower() != "true":
            raise Fault(
                "InvalidParameterValue", "The name of a FIFO queue can only end with .fifo if FifoQueue is true."
            )
        now_s = self.node.clock.now() // SECOND
        told = shapes.QueueUrl(queue_url=url_of(name))
        queue = self.known(name)
        if queue is not None:
            caller.check("see", name)
            self._check_same(queue, given)
            return Answer.of(told)
        caller.check("create", name)
        if self._is_paused(self._deleted, name):
            text = "You must wait 60 seconds after deleting a queue before you can create another with the same name."
            raise Fault("QueueDeletedRecently", text)
        kept = attributes.changed(attributes.fresh(name), given, name, self.names, self._target, now_s)
        kept = kept._replace(choices=_tagged(kept.choices, asked.tags))
        settings = kept.choices.put(self.node.config.topic.settings())
        obtained = self.node.make_for(caller, name, settings)
        # A topic that others made becomes a queue as well.
        chosen = obtained.then_ask(
            lambda topic: topic.update(kept.choices.put(topic.settings)).then_make(lambda _: topic)
        )
        made = chosen.then_ask(lambda topic: topic.subscribe(QUEUE, kept.settings))
        return made.then_make(lambda _: told)

    def _check_same(self, queue: Queue, given: dict[str, str]) -> None:
        kept = Kept(queue.choices, queue.subscription.settings)
        asked = attributes.changed(kept, given, queue.name, self.names, self._target, kept.choices.modified_s)
        if asked != kept:
            other = next((key for key, text in given.items() if not self._has(queue, key, text)), "attributes")
            text = f"A queue already exists with the same name and a different value for attribute {other}"
            raise Fault("QueueNameExists", text)

    def _has(self, queue: Queue, key: str, text: str) -> bool:
        return attributes.shown(*queue, self.names).get(key, "").lower() == text.lower()

    def url(self, caller: Caller, asked: shapes.GetQueueUrl, url_of: UrlOf) -> shapes.QueueUrl:
        """Find a queue by its name."""
        if not is_name(asked.queue_name) or asked.queue_owner_aws_account_id not in ("", self.names.account_id):
            raise no_queue()
        return shapes.QueueUrl(queue_url=url_of(self.named(caller, "see", asked.queue_name).name))

    def list(self, caller: Caller, asked: shapes.ListQueues, url_of: UrlOf) -> shapes.QueueUrls:
        """List queues by name, as far as somebody may see them."""
        found = [name for name, _ in self.all() if name.startswith(asked.queue_name_prefix)]
        seen = [name for name in found if caller.may("see", name)]
        some, next_token = _page(seen, asked.next_token, asked.max_results)
        return shapes.QueueUrls(queue_urls=[url_of(name) for name in some], next_token=next_token)

    def sources(self, caller: Caller, asked: shapes.ListSources, url_of: UrlOf) -> shapes.SourceUrls:
        """List the queues whose dead letters come to one."""
        target = self.find(caller, "see", asked.queue_url).name
        found = [name for name, settings in self.all() if settings.dead_letter == target and settings.max_attempts]
        some, next_token = _page(found, asked.next_token, asked.max_results)
        return shapes.SourceUrls(queue_urls=[url_of(name) for name in some], next_token=next_token)

    def attributes(self, caller: Caller, asked: shapes.GetQueueAttributes) -> shapes.Attributes:
        """Tell attributes."""
        queue = self.find(caller, "see", asked.queue_url)
        told = attributes.shown(*queue, self.names)
        return shapes.Attributes(attributes=attributes.picked(told, asked.attribute_names))

    def set_attributes(self, caller: Caller, asked: shapes.SetQueueAttributes) -> Answer[shapes.Nothing]:
        """Change attributes."""
        queue = self.find(caller, "change", asked.queue_url)
        if not asked.attributes:
            raise missing("Attribute.Name")
        kept = Kept(queue.choices, queue.subscription.settings)
        if "FifoQueue" in asked.attributes and not kept.choices.fifo:
            raise Fault("InvalidAttributeName", "Unknown Attribute FifoQueue.")
        now_s = self.node.clock.now() // SECOND
        kept = attributes.changed(kept, asked.attributes, queue.name, self.names, self._target, now_s)
        return self._keep(queue, kept)

    def add_permission(self, caller: Caller, asked: shapes.AddPermission) -> Answer[shapes.Nothing]:
        """Add a statement to a queue's policy."""
        queue = self.find(caller, "change", asked.queue_url)
        arn = self.names.arn(queue.name)
        policy = permissions.added(self._policy(queue), arn, asked.label, asked.aws_account_ids, asked.actions)
        return self._keep_policy(queue, policy)

    def drop_permission(self, caller: Caller, asked: shapes.RemovePermission) -> Answer[shapes.Nothing]:
        """Take a statement out of it."""
        queue = self.find(caller, "change", asked.queue_url)
        return self._keep_policy(queue, permissions.removed(self._policy(queue), asked.label))

    def _policy(self, queue: Queue) -> str:
        return attributes.shown(*queue, self.names).get("Policy", "")

    def _keep_policy(self, queue: Queue, policy: str) -> Answer[shapes.Nothing]:
        kept, now_s = Kept(queue.choices, queue.subscription.settings), self.node.clock.now() // SECOND
        return self._keep(
            queue, attributes.changed(kept, {"Policy": policy}, queue.name, self.names, self._target, now_s)
        )

    def _keep(self, queue: Queue, kept: Kept) -> Answer[shapes.Nothing]:
        topic = queue.topic
        changed = topic.update(kept.choices.put(topic.settings))
        if kept.settings != queue.subscription.settings:
            updated = changed.then_ask(lambda _: topic.update_subscription(QUEUE, kept.settings))
            return updated.then_make(lambda _: shapes.Nothing())
        return changed.then_make(lambda _: shapes.Nothing())

    def delete(self, caller: Caller, asked: shapes.ByUrl) -> Answer[shapes.Nothing]:
        """Delete a queue with its messages; what other subscriptions read stays."""
        queue = self.find(caller, "delete", asked.queue_url)
        self._pause(self._deleted, queue.name)
        if any(name not in _OWN for name in queue.topic.subscriptions):
            deleted = queue.topic.delete_subscription(QUEUE)
        else:
            deleted = self.node.delete_topic(queue.name)
        return deleted.then_make(lambda _: shapes.Nothing())

    def purge(self, caller: Caller, asked: shapes.ByUrl) -> shapes.Nothing | Answer[shapes.Nothing]:
        """Delete all messages of a queue, also those that are delayed or out."""
        queue = self.find(caller, "change", asked.queue_url)
        if self._is_paused(self._purged, queue.name):
            text = f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds."
            raise Fault("PurgeQueueInProgress", text)
        self._pause(self._purged, queue.name)
        queue.subscription.empty()
        return queue.subscription.keeping.kept(shapes.Nothing())

    def tags(self, caller: Caller, asked: shapes.ByUrl) -> shapes.Tags:
        """Tell tags."""
        queue = self.find(caller, "see", asked.queue_url)
        return shapes.Tags(tags=_tags(queue.choices))

    def tag(self, caller: Caller, asked: shapes.TagQueue) -> Answer[shapes.Nothing]:
        """Set tags."""
        queue = self.find(caller, "change", asked.queue_url)
        return self._keep(queue, Kept(_tagged(queue.choices, asked.tags), queue.subscription.settings))

    def untag(self, caller: Caller, asked: shapes.UntagQueue) -> Answer[shapes.Nothing]:
        """Take tags away."""
        queue = self.find(caller, "change", asked.queue_url)
        left = {key: value for key, value in _tags(queue.choices).items() if key not in asked.tag_keys}
        choices = msgspec.structs.replace(queue.choices, tags=msgspec.json.encode(left).decode() if left else "")
        return self._keep(queue, Kept(choices, queue.subscription.settings))

    # --- pauses ---------------------------------------------------------------------------------------------------

    def _is_paused(self, since: dict[str, int], name: str) -> bool:
        return name in since and self.node.clock.monotonic() - since[name] < PAUSE_NS

    def _pause(self, since: dict[str, int], name: str) -> None:
        since.pop(name, None)
        while len(since) >= PAUSES_MAX:
            del since[next(iter(since))]
        since[name] = self.node.clock.monotonic()


def _page(names: list[str], token: str, most: int | None) -> tuple[list[str], str | None]:
    """Return some of the names, which are in order, and what to ask with for the next ones."""
    within("MaxResults", most, 1, LISTED_MAX)
    rest = [name for name in names if name > token] if token else names
    if token and most is None:
        raise invalid("NextToken", token[:100], "MaxResults must be set with it.")
    some = rest[: most or LISTED_MAX]
    return some, some[-1] if most is not None and len(rest) > len(some) else None


def _tags(choices: SqsChoices) -> dict[str, str]:
    return msgspec.json.decode(choices.tags, type=dict[str, str]) if choices.tags else {}


def _tagged(choices: SqsChoices, tags: dict[str, str]) -> SqsChoices:
    if not tags:
        return choices
    both = {**_tags(choices), **tags}
    for key, value in tags.items():
        if not 0 < len(key) <= 128 or len(value) > 256:
            raise invalid("Tag", key[:128], "A key has 1 to 128 characters, a value up to 256.")
    if len(both) > TAGS_MAX:
        raise Fault("InvalidParameterValue", f"Too many tags added for queue; at most {TAGS_MAX}.")
    return msgspec.structs.replace(choices, tags=msgspec.json.encode(both).decode())


def gone() -> Refusal:
    """Return why a receive ends when its queue is deleted."""
    return Refusal("gone", "The specified queue does not exist.")
