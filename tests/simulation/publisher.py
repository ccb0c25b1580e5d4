"""Publishes rows with columns, as the admin API does, and keeps the book on what became of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from penstock.clock import MILLISECOND
from penstock.columns import Column
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.node import Node
from tests.simulation.actor import Actor, Surroundings
from tests.simulation.extras import KEYS, NOTHING, TAGS, TRAFFIC, Extras, some_members
from tests.simulation.model import Message, Presence, TopicModel, is_spread


class Publisher(Actor):
    """Publishes rows with columns, as the admin API does."""

    def __init__(self, world: Surroundings, random: Random, gap_ns: int, topics: list[str], number: int) -> None:
        self.topics = topics
        self.name = f"publisher {number}"
        super().__init__(world, random, gap_ns)

    def act(self, node: Node) -> None:
        """Publish some rows."""
        book, random = self.world.book, self.random
        topic = node.topics.get(random.choice(self.topics))
        if topic is None:
            return
        model = book.bind(topic.name, topic.record.number, topic.settings)
        count = random.choice((1, 1, 1, 2, 2, 5, 20))
        wall_ns = node.clock.now()
        columns: dict[str, Column] = {}
        dues = expires = None
        extras = self._extras(count, columns) if random.random() < 0.8 else [NOTHING] * count
        if random.random() < 0.2:
            dues = [
                wall_ns + random.choice((0, 5, 100, 700)) * MILLISECOND if random.random() < 0.7 else None
                for _ in range(count)
            ]
            columns["due"] = dues
        if random.random() < 0.05:
            expires = [wall_ns + random.choice((1, 50, 500)) * MILLISECOND for _ in range(count)]
            columns["expires"] = expires
        shard = random.randrange(topic.settings.shards) if random.random() < 0.3 else None
        bodies = [self.world.body() for _ in range(count)]
        messages = [
            book.offer(
                model,
                body,
                f"{self.name} to {shard}" if shard is not None else self.name,
                due_ns=(dues[row] or 0) if dues else 0,
                expires_ns=expires[row] if expires else 0,
                shard=shard,
                extras=extras[row],
            )
            for row, body in enumerate(bodies)
        ]
        if random.random() < 0.15:
            columns["dedup"] = [self._dedup(model, message) for message in messages]
        book.record("publish", self.name, model.name, ",".join(message.name for message in messages), shard)
        topic.publish(Rows.of(bodies, "api", columns), self, self._done(messages), shard)

    def _extras(self, count: int, columns: dict[str, Column]) -> list[Extras]:
        """Choose what rows carry beside their bodies, and the columns that say so."""
        random = self.random
        traffics = [random.choice(TRAFFIC) if random.random() < 0.7 else 0 for _ in range(count)]
        tags = [random.choice(TAGS) if random.random() < 0.4 else "" for _ in range(count)]
        keys = [random.choice(KEYS).encode() if random.random() < 0.4 else b"" for _ in range(count)]
        members = [some_members(random) for _ in range(count)]
        headers = [json.dumps(said).encode() if said else None for said in members]
        if random.random() < 0.7:
            columns["traffic"] = [_signed(bits) if bits or random.random() < 0.5 else None for bits in traffics]
        else:
            traffics = [0] * count
        if any(tags):
            columns["tag"] = [tag or None for tag in tags]
        if any(keys):
            columns["key"] = [key or None for key in keys]
        if any(members):
            columns["headers"] = headers
        return [
            Extras(tag, key, bits, members=said, header=header)
            for tag, key, bits, said, header in zip(tags, keys, traffics, members, headers, strict=True)
        ]

    def _dedup(self, model: TopicModel, message: Message) -> bytes:
        """Give a message an idempotence key, sometimes one that was used before."""
        message.dedup = message.body[:7]
        # Two that are under way at once to different shards may be stored in any order.
        alone = model.shards == 1
        used = [
            key
            for key, same in model.dedups.items()
            if alone or all(other.presence is not Presence.MAYBE for other in same)
        ]
        if used and self.random.random() < 0.5:
            message.dedup = self.random.choice(used)
        model.dedups.setdefault(message.dedup, []).append(message)
        return message.dedup

    def _done(self, messages: list[Message]) -> Callable[[Receipt | None, BaseException | None], None]:
        book, life = self.world.book, self.world.book.life

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            if book.life != life:
                book.fail("one reply a command", f"a publish of {messages[0].name} was answered by a dead process")
            if messages[0].answered:
                book.fail("one reply a command", f"a publish of {messages[0].name} was answered twice")
            if receipt is None:
                book.record("refused", messages[0].name, str(error)[:60])
                for message in messages:
                    if not is_spread(messages):
                        book.refused(message, str(error))
                    message.answered = True
                return
            book.record("stored", messages[0].name, f"{receipt.first_id:x}", receipt.count)
            for message, id_ in zip(messages, receipt.ids(), strict=True):
                message.answered = True
                book.stored_at(message, id_)

        return done


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
