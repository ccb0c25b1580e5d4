"""A node that listens, one per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A fresh node."""
    with Served(tmp_path / "data") as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0
