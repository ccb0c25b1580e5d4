"""Records as older versions wrote them, made into those of today."""

from __future__ import annotations

from typing import Any

from penstock.settings import Measure

#: Before 0.1.0 settings of one dialect stood among those of the topic.
DIALECT = "nsq"
MOVED = ("extend", "header_rules", "replicas")
#: What rows of a topic without headers weighed.
PLAIN = Measure(30, None)


def renewed(topic: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a topic's record by the names they have now."""
    settings = topic.get("settings")
    if not isinstance(settings, dict) or "extend" not in settings:
        return topic
    topic, settings = dict(topic), dict(settings)
    own = {name: settings.pop(name) for name in MOVED if name in settings}
    starts = topic.pop("extend_from", None)
    measures: list[dict[str, Any]] = [{}]
    if own["extend"] == "off" or starts is not None:
        measures = [{"measure": {"row_bytes": PLAIN.row_bytes, "header_bytes": PLAIN.header_bytes}}]
    if own["extend"] != "off" and starts is not None:
        measures.append({"starts": starts})
    return {**topic, "settings": {**settings, "dialects": {DIALECT: own}}, "measures": measures}
