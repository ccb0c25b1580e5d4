"""InitProducerId: the number under which a producer counts what it sends, so that nothing is stored twice."""

from __future__ import annotations

from typing import NamedTuple

from penstock.kafka.exchange import Api, is_flexible
from penstock.kafka.wire import Reader, Writer


class Producer(NamedTuple):
    """Who sends."""

    id: int = -1
    epoch: int = -1


#: Somebody who does not count.
NOBODY = Producer()


class Given(NamedTuple):
    """The answer: a producer, or an error."""

    error: int
    producer: Producer
    throttle_ms: int = 0


def request(
    version: int, before: Producer = NOBODY, name: str | None = None, transaction_ms: int = (1 << 31) - 1
) -> bytes:
    """Return the question of a producer that was somebody before or nobody yet.

    One with a name has transactions, which may take so long: whoever had the name before is shut out.
    """
    out = Writer(is_flexible(Api.INIT_PRODUCER_ID, version))
    out.string(name)
    out.int32(transaction_ms)
    if version >= 3:
        out.int64(before.id)
        out.int16(before.epoch)
    out.tags()
    return out.done()


def answer(reader: Reader) -> Given:
    """Return who one is; BadAnswer where it is no answer."""
    throttle_ms, error = reader.int32(), reader.int16()
    producer = Producer(reader.int64(), reader.int16())
    reader.tags()
    reader.end()
    return Given(error, producer, throttle_ms)
