"""The package on a real standalone cluster: installed everywhere, shipped as a zip, and through Spark Connect."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flight.parts import Flown
from tests.pipeline.cluster import ROOT, SMALL, Cluster, bare_python, packed
from tests.pipeline.data import Data

LOCAL = [
    *(f"{name}={value}" for name, value in SMALL.items()),
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Data:
    data = Data(tmp_path_factory.mktemp("log") / "data")
    data.topic("t").fill(1000)
    return data


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Flown]:
    """Where the job writes."""
    with Flown(tmp_path / "node") as made:
        yield made


def wrote(node: Flown) -> tuple[list[bytes], list[bytes]]:
    """Return what the job wrote in its batch and in its stream."""
    return node.bodies("batch"), node.bodies("stream")


def numbered(first: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, 1000)]


def ran(
    cluster: Cluster,
    python: Path | str,
    master: str,
    data: Data,
    checkpoint: Path,
    node: Flown,
    *settings: str,
    **environment: str,
) -> Any:
    """Run the job in a process of its own; return what it found."""
    script = Path(__file__).with_name("job.py")
    url = f"grpc://127.0.0.1:{node.flight.port}"
    words = [str(python), str(script), master, str(data.path), str(checkpoint), url, *settings]
    printed = cluster.ran(words, {"PYSPARK_PYTHON": str(python), **environment})
    return json.loads(printed.strip().split("\n")[-1])


def test_package_installed_on_driver_and_workers(cluster: Cluster, full: Data, node: Flown, tmp_path: Path) -> None:
    found = ran(cluster, sys.executable, cluster.master, full, tmp_path, node, *LOCAL)
    assert found["batch"] == 900
    assert [sorted(each) for each in wrote(node)] == [sorted(numbered(100)), sorted(numbered(0))]


def test_package_on_the_driver_and_shipped_to_workers_as_a_zip(
    cluster: Cluster, full: Data, node: Flown, tmp_path: Path
) -> None:
    python = bare_python(tmp_path / "bare")
    shipped = packed(tmp_path / "penstock.zip")
    source = str(ROOT / "src")
    settings = [*LOCAL, f"spark.submit.pyFiles={shipped}"]
    found = ran(cluster, python, cluster.master, full, tmp_path, node, *settings, PYTHONPATH=source)
    assert found["batch"] == 900
    assert [sorted(each) for each in wrote(node)] == [sorted(numbered(100)), sorted(numbered(0))]
    assert all("penstock.zip" in place for place in found["places"]), found["places"]


def test_spark_connect(cluster: Cluster, full: Data, node: Flown, tmp_path: Path) -> None:
    address = cluster.connect_server(sys.executable)
    found = ran(cluster, sys.executable, address, full, tmp_path, node)
    assert found["batch"] == 900
    assert [sorted(each) for each in wrote(node)] == [sorted(numbered(100)), sorted(numbered(0))]
