"""HTML and SVG, written element by element, and the pieces of which sections are made: tables, cells, figures.

Invariant: text that is not markup already never becomes markup, wherever it comes from.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.pipeline.jobs.report.draw import units

#: Controls, halves of characters, and what turns the direction of the text around it.
UNSHOWN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
#: Elements that have no end.
VOID = frozenset(("meta", "br", "hr", "col"))


class Markup(str):
    """Text that is written as it is."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """Return an element. `class_` is class, `stroke_width` is stroke-width; an attribute that is None is left out."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Return children one after the other, escaped where they are not markup."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int | float):
        return escape(str(children))
    return Markup("".join(map(join, children)))


def escape(text: str) -> Markup:
    """Return text as it is written in HTML; a character that is not to be shown becomes the replacement character."""
    return Markup(html.escape(UNSHOWN.sub("\ufffd", text), quote=True))


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


def nothing(text: str) -> Markup:
    """Return what is said in place of a table or plot."""
    return tag("div", text, class_="none")


def not_recorded(column: str) -> Markup:
    """Return what is said where the messages lack a column."""
    return nothing(f"Not recorded: the messages have no column {column}.")


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


def number(value: float, kind: str | None = None) -> Markup:
    """Return a cell with how many; zero is shown so that it is passed over."""
    return cell(units.count(value), kind=kind if value else "less")


def share(value: float) -> Markup:
    """Return a cell with a share of a whole, and a bar of that length."""
    bar = tag("i", style=f"width:calc((100% - 12px) * {min(max(value, 0), 1):.3f})") if value >= 0.005 else None
    return tag("td", bar, tag("b", units.share(value)), class_="share")


def time(value_us: float | None) -> Markup:
    """Return a cell with how long something took; a dash where it is not known."""
    return cell("–", kind="less") if value_us is None else cell(units.duration(value_us))
