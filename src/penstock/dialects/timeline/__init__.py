"""Timelines: messages that are due at a time, leased to consumers by buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.dialect import Bound, Dialect, Running
from penstock.dialects.timeline.choices import TimelineChoices
from penstock.dialects.timeline.config import TimelineConfig, check, endpoints

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.dialects.timeline.running import Timelines

    return await Timelines.start(node, config, bound["timeline.port"])


DIALECT = Dialect("timeline", TimelineConfig, check, endpoints, _start, TimelineChoices)
