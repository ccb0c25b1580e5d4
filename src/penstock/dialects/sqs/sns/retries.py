"""Delivery policies: whether, and after how long, an endpoint that did not take a message is tried again. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock.dialects.sqs.faults import Fault

#: Amazon's limit on all pauses of one message together.
TOTAL_S_MAX = 3600

T = TypeVar("T")

Count = Annotated[int, Meta(ge=0, le=100)]
Seconds = Annotated[int, Meta(ge=1, le=TOTAL_S_MAX)]


class Retries(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A healthyRetryPolicy; the defaults are Amazon's: three times, 20 seconds apart."""

    min_delay_target: Seconds = 20
    max_delay_target: Seconds = 20
    num_retries: Count = 3
    num_max_delay_retries: Count = 0
    num_no_delay_retries: Count = 0
    num_min_delay_retries: Count = 0
    backoff_function: Literal["linear", "arithmetic", "geometric", "exponential"] = "linear"

    def delay_s(self, retry: int) -> float | None:
        """Return the pause before a retry, which are counted from 1; None if there is none any more."""
        if retry > self.num_retries:
            return None
        at = retry - self.num_no_delay_retries
        if at <= 0:
            return 0.0
        at -= self.num_min_delay_retries
        if at <= 0:
            return float(self.min_delay_target)
        between = self._between
        return self._backoff(at, between) if at <= between else float(self.max_delay_target)

    @property
    def _between(self) -> int:
        """How many retries there are from the shortest pause to the longest."""
        fixed = self.num_no_delay_retries + self.num_min_delay_retries + self.num_max_delay_retries
        return max(self.num_retries - fixed, 0)

    def _backoff(self, at: int, count: int) -> float:
        """Return the pause before one of several retries: all of them reach from the shortest to the longest."""
        low, high = self.min_delay_target, self.max_delay_target
        if count == 1 or low == high:
            return float(low)
        share = (at - 1) / (count - 1)
        if self.backoff_function == "linear":
            return low + (high - low) * share
        if self.backoff_function == "arithmetic":  # pauses grow by more each time
            return low + (high - low) * share * (at / count)
        if self.backoff_function == "geometric":
            return float(low * (high / low) ** share)
        return min(float(low * 2 ** (at - 1)), float(high))

    def check(self) -> None:
        """Refuse what contradicts itself, or takes too long."""
        if self.min_delay_target > self.max_delay_target:
            raise _wrong("maxDelayTarget must be greater than or equal to minDelayTarget")
        fixed = self.num_no_delay_retries + self.num_min_delay_retries + self.num_max_delay_retries
        if fixed > self.num_retries:
            raise _wrong("numRetries must be greater than or equal to the sum of the retries of its phases")
        if sum(self.delay_s(retry) or 0 for retry in range(1, self.num_retries + 1)) > TOTAL_S_MAX:
            raise _wrong(f"the total delay must be at most {TOTAL_S_MAX} seconds")


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A requestPolicy."""

    header_content_type: Annotated[str, Meta(pattern=r"^[A-Za-z0-9!#$&^_.+/;= \"-]{1,200}$")] = (
        "text/plain; charset=UTF-8"
    )


class Policy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The DeliveryPolicy of a subscription."""

    healthy_retry_policy: Retries | None = None
    request_policy: Request | None = None


class TopicHttp(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a topic's DeliveryPolicy says of HTTP endpoints."""

    default_healthy_retry_policy: Retries | None = None
    default_request_policy: Request | None = None
    disable_subscription_overrides: bool = False


class TopicPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The DeliveryPolicy of a topic."""

    http: TopicHttp = TopicHttp()


class Effective(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is in force."""

    healthy_retry_policy: Retries = Retries()
    request_policy: Request = Request()


def of_subscription(text: str) -> Policy:
    """Return what the DeliveryPolicy of a subscription says; refuse one that cannot be."""
    return _checked(found := _read(text, Policy), found.healthy_retry_policy)


def of_topic(text: str) -> TopicPolicy:
    """Return what the DeliveryPolicy of a topic says; refuse one that cannot be."""
    return _checked(found := _read(text, TopicPolicy), found.http.default_healthy_retry_policy)


def effective(topic: str, subscription: str) -> Effective:
    """Return what is in force for a subscription: its own policy, that of its topic, Amazon's default."""
    base, own = of_topic(topic).http, of_subscription(subscription)
    if base.disable_subscription_overrides:
        own = Policy()
    return Effective(
        healthy_retry_policy=own.healthy_retry_policy or base.default_healthy_retry_policy or Retries(),
        request_policy=own.request_policy or base.default_request_policy or Request(),
    )


def _read(text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text or "{}", type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _wrong(str(error)) from None


def _checked(policy: T, retries: Retries | None) -> T:
    if retries is not None:
        retries.check()
    return policy


def _wrong(reason: str) -> Fault:
    return Fault("InvalidParameter", f"Invalid parameter: DeliveryPolicy: {reason}")
