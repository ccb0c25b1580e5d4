"""A batch and a merge that are cut off at each of their steps, as a process that is killed there leaves them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.lake import deltalog, parquet
from penstock.pipeline.lake.home import Home
from penstock.pipeline.lake.table import Table, table
from tests.pipeline.lake.frames import by_duckdb, leftovers, offsets, rows


class Killed(BaseException):
    """No code of a table catches this."""


@pytest.fixture(params=["delta", "parquet"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return table(str(tmp_path / "my lake"), format=request.param)


def steps(monkeypatch: pytest.MonkeyPatch, dies_at: int) -> list[str]:
    """Have the process die at a call of the file system or the log, and return the calls so far."""
    calls: list[str] = []

    def dying(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if len(calls) >= dies_at:
                raise Killed
            calls.append(name)
            return real(*args, **options)

        return call

    for name in ("replace", "unlink"):
        monkeypatch.setattr(os, name, dying(name, getattr(os, name)))
    monkeypatch.setattr(Home, "swept", dying("swept", Home.swept))
    monkeypatch.setattr(deltalog, "commit", dying("commit", deltalog.commit))
    monkeypatch.setattr(parquet, "_finish", dying("finish", parquet._finish))
    return calls


def test_a_batch_that_was_cut_off_anywhere_is_there_once(
    spark: SparkSession, lake: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append(rows(spark, 0, 10), "query", 0)
    first = 10
    for dies_at in itertools.count():
        frame = rows(spark, first, first + 10)
        with monkeypatch.context() as patch:
            calls = steps(patch, dies_at)
            try:
                lake.append(frame, "query", dies_at + 1)
            except Killed:
                pass
        died = len(calls) == dies_at
        lake.append(frame.coalesce(1), "query", dies_at + 1)
        first += 10
        assert lake.facts().rows == first, calls
        assert leftovers(lake) == [], calls
        if not died:
            break
    assert len(calls) >= 5, calls
    assert offsets(lake.read(spark)) == list(range(first))
    assert by_duckdb(lake, 'SELECT count(*), count(DISTINCT "offset") FROM t') == [(first, first)]


def test_a_merge_that_was_cut_off_anywhere_loses_and_doubles_nothing(
    spark: SparkSession, lake: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(2):
        lake.append(rows(spark, batch * 10, batch * 10 + 10), "query", batch)
    for dies_at in itertools.count():
        with monkeypatch.context() as patch:
            calls = steps(patch, dies_at)
            try:
                lake.compact()
            except Killed:
                pass
        if len(calls) < dies_at:
            break
        assert lake.facts().rows == 20 + dies_at, calls
        assert lake.append(rows(spark, 20 + dies_at, 21 + dies_at), "query", 2 + dies_at) == 1
        assert lake.facts().rows == 21 + dies_at, calls
    assert len(calls) >= 5, calls
    lake.compact(keep_hours=0)
    assert leftovers(lake) == []
    assert lake.facts().files == 1
    assert offsets(lake.read(spark)) == list(range(20 + dies_at))
