"""Actors of a Dramatiq application on SQS.

`python -m tests.foreign.aws.clients.actors` sends messages, waits for what they do and prints it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import dramatiq
import dramatiq.middleware
import dramatiq_sqs

RESULTS = Path(os.environ["RESULTS"])
PATIENCE_S = 100

broker = dramatiq_sqs.SQSBroker(
    namespace="dramatiq",
    dead_letter=True,
    visibility_timeout=600,
    tags={"team": "shop"},
    middleware=[dramatiq.middleware.Retries(min_backoff=1, max_backoff=1)],
)
dramatiq.set_broker(broker)


@dramatiq.actor  # type: ignore[untyped-decorator]
def note(name: str) -> None:
    (RESULTS / name).touch()


@dramatiq.actor(max_retries=5)  # type: ignore[untyped-decorator]
def stumble() -> None:
    """Fail twice."""
    with (RESULTS / "stumbles").open("a") as file:
        file.write("x")
    if (RESULTS / "stumbles").stat().st_size < 3:
        raise RuntimeError("stumbled")


@dramatiq.actor(max_retries=0)  # type: ignore[untyped-decorator]
def fail() -> None:
    raise RuntimeError("it never works")


def main() -> dict[str, Any]:
    for number in range(30):
        note.send(f"note {number}")
    stumble.send()
    fail.send()
    note.send_with_options(args=("later",), delay=1000)
    wanted = {*(f"note {number}" for number in range(30)), "later", "stumbles"}
    end = time.monotonic() + PATIENCE_S
    while not wanted <= {each.name for each in RESULTS.iterdir()} or (RESULTS / "stumbles").stat().st_size < 3:
        assert time.monotonic() < end, sorted(each.name for each in RESULTS.iterdir())
        time.sleep(0.05)
    notes = [each for each in (f"note {number}" for number in range(30)) if (RESULTS / each).exists()]
    return {
        "done": notes,
        "stumbled": (RESULTS / "stumbles").stat().st_size,
        "later": (RESULTS / "later").exists(),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
