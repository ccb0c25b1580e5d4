"""Where the topics of a cluster are, as far as they are not here; whoever knows that says so to the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.errors import Refusal


class Places(Protocol):
    """Knows which node has what."""

    def refusal(self, name: str) -> Refusal | None:
        """Return why a topic that is not open here cannot be had here; None if the cluster does not know it."""

    def address(self, node: str) -> str | None:
        """Return HOST:PORT where other nodes reach this one, None if it is not there."""

    def listeners(self, node: str) -> Mapping[str, str]:
        """Return HOST:PORT where clients reach a node, by the keys of its endpoints."""
