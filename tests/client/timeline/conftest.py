"""A node that speaks Flight, one per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flight.parts import Flown


@pytest.fixture
def flown(tmp_path: Path) -> Iterator[Flown]:
    """A fresh node; whatever its clients do to it, it finds no fault in itself."""
    with Flown(tmp_path / "data") as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0
