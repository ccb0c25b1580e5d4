"""One node for everybody here: workers of others take longer to start than it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.dialects.sqs.config import SqsConfig
from tests.served import Served
from tests.sqs.boto import Boto


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("aws"), sqs=SqsConfig(port=0)) as served:
        yield served


@pytest.fixture(scope="package")
def port(node: Served) -> int:
    return node.ports["sqs.port"]


@pytest.fixture(scope="package")
def boto(port: int) -> Iterator[Boto]:
    with Boto(port) as client:
        yield client
