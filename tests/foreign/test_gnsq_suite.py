"""gnsq's own tests, from its sources as they are, with our `nsqd` and `nsqlookupd` first on the path.

Every test of the suite applies and passes; one that cannot would be taken out by name in `CANNOT_APPLY`, with a reason.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from bench.supply import SCRIPTS
from tests.foreign.drivers import ENVIRONMENT, PYTHON
from tests.proofs.environment import PROJECT, clean

#: Test → why it says nothing about Penstock.
CANNOT_APPLY: dict[str, str] = {}

#: How many tests gnsq 1.0.2 has, each parameter counted; fewer would mean that some were not found.
TESTS = 108

#: One test and the whole suite may take this long on a busy machine; the suite reads the first from SLOW_TIMEOUT.
TEST_S_MAX = 120
SUITE_S_MAX = 600.0


def sources(path: Path) -> Path:
    """Unpack gnsq's sources, whose hash the lock must name, and return their directory."""
    (archive,) = (ENVIRONMENT / "sources").glob("gnsq-*.tar.gz")
    pinned = re.search(r"^gnsq==\S+ \\\n(?:.*--hash.*\n)+", (PROJECT / "requirements/foreign.lock").read_text(), re.M)
    assert pinned is not None
    assert f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}" in pinned[0]
    # By tar itself: the ways of Python's module differ between 3.11.2 and 3.14.
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(path)], check=True)
    return path / archive.name.removesuffix(".tar.gz")


def test_gnsqs_own_suite_passes_on_our_programs(tmp_path: Path) -> None:
    suite = sources(tmp_path)
    report = tmp_path / "report.xml"
    # Two at a time: the suite starts a daemon or two for nearly every test, and mostly waits for them.
    flags = [
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "-q",
        "-n",
        "2",
        f"--timeout={TEST_S_MAX}",
        f"--junitxml={report}",
    ]
    deselected = [word for name in CANNOT_APPLY for word in ("--deselect", name)]
    done = subprocess.run(
        [str(PYTHON), "-m", "pytest", *flags, *deselected, "tests"],
        cwd=suite,
        env=clean() | {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", "SLOW_TIMEOUT": str(TEST_S_MAX)},
        capture_output=True,
        text=True,
        timeout=SUITE_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    counts = ElementTree.parse(report).getroot()[0].attrib
    outcome = {kind: int(counts[kind]) for kind in ("tests", "failures", "errors", "skipped")}
    assert outcome == {"tests": TESTS - len(CANNOT_APPLY), "failures": 0, "errors": 0, "skipped": 0}
