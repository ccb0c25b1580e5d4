"""What a client is asked to do, one line of JSON on standard input, and what it says, one line on standard output.

Knows no client: each driver beside this file reads a plan, carries it out with its library, tells what came of it, and
stays connected until its standard input ends, so that a test can look at the connection from the node's side.
Runs in the clients' own environment, so it imports nothing of ours.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass, field


@dataclass
class Plan:
    """One thing to do."""

    topic: str
    #: publish (one PUB each), mpub (one MPUB for all), consume, or produce: publish, and by nothing but the producer of
    #: a library whose connections must do it where a layer is asked for.
    work: str
    #: HOST:PORT of each node, or else of the lookup service's HTTP.
    nodes: list[str]
    lookup: list[str] = field(default_factory=list)
    channel: str = "channel"
    #: What to publish, in base64.
    bodies: list[str] = field(default_factory=list)
    #: How many messages to finish.
    count: int = 0
    #: What to do with a message at its first delivery: finish, requeue, leave, or touch it in time and finish it late.
    first: str = "finish"
    #: tls, snappy, deflate or nothing.
    layer: str = ""
    #: Who signed the node's certificate.
    authority: str = ""
    #: What the node is shown: a token, or user:secret.
    secret: str = ""
    #: The message timeout to work with, and whether to ask the node for it.
    timeout_s: float = 0.0
    asks_timeout: bool = False

    @property
    def messages(self) -> list[bytes]:
        """What to publish."""
        return [base64.b64decode(body) for body in self.bodies]

    @property
    def touches_after_s(self) -> float:
        """When to touch a message."""
        return 0.6 * self.timeout_s

    @property
    def finishes_after_s(self) -> float:
        """How long after its touch to finish a message: past the first deadline, well before the second."""
        return 0.6 * self.timeout_s

    def sends_back(self, attempts: int) -> bool:
        """Tell whether this delivery is to be requeued."""
        return self.first == "requeue" and attempts == 1

    def leaves(self, attempts: int) -> bool:
        """Tell whether this delivery is to be left alone until it times out."""
        return self.first == "leave" and attempts == 1


class Seen:
    """What a consumer was given, in order, and how much of it is finished."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[int, str]] = []
        self.finished = 0

    def add(self, attempts: int, body: bytes) -> None:
        """Note a delivery."""
        self.deliveries.append((attempts, base64.b64encode(body).decode()))

    def tell(self) -> None:
        """Say what came."""
        tell(seen=self.deliveries)


def read_plan() -> Plan:
    """Return the plan."""
    return Plan(**json.loads(sys.stdin.buffer.readline()))


def tell(**answer: object) -> None:
    """Say what came of it."""
    print(json.dumps(answer), flush=True)


def failed(error: BaseException) -> None:
    """Say that the library refused."""
    tell(error=f"{type(error).__name__}: {error}")


def wait_for_end() -> None:
    """Return when the test is done with this process."""
    sys.stdin.buffer.read()
