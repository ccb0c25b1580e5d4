"""What all NSQ connections of a node share: the node, its limits, what was learned of headers, TLS, the auth servers.

Owns how a command finds its topic, and makes it if it may. Knows nothing of sockets or sessions.
"""

from __future__ import annotations

from penstock.callers import Action, Caller
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.auth import Ask
from penstock.dialects.nsq.tls import server_context
from penstock.dialects.nsq.topics import topic_settings
from penstock.errors import ConfigError, Refusal
from penstock.filters.header import HeaderReader
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.peers.far import Target
from penstock.registry.answer import Answer


class Service:
    """The NSQ side of one node."""

    def __init__(self, node: Node, config: NsqConfig, ask: Ask | None = None) -> None:
        self.node = node
        self.config = config
        self._readers = {"strict": HeaderReader(), "lenient": HeaderReader(lenient=True)}
        self._readers["node"] = self._readers[config.header_rules]
        #: Asks the auth servers; None where nobody has to authenticate.
        self.ask = ask
        self.tls = server_context(node.config)
        if config.tls_required and self.tls is None:
            raise ConfigError("nsq.tls_required needs a certificate; set tls_cert and tls_key")

    def headers(self, topic: Target) -> HeaderReader:
        """Return what reads headers by the rules of a topic."""
        return self._readers[topic.chosen.of(NsqChoices).header_rules]

    def topic(self, caller: Caller, action: Action, name: str, *, extend: bool, partition: int = -1) -> Answer[Topic]:
        """Answer with a topic, made if there is none of this name; with `extend` a new one may carry headers."""
        if caller.is_known:  # else it is told below what it may not do
            caller.enter()
        topic = self.node.topics.get(name)
        if topic is None:
            if not self.node.is_known(name) and self.config.auto_create != "topics":
                raise Refusal("not_found", f"topic {name} does not exist")
            settings = topic_settings(self.node.config, name, extend=extend)
            known = self.node.known.record(name)
            shards = known.settings.shards if known is not None else settings.shards
            if partition >= shards:
                raise no_partition(name, shards, partition)
            return self.node.obtain_for(caller, action, name, settings)
        if partition >= len(topic.shards):
            raise no_partition(name, len(topic.shards), partition)
        return Answer.of(self.node.reach(caller, action, name))


def no_partition(name: str, shards: int, partition: int) -> Refusal:
    """Return the refusal of a partition that a topic does not have; to clients such a topic is not on this node."""
    return Refusal("not_found", f"topic {name} has partitions 0 to {shards - 1}, and no {partition}")
