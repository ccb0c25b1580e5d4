"""ApiVersions: which versions of what a broker understands, and the newest that both sides do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.errors import PenstockError
from penstock.kafka.codes import NONE, UNSUPPORTED_VERSION, named
from penstock.kafka.exchange import SPOKEN, Api, is_flexible
from penstock.kafka.wire import BadAnswer, Reader, Writer

#: Tried first; a broker before Kafka 2.4 refuses it in the form of version 0 and is asked again with that.
FIRST, OLDEST = 3, 0


class Unsupported(PenstockError):
    """A broker that speaks no version of something that we do."""


def request(version: int, program: str = "penstock", release: str = "1") -> bytes:
    """Return the question; brokers show by what program and release they are asked."""
    out = Writer(is_flexible(Api.API_VERSIONS, version))
    if version >= 3:
        out.string(program)
        out.string(release)
        out.tags()
    return out.done()


def answer(reader: Reader, version: int) -> Mapping[int, tuple[int, int]] | None:
    """Return the lowest and the highest version of each API; None where the question must be asked with OLDEST."""
    code = reader.int16()
    if code == UNSUPPORTED_VERSION and version != OLDEST:
        return None
    if code != NONE:
        raise BadAnswer(f"the broker does not say what it understands: error {named(code)}")
    found: dict[int, tuple[int, int]] = {}
    for _ in range(reader.count(6)):
        api, lowest, highest = reader.int16(), reader.int16(), reader.int16()
        found[api] = lowest, highest
        reader.tags()
    return found


def chosen(found: Mapping[int, tuple[int, int]], needed: Iterable[Api]) -> dict[Api, int]:
    """Return the newest version of each API that both sides speak; Unsupported where there is none."""
    versions = {}
    for api in needed:
        lowest, highest = found.get(api, (0, -1))
        spoken = SPOKEN[api]
        newest = min(highest, spoken[-1])
        if newest < max(lowest, spoken[0]):
            theirs = f"versions {lowest} to {highest}" if highest >= lowest else "none"
            raise Unsupported(
                f"the broker understands {theirs} of {api.name}, and we speak {spoken[0]} to {spoken[-1]}: "
                f"it must be Kafka 1.0 or newer"
            )
        versions[api] = newest
    return versions
