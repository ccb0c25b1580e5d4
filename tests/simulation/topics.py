"""The topics that clients make. The node writes its delivery history beside them, and no client may notice."""

from __future__ import annotations

from penstock.node.events import PREFIX
from penstock.node.node import Node
from penstock.node.topic import Topic


def topics_of(node: Node) -> list[Topic]:
    """Return the topics that the book knows of."""
    return [topic for topic in node.topics.values() if not topic.name.startswith(PREFIX)]
