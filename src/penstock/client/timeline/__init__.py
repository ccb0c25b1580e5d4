"""Timelines: messages that are due at a time, on lease from then on; blocking or with asyncio.

Its parts are imported when they are first used: a node takes the documents of `wire` from here and nothing more.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.timeline.asynchronous import AsyncTimeline
    from penstock.client.timeline.consumer import Consumer, Message
    from penstock.client.timeline.error import RefusedRow, RefusedRows, TimelineError
    from penstock.client.timeline.outgoing import Scheduled
    from penstock.client.timeline.producer import Producer
    from penstock.client.timeline.timeline import Timeline
    from penstock.client.timeline.wire import Kind, TopicStatus

__all__ = [
    "AsyncTimeline",
    "Consumer",
    "Kind",
    "Message",
    "Producer",
    "RefusedRow",
    "RefusedRows",
    "Scheduled",
    "Timeline",
    "TimelineError",
    "TopicStatus",
]

_HOMES = {
    "AsyncTimeline": "asynchronous",
    "Consumer": "consumer",
    "Kind": "wire",
    "Message": "consumer",
    "Producer": "producer",
    "RefusedRow": "error",
    "RefusedRows": "error",
    "Scheduled": "outgoing",
    "Timeline": "timeline",
    "TimelineError": "error",
    "TopicStatus": "wire",
}


def __getattr__(name: str) -> object:
    """Return a part of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
