"""The topics that nodes keep of themselves: their history of deliveries, and their counts.

A node that is alone has one of each; in a cluster each node has its own, its name behind an @.
Invariant: what is away with its node is left out, and said; the messages of others do not wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, overload

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.client.wire import TopicInfo
    from penstock.pipeline.store import Store

_log = logging.getLogger("penstock.report")


@overload
def is_of(name: str, kind: str) -> bool: ...
@overload
def is_of(name: Column, kind: str) -> Column: ...
def is_of(name: str | Column, kind: str) -> bool | Column:
    """Tell whether a topic is the one of a kind, or that of some node of a cluster; of a column, as Spark says it."""
    return (name == kind) | name.startswith(f"{kind}@")


def found(store: Store, kind: str, there: Iterable[str]) -> dict[str, TopicInfo]:
    """Return the topics of a kind that can be read now, by name."""
    infos = {}
    for name in there:
        if is_of(name, kind):
            try:
                info = store.topic(name)
            except PenstockError as error:
                _log.warning("the report is made without topic %s: %s", name, error)
                continue
            if info is not None:
                infos[name] = info
    return infos
