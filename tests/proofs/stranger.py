"""Reads segments with pyarrow and with Polars and nothing else; runs where Penstock is not installed.

Standard input names one file a line. Standard output is one JSON object: whether Penstock can be imported, and the
rows of each file as either reader sees them, bytes as hex digits, nulls left out.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import polars
import pyarrow as pa


def by_pyarrow(path: str) -> list[dict[str, Any]]:
    """Return the rows as pyarrow reads them."""
    with pa.memory_map(path) as source, pa.ipc.open_stream(source) as reader:
        table = reader.read_all()
        table.validate(full=True)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


def by_polars(path: str) -> list[dict[str, Any]]:
    """Return the rows as Polars reads them."""
    return polars.read_ipc_stream(path, use_pyarrow=False).to_dicts()


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON can carry it."""
    return {
        name: value.hex() if isinstance(value, bytes) else value for name, value in row.items() if value is not None
    }


def main() -> None:
    """Read every file twice."""
    files = {
        path: {reader.__name__: [plain(row) for row in reader(path)] for reader in (by_pyarrow, by_polars)}
        for path in sys.stdin.read().splitlines()
    }
    penstock = importlib.util.find_spec("penstock") is not None
    json.dump({"penstock": penstock, "files": files}, sys.stdout)


if __name__ == "__main__":
    main()
