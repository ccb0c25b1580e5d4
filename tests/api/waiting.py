"""A request that waits for its answer in a thread of its own."""

from __future__ import annotations

import threading

from tests.served import Answer, Served

#: Less than the 50 s that requests here are willing to wait: an answer is for a reason, not for a time-out.
PATIENCE_S = 25.0


class Waiting:
    """One request, sent at once; `get` waits for its answer."""

    def __init__(self, served: Served, method: str, path: str, body: object = None) -> None:
        self._answer: Answer | None = None
        self._thread = threading.Thread(target=self._run, args=(served, method, path, body))
        self._thread.start()

    def _run(self, served: Served, method: str, path: str, body: object) -> None:
        self._answer = served.ask(method, path, body, port=served.api.port)

    def get(self) -> Answer:
        """Return the answer once it is there."""
        self._thread.join(PATIENCE_S)
        assert self._answer is not None
        return self._answer
