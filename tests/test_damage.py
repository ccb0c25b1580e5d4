"""A short form of the proof of damage: one file of every kind, damaged in every way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.proofs.damage import Case, Site, cases, kind_of, sites, tried


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> list[Site]:
    return sites(tmp_path_factory.mktemp("damage"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def of_every_kind(site: Site, random: Random) -> list[Case]:
    """Return the cases of the newest file of every kind."""
    every = list(cases(site, random, 2, all_bytes=False))
    newest = {kind_of(case.file): case.file for case in every}
    return [case for case in every if case.file in newest.values()]


@pytest.mark.parametrize("number", [0, 1], ids=["stopped", "killed"])
def test_damaged_file_costs_no_more_than_what_is_in_it(left: list[Site], number: int, tmp_path: Path) -> None:
    found = of_every_kind(left[number], Random())
    assert len({kind_of(case.file) for case in found}) == 10
    wrong = [(str(case), text) for case in found if (text := tried(left[number], case, tmp_path / "work")[1])]
    assert wrong == []
