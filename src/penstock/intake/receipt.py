"""What a publisher is told: where its rows went."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from penstock.columns import Offsets
from penstock.errors import Refusal
from penstock.message import Batch


class Receipt(msgspec.Struct, eq=False):
    """Where published rows went: ids first .. first + count - 1, unless some are elsewhere."""

    first_id: int
    count: int
    #: The batch they are in, where they are all in one.
    batch: Batch | None = None
    #: Row -> id of those rows that are elsewhere: they repeat an older message, or their key has another shard.
    elsewhere: dict[int, int] | None = None
    #: How many of the rows repeat an older message, and were not stored again.
    repeated: int = 0

    def ids(self) -> list[int]:
        """Return the id of each row, in order."""
        elsewhere = self.elsewhere
        if not elsewhere:
            return list(range(self.first_id, self.first_id + self.count))
        ids, next_id = [], self.first_id
        for row in range(self.count + len(elsewhere)):
            if row in elsewhere:
                ids.append(elsewhere[row])
            else:
                ids.append(next_id)
                next_id += 1
        return ids

    def column(self) -> Offsets:
        """Return the same as a column."""
        if self.elsewhere:
            return np.array(self.ids(), np.int64)
        return np.arange(self.first_id, self.first_id + self.count)


class PartRefusal(Refusal):
    """Rows went to several shards, and not all of these took theirs."""

    def __init__(self, code: str, text: str, ids: dict[int, int]) -> None:
        super().__init__(code, text)
        #: Row -> id of those that are stored.
        self.ids = ids


#: Hears once: where the rows went, or None and why they did not.
Published: TypeAlias = Callable[[Receipt | None, BaseException | None], None]
#: Whom to tell, the first of its rows in a group, and how many they are.
Owner: TypeAlias = tuple[Published, int, int]
