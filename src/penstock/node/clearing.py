"""What is left of deleted topics on a cluster's store, removed by whoever owns their slot."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.log.kafka.disk import drop_topic
from penstock.log.kafka.engine import Engine, topic_of
from penstock.registry.records import DeletedTopic

if TYPE_CHECKING:
    from penstock.node.node import Node

_log = logging.getLogger("penstock.cluster")


class Clearing:
    """The deleted topics that a node removes from the store."""

    def __init__(self, node: Node, engine: Engine) -> None:
        self._node = node
        self._engine = engine
        #: By number: those that are being removed, and those that are gone.
        self._going: set[int] = set()
        self._gone: set[int] = set()

    def is_done(self, deleted: DeletedTopic) -> bool:
        """Tell whether nothing of a topic is left on the store; if something is, it goes now."""
        number = deleted.number
        if number in self._gone:
            self._gone.discard(number)
            return True
        if number not in self._going:
            self._going.add(number)
            work = partial(
                drop_topic, self._engine.store, topic_of(self._node.config.cluster.name, deleted.incarnation)
            )
            self._engine.threads.submit("open", work, partial(self._removed, deleted))
        return False

    def _removed(self, deleted: DeletedTopic, _: None, error: BaseException | None) -> None:
        self._going.discard(deleted.number)
        if error is None:
            self._gone.add(deleted.number)
        else:
            _log.warning("what is left of topic %s on the shared log goes later: %s", deleted.name, error)
