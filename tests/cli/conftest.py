"""One node that the tests of client commands share; each uses topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.program import Node


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic name that no other test uses."""
    name: str = request.node.name
    return name.removeprefix("test_").replace("[", ".").replace("]", "")[:60]
