"""The command line: `penstock` and everything below it.

Runs a node (`up`), speaks to a running one over its admin API, and looks at data, ports and configuration on this
machine. Nothing imports it.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program and end with its exit code."""
    from penstock.cli.app import run

    sys.exit(run(sys.argv[1:]))
