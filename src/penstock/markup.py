"""HTML and SVG, written element by element.

Knows no page. Invariant: text that is not markup already never becomes markup, wherever it comes from.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

#: Controls, halves of characters, and what turns the direction of the text around it.
UNSHOWN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
#: Elements that have no end.
VOID = frozenset(("meta", "br", "hr", "col", "link", "input"))


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
