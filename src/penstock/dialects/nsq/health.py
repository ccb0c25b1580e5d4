"""How a node is, as /ping and /stats say it: well, or the last write to disk failed."""

from __future__ import annotations

from penstock.dialects.nsq.topics import is_listed
from penstock.node.node import Node


def trouble(node: Node) -> str | None:
    """Return why the last write of some topic failed; the next one that succeeds makes it well again."""
    for entry in [*node.ledger.entries("disk_full"), *node.ledger.entries("disk_failed")]:
        topic = node.topics.get(entry.topic) if is_listed(entry.topic) else None
        if topic is not None and entry.last_ns > max(shard.last_ns for shard in topic.shards):
            return f"topic {topic.name} could not be written"
    return None


def health(node: Node) -> str:
    """Return nsqd's word for it."""
    why = trouble(node)
    return f"NOK - {why}" if why else "OK"
