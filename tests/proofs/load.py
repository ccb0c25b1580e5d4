"""NSQ clients that keep a node busy until it dies, and write down what they were told.

Owns how clients behave: ways to publish, and consumers that finish most messages, give some back and forget some.
Judges nothing itself; that is `History`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from random import Random

from tests.proofs.client import ERROR, MESSAGE, RESPONSE, Client, Message, dpub, fin, mpub, pub, req
from tests.proofs.history import History, Key, Place, body_of

#: Leases outlast every life, so a message moves only when it is given back, its connection ends or the node dies.
LEASE_MS = 60_000
READY = 60
#: A consumer that forgets more than this hangs up, and they go to the others.
FORGOTTEN_MAX = 30
MILLISECOND_NS = 1_000_000


class Life:
    """One life of the node, as its clients know it."""

    def __init__(self, port: int) -> None:
        self.port = port
        #: The node is about to be killed: from now on connections may end.
        self.dying = threading.Event()
        self.over = threading.Event()


class Worker(threading.Thread):
    """A client on a thread of its own; it ends when the node does, or when told to."""

    def __init__(self, life: Life, history: History, random: Random) -> None:
        super().__init__(daemon=True)
        self._life = life
        self._over = life.over
        self._history = history
        self._random = random
        self._connection = 0
        self._number = 0

    def run(self) -> None:
        name = type(self).__name__
        try:
            while not self._over.is_set():
                client = Client(self._life.port)
                self._connection, self._number = self._history.connection(), 0
                try:
                    self.work(client)
                finally:
                    client.close()
        except TimeoutError:
            self._history.surprise(f"{name}: no answer in time")
        except ConnectionError as error:
            if not self._life.dying.is_set():
                self._history.surprise(f"{name}: the living node hung up: {error!r}")
        except Exception as error:
            self._history.surprise(f"{name}: {error!r}")

    def work(self, client: Client) -> None:
        """Do what this client does until it is told to end."""
        raise NotImplementedError

    def _make(self) -> tuple[Key, bytes]:
        key = (self._connection, self._number)
        self._number += 1
        # Mostly small; some larger than a page of the page cache, so that a kill can tear their write.
        size = self._random.choice((40, 200, 800, 2500, 9000))
        return key, body_of(key, self._random.randint(30, size))

    def _pause(self) -> None:
        self._over.wait(self._random.choice((0, 0.001, 0.004, 0.012)))


class Producer(Worker):
    """Publishes to some topics in one of four ways."""

    WAYS = ("single", "pipelined", "batch", "delayed")

    def __init__(self, life: Life, history: History, random: Random, way: str, topics: Sequence[str]) -> None:
        super().__init__(life, history, random)
        self._way = way
        self._topics = topics

    def work(self, client: Client) -> None:
        """Publish, and note what was answered."""
        waiting: deque[tuple[str, list[Key]]] = deque()
        while not self._over.is_set():
            command = b""
            for _ in range(self._random.randint(1, 24) if self._way == "pipelined" else 1):
                topic = self._random.choice(self._topics)
                made = [self._make() for _ in range(self._random.randint(2, 60) if self._way == "batch" else 1)]
                waiting.append((topic, [key for key, _ in made]))
                command += self._command(topic, made)
            client.send(command)
            # Half of what is on its way may stay there, where commands are pipelined.
            while len(waiting) > (12 if self._way == "pipelined" else 0):
                self._answer(client, waiting)
            self._pause()
        while waiting:
            self._answer(client, waiting)

    def _command(self, topic: str, made: list[tuple[Key, bytes]]) -> bytes:
        keys = [key for key, _ in made]
        if self._way == "delayed":
            delay_ms = self._random.randint(0, 150)
            self._history.publishing(topic, keys, time.time_ns() + delay_ms * MILLISECOND_NS)
            return dpub(topic, delay_ms, made[0][1])
        self._history.publishing(topic, keys)
        return mpub(topic, [body for _, body in made]) if self._way == "batch" else pub(topic, made[0][1])

    def _answer(self, client: Client, waiting: deque[tuple[str, list[Key]]]) -> None:
        kind, data = client.frame()
        topic, keys = waiting.popleft()
        if (kind, data) == (RESPONSE, b"OK"):
            self._history.published(topic, keys)
        else:
            self._history.surprise(f"publish to {topic}: {data[:100]!r}")


class Consumer(Worker):
    """Finishes most messages; a PUB behind a group of FINs makes them final."""

    def __init__(
        self,
        life: Life,
        history: History,
        random: Random,
        place: Place,
        confirm: Sequence[str],
        *,
        thorough: bool = False,
    ) -> None:
        super().__init__(life, history, random)
        self._place = place
        self._confirm = confirm
        #: Finishes everything, as the last one must.
        self._thorough = thorough
        # A forgotten message holds back retention, so most forget nothing.
        self._forgetful = random.choice((0, 0, 0.06))
        self._groups: deque[tuple[str, Key, list[Key]]] = deque()

    @property
    def settled(self) -> bool:
        """Whether every PUB behind FINs was answered."""
        return not self._groups

    def work(self, client: Client) -> None:
        """Consume until told to end or too much was forgotten."""
        client.identify(heartbeat_interval=10_000, msg_timeout=LEASE_MS)
        client.subscribe(*self._place, READY)
        self._fins: list[Key] = []
        self._groups.clear()
        self._unsent: list[bytes] = []
        self._forgotten = 0
        while not self._over.is_set() and self._forgotten < FORGOTTEN_MAX:
            kind, data = client.frame()
            if kind == MESSAGE:
                self._message(client, Message.read(data))
            elif kind == RESPONSE:
                self._answered(data)
            elif kind == ERROR:
                self._history.surprise(f"consumer of {self._place}: {data[:100]!r}")

    def _message(self, client: Client, message: Message) -> None:
        key = self._history.delivered(self._place, message.id, message.body, time.time_ns())
        if key is None:
            return
        choice = 1.0 if self._thorough else self._random.random()
        if choice < self._forgetful:
            self._forgotten += 1
        elif choice < 0.15:
            client.send(req(message.id, self._random.choice((0, 0, 5, 40))))
        else:
            self._finish(client, key, message.id)

    def _finish(self, client: Client, key: Key, id_: bytes) -> None:
        """Send FINs alone or together, and now and then the PUB that makes them final."""
        self._history.finishing(self._place, [key])
        self._fins.append(key)
        self._unsent.append(fin(id_))
        confirm = self._thorough or self._random.random() < 0.15
        if confirm:
            topic = self._random.choice(self._confirm)
            mark, body = self._make()
            self._history.publishing(topic, [mark])
            self._groups.append((topic, mark, self._fins))
            self._fins = []
            self._unsent.append(pub(topic, body))
        if confirm or self._random.random() < 0.6:
            client.send(b"".join(self._unsent))
            self._unsent = []

    def _answered(self, data: bytes) -> None:
        topic, mark, keys = self._groups.popleft()
        if data == b"OK":
            self._history.published(topic, [mark])
            self._history.finished(self._place, keys)
        else:
            self._history.surprise(f"PUB of a consumer of {self._place}: {data[:100]!r}")
