"""The versions of leases: which number comes next, such that no receipt of an earlier lease is ever good again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Versions of leases have as many bits as a journal entry has room for. The upper ones are those of the shard's start.
VERSION_MAX = (1 << 31) - 1
VERSION_COUNT = (1 << 19) - 1


class Versions:
    """The versions that one subscription gives out over one shard."""

    __slots__ = ("_below", "last")

    def __init__(self, last: int) -> None:
        #: The highest one that was given out.
        self.last = last
        self.begin_anew()

    def begin_anew(self) -> None:
        """Give out no more that was given out: from now on they are above the last one."""
        self._below = self.last if ~self.last & VERSION_COUNT else self.last - VERSION_COUNT

    def first(self) -> int:
        """Return that of a row's first lease."""
        self.last = max(self.last, self._below + 1)
        return self._below + 1

    def after(self, versions: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Return the versions after some; those of a life before are as far from it as none at all."""
        most = self._below | VERSION_COUNT
        grown = np.where((versions > self._below) & (versions < most), versions, self._below) + 1
        self.last = max(self.last, int(grown.max(initial=0)))
        return grown.astype(np.uint32, copy=False)
