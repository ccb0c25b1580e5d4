"""The registrar: tells lookup services what this node has, as it comes and goes.

To the directory in the same process it speaks directly, to services elsewhere over their links. Knows nothing of
delivery; it hears of topics and channels from the node's watchers.
Invariant: what a connected service knows of this node is what the node has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from penstock.clock import Timer
from penstock.delivery.subscription import Subscription
from penstock.dialects.nsq.codec import is_name
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.lookup.codec import Identity
from penstock.dialects.nsq.lookup.directory import EPHEMERAL, Directory, Peer
from penstock.dialects.nsq.lookup.host import meta_of
from penstock.dialects.nsq.lookup.link import PACE, Announced, Network, Pace, ServiceLink
from penstock.dialects.nsq.topics import is_listed
from penstock.node.node import Change, Node
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings


class Registrar:
    """A node's voice towards lookup services."""

    def __init__(
        self, node: Node, me: Identity, directory: Directory | None, network: Network, pace: Pace = PACE
    ) -> None:
        self.links: list[ServiceLink] = []
        self._node = node
        self._me = me
        self._directory = directory
        self._network = network
        self._pace = pace
        self._pinger: Timer | None = None
        self._closed = False
        self._peer = Peer(
            id=f"{me.broadcast_address}:{me.tcp_port}",
            remote_address=f"{me.broadcast_address}:{me.tcp_port}",
            hostname=me.hostname or "",
            broadcast_address=me.broadcast_address or "",
            tcp_port=me.tcp_port or 0,
            http_port=me.http_port or 0,
            version=me.version or "",
        )

    def start(self, addresses: Iterable[tuple[str, int]]) -> None:
        """Announce the node everywhere, from now on."""
        if self._directory is not None:
            self._directory.identify(self._peer, self._node.clock.monotonic())
            for topic in self._node.topics.values():
                self._list(topic)
            self._arm()
        self._node.watchers.append(self._changed)
        self.replace(addresses)

    def replace(self, addresses: Iterable[tuple[str, int]]) -> None:
        """Announce the node to these services elsewhere, and to no other any more."""
        if self._closed:
            return
        wanted = list(dict.fromkeys(addresses))
        for link in [link for link in self.links if link.address not in wanted]:
            link.close()
            self.links.remove(link)
        known = {link.address for link in self.links}
        for address in wanted:
            if address not in known:
                token = self._node.config.of(NsqConfig).lookupd_token
                link = ServiceLink(
                    address, self._node.clock, self._network, self._me, self.announced, self._pace, token
                )
                self.links.append(link)
                link.connect()

    def close(self) -> None:
        """Take everything back; nobody finds the node any more."""
        self._closed = True
        if self._changed in self._node.watchers:
            self._node.watchers.remove(self._changed)
        if self._pinger is not None:
            self._pinger.cancel()
        if self._directory is not None:
            self._directory.leave(self._peer.id)
        for link in self.links:
            link.close()

    def announced(self) -> Iterator[Announced]:
        """Yield every topic with its channels; what NSQ cannot spell, and what is the node's own, is left out."""
        for topic in self._node.topics.values():
            if _is_told(topic.name):
                channels = [name for name in topic.subscriptions if _can_spell(name)]
                yield Announced(topic.name, channels, len(topic.shards), meta_of(topic))

    # --- the node tells -------------------------------------------------------------------------------------------

    def _changed(self, event: Change, topic: Topic, subscription: Subscription | None) -> None:
        channel = subscription.name if subscription is not None else ""
        if not _is_told(topic.name) or (channel and not _can_spell(channel)):
            return
        if event in ("deleted", "left"):
            self._withdraw(topic.name, channel, len(topic.shards), is_gone=event == "deleted")
            return
        if subscription is None:
            for link in self.links:
                link.describe(topic.name, meta_of(topic))
        if event == "changed" and (subscription is not None or len(topic.shards) == 1):
            return
        if self._directory is not None:
            self._list(topic, channel)
        for link in self.links:
            link.announce(topic.name, channel, len(topic.shards))  # there may be more partitions
        if subscription is None and event == "created":
            self._make_channels(topic)

    def _withdraw(self, topic: str, channel: str, partitions: int, *, is_gone: bool) -> None:
        if self._directory is not None:
            self._directory.unregister(self._peer.id, topic, channel)
        if self._directory is not None and is_gone:
            # In one process, deleting is deleting: a topic made again under the same name must not get channels back
            # that somebody took away here. (A service elsewhere keeps names, as upstream's does.)
            self._directory.forget_unproduced(topic, channel)
        for link in self.links:
            link.withdraw(topic, channel, partitions)

    def _list(self, topic: Topic, channel: str = "") -> None:
        """Put a topic, its shards and its channels into the directory here."""
        if self._directory is None or not _is_told(topic.name):
            return
        for name in [channel] if channel else ["", *filter(_can_spell, topic.subscriptions)]:
            for shard in topic.shards:
                self._directory.register(self._peer.id, topic.name, name, shard.number)

    # --- channels that others know of -----------------------------------------------------------------------------

    def _make_channels(self, topic: Topic) -> None:
        """Make the channels of a new topic that lookup services know already.

        Those the directory here knows are made before any message can flow. Services elsewhere are asked without
        waiting, because nothing on the loop may wait; each channel they name then begins at the topic's first message,
        so it gets what was published meanwhile.
        """
        if self._directory is not None:
            self._make(topic, self._directory.channels(topic.name))
        for link in self.links:
            link.ask_channels(topic.name, partial(self._make, topic))

    def _make(self, topic: Topic, channels: Sequence[str]) -> None:
        config = self._node.config.of(NsqConfig)
        settings = SubscriptionSettings(lease_ns=config.msg_timeout_ns, lease_max_ns=config.max_msg_timeout_ns)
        for name in channels:
            if name.endswith(EPHEMERAL) or not _can_spell(name) or name in topic.subscriptions:
                continue
            # If it is refused, the topic went meanwhile, or the node stops: nobody misses the channel.
            topic.create_subscription(name, settings, earliest=True)

    # --- time -----------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        clock = self._node.clock
        self._pinger = clock.call_at(clock.monotonic() + self._pace.ping_ns, self._ping)

    def _ping(self) -> None:
        if self._directory is not None:
            self._directory.ping(self._peer.id, self._node.clock.monotonic())
        self._arm()


def _is_told(topic: str) -> bool:
    return is_listed(topic) and _can_spell(topic)


def _can_spell(name: str) -> bool:
    return name.isascii() and is_name(name.encode())
