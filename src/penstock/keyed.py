"""Which shard a key goes to (ruling 27). Apart from `columns`, which readers without the server's packages import."""

from collections.abc import Iterable

import mmh3


def shard_of(key: bytes, shards: int) -> int:
    """Return the shard of a key; the same in every Penstock and in every client that wants to agree."""
    return int(mmh3.hash(key, signed=False)) % shards


def hashes_of(keys: Iterable[bytes | None]) -> list[int]:
    """Return what `shard_of` takes the modulo of, for each key; -1 for none. Budget: 0.1 us a key."""
    return [-1 if key is None else mmh3.hash(key, 0, False) for key in keys]
