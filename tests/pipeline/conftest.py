"""One Spark session for all tests of the pipeline, and an empty data directory for each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline import session
from tests.pipeline.data import Data

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    before = dict(os.environ)
    # Workers see nothing of pytest's path.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "1",
    }
    made = session("tests", master="local[2]", quick=True, options=options)
    yield made
    made.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")
