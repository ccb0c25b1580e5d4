"""A table as bytes, as the registry keeps it: runs of buckets with one owner, packed.

65,535 buckets of 1,000 consumers take a few kB after the first deal and some hundred after long churn, below what a
registry takes as one value.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

from penstock.dealing.ranges import NOBODY, Owners
from penstock.dealing.table import BUCKETS_MAX, DealerName, Member, Table
from penstock.errors import CorruptionError

#: No table is larger once unpacked: a million members with long names.
UNPACKED_BYTES_MAX = 1 << 28

_RUN = np.dtype([("owner", "<i4"), ("length", "<u2")])


class _Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    dealer: DealerName
    epoch: int
    window: int
    members: list[tuple[str, str]]
    primary: bytes
    #: Where the owner of a bucket stands in the rack itself, the run says so with NOBODY.
    by_rack: list[bytes]


def pack(table: Table) -> bytes:
    """Return a table as bytes."""
    by_rack = [_runs(np.where(owners == table.primary, NOBODY, owners)) for owners in table.by_rack]
    members = [(member.rack, member.name) for member in table.members]
    packed = _Packed(1, table.dealer, table.epoch, table.window, members, _runs(table.primary), by_rack)
    return zlib.compress(msgspec.msgpack.encode(packed))


def unpack(data: bytes) -> Table:
    """Return the table that bytes hold; CorruptionError if they hold none."""
    try:
        inflate = zlib.decompressobj()
        plain = inflate.decompress(data, UNPACKED_BYTES_MAX)
        if not inflate.eof:
            raise ValueError("it is cut off, or too large")
        return _table(msgspec.msgpack.decode(plain, type=_Packed))
    except (ValueError, zlib.error) as error:
        raise CorruptionError(f"these {len(data)} bytes are no table of buckets: {error}") from error


def _table(packed: _Packed) -> Table:
    if packed.version != 1:
        raise ValueError(f"it is of version {packed.version}, and this node reads version 1")
    members = tuple(Member(*member) for member in packed.members)
    primary = _owners(packed.primary, len(members))
    by_rack = tuple(
        np.where(owners == NOBODY, primary, owners)
        for owners in (_owners(runs, len(members)) for runs in packed.by_rack)
    )
    racks = len({member.rack for member in members}) if packed.dealer == "rack" else 0
    if len(by_rack) != racks or any(len(owners) != len(primary) for owners in by_rack):
        raise ValueError("its racks are not those of its members")
    if len({member.name for member in members}) < len(members) or (members and (primary < 0).any()):
        raise ValueError("its members do not own its buckets")
    return Table(
        dealer=packed.dealer,
        members=members,
        primary=primary,
        by_rack=by_rack,
        epoch=packed.epoch,
        window=packed.window,
    )


def _runs(owners: Owners) -> bytes:
    cuts = np.concatenate(([0], np.flatnonzero(owners[1:] != owners[:-1]) + 1, [len(owners)]))
    runs = np.empty(len(cuts) - 1, _RUN)
    runs["owner"] = owners[cuts[:-1]]
    runs["length"] = np.diff(cuts)
    # Numbers side by side by their kind pack to half the size.
    return runs["owner"].tobytes() + runs["length"].tobytes()


def _owners(data: bytes, members: int) -> Owners:
    count, rest = divmod(len(data), _RUN.itemsize)
    if rest or not count:
        raise ValueError("a run of buckets is cut off")
    owners, lengths = np.frombuffer(data, "<i4", count), np.frombuffer(data, "<u2", count, offset=4 * count)
    if owners.min() < NOBODY or owners.max() >= members:
        raise ValueError("a bucket belongs to somebody who is no member")
    if not 1 <= int(lengths.sum(dtype=np.int64)) <= BUCKETS_MAX:
        raise ValueError(f"it has {lengths.sum(dtype=np.int64)} buckets")
    return np.repeat(owners.astype(np.int32), lengths)
