"""One connection's questions and answers: what was asked, framed; what came back, matched to it.

Kafka answers in the order it was asked. Invariant: an answer is of the question whose number it has, or the
connection is of no more use and `fault` says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from penstock.columns import Buffer
from penstock.kafka.wire import BadAnswer, Reader, Writer

#: What an answer may weigh: what Dory takes.
ANSWER_BYTES_MAX = 4 * 1024 * 1024

_SIZE, _NUMBER = Struct(">i"), Struct(">i")
_NUMBERS = 1 << 31


class Api(IntEnum):
    """What can be asked."""

    PRODUCE = 0
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    SASL_AUTHENTICATE = 36


#: The versions that are spoken here: from Kafka 1.0 to 4.x.
SPOKEN: dict[Api, range] = {
    Api.PRODUCE: range(3, 13),
    Api.METADATA: range(4, 13),
    Api.FIND_COORDINATOR: range(1, 4),
    Api.SASL_HANDSHAKE: range(1, 2),
    Api.API_VERSIONS: range(0, 4),
    Api.INIT_PRODUCER_ID: range(0, 6),
    Api.SASL_AUTHENTICATE: range(0, 3),
}
#: From which version on an API's messages are compact and have tagged fields.
_FLEXIBLE = {
    Api.PRODUCE: 9,
    Api.METADATA: 9,
    Api.FIND_COORDINATOR: 3,
    Api.SASL_HANDSHAKE: 1 << 15,
    Api.API_VERSIONS: 3,
    Api.INIT_PRODUCER_ID: 2,
    Api.SASL_AUTHENTICATE: 2,
}


def is_flexible(api: Api, version: int) -> bool:
    """Tell whether messages are in the compact form."""
    return version >= _FLEXIBLE[api]


class Asked(NamedTuple):
    """A question that waits for its answer."""

    api: Api
    version: int
    number: int


class Exchange:
    """The stream of one connection, both ways."""

    __slots__ = ("_asked", "_bytes_max", "_client", "_have", "_need", "_next", "_pieces", "fault")

    def __init__(self, client_id: str | None, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._client = client_id
        self._bytes_max = bytes_max
        self._next = 1
        self._asked: deque[Asked] = deque()
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = _SIZE.size
        #: Why nothing more can be read, empty while it can.
        self.fault = ""

    @property
    def waiting(self) -> int:
        """How many questions wait for their answer."""
        return len(self._asked)

    def ask(self, api: Api, version: int, body: Sequence[Buffer], *, answered: bool = True) -> list[Buffer]:
        """Return what is to be written, piece by piece; a produce request with acks 0 gets no answer."""
        number, self._next = self._next, (self._next + 1) % _NUMBERS
        flexible = is_flexible(api, version)
        head = Writer(False)  # the client's name is never in the compact form
        head.int16(api)
        head.int16(version)
        head.int32(number)
        head.string(self._client)
        first = head.done() + b"\0" * flexible
        if answered:
            self._asked.append(Asked(api, version, number))
        size = len(first) + sum([len(piece) for piece in body])
        return [_SIZE.pack(size) + first, *body]

    def feed(self, data: bytes) -> list[tuple[Asked, Reader]]:
        """Return the answers that are there whole now, each with the question and open behind its head."""
        if self.fault:
            return []
        if self._have:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._pieces)
        found: list[tuple[Asked, Reader]] = []
        at = 0
        end, self._need = len(data), _SIZE.size
        while at + 4 <= end:
            (size,) = _SIZE.unpack_from(data, at)
            if not 4 <= size <= self._bytes_max:
                self.fail(f"an answer of {size} bytes, where 4 to {self._bytes_max} are possible")
                return found
            if at + 4 + size > end:
                self._need = 4 + size
                break
            answer = self._matched(data[at + 4 : at + 4 + size])
            if answer is None:
                return found
            found.append(answer)
            at += 4 + size
        rest = data[at:]
        self._pieces, self._have = [rest] if rest else [], len(rest)
        return found

    def _matched(self, data: bytes) -> tuple[Asked, Reader] | None:
        (number,) = _NUMBER.unpack_from(data)
        if not self._asked:
            self.fail(f"answer {number} to nothing that was asked")
            return None
        asked = self._asked.popleft()
        if number != asked.number:
            self.fail(f"answer {number}, where the one to {asked.api.name} {asked.number} was due")
            return None
        flexible = is_flexible(asked.api, asked.version)
        reader = Reader(data, 4, flexible)
        if flexible and asked.api is not Api.API_VERSIONS:  # whose answer can be read before versions are known
            try:
                reader.tags()
            except BadAnswer as bad:
                self.fail(f"the answer to {asked.api.name}: {bad}")
                return None
        return asked, reader

    def fail(self, why: str) -> None:
        """Hold nothing, and read nothing more."""
        self.fault = self.fault or why
        self._pieces, self._have = [], 0
        self._asked.clear()
