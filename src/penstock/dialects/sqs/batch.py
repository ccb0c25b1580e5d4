"""Several entries in one request: what is no batch, and what is told of an entry that was refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from penstock.dialects.sqs.codec import shapes
from penstock.dialects.sqs.faults import Fault

BATCH_MAX = 10
ID_LETTERS_MAX = 80

_ID = re.compile(r"[A-Za-z0-9_-]+").fullmatch


class Entry(Protocol):
    """One of several."""

    @property
    def id(self) -> str:
        """What its sender calls it."""


def check_batch(entries: Sequence[Entry]) -> None:
    """Refuse what is no batch."""
    if not entries:
        raise Fault("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > BATCH_MAX:
        text = f"Maximum number of entries per request are {BATCH_MAX}. You have sent {len(entries)}."
        raise Fault("TooManyEntriesInBatchRequest", text)
    ids = [entry.id for entry in entries]
    if not all(ids) or max(map(len, ids)) > ID_LETTERS_MAX or _ID("".join(ids)) is None:
        raise Fault(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most "
            f"{ID_LETTERS_MAX} letters long.",
        )
    if len(set(ids)) < len(ids):
        again = next(id_ for id_ in ids if ids.count(id_) > 1)
        raise Fault("BatchEntryIdsNotDistinct", f"Id {again} repeated.")


def failed(id_: str, fault: Fault) -> shapes.Failed:
    """Return what is told of one entry that was refused."""
    return shapes.Failed(id=id_, sender_fault=fault.kind.is_sender, code=fault.kind.code, message=str(fault))
