"""A reminder service: `python examples/reminders.py`, or with reminders of your own: `... "5s call Ann" "1m tea"`.

A node of its own keeps them; what is said here survives both programs. Where a node runs already, name it:
`python examples/reminders.py --url grpc://127.0.0.1:7071 "5s call Ann"`.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext

from own_node import own_node

from penstock.client import Timeline
from penstock.client.timeline import Scheduled

SOME = ("2s drink some water", "1s look out of the window", "0s begin")


def remind(url: str, reminders: list[str]) -> None:
    """Keep reminders, and say each when it is due."""
    with Timeline("reminders", url) as timeline:
        timeline.create()
        with timeline.producer("me") as producer:
            said = [reminder.split(maxsplit=1) for reminder in reminders]
            producer.create([Scheduled(text, due=when) for when, text in said])
        # The same name again after a restart, and it goes on with what it had.
        with timeline.consumer("my phone", lease="30s", stop_after=len(reminders)) as consumer:
            for message in consumer:
                late_ms = time.time() * 1000 - message.due_ms
                print(f"{message.body.decode()} ({late_ms:.0f} ms late)", flush=True)
                message.delete()  # or message.release("10m"): snooze


if __name__ == "__main__":
    arguments = sys.argv[1:]
    where = nullcontext(arguments[1]) if arguments[:1] == ["--url"] else own_node()
    with where as address:
        remind(address, arguments[2:] if arguments[:1] == ["--url"] else arguments or list(SOME))
