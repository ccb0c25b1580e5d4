"""Cost of headers, header filters, tags and sampling, and of the connection layers: CPU per batch and per message.

Run: python -m bench.micro.headers
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from bench.micro.traffic import cpu_ns
from penstock.filters import sample
from penstock.filters.header import HeaderReader, check
from penstock.filters.match import EQUAL, GLOB, LIST, REGEX, HeaderFilter
from penstock.filters.tag import TagTable, grouped
from penstock.wire.layers import Deflate, Layer, Snappy

TAGS = 100


def line(name: str, rows: int, call: Callable[[], object]) -> None:
    """Print one measurement."""
    cost_ns = cpu_ns(call)
    print(f"{name:<52} {rows:>7,} rows: {cost_ns / 1e3:9.2f} us, {cost_ns / rows:8.1f} ns/message")


def header(tag: int, trace: int | None = None) -> bytes:
    """Return a header as a tagging producer sends it."""
    members = {"##client_dispatch_tag": f"tag-{tag}", "region": "eu" if tag % 2 else "us"}
    if trace is not None:
        members["##trace_id"] = str(trace)
    return json.dumps(members).encode()


def reading(repeated: list[bytes | None], unique: list[bytes | None]) -> None:
    """Print what it costs to check headers and to fill columns."""
    reader = HeaderReader()
    rows = len(repeated)
    line("columns, 100 different headers, seen before", rows, partial(reader.columns, repeated))
    line("columns, the same as an Arrow column", rows, partial(reader.columns, pa.array(repeated, pa.binary())))
    # Each time a new reader, which remembers nothing.
    line("columns, every header new (trace ids)", rows, lambda: HeaderReader().columns(unique))


def filtering(repeated: list[bytes | None], unique: list[bytes | None]) -> None:
    """Print what each type of header filter costs."""
    rules = {
        "equal": HeaderFilter(EQUAL, "region", "eu"),
        "regex": HeaderFilter(REGEX, "region", "^e"),
        "glob": HeaderFilter(GLOB, "region", "e*"),
        "any of 2": HeaderFilter(LIST, "any", "", [("region", "eu"), ("region", "us")]),
    }
    for name, rule in rules.items():
        line(f"filter {name}, 100 different headers", len(repeated), partial(rule.verdicts, pa.array(repeated)))
        line(f"filter {name}, all different", len(unique), partial(rule.verdicts, pa.array(unique)))


def tagging(rows: int) -> None:
    """Print what codes, groups and draws cost."""
    table = TagTable()
    tags = pa.array([f"tag-{row * 7 % TAGS}" for row in range(rows)])
    codes = table.codes(tags)
    ids = np.arange(rows)
    line("tag codes, 100 tags", rows, partial(table.codes, tags))
    line("rows grouped by code", rows, partial(grouped, codes))
    line("sample", rows, partial(sample.keep, ids, 42))


def layering() -> None:
    """Print the throughput of the compressing layers on something like JSON."""
    plain = b"".join(json.dumps({"id": n, "name": f"user-{n * 7919 % 1000}"}).encode() for n in range(6_000))[:262_144]
    makers: dict[str, Callable[[], Layer]] = {"snappy": Snappy, "deflate 6": Deflate, "deflate 1": partial(Deflate, 1)}
    for name, make in makers.items():
        wire = make().send(plain)
        small = make()
        sent_ns, read_ns = cpu_ns(lambda: make().send(plain)), cpu_ns(lambda: make().receive(wire))  # noqa: B023
        one_ns = cpu_ns(partial(small.send, plain[:100]))
        print(
            f"{name:<10} 256 KiB to {len(wire) / len(plain):4.0%}: send {len(plain) / sent_ns * 1e3:6.0f} MB/s, "
            f"receive {len(plain) / read_ns * 1e3:6.0f} MB/s; send 100 B {one_ns / 1e3:.1f} us"
        )


def main() -> None:
    """Print every number."""
    reader, one, traced = HeaderReader(), header(1), header(1, 5)
    line("check, new", 1, partial(check, traced))
    line("check, seen before", 1, partial(reader.check, one))
    line("columns of one message", 1, partial(reader.columns, [one]))
    line("filter equal, one message", 1, partial(HeaderFilter(EQUAL, "region", "eu").verdict, one))
    line("filter regex, one message, value seen before", 1, partial(HeaderFilter(REGEX, "region", "^e").verdict, one))
    line("tag code, one message", 1, partial(TagTable().code, "tag-1"))
    line("sample, one message", 1, partial(sample.keep_one, 12345, 42))
    for rows in (10, 100, 1_000, 10_000):
        repeated: list[bytes | None] = [header(row * 7 % TAGS) for row in range(rows)]
        unique: list[bytes | None] = [header(row * 7 % TAGS, row) for row in range(rows)]
        reading(repeated, unique)
        filtering(repeated, unique)
        tagging(rows)
    layering()


if __name__ == "__main__":
    main()
