"""Storage policies: which metrics a subscription takes by the policy that their headers name.

Owns the header's name and the rule: window and retention must be those of a listed policy, the precision does not
count. What names no policy is no metric, and passes.
Invariant: a batch gets the verdicts its rows would get one by one. Needs nothing of the node: Spark executors run it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns import Column
from penstock.errors import ConfigError
from penstock.filters.header import members_of
from penstock.m3.policies import storage_policy

#: The header that says under which storage policy a metric was aggregated, such as 10s:2d.
HEADER = "m3-storage-policy"
#: Headers whose verdict is remembered, and how long a remembered one may be: together at most a few MB.
REMEMBERED_MAX = 4096
REMEMBERED_BYTES_MAX = 512


class StorageFilter:
    """The storage policies that one subscription takes."""

    __slots__ = ("_remembered", "_wanted")

    def __init__(self, policies: Iterable[str]) -> None:
        read = [storage_policy(text, "storage_policies") for text in policies]
        self._wanted = {(policy.window_ns, policy.retention_ns) for policy in read}
        self._remembered: dict[bytes, bool] = {}

    def takes(self, text: str) -> bool:
        """Tell whether a policy is one of those; what is no policy is none of them."""
        try:
            policy = storage_policy(text)
        except ConfigError:
            return False
        return (policy.window_ns, policy.retention_ns) in self._wanted

    def verdict(self, headers: bytes | None) -> bool:
        """Return whether a message with these headers is taken."""
        if not headers:
            return True
        found = self._remembered.get(headers)
        if found is None:
            text = (members_of(headers) or {}).get(HEADER)
            found = text is None or self.takes(text)
            if len(headers) <= REMEMBERED_BYTES_MAX:
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[headers] = found
        return found

    def verdicts(self, column: Column) -> npt.NDArray[np.bool_]:
        """Return one verdict per row of a column of headers. Budget: 100 us for 1,000 rows of 100 different headers."""
        if isinstance(column, list):
            return np.array([self.verdict(headers) for headers in column], np.bool_)  # type: ignore[arg-type]
        encoded = column.dictionary_encode()
        # The last one is for rows without headers.
        table = np.array([*map(self.verdict, encoded.dictionary.to_pylist()), True], np.bool_)
        indices: pa.Array = encoded.indices
        taken: npt.NDArray[np.bool_] = table[np.asarray(indices.fill_null(len(table) - 1))]
        return taken
