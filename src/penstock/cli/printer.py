"""What a command says: tables for a person, JSON for a script, and the same facts in both.

Owns standard output. rich is loaded on a terminal only; a pipe gets plain aligned text.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import msgspec


class Printer:
    """Where the output of one command goes."""

    def __init__(self, *, json: bool = False, hurry: bool = True, stream: TextIO | None = None) -> None:
        self.json = json
        #: Every line shall be seen at once; without it a long output is several times faster.
        self.hurry = hurry
        self.stream = stream if stream is not None else sys.stdout

    @property
    def terminal(self) -> bool:
        """Tell whether a person reads this."""
        return self.stream.isatty()

    def done(self, document: object, text: str) -> None:
        """Say that something happened: the document to a script, the sentence to a person."""
        if self.json:
            self.document(document)
        else:
            self.line(text)

    def table(self, document: object, columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str = "") -> None:
        """Show rows: the document to a script, a table to a person, `empty` if there is nothing in it."""
        if self.json:
            self.document(document)
        elif not rows and empty:
            self.line(empty)
        elif self.terminal:
            self._rich_table(columns, rows)
        else:
            self._plain_table(columns, rows)

    def fields(self, document: object, fields: Mapping[str, str]) -> None:
        """Show one thing: the document to a script, names and values to a person."""
        if self.json:
            self.document(document)
            return
        width = max(map(len, fields), default=0)
        for name, value in fields.items():
            self.line(f"{name:<{width}}  {value}".rstrip())

    def document(self, document: object) -> None:
        """Write one JSON document on one line; bytes are JSON already and pass as they are."""
        raw = document if isinstance(document, bytes) else msgspec.json.encode(document)
        self.line(raw.decode())

    def line(self, text: str) -> None:
        """Write one line."""
        self.stream.write(text + "\n")
        if self.hurry:
            self.stream.flush()

    def bytes(self, data: bytes) -> None:
        """Write a body as it is, and a line end."""
        if self.hurry:
            self.stream.flush()
        self.stream.buffer.write(data + b"\n")
        if self.hurry:
            self.stream.buffer.flush()

    def flush(self) -> None:
        """Let everything written so far be seen."""
        self.stream.flush()

    def _rich_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for at, column in enumerate(columns):
            table.add_column(column, justify="right" if _numeric(rows, at) else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        Console(file=self.stream).print(table)

    def _plain_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        right = [_numeric(rows, at) for at in range(len(columns))]
        for row in (columns, *rows):
            cells = [
                f"{cell:>{width}}" if flush else f"{cell:<{width}}"
                for cell, width, flush in zip(row, widths, right, strict=True)
            ]
            self.line("  ".join(cells).rstrip())


def complain(text: str) -> None:
    """Write one line about a failure to standard error."""
    print(f"penstock: {text}", file=sys.stderr)


def moment(text: str) -> str:
    """Return a time of the API's as people read it: to the millisecond, still in UTC."""
    day, _, clock = text.rstrip("Z").partition("T")
    return f"{day} {clock[:12]}Z" if clock else text


def size(size_bytes: int) -> str:
    """Return a number of bytes as people read it, rounded."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _numeric(rows: Sequence[Sequence[str]], at: int) -> bool:
    cells = [row[at] for row in rows if row[at] not in ("", "-")]
    return bool(cells) and all(cell.replace(",", "").isdigit() for cell in cells)
