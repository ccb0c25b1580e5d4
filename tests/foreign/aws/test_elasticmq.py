"""The same boto3 at ElasticMQ: it answers as Amazon does, or the difference is written down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.peers import ElasticMq
from bench.supply import Missing
from tests.foreign.aws.cases import CASES, UNASKED
from tests.foreign.aws.test_moto import named
from tests.sqs.boto import REGION, Boto

SETTINGS = f'aws {{ region = {REGION}, accountId = "000000000000" }}\n'


@pytest.fixture(scope="module")
def elasticmq() -> Iterator[Boto]:
    try:
        server = ElasticMq()
    except Missing as missing:
        pytest.fail(str(missing))
    try:
        with server.settings.open("a") as settings:
            settings.write(SETTINGS)
        server.start()
        with Boto(server.port) as client:
            yield client
    finally:
        server.remove()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.elasticmq is not UNASKED])
def test_elasticmq_answers_as_it_is_said_to(elasticmq: Boto, name: str) -> None:
    assert CASES[name].ask(elasticmq, named(name)) == CASES[name].elasticmq
