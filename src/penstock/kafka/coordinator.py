"""FindCoordinator: which broker looks after the transactions of one name."""

from __future__ import annotations

from typing import NamedTuple

from penstock.kafka.exchange import Api, is_flexible
from penstock.kafka.wire import Reader, Writer

#: What kind of a name it is: the other kind is a group of consumers.
_TRANSACTIONS = 1


class Coordinator(NamedTuple):
    """The answer: where it is, or an error."""

    error: int
    host: str
    port: int


def request(version: int, name: str) -> bytes:
    """Return the question for a transactional id."""
    out = Writer(is_flexible(Api.FIND_COORDINATOR, version))
    out.string(name)
    out.int8(_TRANSACTIONS)
    out.tags()
    return out.done()


def answer(reader: Reader) -> Coordinator:
    """Return where the broker is; BadAnswer where it is no answer."""
    reader.int32()  # how long it lets us wait
    error = reader.int16()
    reader.string()  # why
    reader.int32()  # its number
    found = Coordinator(error, reader.text(), reader.int32())
    reader.tags()
    reader.end()
    return found
