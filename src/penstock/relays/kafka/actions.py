"""What follows from what a broker said of messages: Dory's table, which the configuration may change by the code."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from penstock.errors import ConfigError, hint


class Action(Enum):
    """What is done with the messages of one partition of a request."""

    DELIVERED = "delivered"
    #: At once, to the same broker, before everything else.
    RESEND = "resend"
    DISCARD = "discard"
    #: Stop sending, ask anew who leads what, and send again.
    PAUSE = "pause"
    DISCARD_AND_PAUSE = "discard_and_pause"

    @property
    def discards(self) -> bool:
        """Whether the messages are given up."""
        return self in (Action.DISCARD, Action.DISCARD_AND_PAUSE)

    @property
    def pauses(self) -> bool:
        """Whether sending stops for a while."""
        return self in (Action.PAUSE, Action.DISCARD_AND_PAUSE)


#: CorruptMessage is sent again; what an unknown topic, a leader that moved, a timeout or the network was, may pass.
DEFAULT: Mapping[int, Action] = {
    0: Action.DELIVERED,
    2: Action.RESEND,
    3: Action.PAUSE,
    5: Action.PAUSE,
    6: Action.PAUSE,
    7: Action.PAUSE,
    13: Action.PAUSE,
}


class Actions:
    """The action for each code; what no table has is given up."""

    def __init__(self, changes: Mapping[int, Action] | None = None) -> None:
        self._table = {**DEFAULT, **(changes or {}), 0: Action.DELIVERED}

    def of(self, code: int) -> Action:
        """Return what follows from a code."""
        return self._table.get(code, Action.DISCARD)


def changes(said: Mapping[str, str]) -> dict[int, Action]:
    """Return what the configuration says of codes; ConfigError where it cannot be."""
    known = [action.value for action in Action if action is not Action.DELIVERED]
    found = {}
    for code, name in said.items():
        try:
            number = int(code)
        except ValueError:
            raise ConfigError(
                f'kafka_relay.error_actions: "{code}" is no error code of Kafka\'s, which are numbers'
            ) from None
        if number == 0:
            raise ConfigError("kafka_relay.error_actions: 0 is no error; leave it out")
        if name not in known:
            raise ConfigError(
                f'kafka_relay.error_actions: "{name}" is no action; {hint(name, known, ", ".join(known))}'
            )
        found[number] = Action(name)
    return found
