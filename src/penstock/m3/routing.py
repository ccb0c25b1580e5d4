"""RoutingPolicyConfig, the value in etcd that gives each traffic type its bit, and the keys it is found under.

| Message | # | Field | Type |
|---|---|---|---|
| RoutingPolicyConfig | 1 | traffic_types | map from name (string) to bit position (uint64) |

Invariant: a zero-byte value is a mapping without types, which is something else than no value. Order never counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.m3.wire import VARINT, bytes_field, fields, text_field
from penstock.varints import varint

#: The namespace of keys that M3 has without being told another one.
DEFAULT_NAMESPACE = "_kv"
TRAFFIC_BITS = 64


def decode(value: bytes) -> dict[str, int]:
    """Return the bit position of each traffic type, whatever number it is; raises BadMessage."""
    found: dict[str, int] = {}
    for field in fields(value):
        if field.number == 1:
            name, position = _entry(field.data())
            found[name] = position
    return found


def encode(traffic_types: Mapping[str, int]) -> bytes:
    """Return the value, its entries by name."""
    out = bytearray()
    for name, position in sorted(traffic_types.items()):
        # Position 0 is written: upstream writes both halves of a map's entry always.
        out += bytes_field(1, text_field(1, name) + varint(2 << 3 | VARINT) + varint(position))
    return bytes(out)


def keys(environment: str, key: str, namespace: str = "") -> tuple[str, ...]:
    """Return the keys in etcd that hold a policy, the first being the one to write.

    Without a namespace, or with M3's own, there is one. With another there are two: as M3 makes it, and as its
    documentation writes it.
    """
    if namespace.removeprefix("/") in ("", DEFAULT_NAMESPACE):
        return (f"{DEFAULT_NAMESPACE}/{environment}/{key}",)
    return f"{namespace}/{environment}/{key}", f"{DEFAULT_NAMESPACE}/{environment}/{namespace.strip('/')}/{key}"


def problems(traffic_types: Mapping[str, int]) -> list[str]:
    """Return everything that is wrong with a mapping, one sentence each."""
    found = []
    names_by_bit: dict[int, list[str]] = {}
    for name, bit in sorted(traffic_types.items()):
        if not name or not name.isprintable():
            found.append(f"{name!r} is no traffic type name")
        if type(bit) is not int or not 0 <= bit < TRAFFIC_BITS:
            found.append(f"{name} is bit {bit!r}; bits are 0 to {TRAFFIC_BITS - 1}")
        else:
            names_by_bit.setdefault(bit, []).append(name)
    for bit, names in sorted(names_by_bit.items()):
        if len(names) > 1:
            found.append(f"bit {bit} is given to {' and '.join(names)}")
    return found


def _entry(data: bytes) -> tuple[str, int]:
    name, position = "", 0
    for field in fields(data):
        if field.number == 1:
            name = field.text()
        elif field.number == 2:
            position = field.whole()
    return name, position
