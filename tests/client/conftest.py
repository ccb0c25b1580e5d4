"""A real node for the SDK, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import Node


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("sdk")) as running:
        yield running


@pytest.fixture(scope="session")
def url(node: Node) -> str:
    return url_of(node)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return str(request.node.name)[:60]


def url_of(node: Node) -> str:
    return f"grpc://127.0.0.1:{node.port('flight.port')}"


def restarted(directory: Path, port: int) -> Node:
    """Start a node again on the data and the Flight port of one that ended."""
    return Node(directory, f"--set=flight.port={port}")
