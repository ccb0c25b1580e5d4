"""The options of `format("penstock")` for reading: text in, one checked value out.

Owns their names, defaults and what each may be. Knows nothing of topics that exist. Names and meanings are those of
Spark's Kafka source where it has them. Invariant: a name or value that cannot be meant is an error that names the
option and the nearest one there is.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, PenstockError, hint

if TYPE_CHECKING:
    from penstock.client.connection import Access

#: Every option of the source, as it is written.
NAMES = (
    "path",
    "url",
    "token",
    "tokenFile",
    "tlsRoots",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "tag",
    "traffic",
    "buckets",
    "holdName",
    "holdSeconds",
)

#: Options that only make sense where a read ends, which a stream does not.
ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

#: How long rows below minOffsetsPerTrigger wait, as with Kafka's source.
DELAY_NS = 15 * 60 * 1_000_000_000

EARLIEST, LATEST = -2, -1

#: A place in every shard: a word for all, or offsets by topic and shard (-2 is earliest, -1 is latest).
Place = int | dict[str, dict[int, int]]
#: A time in milliseconds for every shard, or one for each by topic and shard.
Times = int | dict[str, dict[int, int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What a reader was asked to do."""

    path: str | None = None
    access: Access | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    starting: Place | None = None
    ending: Place | None = None
    starting_ms: Times | None = None
    ending_ms: Times | None = None
    #: Fewer rows than this wait for more, but not longer than that.
    offsets_min: int | None = None
    delay_ns: int = DELAY_NS
    offsets_max: int | None = None
    bytes_max: int | None = None
    tasks: int | None = None
    strict: bool = True
    headers: bool = True
    columns: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    traffic: int | None = None
    buckets: tuple[int, int] | None = None
    #: Under which name a stream holds its rows at the node, and for how long; a name is made up if there is none.
    hold_name: str | None = None
    hold_s: int | None = None


def parsed(given: Mapping[str, str]) -> Options:
    """Return the options of a read; ConfigError names the one that cannot be used."""
    words: dict[str, str] = {}
    for name, value in given.items():
        words[known(name)] = str(value).strip()
    path = words.get("path") or None
    if path is not None:
        path = re.sub(r"^file:(//)?(?=/)", "", path)
    options = Options(
        path=path,
        access=access_of(words),
        topics=_names(words, "subscribe"),
        pattern=_pattern(words),
        starting=_place(words, "startingOffsets"),
        ending=_place(words, "endingOffsets"),
        starting_ms=_times(words, "starting"),
        ending_ms=_times(words, "ending"),
        offsets_min=number(words, "minOffsetsPerTrigger", 1),
        delay_ns=_delay(words),
        offsets_max=number(words, "maxOffsetsPerTrigger", 1),
        bytes_max=number(words, "maxBytesPerTrigger", 1),
        tasks=number(words, "minPartitions", 1),
        strict=flag(words, "failOnDataLoss", True),
        headers=flag(words, "includeHeaders", True),
        columns=_names(words, "columns") or None,
        tags=_names(words, "tag") or None,
        traffic=_bits(words),
        buckets=_range(words),
        hold_name=words.get("holdName") or None,
        hold_s=number(words, "holdSeconds", 1),
    )
    _check_together(options)
    return options


def for_batch(options: Options) -> None:
    """Refuse what a batch read cannot do."""
    if options.offsets_min is not None:
        raise ConfigError("option minOffsetsPerTrigger is for streams: a batch read takes what is there")
    for name, place in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        word = LATEST if name == "startingOffsets" else EARLIEST
        said = "latest (-1)" if word == LATEST else "earliest (-2)"
        values = (
            [place] if isinstance(place, int) else [each for one in (place or {}).values() for each in one.values()]
        )
        if word in values:
            raise ConfigError(f"option {name} cannot be {said} in a batch read: there would be nothing to read")


def for_stream(given: Mapping[str, str]) -> None:
    """Refuse what a streaming read cannot do."""
    for name in given:
        if known(name) in ENDS:
            near = known(name).replace("ending", "starting")
            raise ConfigError(f"option {known(name)} is for batch reads: a stream has no end; did you mean {near}?")


def known(name: str, names: Sequence[str] = NAMES) -> str:
    """Return an option as it is written, whatever the case; ConfigError offers the nearest of these names."""
    written = {each.lower(): each for each in names}
    found = written.get(name.lower())
    if found is None:
        raise ConfigError(f"there is no option {name}; {_kafkas(name) or hint(name, names)}")
    return found


def _kafkas(name: str) -> str:
    """Return how to say here what an option of Spark's Kafka source says; empty if it is none of those."""
    lower = name.lower()
    if lower == "kafka.bootstrap.servers":
        return "that is Kafka's: set option url to the node, as grpc://host:7071, or option path to its data directory"
    if lower.startswith(("kafka.", "kafkaconsumer.", "fetchoffset.", "groupid")):
        return "that is for Kafka's client: options token, tokenFile and tlsRoots say who comes, and that is all"
    if lower == "assign":
        return (
            'that is Kafka\'s: set option subscribe to the topics, and choose shards by where("shard IN (0, 1)"), '
            "which a batch read takes on before it reads"
        )
    return ""


def _check_together(options: Options) -> None:
    if options.path is None and options.access is None:
        raise ConfigError(
            "where are the topics? Set option path to a data directory, or option url to a node, as grpc://host:7071"
        )
    if options.offsets_min is not None and options.offsets_min > (options.offsets_max or options.offsets_min):
        raise ConfigError(
            f"option minOffsetsPerTrigger is {options.offsets_min}, and maxOffsetsPerTrigger is {options.offsets_max}, "
            "which is less: raise one, or lower the other"
        )
    if bool(options.topics) == (options.pattern is not None):
        raise ConfigError("which topics? Set option subscribe to their names, or option subscribePattern, one of both")


def access_of(words: Mapping[str, str]) -> Access | None:
    """Return how to get to the node that the options name; None if they name none."""
    url = words.get("url")
    roots = b""
    if words.get("tlsRoots"):
        try:
            with open(words["tlsRoots"], "rb") as file:
                roots = file.read()
        except OSError as error:
            raise ConfigError(
                f"option tlsRoots is {words['tlsRoots']}, which cannot be read: {error.strerror}"
            ) from None
    if not url:
        if roots:
            raise ConfigError("option tlsRoots needs option url, as grpc+tls://host:7071")
        return None
    from penstock.client.connection import Access, locations_of, token_in

    try:
        locations_of(url)
    except ConfigError as error:
        raise ConfigError(f"option url: {error}") from None
    kept = words.get("tokenFile")
    return Access(url, words.get("token") or (token_in(kept) if kept else ""), roots)


def _names(words: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return a list written with commas, or as a JSON array for names with commas in them."""
    text = words.get(name)
    if text is None:
        return ()
    if text.startswith("["):
        values = _json(name, text)
        found = tuple(value for value in values if isinstance(value, str))
        if len(found) < len(values):
            raise ConfigError(f"option {name} is {text}: a JSON array there holds strings")
    else:
        found = tuple(part.strip() for part in text.split(","))
    if not found or not all(found):
        raise ConfigError(f"option {name} is {text!r}: one or more names, with commas between them")
    return tuple(dict.fromkeys(found))


def _pattern(words: Mapping[str, str]) -> str | None:
    text = words.get("subscribePattern")
    if text is None:
        return None
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option subscribePattern is {text!r}, which is no regular expression: {error}") from None
    return text


def _place(words: Mapping[str, str], name: str) -> Place | None:
    text = words.get(name)
    if text is None:
        return None
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    if not text.startswith("{"):
        near = hint(text, ("earliest", "latest"), 'earliest, latest, or offsets as {"topic":{"0":23,"1":-2}}')
        raise ConfigError(f"option {name} is {text!r}: {near}")
    return _offsets(name, text)


def _offsets(name: str, text: str) -> dict[str, dict[int, int]]:
    """Return offsets by topic and shard."""
    values = _json(name, text)
    assert isinstance(values, dict)  # it begins with a brace
    found: dict[str, dict[int, int]] = {}
    for topic, shards in values.items():
        if not isinstance(shards, dict) or not shards:
            raise ConfigError(f'option {name}: topic {topic} needs offsets by shard, as {{"0":23}}, not {shards!r}')
        found[topic] = {}
        for shard, offset in shards.items():
            good = isinstance(offset, int) and not isinstance(offset, bool) and offset >= EARLIEST
            if not shard.isdigit() or not good:
                raise ConfigError(
                    f"option {name}: {shard!r}: {offset!r} of topic {topic} is no offset of a shard; "
                    "an offset is 0 or more, -2 for earliest, -1 for latest"
                )
            found[topic][int(shard)] = offset
    return found


def _times(words: Mapping[str, str], side: str) -> Times | None:
    """Return a time for every shard, or one for each; the first wins, as with Kafka's source."""
    whole = number(words, f"{side}Timestamp", 0)
    name = f"{side}OffsetsByTimestamp"
    if whole is not None or name not in words:
        return whole
    if not words[name].startswith("{"):
        raise ConfigError(
            f"option {name} is {words[name]!r}: milliseconds since 1970 by topic and shard, as "
            '{"topic":{"0":1767225600000}}'
        )
    times = _offsets(name, words[name])
    if any(time_ms < 0 for shards in times.values() for time_ms in shards.values()):
        raise ConfigError(f"option {name} has a time before 1970; a word for earliest or latest is for startingOffsets")
    return times


def _delay(words: Mapping[str, str]) -> int:
    """Return how long few rows wait for more."""
    text = words.get("maxTriggerDelay")
    if text is None:
        return DELAY_NS
    from penstock.units.quantity import parse_duration

    if "minOffsetsPerTrigger" not in words:
        raise ConfigError("option maxTriggerDelay needs option minOffsetsPerTrigger: rows wait for nothing else")
    try:
        return parse_duration(text)
    except PenstockError as error:
        raise ConfigError(f"option maxTriggerDelay: {error}") from None


def _json(name: str, text: str) -> dict[str, object] | list[object]:
    try:
        values: dict[str, object] | list[object] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"option {name} is not JSON: {error}") from None
    return values


def number(words: Mapping[str, str], name: str, least: int) -> int | None:
    """Return an option that is a whole number; None if it is not set."""
    text = words.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value < 1 << 62:
        unit = " of milliseconds since 1970" if name.endswith("Timestamp") else ""
        raise ConfigError(f"option {name} is {text!r}: a whole number{unit}, {least} or more")
    return value


def flag(words: Mapping[str, str], name: str, default: bool) -> bool:
    """Return an option that is true or false."""
    text = words.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"option {name} is {words[name]!r}: true or false")
    return text == "true"


def _bits(words: Mapping[str, str]) -> int | None:
    """Return a mask of 64 traffic bits as the log keeps it, signed."""
    text = words.get("traffic")
    if text is None:
        return None
    try:
        value = int(text, 0)
    except ValueError:
        value = 0
    if not 0 < value < 1 << 64:
        raise ConfigError(f"option traffic is {text!r}: a mask of traffic bits, as 5 or 0x5, up to 64 bits")
    return value - (value >> 63 << 64)


def _range(words: Mapping[str, str]) -> tuple[int, int] | None:
    text = words.get("buckets")
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)\s*:\s*(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]) or int(found[2]) > 1 << 16:
        raise ConfigError(f"option buckets is {text!r}: low:high, where high is not included, as 0:512, up to 65536")
    return int(found[1]), int(found[2])
