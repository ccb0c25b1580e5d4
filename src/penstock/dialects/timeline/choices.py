"""What people choose of a timeline: it stands in the topic's record, under the dialect's name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import msgspec

from penstock.dialect import Choices
from penstock.errors import Refusal
from penstock.settings import SECOND_NS, YEAR_NS, TopicSettings, about

#: Bodies are never larger, whatever is chosen.
BODY_BYTES_MAX = 4_000_000
#: Beyond any use, and far from the end of the numbers.
SECONDS_MAX = 100 * 365 * 24 * 3600

_BOUNDS: dict[str, tuple[int, int]] = {
    "replica_count": (0, 1 << 15),
    "max_seconds_future": (0, SECONDS_MAX),
    "max_seconds_lease": (1, 7 * 24 * 3600),
    "max_body_bytes": (1, BODY_BYTES_MAX),
    "rqs_limit_per_client": (1, 1_000_000_000),
    "min_protocol_version": (0, 0xFFFF),
    "min_driver_version": (0, 0xFFFF),
    "bucket_count": (1, 0xFFFF),
    "time_window_ms": (100, 60_000),
    "prefetch_max_ms": (0, 60_000),
    "prefetch_max_count": (0, 1_000_000),
}


class TimelineChoices(Choices, frozen=True, kw_only=True):
    """How a timeline takes, keeps and deals messages."""

    #: Which creation of the topic this is; new with every one.
    incarnation: str = ""
    is_timeline: Annotated[bool, about("It is a timeline, with the settings below.", once=True)] = False
    bucket_count: Annotated[int, about("Slots that messages fall into at random. For good.", 1, once=True)] = 1024
    replica_count: Annotated[int, about("Kept for clients that ask; the log has one copy.", 0)] = 0
    max_seconds_future: Annotated[int, about("A message may be due so much later; 0 for no limit.", 0)] = (
        YEAR_NS // SECOND_NS
    )
    max_seconds_lease: Annotated[int, about("A lease lasts no longer, nor does what extends it.", 1)] = 300
    checksum_bodies: Annotated[bool, about("Bodies have ids of their own; not offered yet.")] = False
    max_body_bytes: Annotated[int, about("Of one message.", 1)] = 1 << 20
    rqs_limit_per_client: Annotated[int, about("Requests a second of one session.", 1)] = 128
    min_protocol_version: Annotated[int, about("Older clients are refused.", 0)] = 0
    min_driver_version: Annotated[int, about("Older drivers are refused.", 0)] = 0
    time_window_ms: Annotated[int, about("Buckets are dealt anew so often, if members change.", 100)] = 1000
    prefetch_max_ms: Annotated[int, about("Messages go out so long before they are due, to be held.", 0)] = 1200
    prefetch_max_count: Annotated[int, about("So many of them at most.", 0)] = 1000
    dealer: Annotated[
        Literal["simple", "rack", "gladiator"], about("Who gets which buckets: ranges, with backups, everybody.")
    ] = "simple"

    def check(self, before: Self | None) -> None:
        """Refuse what no timeline could work with, by the names that clients know."""
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise Refusal("bad_request", f"{name} must be {least} to {most}, not {value}")
        if self.checksum_bodies:
            raise Refusal("bad_request", "checksum_bodies is not offered: every message keeps its own body; leave it")
        if before is not None and before.is_timeline and self.bucket_count != before.bucket_count:
            text = f"bucket_count is chosen once: it is {before.bucket_count}; make another topic for another one"
            raise Refusal("bad_request", text)

    def put(self, settings: TopicSettings) -> TopicSettings:
        """Return settings of a topic with these choices among them, and with what the core needs to know of them."""
        return msgspec.structs.replace(
            settings,
            dialects={**settings.dialects, "timeline": msgspec.to_builtins(self)},
            max_due_ns=self.max_seconds_future * SECOND_NS,
        )
