"""What the pages show in fences: blocks with their language, and why one of them is not run.

A comment right above a fence, which readers do not see, says so: <!-- not run: needs Docker -->. What is marked
<!-- runs with Spark --> is run by tests/pipeline/test_pages.py, on a session that is there already.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)

WITH_SPARK = "runs with Spark"
_MARK = re.compile(rf"<!-- (?:not run: (.+)|({WITH_SPARK})) -->")


class Block(NamedTuple):
    """One fence of a page."""

    page: str
    line: int
    language: str
    text: str
    #: Why it is not run with the others; empty if it is.
    excuse: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Command(NamedTuple):
    """One command of a console block, and what the page says it prints."""

    text: str
    prints: list[str]


def is_pipeline(block: Block) -> bool:
    """Tell whether a toml fence is of a pipeline, or part of one."""
    return block.language == "toml" and bool({"sources", "steps", "sinks"} & set(tomllib.loads(block.text)))


def blocks() -> list[Block]:
    """Return every fence of every page."""
    return [block for path in PAGES for block in _of(path)]


def _of(path: Path) -> list[Block]:
    found: list[Block] = []
    inside, language, excuse, start = False, "", "", 0
    text: list[str] = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            text.append(line)
        elif inside:
            page = path.relative_to(ROOT).as_posix()
            found.append(Block(page, start, language, "\n".join(text), excuse))
            inside = False
        else:
            mark = _MARK.fullmatch(lines[number - 2]) if number > 1 else None
            inside, language, excuse, start, text = True, line[3:], (mark[1] or mark[2]) if mark else "", number, []
    assert not inside, f"{path}: a fence is not closed"
    return found


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block: what stands behind a $, and what is printed below it."""
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        else:
            assert found, f"{block}: {line!r} stands before the first command"
            found[-1].prints.append(line)
    return found
