"""What an executor must have installed: nothing of the server, and over Flight nothing of the log either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.flight.parts import Flown
from tests.pipeline.data import Data

SERVER = ("uvloop", "typer", "rich", "httptools", "cramjam", "mmh3")
LOG = ("msgspec", "fastcrc")

READ = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is not installed here")
sys.meta_path.insert(0, Block())
import pyspark_penstock
from penstock.pipeline import session, sink
source = pyspark_penstock.DefaultSource({options!r})
reader = source.reader(source.schema())
stream = source.streamReader(source.schema())
print(sum(len(batch) for task in reader.partitions() for batch in reader.read(task)), stream.initialOffset())
"""


def reads(blocked: tuple[str, ...], options: dict[str, str]) -> str:
    script = READ.format(blocked=blocked, options=options)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_files_are_read_without_the_servers_packages(data: Data) -> None:
    data.topic("t").fill(7)
    assert reads(SERVER, data.options(subscribe="t")).startswith("7 {'t':")


def test_a_node_is_read_with_pyarrow_and_numpy_alone(tmp_path: Path) -> None:
    with Flown(tmp_path) as node:
        node.publish("t", "a", "b")
        options = {"url": f"grpc://127.0.0.1:{node.flight.port}", "subscribe": "t"}
        assert reads(SERVER + LOG, options).startswith("2 {'t':")


def test_the_blocked_packages_are_there_to_be_blocked() -> None:
    with pytest.raises(AssertionError, match="is not installed here"):
        reads(("pyarrow",), {})
