"""Prometheus' text format, written by hand: families of samples, each under its HELP and TYPE.

Knows nothing of what is measured. Invariant: whatever label values hold, a sample is one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = Mapping[str, str]
Sample: TypeAlias = "tuple[Labels, float]"
#: Labels, counts between bounds, sum.
Counted: TypeAlias = "tuple[Labels, Iterable[int], float]"
NO_LABELS: Labels = {}


class Exposition:
    """The text of one scrape, in the making; every sample has the constant labels besides its own."""

    def __init__(self, constant: Labels = NO_LABELS) -> None:
        self._lines: list[str] = []
        self._constant = _inside(constant)

    def family(self, name: str, kind: Literal["counter", "gauge"], text: str, samples: Iterable[Sample]) -> None:
        """Add one metric; a family without samples is left out."""
        found = [f"{name}{self._labelled(labels)} {_number(value)}" for labels, value in samples]
        if found:
            self._head(name, kind, text)
            self._lines += found

    def one(self, name: str, kind: Literal["counter", "gauge"], text: str, value: float) -> None:
        """Add one metric that has no labels."""
        self.family(name, kind, text, [(NO_LABELS, value)])

    def histogram(self, name: str, text: str, bounds: Iterable[float], found: Iterable[Counted]) -> None:
        """Add one histogram: counts between the bounds, one more for what lies beyond the last, and a sum."""
        shown = (*map(_number, bounds), "+Inf")
        lines: list[str] = []
        for labels, counts, total in found:
            inside = self._all(labels)
            before = f'{name}_bucket{{{inside},le="' if inside else f'{name}_bucket{{le="'
            below = 0
            for bound, count in zip(shown, counts, strict=True):
                below += count
                lines.append(f'{before}{bound}"}} {below}')
            lines.append(f"{name}_sum{self._labelled(labels)} {_number(total)}")
            lines.append(f"{name}_count{self._labelled(labels)} {below}")
        if lines:
            self._head(name, "histogram", text)
            self._lines += lines

    def text(self) -> str:
        """Return everything added so far."""
        return "\n".join(self._lines) + "\n"

    def _labelled(self, labels: Labels) -> str:
        inside = self._all(labels)
        return "{" + inside + "}" if inside else ""

    def _all(self, labels: Labels) -> str:
        if not self._constant:
            return _inside(labels)
        return f"{_inside(labels)},{self._constant}" if labels else self._constant

    def _head(self, name: str, kind: str, text: str) -> None:
        self._lines.append(f"# HELP {name} {text}")
        self._lines.append(f"# TYPE {name} {kind}")


def _inside(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)
