"""Who asks for something, and the one place that says whether it may.

A caller is made once for a connection, or for a request where each shows by itself who sends it, and travels down to
where topics are used. What it may do is asked once for each topic and action, and remembered: nothing is asked per
message. Today everybody who got past its listener may do everything.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from penstock.errors import Refusal

#: `receive` is by a subscription, `read` from the log and of what there is to know; `change` is settings, pauses,
#: positions and subscriptions.
Action: TypeAlias = Literal["publish", "receive", "read", "create", "change", "delete"]

#: What a caller remembers; beyond it, it begins anew.
GRANTS_MAX = 1024


class Caller:
    """Who (a name, if it showed one), from where, over which listener."""

    __slots__ = ("_granted", "address", "listener", "name")

    def __init__(self, address: str, listener: str, name: str = "") -> None:
        self.address = address
        self.listener = listener
        self.name = name
        self._granted: set[tuple[Action, str]] = set()

    def __str__(self) -> str:
        """Return it as people name it."""
        return f"{self.name} at {self.address}" if self.name else self.address

    def check(self, action: Action, topic: str) -> None:
        """Refuse what it may not do."""
        if not self.may(action, topic):
            raise Refusal("forbidden", f"{self} may not {action} topic {topic}")

    def may(self, action: Action, topic: str) -> bool:
        """Tell whether it may do something; what it may is remembered."""
        if (action, topic) in self._granted:
            return True
        if not allowed(self, action, topic):
            return False
        if len(self._granted) >= GRANTS_MAX:
            self._granted.clear()
        self._granted.add((action, topic))
        return True


def allowed(caller: Caller, action: Action, topic: str) -> bool:
    """Tell whether somebody may do something with a topic."""
    return True
