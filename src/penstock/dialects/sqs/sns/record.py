"""What is kept of a topic of SNS and its subscriptions, in the record of its fan-out."""

from __future__ import annotations

from typing import Literal

import msgspec

#: Under this name it stands in a fan-out's record.
SNS = "sns"

#: What is to be sent to an endpoint stands in a topic of the node's own, which no client may write to.
OUTBOX = "_penstock.sns."

#: pending: it was asked for, and its endpoint has not confirmed it. left: it was cancelled, which can be taken back.
State = Literal["confirmed", "pending", "left"]


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription: of a queue, or of an HTTP endpoint."""

    queue: str = ""
    #: An http or https URL.
    endpoint: str = ""
    attributes: dict[str, str] = {}
    state: State = "confirmed"
    #: Whoever shows it was reached at the endpoint; it holds until then.
    token: str = ""
    until_ns: int = 0
    #: How whoever subscribed reached the node: addresses in what is sent begin so.
    base_url: str = ""
    #: Cancelling it needs a caller with rights, not only its ARN.
    asks_caller: bool = False

    @property
    def protocol(self) -> str:
        """What it is delivered by."""
        return self.endpoint.partition(":")[0] if self.endpoint else "sqs"

    @property
    def is_raw(self) -> bool:
        """Whether it gets the message and not an envelope around it."""
        return self.attributes.get("RawMessageDelivery", "false").lower() == "true"

    @property
    def of_body(self) -> bool:
        """Whether its filter looks at the body."""
        return self.attributes.get("FilterPolicyScope") == "MessageBody"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic."""

    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}
    #: By the last part of their ARNs.
    members: dict[str, Member] = {}

    def shown(self) -> dict[str, Member]:
        """Return the subscriptions that people see."""
        return {id_: member for id_, member in self.members.items() if member.state != "left"}

    def having(self, id_: str, member: Member) -> Record:
        """Return it with a subscription added, or changed."""
        return msgspec.structs.replace(self, members={**self.members, id_: member})

    def lacking(self, *ids: str) -> Record:
        """Return it without some subscriptions."""
        return msgspec.structs.replace(self, members={k: v for k, v in self.members.items() if k not in ids})
