"""A node that speaks SQS, and boto3 at it; each once for a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.dialects.sqs.config import SqsConfig
from tests.served import Served
from tests.sqs.boto import Boto


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("sqs"), sqs=SqsConfig(port=0)) as served:
        yield served


@pytest.fixture(scope="module")
def boto(node: Served) -> Iterator[Boto]:
    with Boto(node.ports["sqs.port"]) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A queue's name that no other test uses."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[-70:]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"
