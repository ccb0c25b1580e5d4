"""What a right lets its holder do: rights are given on patterns of topics, actions are asked for on one topic.

Pure. The node as a whole is the topic "" to it, so that only a pattern like `*`, which means all topics, reaches it.
Invariant: nobody may publish to, make or delete the node's own topics, whatever its rights.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import msgspec

#: `receive` is by a subscription, `read` from the log, `see` what there is to know; `change` is settings, pauses,
#: positions and subscriptions; `admin` is what concerns the node as a whole.
Action: TypeAlias = Literal["publish", "receive", "read", "see", "create", "change", "delete", "admin"]
Right: TypeAlias = Literal["publish", "consume", "manage", "admin"]

#: Names of topics that the node makes for itself begin so.
OWN = "_penstock."

#: The node as a whole.
NODE = ""

GIVES: dict[Right, frozenset[Action]] = {
    "publish": frozenset(("publish", "see")),
    "consume": frozenset(("receive", "read", "see")),
    "manage": frozenset(("create", "change", "delete", "see")),
    "admin": frozenset(("publish", "receive", "read", "see", "create", "change", "delete", "admin")),
}

#: What nobody may do to the node's own topics.
_NEVER = frozenset(("publish", "create", "delete"))


class Rule(msgspec.Struct, frozen=True):
    """One right on the topics that a pattern matches: * is any text, ? one character, [ab] one of these."""

    right: Right
    topics: str

    def __str__(self) -> str:
        """Return it as people write it."""
        return f"{self.right} {self.topics}"

    def gives(self, action: Action, topic: str) -> bool:
        """Tell whether it allows this; the node's own topics must be named, or come with admin."""
        if action not in GIVES[self.right] or not fnmatchcase(topic, self.topics):
            return False
        return not topic.startswith(OWN) or self.right == "admin" or self.topics.startswith(OWN)


#: Everything there is.
ALL = (Rule("admin", "*"),)
#: Everything with messages; for those that somebody else judges, one command after the other.
USE = (Rule("publish", "*"), Rule("consume", "*"), Rule("manage", "*"))


def is_kept(action: Action, topic: str) -> bool:
    """Tell whether this is nobody's to do."""
    return action in _NEVER and topic.startswith(OWN)


def rule_for(rules: Iterable[Rule], action: Action, topic: str) -> Rule | None:
    """Return the first rule that allows an action on a topic, None if none does."""
    if is_kept(action, topic):
        return None
    return next((rule for rule in rules if rule.gives(action, topic)), None)
