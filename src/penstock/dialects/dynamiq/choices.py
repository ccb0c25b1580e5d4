"""What Dynamiq lets people choose of a queue: it stands in the topic's record, in force from the next sync on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Self

import msgspec

from penstock.dialect import Choices
from penstock.errors import Refusal
from penstock.settings import HOUR_NS, SECOND_NS, TopicSettings, about

VISIBILITY_NS_MAX = 12 * HOUR_NS
PARTITIONS_MAX = 1 << 16
#: Beyond any use, and far from the end of the numbers.
AGE_NS_MAX = 100 * 365 * 24 * HOUR_NS


class DynamiqChoices(Choices, frozen=True, kw_only=True):
    """How a queue locks."""

    visibility_ns: Annotated[int, about("How long a partition is locked after it gave messages.", 0)] = 30 * SECOND_NS
    min_partitions: Annotated[int, about("Partitions it starts with, and has at least.", 1)] = 1
    max_partitions: Annotated[int, about("Partitions it may grow to.", 1)] = 10
    max_partition_age_ns: Annotated[int, about("A partition nobody looks into for so long may go.", 0)] = 120 * HOUR_NS
    compressed: Annotated[bool, about("Segments are compressed at rest.")] = False

    def check(self, before: Self | None) -> None:
        """Refuse what no queue could work with, by the names that clients know."""
        for name, value, least, most in (
            ("visibility_timeout", self.visibility_ns, 0, VISIBILITY_NS_MAX),
            ("max_partition_age", self.max_partition_age_ns, 0, AGE_NS_MAX),
        ):
            if not least <= value <= most:
                raise Refusal("bad_request", f"{name} must be {least} to {most // SECOND_NS} seconds.")
        for name, value, least, most in (
            ("min_partitions", self.min_partitions, 1, PARTITIONS_MAX),
            ("max_partitions", self.max_partitions, 1, PARTITIONS_MAX),
        ):
            if not least <= value <= most:
                raise Refusal("bad_request", f"{name} must be {least} to {most}.")
        if self.min_partitions > self.max_partitions:
            text = f"min_partitions {self.min_partitions} is above max_partitions {self.max_partitions}."
            raise Refusal("bad_request", text)

    def put(self, settings: TopicSettings) -> TopicSettings:
        """Return settings of a topic with these choices among them."""
        return msgspec.structs.replace(settings, dialects={**settings.dialects, "dynamiq": msgspec.to_builtins(self)})

    def patched(self, fields: Mapping[str, object], *, strict: bool) -> Self:
        """Return these with what a client sent; what is of a wrong type is passed over, unless `strict`."""
        changed: dict[str, int] = {}
        for name, (field, read) in _FIELDS.items():
            if name not in fields:
                continue
            value = read(fields[name])
            if value is not None:
                changed[field] = value
            elif strict:
                raise Refusal("bad_request", f"{name} is of the wrong type.")
        return msgspec.structs.replace(self, **changed)

    def shown(self, partitions: int) -> dict[str, object]:
        """Return what clients are shown, under the names of both revisions of the service."""
        values = {
            "VisibilityTimeout": _seconds(self.visibility_ns),
            "MinPartitions": self.min_partitions,
            "MaxPartitions": self.max_partitions,
            "MaxPartitionAge": _seconds(self.max_partition_age_ns),
            "CompressedMessages": self.compressed,
        }
        return {**values, "partitions": partitions, **dict(zip(_FIELDS, values.values(), strict=True))}


def _time_ns(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # What is beyond all bounds is refused later, and must not be too large to be counted in nanoseconds.
    return round(max(min(value, 1e10), -1e10) * SECOND_NS)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _switch(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


#: What a client calls a field: its name here, and what reads a value; None where that is of the wrong type.
_FIELDS: Mapping[str, tuple[str, Callable[[object], int | None]]] = {
    "visibility_timeout": ("visibility_ns", _time_ns),
    "min_partitions": ("min_partitions", _whole),
    "max_partitions": ("max_partitions", _whole),
    "max_partition_age": ("max_partition_age_ns", _time_ns),
    "compressed_messages": ("compressed", _switch),
}


def _seconds(time_ns: int) -> int | float:
    """Return whole seconds as such."""
    return time_ns // SECOND_NS if time_ns % SECOND_NS == 0 else time_ns / SECOND_NS
