"""Tasks of a Celery application on SQS; a worker acknowledges one when it is done, and asks for no more than it can do.

`python -m tests.foreign.aws.clients.tasks all` sends tasks, waits for their results and prints them; with `die` it
sends the one that takes a worker along.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from celery import Celery, group

RESULTS = Path(os.environ["RESULTS"])
PATIENCE_S = 100

app = Celery(
    "tests.foreign.aws.clients.tasks",
    broker=f"sqs://any:any@{urlsplit(os.environ['AWS_ENDPOINT_URL']).netloc}",
    backend=RESULTS.as_uri(),
)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "is_secure": False,
        "region": os.environ["AWS_REGION"],
        "queue_name_prefix": "celery-",
        "visibility_timeout": 600,
        "wait_time_seconds": 1,
        "polling_interval": 0.1,
    },
    task_acks_late=True,
    worker_prefetch_multiplier=1,
)


@app.task(name="add")  # type: ignore[untyped-decorator]
def add(left: int, right: int) -> int:
    return left + right


@app.task(name="stumble", bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def stumble(self: Any) -> int:
    """Fail twice."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task(name="die")  # type: ignore[untyped-decorator]
def die() -> str:
    """Take the worker along the first time."""
    mark = RESULTS / "died"
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return mark.read_text()


def send_all() -> dict[str, Any]:
    sums = group(add.s(number, number) for number in range(40)).apply_async()
    stumbled, later = stumble.delay(), add.apply_async((1, 1), countdown=1)
    told = {"sums": sums.get(timeout=PATIENCE_S), "stumbled": stumbled.get(timeout=PATIENCE_S)}
    return {**told, "later": later.get(timeout=PATIENCE_S)}


def send_death() -> dict[str, Any]:
    return {"died": int(die.delay().get(timeout=PATIENCE_S))}


if __name__ == "__main__":
    print(json.dumps({"all": send_all, "die": send_death}[sys.argv[1]]()))
