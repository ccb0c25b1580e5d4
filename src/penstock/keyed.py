"""Which shard a key goes to (ruling 27). Apart from `columns`, which readers without the server's packages import."""

import mmh3


def shard_of(key: bytes, shards: int) -> int:
    """Return the shard of a key; the same in every Penstock and in every client that wants to agree."""
    return int(mmh3.hash(key, signed=False)) % shards
