"""One shard of a topic's log: in files, or in memory where nobody asked to keep it.

Both have the same face, so that whoever publishes, reads or delivers need not know which it has.
"""

from __future__ import annotations

from penstock.budget import Share
from penstock.clock import Clock
from penstock.disk import Disk
from penstock.errors import CorruptionError
from penstock.log.file_shard import FileShard
from penstock.log.memory import MemoryShard
from penstock.log.quota import Quota
from penstock.log.recovery import close_open, recover
from penstock.log.state import RESERVED_BLOCK, StateFile
from penstock.log.weight import UNCHANGED, Measures
from penstock.settings import TopicSettings

Shard = FileShard | MemoryShard


def open_shard(
    disk: Disk,
    clock: Clock,
    path: str,
    number: int,
    settings: TopicSettings,
    *,
    strict: bool = False,
    measures: Measures = UNCHANGED,
    cache_bytes: int = 32 << 20,
    quota: Quota | None = None,
    memory: Share | None = None,
) -> Shard:
    """Create a shard, or recover what a directory holds; blocking.

    `measures` say what its rows weigh, and weighed; `memory` is shared by all that have no files.
    """
    disk.make(path)
    state = StateFile(disk, path)
    if settings.durability == "memory":
        return MemoryShard(disk, clock, path, number, settings, state, measures, memory)
    boot = disk.boot_id()
    unclean = not state.state.clean and state.state.boot != boot
    # After another boot the page cache shows what is on the disk.
    state.state.suspect = state.state.suspect and state.state.boot in (boot, "")
    found = recover(disk, path, state.state, measures=measures, before_jump=state.forget_boot)
    if strict and found.damaged:
        worst = found.damaged[0]
        rows = f"{worst.first} to {worst.end - 1}" if worst.end > worst.first else f"from {worst.first} on"
        raise CorruptionError(
            f"{path}: rows {rows} are damaged ({worst.reason}), and recovery is strict. "
            'Restore the directory from a backup, or set recovery = "cut" to go on without these rows.'
        )
    if not state.found and found.end > 0:
        # Nobody knows how far offsets were given out; one block is more than was ever reserved ahead of a row.
        state.state.reserved_end = found.end + 2 * RESERVED_BLOCK
    if found.end < state.state.reserved_end and (found.jump or unclean):
        found.end = state.state.reserved_end
        close_open(found)
    shard = FileShard(disk, clock, path, number, settings, state, found, measures, cache_bytes, quota or Quota())
    shard.begin(boot, found)
    return shard
