"""The tree itself: no class takes more than one can keep in mind."""

from __future__ import annotations

import ast
from pathlib import Path

import penstock

#: Longer ones are split by composition, into nouns (decision 013).
CLASS_LINES_MAX = 400


def test_no_class_is_longer_than_one_can_keep_in_mind() -> None:
    source = Path(penstock.__file__).parent
    lengths = {
        f"{path.relative_to(source)}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert len(lengths) > 500
    assert {name: lines for name, lines in lengths.items() if lines > CLASS_LINES_MAX} == {}
