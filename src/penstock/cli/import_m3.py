"""The configuration of an m3aggregator in the words of ours: its topic is relayed to the same consumer services.

Invariant: everything the file says is a setting afterwards, or named in the list of what is left with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import yaml

from penstock.errors import ConfigError

#: Where M3 looks for etcd unless it is told otherwise.
ENDPOINT = "127.0.0.1:2379"
BACKEND = "aggregator.flush.handlers[].dynamicBackend"

_LEFT = {
    "name": "it names the back end in M3's own metrics",
    "hashType": "murmur32 is what there is",
    "producer.buffer": "what is not acked waits in the log, on disk; quota_bytes of a topic bounds it",
    "producer.writer": "the relay has no such setting",
}
#: Settings of the producer's writer -> those of the relay.
_WRITER = {
    "topicServiceOverride.zone": "zone",
    "topicServiceOverride.environment": "environment",
    "topicServiceOverride.namespace": "topic_namespace",
    "placementServiceOverride.namespaces.placement": "placement_namespace",
    "connection.numConnections": "connections",
    "connection.dialTimeout": "dial_timeout",
    "connection.writeTimeout": "write_timeout",
    "ignoreCutoffCutover": "ignore_cutover_cutoff",
    "messageRetry.initialBackoff": "retry_initial",
    "messageRetry.maxBackoff": "retry_max",
    "staticMessageRetry.backoff": "retry_pauses",
    "encoder.maxMessageSize": "frame_bytes",
}
_NOT_OURS = "nothing here is set by it"

#: List of filters -> (its setting there, ours).
_KINDS = {
    "filters": {"shardSet": "shard_set"},
    "storagePolicyFilters": {"storagePolicies": "storage_policies"},
    "percentageFilters": {"percentage": "percentage"},
    "routingPolicyFilters": {"isDefault": "is_default", "allowedTrafficTypes": "allowed_traffic_types"},
}


def imported(text: str) -> tuple[dict[str, object], dict[str, str]]:
    """Return what a file says as settings by name, and what it says besides with the reason why that is none."""
    try:
        document = _map(yaml.safe_load(text), "the file")
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"it is no YAML that can be read: {' '.join(str(error).split())}") from None
    settings: dict[str, object] = {}
    left: dict[str, str] = {}
    filters: list[dict[str, object]] = []
    known = _endpoints(document)
    backends = list(_backends(document, left))
    if not backends:
        raise ConfigError(f"there is no {BACKEND} in it; name the configuration file of an m3aggregator")
    for backend in backends:
        _policy(backend, settings)
        filters += _filters(backend, _relay(backend, settings, left), left)
    if "routingPolicyConfig" in backends[0] and "routing.key" not in settings:
        left["routingPolicyConfig"] = "without a kvKey there is no policy"
    used = [str(settings[name]) for name in ("routing.zone", "m3msg_relay.zone") if name in settings]
    for zone in dict.fromkeys((*used, *filter(None, known))):  # services may be in any of them
        settings[f"etcd.zones.{zone}.endpoints"] = known.get(zone, [ENDPOINT])
        if zone not in known:
            left[f"the endpoints of zone {zone}"] = f"the file does not say where its etcd is: {ENDPOINT} was written"
    if filters:
        settings["routing.filters"] = filters
    return settings, left


def _backends(document: Mapping[str, object], left: dict[str, str]) -> Iterator[Mapping[str, object]]:
    """Yield the back ends, and note everything around them."""
    aggregator = _map(document.get("aggregator"), "aggregator")
    flush = _map(aggregator.get("flush"), "aggregator.flush")
    for name in document:
        if name not in ("aggregator", "kvClient"):
            left[name] = _NOT_OURS
    left |= {f"aggregator.{name}": _NOT_OURS for name in aggregator if name != "flush"}
    left |= {f"aggregator.flush.{name}": _NOT_OURS for name in flush if name != "handlers"}
    for handler in _list(flush.get("handlers"), "aggregator.flush.handlers"):
        for name, value in _map(handler, "a handler").items():
            if name == "dynamicBackend":
                yield _map(value, BACKEND)
            else:
                left[f"aggregator.flush.handlers[].{name}"] = "only a dynamicBackend routes"


def _policy(backend: Mapping[str, object], settings: dict[str, object]) -> None:
    """Take over where the routing policy is."""
    policy = _map(backend.get("routingPolicyConfig"), "routingPolicyConfig")
    place = _map(policy.get("kvConfig"), "routingPolicyConfig.kvConfig")
    key = str(policy.get("kvKey") or "")
    if not key:
        return
    found: dict[str, object] = {"routing.key": key}
    found |= {f"routing.{name}": str(place[name]) for name in ("zone", "environment", "namespace") if place.get(name)}
    _merge(settings, found, "routing policies")


def _relay(backend: Mapping[str, object], settings: dict[str, object], left: dict[str, str]) -> str:
    """Take over what the producer says, and return the topic that it writes to."""
    producer = _map(backend.get("producer"), "producer")
    topic = ""
    found: dict[str, object] = {}
    writer = _map(producer.get("writer"), "producer.writer")
    if writer.get("messageRetry") and _map(writer.get("staticMessageRetry"), "staticMessageRetry").get("backoff"):
        raise ConfigError("producer.writer has messageRetry and staticMessageRetry, and upstream takes but one of them")
    for part, values in producer.items():
        for name, value in _flat(_map(values, f"producer.{part}")):
            if (part, name) == ("writer", "topicName"):
                topic = str(value or "")
            elif part == "writer" and name in _WRITER:
                found[f"m3msg_relay.{_WRITER[name]}"] = value
            else:
                left[f"producer.{part}.{name}"] = _LEFT.get(f"producer.{part}", _NOT_OURS)
    if topic:
        topics = settings.setdefault("m3msg_relay.topics", [])
        assert isinstance(topics, list)
        topics.append(topic)
        _merge(settings, found, "producers")
    return topic


def _merge(settings: dict[str, object], found: Mapping[str, object], what: str) -> None:
    if any(settings.get(name, value) != value for name, value in found.items()):
        raise ConfigError(f"two back ends have different {what}; a node has one: import them into two files")
    settings |= found


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _filters(backend: Mapping[str, object], topic: str, left: dict[str, str]) -> list[dict[str, object]]:
    """Return one filter for each service, whatever lists it is in, under the name that the relay gives it."""
    services: dict[tuple[str, str, str], dict[str, object]] = {}
    for name, value in backend.items():
        if name in _KINDS:
            for each in _list(value, name):
                _add(services, name, _map(each, name))
        elif name not in ("routingPolicyConfig", "producer"):
            left[name] = _LEFT.get(name, _NOT_OURS)
    if services and not topic:
        raise ConfigError("producer.writer.topicName is missing: it is the topic whose services these are")
    return [
        {"topic": topic, "subscription": ".".join(("m3msg", *filter(None, (zone, environment, name)))), **found}
        for (name, environment, zone), found in services.items()
    ]


def _add(services: dict[tuple[str, str, str], dict[str, object]], kind: str, entry: Mapping[str, object]) -> None:
    service = _map(entry.get("serviceID"), f"{kind}.serviceID")
    name, environment, zone = (str(service.get(part) or "") for part in ("name", "environment", "zone"))
    if not name:
        raise ConfigError(f"{kind} has an entry without serviceID.name")
    found = services.setdefault((name, environment, zone), {})
    for theirs, value in entry.items():
        if theirs == "serviceID":
            continue
        ours = _KINDS[kind].get(theirs)
        if ours is None:
            raise ConfigError(f"{kind} of {name}: {theirs} is not known; it has {', '.join(_KINDS[kind])}")
        if ours in found:
            raise ConfigError(f"{kind} has {name} twice; put its filters together")
        found[ours] = _typed(ours, value)


def _typed(ours: str, value: object) -> object:
    if ours in ("storage_policies", "allowed_traffic_types"):
        return [str(each) for each in _list(value, ours)]
    if ours == "shard_set":
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return value


def _endpoints(document: Mapping[str, object]) -> dict[str, list[str]]:
    """Return where the etcd of each zone is, as far as the file says."""
    etcd = _map(_map(document.get("kvClient"), "kvClient").get("etcd"), "kvClient.etcd")
    found = {}
    for each in _list(etcd.get("etcdClusters"), "kvClient.etcd.etcdClusters"):
        cluster = _map(each, "kvClient.etcd.etcdClusters")
        texts = [str(text) for text in _list(cluster.get("endpoints"), "endpoints")]
        found[str(cluster.get("zone") or "")] = [text.rpartition("://")[2] for text in texts]
    return found


def _map(value: object, where: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is not a map of names and values")
    return value


def _list(value: object, where: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{where} is not a list")
    return value
