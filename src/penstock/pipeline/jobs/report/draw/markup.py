"""The pieces of which sections of the page are made: tables, cells, figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.markup import Child, Markup, tag
from penstock.pipeline.jobs.report.draw import units


class Section(NamedTuple):
    """A part of the page."""

    anchor: str
    title: str
    lead: str
    body: Sequence[Child]

    def markup(self) -> Markup:
        """Return it as HTML."""
        lead = tag("p", self.lead) if self.lead else None
        return tag("section", tag("h2", self.title), lead, self.body, id=self.anchor)


class Absent(NamedTuple):
    """A part that has nothing to say, and why; the page only mentions it."""

    title: str
    why: str


def not_recorded(column: str) -> str:
    """Return what is said where the messages lack a column."""
    return f"Not recorded: the messages have no column {column}."


def figure(heading: str, text: str, *children: Child) -> Markup:
    """Return a plot with its heading."""
    return tag("figure", tag("h3", tag("bdi", heading)), tag("p", text) if text else None, children)


def plots(*children: Child, small: bool = False) -> Markup:
    """Return plots side by side, as many as there is room for."""
    return tag("div", children, class_="plots small" if small else "plots")


def table(heads: Sequence[str], rows: Iterable[Sequence[Markup]], names: int = 1, texts: Sequence[int] = ()) -> Markup:
    """Return a table whose first columns are names; `texts` are others that begin left."""
    head = [tag("th", text, class_="name" if at < names or at in texts else None) for at, text in enumerate(heads)]
    body = [tag("tr", row) for row in rows]
    return tag("div", tag("table", tag("thead", tag("tr", head)), tag("tbody", body)), class_="table")


def name(text: str) -> Markup:
    """Return a cell with a name, whole when the pointer is on it."""
    return tag("td", tag("bdi", text), class_="name", title=text)


def cell(*children: Child, kind: str | None = None) -> Markup:
    """Return a cell; `kind` is less, good, warn, bad or text."""
    return tag("td", children, class_=kind)


def number(value: float, kind: str | None = None, *, exact: bool = True) -> Markup:
    """Return a cell with how many, to the last one under the pointer; zero is shown so that it is passed over."""
    text = units.count(value) if exact else f"≈{units.THIN}{units.count(value)}"
    return tag("td", text, class_=kind if value else "less", title=f"{value:,}" if value >= 1_000_000 else None)


def share(value: float) -> Markup:
    """Return a cell with a share of a whole, and a bar of that length."""
    bar = tag("i", style=f"width:calc((100% - 12px) * {min(max(value, 0), 1):.3f})") if value >= 0.005 else None
    return tag("td", bar, tag("b", units.share(value)), class_="share")


def time(value_us: float | None, *, exact: bool = True) -> Markup:
    """Return a cell with how long something took; a dash where it is not known."""
    if value_us is None:
        return cell("–", kind="less")
    return cell(units.duration(value_us) if exact else f"≈{units.THIN}{units.duration(value_us)}")
