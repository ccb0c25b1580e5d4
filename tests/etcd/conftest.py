"""One etcd, and one cluster of three, for all tests that leave them well; each test has keys of its own there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd.servers import Cluster


@pytest.fixture(scope="session")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("etcd"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def shared_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("etcd"), 3)
    yield cluster
    cluster.close()


@pytest.fixture
def three(shared_three: Cluster) -> Iterator[Cluster]:
    yield shared_three
    shared_three.heal()


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server that asks for users, and forgets who they are after a moment."""
    cluster = Cluster(tmp_path_factory.mktemp("etcd"), flags=["--auth-token", "simple", "--auth-token-ttl", "1"])
    cluster.ctl("user", "add", "root:secret")
    cluster.ctl("user", "grant-role", "root", "root")
    cluster.ctl("user", "add", "poor:secret")
    cluster.ctl("auth", "enable")
    yield cluster
    cluster.close()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Return what the keys of this test start with."""
    return f"test/{request.node.nodeid}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
