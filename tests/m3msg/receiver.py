"""A consumer on a real socket: takes every connection, acks what it gets, keeps all of it."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TypeAlias

from penstock.m3.acks import acks
from penstock.m3.messages import MessageReader

Keep: TypeAlias = Callable[[list[bytes]], None]


class Receiver:
    """One instance of a consumer service, in threads of its own."""

    def __init__(self, port: int = 0, keep: Keep = lambda values: None) -> None:
        #: Is given what came, before it is acked.
        self._keep = keep
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"
        self.got: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._taken: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up on everybody."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            for taken in self._taken:
                with suppress(OSError):
                    taken.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                self._taken.append(taken)
            thread = threading.Thread(target=self._serve, args=(taken,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, taken: socket.socket) -> None:
        reader = MessageReader()
        with taken, suppress(OSError):
            while data := taken.recv(1 << 16):
                found = reader.feed(data)
                assert not reader.frames.fault
                if found is None:
                    continue
                body = memoryview(found.values)
                values = [bytes(body[int(found.cuts[row]) : int(found.cuts[row + 1])]) for row in range(found.count)]
                with self._lock:
                    self._keep(values)
                    self.got.update(values)
                taken.sendall(acks([found.entries]).wire)
