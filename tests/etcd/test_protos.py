"""What is made of .proto files is what they say now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_what_was_made_of_proto_files_is_what_they_say(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([PROJECT / "scripts/protos", tmp_path], check=True, env=environment)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2.py*")}
    assert Path("penstock/registry/etcd/rpc_pb2.py") in made
    kept = {path: (PROJECT / "src" / path).read_text() for path in made}
    assert made == kept, "run scripts/protos"
