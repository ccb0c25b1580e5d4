"""YAML, as much of it as configuration files are written in: maps, lists and plain values, by indentation.

Anchors, tags, block text and maps in braces are refused with their line. Invariant: what is read, any YAML reader reads
the same way.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.errors import ConfigError

_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s\[\]{},"'#&*!|>%@`-][^:#]*?|-[^\s:#][^:#]*?)\s*:(?:\s+(.*))?""").fullmatch
_NUMBER = re.compile(r"[-+]?[0-9]+").fullmatch
_FRACTION = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?").fullmatch
_WORDS: dict[str, object] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
#: Nesting beyond this is no configuration.
DEPTH_MAX = 50


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def read(text: str) -> object:
    """Return what a document says; ConfigError names the line that is not understood."""
    lines: list[_Line] = []
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = _without_comment(raw).rstrip()
        if not stripped.strip() or (stripped == "---" and not lines):
            continue
        indent = len(stripped) - len(stripped.lstrip(" "))
        if stripped[indent] == "\t":
            raise ConfigError(f"line {number}: indent with spaces, not with tabs")
        lines.append(_Line(number, indent, stripped[indent:]))
    if not lines:
        return None
    reader = _Reader(lines)
    value = reader.block(lines[0].indent, 0)
    if reader.at < len(lines):
        raise ConfigError(f"line {lines[reader.at].number} is not understood: {lines[reader.at].text}")
    return value


class _Reader:
    """Where in a document one is."""

    def __init__(self, lines: list[_Line]) -> None:
        self.lines = lines
        self.at = 0

    def block(self, indent: int, depth: int) -> object:
        """Read what stands at an indentation: a list, a map, or one value."""
        line = self.lines[self.at]
        if depth > DEPTH_MAX:
            raise ConfigError(f"line {line.number}: nested too deep")
        if _is_item(line.text):
            return self._list(indent, depth)
        if _KEY(line.text):
            return self._map(indent, depth)
        self.at += 1
        return _scalar(line.text, line.number)

    def _list(self, indent: int, depth: int) -> list[object]:
        found = []
        while self._here(indent) and _is_item(self.lines[self.at].text):
            line = self.lines[self.at]
            rest = line.text[1:].lstrip(" ")
            if rest:
                inner = indent + len(line.text) - len(rest)
                self.lines[self.at] = _Line(line.number, inner, rest)
                found.append(self.block(inner, depth + 1))
            else:
                self.at += 1
                found.append(self._below(indent, depth))
        return found

    def _map(self, indent: int, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        while self._here(indent) and not _is_item(self.lines[self.at].text):
            line = self.lines[self.at]
            pair = _KEY(line.text)
            if pair is None:
                raise ConfigError(f"line {line.number} is not understood: {line.text}; write name: value")
            key = str(_scalar(pair[1], line.number)) if pair[1][0] in "\"'" else pair[1]
            if key in found:
                raise ConfigError(f"line {line.number}: {key} is there twice")
            self.at += 1
            found[key] = _scalar(pair[2], line.number) if pair[2] else self._below(indent, depth, lists=True)
        return found

    def _below(self, indent: int, depth: int, *, lists: bool = False) -> object:
        """Read what is indented below a name, or for `lists` one that is not indented; nothing is null."""
        if self.at == len(self.lines):
            return None
        line = self.lines[self.at]
        if line.indent > indent or (lists and line.indent == indent and _is_item(line.text)):
            return self.block(line.indent, depth + 1)
        return None

    def _here(self, indent: int) -> bool:
        if self.at == len(self.lines):
            return False
        line = self.lines[self.at]
        if line.indent > indent:
            raise ConfigError(f"line {line.number}: its indentation fits nothing before it")
        return line.indent == indent


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _scalar(text: str, number: int) -> object:
    text = text.strip()
    if text[:1] in ('"', "'"):
        if len(text) < 2 or text[-1] != text[0] or (text[0] == '"' and "\\" in text):
            raise ConfigError(f"line {number}: {text} is no text in quotes, or one with escapes; write it plainly")
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1]
    if text[:1] == "[" and text[-1:] == "]":
        inner = text[1:-1].strip()
        return [_scalar(piece, number) for piece in inner.split(",")] if inner else []
    if text == "{}":
        return {}
    if text[:1] in "&*!|>%@`{[" and text:
        raise ConfigError(f"line {number}: {text} is YAML that is not read here; write the value itself")
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER(text):
        return int(text)
    return float(text) if _FRACTION(text) else text


def _without_comment(line: str) -> str:
    quote = ""
    for at, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and (at == 0 or line[at - 1] in " [,:"):
            quote = char
        elif char == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at]
    return line
