"""Topics and channels as NSQ makes them: what a name and a request say about their settings.

Owns the rule that such a topic either carries headers or does not (ruling 8). Knows no command and no path.
"""

from __future__ import annotations

import msgspec

from penstock.config import Config
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.config import NsqConfig
from penstock.node.events import PREFIX
from penstock.settings import SubscriptionSettings, TopicSettings

#: Names that end so live as long as somebody uses them.
EPHEMERAL = "#ephemeral"


def topic_settings(config: Config, name: str, *, extend: bool = False) -> TopicSettings:
    """Return what a topic of this name starts with; with `extend` its messages may carry headers."""
    settings = NsqChoices(extend="on" if extend else "off").put(config.topic.settings())
    if name.endswith(EPHEMERAL):
        return msgspec.structs.replace(settings, durability="memory", ephemeral=True)
    return settings


def is_listed(name: str) -> bool:
    """Tell whether lists show a topic; the node's own are there for whoever asks for them by name."""
    return not name.startswith(PREFIX)


def channel_settings(config: Config, name: str) -> SubscriptionSettings:
    """Return what a channel of this name starts with."""
    nsq = config.of(NsqConfig)
    return SubscriptionSettings(
        ephemeral=name.endswith(EPHEMERAL),
        lease_ns=nsq.msg_timeout_ns,
        lease_max_ns=nsq.max_msg_timeout_ns,
    )
