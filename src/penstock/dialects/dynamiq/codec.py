"""Dynamiq's bytes: names, ids and messages in JSON. Pure.

Invariant: whatever a body holds, what a client makes of its element is that body again.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from penstock.columns import OFFSET_BITS
from penstock.delivery.source import Delivery
from penstock.message import Batch
from penstock.shown import SPACE, hidden_ids, shown_ids

#: What rows say of where they came from.
SOURCE = "dynamiq"

is_name = re.compile(r"[A-Za-z0-9._-]{1,128}").fullmatch

_ID = re.compile("0|[1-9][0-9]{0,18}").fullmatch


class Element(msgspec.Struct, omit_defaults=True):
    """One message as a client gets it."""

    id: str
    body: str
    #: base64 where the body is no UTF-8.
    encoding: str = ""


def element(shown: int, batch: Batch, row: int) -> Element:
    """Return one message."""
    body = memoryview(batch.body)[int(batch.cuts[row]) : int(batch.cuts[row + 1])]
    try:
        return Element(str(shown), str(body, "utf-8"))
    except UnicodeDecodeError:
        return Element(str(shown), b64encode(body).decode("ascii"), "base64")


def elements(deliveries: Iterable[Delivery], key: int) -> tuple[list[Element], list[int]]:
    """Return all messages of a receive, and the ids they are shown under. Budget: 1 us a row."""
    found: list[Element] = []
    ids: list[int] = []
    for delivery in deliveries:
        rows, batch = delivery.picks(), delivery.batch
        shown = shown_ids((delivery.shard << OFFSET_BITS) + batch.first + rows + 1, key).tolist()
        found += [element(id_, batch, row) for id_, row in zip(shown, rows.tolist(), strict=True)]
        ids += shown
    return found, ids


def core_ids(texts: Sequence[str], key: int) -> list[int]:
    """Return the ids behind those that a client sent, in order; what is none is left out."""
    shown = [int(text) for text in texts if _ID(text) and int(text) < SPACE]
    return hidden_ids(np.array(shown, np.int64), key).tolist() if shown else []
