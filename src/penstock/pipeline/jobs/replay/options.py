"""What a replay may be told: which messages, where they go, how fast, and with which times.

Owns the keys and what each may hold. Knows nothing of what exists.
Invariant: the derived name is the same for the same words once durations back from now are times, so that a command
that is repeated means the same replay if it means the same messages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from penstock.errors import ConfigError, Refusal
from penstock.pipeline.lake.table import FORMATS
from penstock.pipeline.plan.document import Place
from penstock.units.quantity import parse_duration
from penstock.units.times import past, shown

Times = Literal["original", "shift", "none"]
#: An offset in every shard, offsets by shard, a time, a duration back from now, `earliest` or `latest`.
Bound = int | str | dict[str, int]

#: Bounds that are no time.
WORDS = ("earliest", "latest")
#: Stands for a message's own topic in the name of the target.
TOPIC = "{topic}"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
#: What says something else at each step, so that the steps would not be parts of one whole.
CHANGING = re.compile(
    r"\b(now|current_timestamp|current_date|current_time|localtimestamp|curdate|unix_timestamp|rand|random|randn|uuid|"
    r"shuffle|monotonically_increasing_id|spark_partition_id|input_file_name)\b",
    re.IGNORECASE,
)
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


class Replay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a replay."""

    #: The node, or its data directory, whose topics are read and written.
    node: Place
    #: Another node to write to.
    to_node: Place | None = None
    #: What is read: topics, or a lake table, of which `topics` then are those that are taken.
    topics: tuple[str, ...] = ()
    table: str = ""
    format: str = "delta"
    version: int | None = None
    from_: Bound = msgspec.field(default="earliest", name="from")
    until: Bound = "latest"
    #: Only these, as an SQL condition on the columns of a message.
    where: str = ""
    #: The topic that gets them; `{topic}` stands for their own.
    to: str
    #: Rows a second; None = as fast as it goes.
    rate: int | None = None
    times: Times = "original"
    #: How far times are shifted, as 90m or -1d; empty: so that the first row is now.
    shift: str = ""
    #: Dedup keys go along, and what repeats one within the target's window is not stored.
    keep_dedup: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not self.topics and not self.table:
            raise ConfigError("what is to be replayed? Set topics, or table to the directory of a lake table")
        if self.table and not self.node.path and not self.node.url and self.to_node is None:
            raise ConfigError("which node gets the messages? Set node to its data directory or its address")
        if not self.table and not self.node.path and not self.node.url:
            raise ConfigError("where are the topics? Set node to a data directory, or to an address")
        if self.version is not None and not self.table:
            raise ConfigError("version is of a table, and topics have none: use from and until")
        if self.format not in FORMATS:
            raise ConfigError(f"format is {self.format}, and tables are {' or '.join(FORMATS)}")
        if not self.to:
            raise ConfigError(f"to is empty: name a topic, or a pattern such as {TOPIC}.replay")
        if self.rate is not None and self.rate < 1:
            raise ConfigError(f"rate is {self.rate}: one row a second at least; leave it out for full speed")
        if self.shift and self.times != "shift":
            raise ConfigError(f'shift is {self.shift}, and times is "{self.times}": set times to "shift"')
        if self.name and not NAME.fullmatch(self.name):
            raise ConfigError(f"name is {self.name!r}: up to 100 letters, digits, dots, dashes, and a letter first")
        if found := CHANGING.search(_TEXT.sub("''", self.where)):
            raise ConfigError(f"where uses {found[0]}, which says something else at each step: use from and until")
        self.shift_us()

    def shift_us(self) -> int | None:
        """Return how far times are shifted, None where the first row decides."""
        if not self.shift:
            return None
        try:
            length_ns = parse_duration(self.shift.removeprefix("-").removeprefix("+"))
        except ConfigError as error:
            raise ConfigError(f"shift: {error}") from None
        return (-1 if self.shift.startswith("-") else 1) * (length_ns // 1000)

    def resolved(self, now_ns: int) -> Replay:
        """Return the same replay with its times as moments: a duration back from now means another one each time."""
        return msgspec.structs.replace(
            self, from_=_settled(self.from_, now_ns, "from"), until=_settled(self.until, now_ns, "until")
        )

    def words(self) -> dict[str, Any]:
        """Return what makes this replay what it is: neither its name nor its pace, and no secrets."""
        # Through JSON, because that is how a plan keeps it and is compared.
        values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        for place in (values["node"], values["to_node"] or {}):
            place.pop("token", None)
            place.pop("token_file", None)
        return {name: value for name, value in values.items() if name not in ("name", "rate")}

    def chosen_name(self) -> str:
        """Return the name it was given, or one that the same words always give."""
        return self.name or name_of(self.words())

    def target(self, topic: str) -> str:
        """Return where the messages of a topic go."""
        return self.to.replace(TOPIC, topic)


def name_of(words: Mapping[str, Any]) -> str:
    """Return the name that words have of themselves."""
    stem = words["topics"][0] if words["topics"] else words["table"].rsplit("/", 1)[-1]
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:40]
    text = json.dumps(words, sort_keys=True)
    return f"{stem or 'messages'}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def time_ns(text: str, now_ns: int, key: str) -> int:
    """Return the moment that a bound means; ConfigError says what it may be."""
    try:
        return past(text, now_ns, key)
    except Refusal:
        raise ConfigError(
            f"{key} is {text!r}: an offset, offsets by shard, earliest, latest, a time like 2026-01-31T12:00:00Z, or a "
            "duration back from now like 2h"
        ) from None


def _settled(bound: Bound, now_ns: int, key: str) -> Bound:
    return shown(time_ns(bound, now_ns, key)) if isinstance(bound, str) and bound not in WORDS else bound
