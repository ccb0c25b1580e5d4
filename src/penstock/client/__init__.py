"""The SDK: publish, subscribe and read over Arrow Flight, blocking or with asyncio.

Needs pyarrow and numpy, and nothing else of what the server needs. Its parts are imported when they are first used,
because Spark's processes take the documents of `wire` from here and wait for nothing more.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.asynchronous import AsyncClient, AsyncSubscription
    from penstock.client.client import Client, Subscription
    from penstock.client.connection import Unreachable
    from penstock.client.incoming import Batch, Message
    from penstock.client.outgoing import Outgoing, Properties
    from penstock.client.publisher import Receipt
    from penstock.client.timeline import AsyncTimeline, Timeline
    from penstock.errors import PenstockError, Refusal

__all__ = [
    "AsyncClient",
    "AsyncSubscription",
    "AsyncTimeline",
    "Batch",
    "Client",
    "Message",
    "Outgoing",
    "PenstockError",
    "Properties",
    "Receipt",
    "Refusal",
    "Subscription",
    "Timeline",
    "Unreachable",
]

_HOMES = {
    "AsyncClient": "penstock.client.asynchronous",
    "AsyncSubscription": "penstock.client.asynchronous",
    "AsyncTimeline": "penstock.client.timeline.asynchronous",
    "Batch": "penstock.client.incoming",
    "Client": "penstock.client.client",
    "Message": "penstock.client.incoming",
    "Outgoing": "penstock.client.outgoing",
    "PenstockError": "penstock.errors",
    "Properties": "penstock.client.outgoing",
    "Receipt": "penstock.client.publisher",
    "Refusal": "penstock.errors",
    "Subscription": "penstock.client.client",
    "Timeline": "penstock.client.timeline.timeline",
    "Unreachable": "penstock.client.connection",
}


def __getattr__(name: str) -> object:
    """Return a part of the SDK."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
