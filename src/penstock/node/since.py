"""Where the rows of a time begin, asked for on the loop: what is on the shared log is looked for in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import Refusal
from penstock.log.reader import Reader
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.node.topic import Topic

#: A shard's number and an offset in it.
Place = tuple[int, int]


def since(topic: Topic, numbers: Sequence[int], time_ns: int) -> Answer[list[Place]]:
    """Answer with the first offset of each shard whose row was taken at or after a time; its end if there is none."""
    shards = [topic.shards[number] for number in numbers]
    if not topic.is_shared:
        return Answer.of([(shard.number, max(shard.offset_at(time_ns), shard.start)) for shard in shards])
    readers = [Reader(shard.path, shard.view()) for shard in shards]
    answer: Answer[list[Place]] = Answer()

    def done(found: list[int] | None, error: BaseException | None) -> None:
        if found is None:
            answer.refuse(Refusal("unavailable", f"topic {topic.name} cannot be searched now: {error}; try again"))
        else:
            answer.give([(shard.number, max(each, shard.start)) for shard, each in zip(shards, found, strict=True)])

    topic.disk.submit("read", lambda: [reader.offset_at(time_ns) for reader in readers], done)
    return answer
