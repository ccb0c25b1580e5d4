"""Globs: `*`, `?`, `[..]`, `{a,b}` and backslash, as the regular expression that means the same.

Knows nothing of headers. Invariant: the expression it makes is one that RE2 takes, and covers the whole value.
"""

from __future__ import annotations


class BadGlob(ValueError):
    """A glob that cannot be read; the text says where."""


def regex_of(glob: str) -> str:
    """Return the RE2 expression that matches exactly what a glob matches; raises BadGlob."""
    out: list[str] = []
    at = depth = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "*":
            out.append(".*")
        elif char == "?":
            out.append(".")
        elif char == "[":
            at = _class(glob, at, out)
        elif char == "{":
            depth += 1
            out.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            out.append(")")
        elif char == "," and depth:
            out.append("|")
        elif char == "\\":
            if at == len(glob):
                raise BadGlob("a backslash at the end escapes nothing")
            out.append(_literal(glob[at]))
            at += 1
        else:
            out.append(_literal(char))
    if depth:
        raise BadGlob("a { is never closed")
    return rf"\A(?s:{''.join(out)})\z"


def _class(glob: str, at: int, out: list[str]) -> int:
    """Translate what follows a [ and return the place after its ]."""
    inverse = glob.startswith("!", at)
    at += inverse
    # A ] that comes first is one of the characters, as in a shell.
    end = glob.find("]", at + 1)
    if end < 0:
        raise BadGlob("a [ is never closed")
    inner, parts, place = glob[at:end], list[str](), 0
    while place < len(inner):
        if inner[place + 1 : place + 2] == "-" and place + 2 < len(inner):
            low, high = inner[place], inner[place + 2]
            if low > high:
                raise BadGlob(f"the range {low}-{high} runs backwards")
            parts.append(f"{_literal(low)}-{_literal(high)}")
            place += 3
        else:
            parts.append(_literal(inner[place]))
            place += 1
    out.append(f"[{'^' if inverse else ''}{''.join(parts)}]")
    return end + 1


def _literal(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"
