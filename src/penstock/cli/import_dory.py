"""The configuration file of Dory in the words of ours: its inputs, its pages, and its way to Kafka.

Invariant: everything the file says is a setting afterwards, or named in the list of what is left with the reason; and
what Dory would refuse to start with is refused, unless it can be done here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar
from xml.etree import ElementTree

from penstock.errors import ConfigError, hint
from penstock.kafka.compression import LEVELS
from penstock.units.quantity import format_duration, format_size

#: Where Dory shows its pages, and looks for brokers, unless it is told otherwise.
HTTP_PORT = 9090
BROKER_PORT = 9002

MILLISECOND_NS = 1_000_000
SECOND_NS = 1000 * MILLISECOND_NS
INT32_MAX = (1 << 31) - 1

_LEVELS = {
    **dict.fromkeys(("EMERG", "ALERT", "CRIT", "ERR"), "error"),
    **{"WARNING": "warning", "NOTICE": "info", "INFO": "info", "DEBUG": "debug"},
}
#: Where a machine's syslog listens.
SYSLOG = "/dev/log"
_ACTIONS = {"perTopic": "per_topic", "combinedTopics": "combined", "disable": "none"}
#: Dory has the first three; it knows of lz4 and refuses it.
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20}

T = TypeVar("T")
Settings: TypeAlias = dict[str, Any]


class Element:
    """A part of the file, of which nothing may be left over."""

    def __init__(self, found: ElementTree.Element | None, path: str) -> None:
        """Take what is there, or None where nothing is."""
        self._found = found
        self.path = path
        #: What was asked for.
        self._elements: set[str] = set()
        self._attributes: set[str] = set()
        self._parts: list[Element] = []

    @property
    def is_there(self) -> bool:
        """Whether the file has it."""
        return self._found is not None

    def part(self, name: str) -> Element:
        """Return what is in it under a name, at most once."""
        self._elements.add(name)
        found = self._found.findall(name) if self._found is not None else []
        if len(found) > 1:
            raise ConfigError(f"{self.path}/{name} is there {len(found)} times; leave one")
        part = Element(found[0] if found else None, f"{self.path}/{name}")
        self._parts.append(part)
        return part

    def every(self, name: str) -> Iterator[Element]:
        """Yield everything in it under a name."""
        self._elements.add(name)
        for each in self._found.findall(name) if self._found is not None else ():
            part = Element(each, f"{self.path}/{name}")
            self._parts.append(part)
            yield part

    def text(self, name: str = "value") -> str | None:
        """Return an attribute; None where it, or the whole, is not there."""
        self._attributes.add(name)
        return self._found.get(name) if self._found is not None else None

    def required(self, name: str = "value") -> str:
        """Return an attribute that must be there."""
        text = self.text(name)
        if text is None:
            raise ConfigError(f"{self.path} has no {name}; write one")
        return text

    def read(self, how: Callable[[str], T], default: T, name: str = "value") -> T:
        """Return an attribute as something; the default where the whole is not there."""
        if not self.is_there:
            self.text(name)
            return default
        text = self.required(name)
        try:
            return how(text)
        except ValueError as error:
            raise ConfigError(f'{self.path}: {name}="{text}" {error}') from None

    def is_on(self, default: bool = False) -> bool:
        """Return its `enable`."""
        return self.read(_switch, default, "enable")

    def check(self) -> None:
        """Refuse what nobody asked for: Dory does not know it either."""
        if self._found is not None:
            for each in self._found:
                if each.tag not in self._elements:
                    raise ConfigError(
                        f"{self.path}/{each.tag} is not known; {hint(each.tag, self._elements, 'remove it')}"
                    )
            for name in self._found.attrib:
                if name not in self._attributes:
                    raise ConfigError(f"{self.path} has no {name}; {hint(name, self._attributes, 'remove it')}")
        for part in self._parts:
            part.check()


def imported(text: str) -> tuple[Settings, dict[str, str]]:
    """Return what a file says as settings by name, and what it says besides with the reason why that is none."""
    try:
        tree = ElementTree.fromstring(text.encode())
    except ElementTree.ParseError as error:
        raise ConfigError(f"it is no XML that can be read: {error}") from None
    if tree.tag != "doryConfig":
        raise ConfigError(f"its root is {tree.tag}; a configuration of Dory has doryConfig")
    root = Element(tree, "doryConfig")
    settings: Settings = {"kafka_relay.topics": ["*"]}
    left: dict[str, str] = {}
    topics: dict[str, Settings] = {}
    _inputs(root, settings)
    _delivery(root.part("msgDelivery"), settings)
    _kafka(root, settings, left)
    _batching(root.part("batching"), settings, topics, left)
    _compression(root.part("compression"), settings, topics, left)
    _rates(root.part("topicRateLimiting"), settings, topics)
    _pages(root.part("httpInterface"), settings, left)
    _discards(root.part("discardLogging"), settings)
    _debug(root.part("msgDebug"), settings)
    _logging(root.part("logging"), settings, left)
    root.check()
    if topics:
        settings["kafka_relay.per_topic"] = [{"topic": name} | found for name, found in topics.items()]
    return settings, left


# --- sections -----------------------------------------------------------------------------------------------------


def _inputs(root: Element, settings: Settings) -> None:
    sources = root.part("inputSources")
    found = False
    for name, ours in (("unixDatagram", "unix_datagram"), ("unixStream", "unix_stream")):
        source = sources.part(name)
        path, mode = source.part("path"), source.part("mode")
        is_on = source.is_on()
        where = path.read(_absolute, "") if is_on else path.text() or ""
        octal = mode.read(_mode, "")
        if is_on:
            if not where:
                raise ConfigError(f"{path.path} is missing; write where the socket is")
            found = True
            settings[f"dory.{ours}_path"] = where
            if octal:
                settings[f"dory.{ours}_mode"] = octal
    tcp = sources.part("tcp")
    port = tcp.part("port").read(_port, 0)
    if tcp.is_on():
        if not port:
            raise ConfigError(f"{tcp.path}/port is missing; write one")
        found = True
        settings |= {"dory.tcp": True, "dory.tcp_port": port}
    if not found:
        raise ConfigError(f"{sources.path} has no input that is on; enable unixDatagram, unixStream or tcp")
    limits = root.part("inputConfig")
    for name, ours in (
        ("maxBuffer", "max_buffer"),
        ("maxDatagramMsgSize", "max_datagram_msg_size"),
        ("maxStreamMsgSize", "max_stream_msg_size"),
    ):
        _take(limits.part(name), settings, f"dory.{ours}", _sized(_size))
    _take(limits.part("allowLargeUnixDatagrams"), settings, "dory.allow_large_unix_datagrams", _switch)


def _delivery(section: Element, settings: Settings) -> None:
    autocreate = section.part("topicAutocreate")
    if autocreate.is_there:
        settings["kafka_relay.topic_autocreate"] = autocreate.is_on()
    for name, ours, how in (
        ("maxFailedDeliveryAttempts", "failed_attempts_max", _count),
        ("shutdownMaxDelay", "shutdown_max_delay", _milliseconds),
        ("dispatcherRestartMaxDelay", "restart_max_delay", _milliseconds),
        ("metadataRefreshInterval", "metadata_refresh", _minutes),
        ("compareMetadataOnRefresh", "metadata_compare", _switch),
        ("kafkaSocketTimeout", "socket_timeout", _seconds),
        ("pauseRateLimitInitial", "pause_initial", _milliseconds),
        ("pauseRateLimitMaxDouble", "pause_doublings", _count),
        ("minPauseDelay", "pause_min", _milliseconds),
    ):
        _take(section.part(name), settings, f"kafka_relay.{ours}", how)


def _kafka(root: Element, settings: Settings, left: dict[str, str]) -> None:
    kafka = root.part("kafkaConfig")
    settings["kafka_relay.client_id"] = kafka.part("clientId").read(str, "dory")
    _take(kafka.part("replicationTimeout"), settings, "kafka_relay.replication_timeout", _replication)
    brokers = []
    for each in root.part("initialBrokers").every("broker"):
        host, port = each.required("host"), each.text("port")
        if not host:
            raise ConfigError(f"{each.path} has an empty host")
        if port is None:
            left[f"the port of broker {host}"] = f"the file does not say it: {BROKER_PORT} was written, as Dory has it"
        number = BROKER_PORT if port is None else each.read(_port, 0, "port")
        brokers.append(f"[{host}]:{number}" if ":" in host else f"{host}:{number}")
    if not brokers:
        raise ConfigError("doryConfig/initialBrokers has no broker; name at least one")
    settings["kafka_relay.brokers"] = brokers


def _batching(section: Element, settings: Settings, topics: dict[str, Settings], left: dict[str, str]) -> None:
    named: dict[str, Settings] = {}
    for each in section.part("namedConfigs").every("config"):
        limits = {
            "time": each.part("time").read(_limit(_milliseconds), None),
            "messages": each.part("messages").read(_limit(_count_k), None),
            "bytes": each.part("bytes").read(_limit(_sized(_size_k)), None),
        }
        _name(named, each, {name: value for name, value in limits.items() if value is not None})
        if not named[each.required("name")]:
            raise ConfigError(f"{each.path} {each.required('name')} has no limit; set time, messages or bytes")
    if not section.is_there:
        left["doryConfig/batching"] = "it is missing, and Dory would throw every message away: our defaults are used"
    limit = section.part("produceRequestDataLimit")
    _take(limit, settings, "kafka_relay.request_bytes", _sized(_size_k))
    most = section.part("messageMaxBytes")
    if most.is_there:
        size = most.read(_size_k, 0)
        settings["kafka_relay.message_max_bytes"] = format_size(size)
        if size > 1 << 20:  # more than the node would take
            settings["node.message_bytes"] = format_size(size)
            settings["node.request_bytes"] = format_size(max(size, 16 << 20))
    combined = section.part("combinedTopics")
    combined_on = combined.is_on()
    chosen = combined.text("config") or ""
    if combined_on:
        found = _known(named, chosen, combined)
        settings |= {f"kafka_relay.combined_{name}": value for name, value in found.items()}
    default = section.part("defaultTopic")
    if default.is_there:
        action, limits = _batched(default, named, combined_on)
        settings["kafka_relay.batching"] = action
        settings |= {f"kafka_relay.batch_{name}": value for name, value in limits.items()}
    for each in section.part("topicConfigs").every("topic"):
        action, limits = _batched(each, named, combined_on)
        # What the default has and this one has not must not reach it.
        unset: Settings = {"batch_time": "0", "batch_messages": 0, "batch_bytes": "0"} if limits else {}
        given = unset | {f"batch_{name}": value for name, value in limits.items()}
        _topic(topics, each, "batching", {"batching": action, **given})
    for needed in (limit, most, combined, default):
        if section.is_there and not needed.is_there:
            raise ConfigError(f"{needed.path} is missing; batching needs it")


def _batched(each: Element, named: dict[str, Settings], combined: bool) -> tuple[str, Settings]:
    action, config = each.required("action"), each.text("config") or ""
    if action not in _ACTIONS:
        raise ConfigError(f'{each.path}: action="{action}" is not known; {hint(action, _ACTIONS, "leave it out")}')
    if action == "perTopic":
        return "per_topic", _known(named, config, each)
    if config:
        raise ConfigError(f'{each.path}: action="{action}" has no config; leave "{config}" out')
    return ("none" if action == "combinedTopics" and not combined else _ACTIONS[action]), {}


def _compression(section: Element, settings: Settings, topics: dict[str, Settings], left: dict[str, str]) -> None:
    named: dict[str, Settings] = {}
    for each in section.part("namedConfigs").every("config"):
        codec = each.required("type").lower()
        if codec not in _CODECS:
            raise ConfigError(f'{each.path}: type="{codec}" is not known; {hint(codec, _CODECS, "use none")}')
        found: Settings = {"compression": codec}
        least = each.text("minSize")
        if least is not None:
            found["compression_min_bytes"] = each.read(_sized(_size_k), "", "minSize")
        elif codec != "none":
            raise ConfigError(f"{each.path} {each.required('name')} has no minSize; write one")
        level = each.read(int, -1, "level") if each.text("level") is not None else -1
        if codec in LEVELS and level == 0:
            found["compression"] = "none"
            left[f"compression config {each.required('name')}"] = (
                "level 0 makes nothing smaller, and what is not smaller is sent as it is: none was written"
            )
        elif codec in LEVELS and level not in (-1, *LEVELS[codec]):
            left[f"compression config {each.required('name')}"] = f"{codec} has no level {level}: its own is used"
        if codec != "none":
            # 0 is the codec's own; said, too, so that a topic does not take the default's.
            found["compression_level"] = level if level in LEVELS.get(codec, ()) else 0
        _name(named, each, found)
    _take(section.part("sizeThresholdPercent"), settings, "kafka_relay.compression_percent", _percent)
    default = section.part("defaultTopic")
    if default.is_there:
        found = _known(named, default.required("config"), default)
        settings |= {f"kafka_relay.{name}": value for name, value in found.items()}
    for each in section.part("topicConfigs").every("topic"):
        _topic(topics, each, "compression", _known(named, each.required("config"), each))


def _rates(section: Element, settings: Settings, topics: dict[str, Settings]) -> None:
    named: dict[str, Settings] = {}
    for each in section.part("namedConfigs").every("config"):
        if each.required("maxCount") == "unlimited":
            each.text("interval")
            # Said whole: a topic that has this must not take the default's interval.
            _name(named, each, {"rate_interval": "0", "rate_count": 0})
            continue
        interval = each.read(_interval, "", "interval")
        _name(named, each, {"rate_interval": interval, "rate_count": each.read(_count_k, 0, "maxCount")})
    default = section.part("defaultTopic")
    if default.is_there:
        found = _known(named, default.required("config"), default)
        settings |= {f"kafka_relay.{name}": value for name, value in found.items()}
    for each in section.part("topicConfigs").every("topic"):
        _topic(topics, each, "rate", _known(named, each.required("config"), each))


def _pages(section: Element, settings: Settings, left: dict[str, str]) -> None:
    settings["dory.http_port"] = section.part("port").read(_port, HTTP_PORT)
    if not section.part("loopbackOnly").read(_switch, False):
        left["doryConfig/httpInterface/loopbackOnly"] = (
            "pages are for this machine; for others set dory.address, and token_file with tls_cert and tls_key"
        )
    _take(section.part("discardReportInterval"), settings, "discards.report_interval", _some_seconds)
    _take(section.part("badMsgPrefixSize"), settings, "discards.sample_bytes", _sized(_count))


def _discards(section: Element, settings: Settings) -> None:
    path = section.part("path")
    is_on = section.is_on()
    found: Settings = {"discards.log": path.read(_absolute, "") if is_on else path.text()}
    for name, ours, how in (
        ("maxFileSize", "log_file_bytes", _sized(_size)),
        ("maxArchiveSize", "log_archive_bytes", _sized(_size)),
        ("maxMsgPrefixSize", "log_message_bytes", _unlimited(_sized(_size_k))),
    ):
        _take(section.part(name), found, f"discards.{ours}", how)
    if is_on:
        if not found["discards.log"]:
            raise ConfigError(f"{path.path} is missing; write where the file is")
        settings |= {"discards.log_message_bytes": "0"} | found


def _debug(section: Element, settings: Settings) -> None:
    path = section.part("path")
    is_on = section.is_on()
    found: Settings = {"dory.msg_debug_path": path.read(_absolute, "") if is_on else path.text()}
    _take(section.part("timeLimit"), found, "dory.msg_debug_time", _some_seconds)
    _take(section.part("byteLimit"), found, "dory.msg_debug_bytes", _sized(_size))
    if is_on:
        if not found["dory.msg_debug_path"]:
            raise ConfigError(f"{path.path} is missing; write the directory")
        settings |= found


def _logging(section: Element, settings: Settings, left: dict[str, str]) -> None:
    _take(section.part("level"), settings, "log.level", _level)
    file = section.part("file")
    path = file.part("path")
    if file.is_on():
        settings["log.file"] = path.read(_absolute, "")
        if not settings["log.file"]:
            raise ConfigError(f"{path.path} is missing; write where the file is")
    else:
        path.text()
    if file.part("mode").text() is not None:
        left[f"{file.path}/mode"] = "the umask decides"
    standard = section.part("stdoutStderr")
    if standard.is_on() and "log.file" in settings:
        left[standard.path] = "lines go to the file and not to standard error as well"
    elif standard.is_there and not standard.is_on() and "log.file" not in settings:
        left[standard.path] = "without a file, lines go to standard error"
    if section.part("syslog").is_on(default=True):
        settings["log.syslog"] = SYSLOG
    discards = section.part("logDiscards")
    if discards.is_there:
        settings["discards.warn"] = discards.is_on()


# --- pieces -------------------------------------------------------------------------------------------------------


def _take(element: Element, settings: Settings, ours: str, how: Callable[[str], object]) -> None:
    if element.is_there:
        settings[ours] = element.read(how, None)


def _name(named: dict[str, Settings], each: Element, found: Settings) -> None:
    name = each.required("name")
    if name in named:
        raise ConfigError(f"{each.path} {name} is there twice; leave one")
    named[name] = found


def _known(named: dict[str, Settings], name: str, user: Element) -> Settings:
    if name not in named:
        raise ConfigError(f'{user.path}: there is no config "{name}"; {hint(name, named, "add it to namedConfigs")}')
    return named[name]


def _topic(topics: dict[str, Settings], each: Element, what: str, found: Settings) -> None:
    name = each.required("name")
    theirs = topics.setdefault(name, {})
    if not theirs.keys().isdisjoint(found):
        raise ConfigError(f"{each.path} {name} is there twice; leave one")
    theirs |= found


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError("is no number that is 0 or more")
    return int(text)


def _suffixed(text: str, suffixes: str) -> int:
    factor = _SUFFIXES[text[-1]] if text and text[-1] in suffixes else 1
    return _count(text[:-1] if factor > 1 else text) * factor


def _count_k(text: str) -> int:
    return _suffixed(text, "k")


_size_k = _count_k


def _size(text: str) -> int:
    return _suffixed(text, "km")


def _sized(how: Callable[[str], int]) -> Callable[[str], str]:
    return lambda text: format_size(how(text))


def _limit(how: Callable[[str], T]) -> Callable[[str], T | None]:
    return lambda text: None if text in ("disable", "0") else how(text)


def _unlimited(how: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "0" if text == "unlimited" else how(text)


def _milliseconds(text: str) -> str:
    return format_duration(_count(text) * MILLISECOND_NS)


def _seconds(text: str) -> str:
    return format_duration(_count(text) * SECOND_NS)


def _minutes(text: str) -> str:
    return format_duration(_count(text) * 60 * SECOND_NS)


def _replication(text: str) -> str:
    if _count(text) > INT32_MAX:
        raise ValueError(f"is more than {INT32_MAX}")
    return _milliseconds(text)


def _interval(text: str) -> str:
    if not _count(text):
        raise ValueError("must be 1 or more")
    return _milliseconds(text)


def _some_seconds(text: str) -> str:
    if not _count(text):
        raise ValueError("must be 1 or more")
    return _seconds(text)


def _percent(text: str) -> int:
    if _count(text) > 100:
        raise ValueError("is more than 100")
    return _count(text)


def _port(text: str) -> int:
    if not 0 < _count(text) < 1 << 16:
        raise ValueError("is no port: write 1 to 65535")
    return _count(text)


def _absolute(text: str) -> str:
    if not os.path.isabs(text):
        raise ValueError("is no absolute path")
    return text


def _mode(text: str) -> str:
    if text == "unspecified":
        return ""
    binary = text[:2] in ("0b", "0B")
    try:
        mode = int(text[2:], 2) if binary else int(text, 8) if text.isascii() and text.isdigit() else -1
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise ValueError("is no mode: write it octal, at most 0777")
    return f"{mode:04o}"


def _level(text: str) -> str:
    if text.upper() not in _LEVELS:
        raise ValueError(f"is no level; they are {', '.join(_LEVELS)}")
    return _LEVELS[text.upper()]
