"""The example without our SDK does what it says, against a node that listens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.flight.parts import Flown, many

EXAMPLE = Path(__file__).parents[2] / "examples" / "flight_only.py"


def run(flown: Flown, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(EXAMPLE), f"grpc://127.0.0.1:{flown.flight.port}", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def test_the_example_publishes_reads_and_consumes(flown: Flown) -> None:
    flown.put("other", many(1))
    done = run(flown)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "stored at [['flights', 0, 0, 2]]",
        "read 2 rows; the last: {'offset': 1, 'key': b'LHR', 'tag': None, 'body': b'BA 117'}",
        "consumed [b'LH 400', b'BA 117']",
        "topics: ['flights', 'other']",
    ]
    assert flown.do(lambda: flown.node.topics["flights"].subscriptions["example"].counts()["acked"]) == 2


def test_the_example_shows_its_token(tmp_path: Path) -> None:
    with Flown(tmp_path / "data", token="sesame") as flown:
        assert "unauthorized" in run(flown).stderr
        assert run(flown, PENSTOCK_TOKEN="sesame").returncode == 0


def test_the_example_needs_nothing_of_ours() -> None:
    assert "penstock" not in "".join(line for line in EXAMPLE.read_text().splitlines() if "import" in line)
