"""Workers of task queues, by their own programs: Celery and Dramatiq."""

from __future__ import annotations

import contextlib
import json
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.foreign.aws.programs import Worker, ask, module, program
from tests.served import PATIENCE_S, Served
from tests.sqs.boto import Boto

NONE = {"ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesNotVisible": "0"}


def left(boto: Boto, name: str) -> dict[str, str]:
    url = boto("get_queue_url", QueueName=name)["QueueUrl"]
    found: dict[str, str] = boto("get_queue_attributes", QueueUrl=url, AttributeNames=list(NONE))["Attributes"]
    return found


def settled(boto: Boto, name: str, out: int = 0) -> None:
    """Wait until a queue has nothing but what is out: a worker deletes a message after it told the result."""
    end = time.monotonic() + PATIENCE_S
    while (found := left(boto, name)) != {**NONE, "ApproximateNumberOfMessagesNotVisible": str(out)}:
        assert time.monotonic() < end, found
        time.sleep(0.05)


def test_celery_runs_tasks_and_one_whose_worker_was_killed_again(
    node: Served, boto: Boto, port: int, tmp_path: Path
) -> None:
    given = {"RESULTS": str(tmp_path)}
    app = [program("celery"), "-A", "tests.foreign.aws.clients.tasks", "worker", "--pool", "solo", "-l", "warning"]
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker([*app, "-n", f"{name}@here"], port, **given)) for name in ("one", "two")]
        with ThreadPoolExecutor(1) as pool:
            try:
                assert ask(module("tasks"), port, "all", **given) == {
                    "sums": [2 * number for number in range(40)],
                    "stumbled": 2,
                    "later": 2,
                }
                # A worker that dies now has nothing left to delete: the one message that is out is its last.
                settled(boto, "celery-celery")
                asking = pool.submit(ask, module("tasks"), port, "die", **given)
                while not asking.done() and all(worker.process.poll() is None for worker in workers):
                    time.sleep(0.05)
                (dead,) = [worker.process.pid for worker in workers if worker.process.returncode is not None] or [0]
                # Nobody has the task until the time is over that it was received for.
                assert dead, asking.result(0)
                settled(boto, "celery-celery", out=1)
                node.advance(601)
                told = asking.result(2 * PATIENCE_S)
            except BaseException:
                print(*(worker.said() for worker in workers))
                for worker in workers:
                    worker.process.kill()
                raise
        assert told == {"died": dead}
        settled(boto, "celery-celery")


def test_dramatiq_runs_actors_retries_them_and_keeps_what_never_works(boto: Boto, port: int, tmp_path: Path) -> None:
    command = [program("dramatiq"), "tests.foreign.aws.clients.actors", "--processes", "1", "--threads", "4"]
    with Worker([*command, "--path", "."], port, RESULTS=str(tmp_path)) as worker:
        try:
            assert ask(module("actors"), port, RESULTS=str(tmp_path)) == {
                "done": [f"note {number}" for number in range(30)],
                "stumbled": 3,
                "later": True,
            }
            settled(boto, "dramatiq_default")
        except BaseException:
            print(worker.said())
            raise
        url = boto("get_queue_url", QueueName="dramatiq_default_dlq")["QueueUrl"]
        (letter,) = boto.receive(url, WaitTimeSeconds=20)
        assert json.loads(b64decode(letter["Body"]))["actor_name"] == "fail"
        worker.stop()
