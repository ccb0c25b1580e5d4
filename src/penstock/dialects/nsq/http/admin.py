"""Making, emptying, pausing and dropping topics and channels over HTTP, as nsqd does it.

Owns those paths and their codes. Knows nothing of messages.
Invariant: a refused request changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from penstock.callers import Action, Caller
from penstock.config import Config
from penstock.delivery.subscription import Subscription
from penstock.dialects.nsq.http import words
from penstock.dialects.nsq.http.words import EMPTY, Fault, Params
from penstock.dialects.nsq.topics import channel_settings, topic_settings
from penstock.http import Response
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.registry.answer import Answer


class Admin:
    """What can be done to the topics and channels of a node."""

    def __init__(self, node: Node, config: Config) -> None:
        self._node = node
        self._config = config

    # --- topics ---------------------------------------------------------------------------------------------------

    def create_topic(self, caller: Caller, params: Params) -> Answer[Response]:
        """Make a topic unless it exists; with `extend=true` its messages may carry headers."""
        name = words.name(params, "topic", "INVALID_TOPIC")
        extend = words.switch(params, "extend", default=False)
        settings = topic_settings(self._config, name, extend=extend)
        return self._node.obtain_for(caller, "create", name, settings).then_make(_said)

    def delete_topic(self, caller: Caller, params: Params) -> Answer[Response]:
        """Drop a topic with its channels, and hang up on their clients."""
        name = params.get("topic", "")
        if self._node.lifecycle.is_stuck(name):
            caller.check("delete", name)
        else:
            name = self._known(caller, "delete", params).name
        return self._node.delete_topic(name).then_make(_said)

    def empty_topic(self, caller: Caller, params: Params) -> Answer[Response]:
        """Let go of what no channel has yet."""
        return self._topic(caller, params).empty().then_make(_said)

    def pause_topic(self, caller: Caller, params: Params) -> Answer[Response]:
        """Keep what comes in the topic."""
        return self._known(caller, "change", params).pause(paused=True).then_make(_said)

    def unpause_topic(self, caller: Caller, params: Params) -> Answer[Response]:
        """Let the channels have it again."""
        return self._known(caller, "change", params).pause(paused=False).then_make(_said)

    # --- channels -------------------------------------------------------------------------------------------------

    def create_channel(self, caller: Caller, params: Params) -> Answer[Response]:
        """Make a channel unless it exists."""
        topic, channel = self.names(caller, params)
        return topic.subscribe(channel, channel_settings(self._config, channel)).then_make(_said)

    def delete_channel(self, caller: Caller, params: Params) -> Answer[Response]:
        """Drop a channel, and hang up on its clients."""
        topic, subscription = self.channel(caller, params)
        return topic.delete_subscription(subscription.name).then_make(_said)

    def empty_channel(self, caller: Caller, params: Params) -> Answer[Response]:
        """Let go of everything in a channel, also of what clients hold."""
        _, subscription = self.channel(caller, params)
        subscription.empty()
        return subscription.keeping.after(Answer.of(EMPTY))

    def pause_channel(self, caller: Caller, params: Params) -> Answer[Response]:
        """Send nothing more to its clients."""
        return self._pause(caller, params, paused=True)

    def unpause_channel(self, caller: Caller, params: Params) -> Answer[Response]:
        """Send again."""
        return self._pause(caller, params, paused=False)

    def _pause(self, caller: Caller, params: Params, *, paused: bool) -> Answer[Response]:
        topic, subscription = self.channel(caller, params)
        settings = msgspec.structs.replace(subscription.settings, paused=paused)
        return topic.update_subscription(subscription.name, settings).then_make(_said)

    # --- names ----------------------------------------------------------------------------------------------------

    def channel(self, caller: Caller, params: Params) -> tuple[Topic, Subscription]:
        """Return the topic and the channel that a request names; both must exist."""
        topic, name = self.names(caller, params)
        if name not in topic.subscriptions:
            raise Fault(404, "CHANNEL_NOT_FOUND")
        return topic, topic.subscriptions[name]

    def names(self, caller: Caller, params: Params) -> tuple[Topic, str]:
        """Return the topic that a request names, which must exist, and the channel, which need not."""
        topic = words.name(params, "topic", "INVALID_ARG_TOPIC")
        channel = words.name(params, "channel", "INVALID_ARG_CHANNEL")
        return self._existing(caller, "change", topic, f"channel {channel}"), channel

    def _known(self, caller: Caller, action: Action, params: Params) -> Topic:
        """Return the topic that a request names, where nsqd does not look at the name itself."""
        if "topic" not in params:
            raise Fault(400, "MISSING_ARG_TOPIC")
        return self._existing(caller, action, params["topic"])

    def _topic(self, caller: Caller, params: Params) -> Topic:
        return self._existing(caller, "delete", words.name(params, "topic", "INVALID_TOPIC"))

    def _existing(self, caller: Caller, action: Action, name: str, what: str = "") -> Topic:
        caller.check(action, name, what)
        topic = self._node.find(name)
        if topic is None:
            raise Fault(404, "TOPIC_NOT_FOUND")
        return topic

    PATHS: ClassVar[dict[str, Callable[[Admin, Caller, Params], Answer[Response]]]] = {
        "/topic/create": create_topic,
        "/topic/creat": create_topic,  # as the design note of tag dispatch spells it
        "/topic/delete": delete_topic,
        "/topic/empty": empty_topic,
        "/topic/pause": pause_topic,
        "/topic/unpause": unpause_topic,
        "/channel/create": create_channel,
        "/channel/delete": delete_channel,
        "/channel/empty": empty_channel,
        "/channel/pause": pause_channel,
        "/channel/unpause": unpause_channel,
    }


def _said(_: object) -> Response:
    """Return what is said when it is done."""
    return EMPTY
