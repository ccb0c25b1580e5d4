"""What NSQ lets people choose of a topic, and what its rows weigh in the queue files that Youzan's nsqd would write."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import msgspec

from penstock.dialect import Choices
from penstock.errors import Refusal
from penstock.settings import Measure, TopicSettings, about

Extend = Literal["on", "off", "auto"]

#: Length, time, attempts and id of a record before its body.
PLAIN = Measure(row_bytes=30, header_bytes=None)
#: The same with a version byte; a header comes with its length.
EXTENDED = Measure(row_bytes=31, header_bytes=2)


class NsqChoices(Choices, frozen=True, kw_only=True):
    """How NSQ's clients see a topic."""

    extend: Annotated[
        Extend, about("Message headers: all clients take them, none does, or each as it can. On is for good.")
    ] = "auto"
    header_rules: Annotated[
        Literal["node", "strict", "lenient"],
        about("What a header must be: as the node's configuration says, strict, or any object."),
    ] = "node"
    #: Copies that were asked for, to be shown to whoever asked; there is one, whatever this says.
    replicas: int = 1

    def check(self, before: Self | None) -> None:
        """Refuse to take headers from a topic that has them."""
        if self.replicas < 1:
            raise Refusal("bad_request", f"nsq.replicas is {self.replicas}; it must be at least 1")
        if before is not None and self.extend == "off" != before.extend:
            raise Refusal("bad_request", f'nsq.extend is "{before.extend}", for good; make a new topic without headers')

    def measure(self) -> Measure:
        """Return what a record of the queue files takes."""
        return PLAIN if self.extend == "off" else EXTENDED

    def put(self, settings: TopicSettings) -> TopicSettings:
        """Return settings of a topic with these choices among them."""
        return msgspec.structs.replace(settings, dialects={**settings.dialects, "nsq": msgspec.to_builtins(self)})
