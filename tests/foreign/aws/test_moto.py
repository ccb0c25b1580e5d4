"""The same boto3 at moto's server and at a node: both answer as Amazon does, or the difference is written down."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.foreign.aws.cases import CASES
from tests.foreign.aws.programs import module, program, variables
from tests.proofs.environment import PROJECT
from tests.served import PATIENCE_S
from tests.sqs.boto import Boto

DOC = Path(PROJECT / "docs/dialects/queues.md")


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boto]:
    program("python")
    with (tmp_path_factory.mktemp("moto") / "log").open("w+b") as log:
        server = subprocess.Popen(
            module("moto_server"),
            cwd=PROJECT,
            env=variables(0),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        with server.stdin, server.stdout:
            try:
                line = server.stdout.readline()
                assert line.strip().isdigit(), log.read()
                with Boto(int(line)) as client:
                    yield client
            finally:
                server.kill()
                server.wait(PATIENCE_S)


def named(name: str) -> str:
    return name.replace("_", "-")[:60]


@pytest.mark.parametrize("name", CASES)
def test_a_node_answers_as_amazon_does(boto: Boto, name: str) -> None:
    assert CASES[name].ask(boto, named(name)) == CASES[name].here


@pytest.mark.parametrize("name", CASES)
def test_moto_answers_as_it_is_said_to(moto: Boto, name: str) -> None:
    assert CASES[name].ask(moto, named(name)) == CASES[name].moto


def test_every_difference_is_in_the_manual_and_no_other() -> None:
    different = {name.replace("_", " ") for name, case in CASES.items() if not case.is_agreed}
    _, _, rest = DOC.read_text().partition("### Beside moto and ElasticMQ")
    table = rest.partition("\n## ")[0]
    listed = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert set(listed[1:]) == different
    assert len(listed) == len(set(listed))
