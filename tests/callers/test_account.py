"""Rates: what is let in, who is slowed and for how long, who is refused; time is in the test's hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.callers.account import BURST_NS, SLOW_NS, Account, Accounts
from penstock.callers.book import Book
from penstock.callers.identity import ANONYMOUS, NODE_TOKEN, Identity
from penstock.callers.quota import QUOTA_MAX, UserQuota
from penstock.clock import MILLISECOND, SECOND
from penstock.errors import ConfigError, Refusal
from penstock.log.quota import Quota
from tests.callers.parts import user

NOW = 1_000 * SECOND


def account(**quota: int) -> Account:
    found = Account("bob", Quota())
    found.configure(UserQuota(**quota))
    return found


def test_a_second_s_worth_comes_at_once_then_publishers_wait_then_they_are_refused() -> None:
    bob = account(messages_per_second=10)
    assert [bob.take(1, 100, NOW) for _ in range(10)] == [0] * 10
    waits = [bob.take(1, 100, NOW) for _ in range(11)]
    assert waits == [min(more * SECOND // 10, SLOW_NS) for more in range(1, 12)]
    with pytest.raises(Refusal, match="the quota of user bob is 10 messages a second; try again in 1s100ms") as found:
        bob.take(1, 100, NOW)
    assert (found.value.code, found.value.retry_ns) == ("rate_limited", 1100 * MILLISECOND)
    assert bob.refused == {"messages": 1}
    assert bob.slowed_ns == sum(waits)
    assert bob.take(1, 100, NOW + found.value.retry_ns) > 0


def test_bytes_are_bounded_beside_messages_and_whichever_is_less_counts() -> None:
    bob = account(messages_per_second=1000, bytes_per_second=1000)
    assert bob.take(1, 3000, NOW) == SLOW_NS
    with pytest.raises(Refusal, match="1KB a second; try again in 2s"):
        bob.take(7, 1, NOW)
    assert bob.refused == {"bytes": 7}
    assert bob.take(1, 1, NOW + 2 * SECOND) == MILLISECOND


def test_a_batch_larger_than_its_rate_is_taken_and_paid_for_by_what_comes_later() -> None:
    bob = account(messages_per_second=10)
    assert bob.take(100, 0, NOW) == SLOW_NS
    for seconds in range(1, 8):
        with pytest.raises(Refusal):
            bob.take(1, 0, NOW + seconds * SECOND)
    assert bob.take(1, 0, NOW + 8 * SECOND) > 0


def test_somebody_who_must_not_wait_is_refused_instead() -> None:
    bob = account(messages_per_second=1)
    assert [bob.take(1, 0, NOW, 0), bob.take(1, 0, NOW, 0)] == [0, 0]
    with pytest.raises(Refusal):
        bob.take(1, 0, NOW, 0)
    assert bob.slowed_ns == 0


def test_what_was_begun_is_slowed_and_not_refused() -> None:
    bob = account(messages_per_second=1)
    bob.take(100, 0, NOW)
    assert bob.take(1, 0, NOW, 30 * SECOND, is_begun=True) == 30 * SECOND


def test_another_quota_counts_at_once_and_forgets_old_debts() -> None:
    bob = account(messages_per_second=1)
    bob.take(100, 0, NOW)
    bob.configure(UserQuota(messages_per_second=2))
    assert bob.take(2, 0, NOW) == 0


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 3 * SECOND)), min_size=1, max_size=50),
)
def test_over_time_nobody_publishes_more_than_its_rate(rate: int, batches: list[tuple[int, int]]) -> None:
    bob, now_ns, taken, largest = account(messages_per_second=rate), NOW, 0, 0
    for count, pause_ns in batches:
        now_ns += pause_ns
        try:
            bob.take(count, 0, now_ns)
        except Refusal:
            continue
        taken += count
        largest = max(largest, count)
    seconds = (now_ns - NOW + BURST_NS + SLOW_NS) / SECOND
    assert taken <= rate * seconds + largest + len(batches)  # a nanosecond each is rounded away


def test_whoever_is_no_user_shares_the_quota_of_anonymous_and_the_node_s_token_has_none() -> None:
    accounts = Accounts()
    accounts.apply(Book([user("bob", quota=UserQuota(topics=1))], UserQuota(topics=2)))
    names = {identity: accounts.of(identity) for identity in (ANONYMOUS, Identity("eve", "server"), NODE_TOKEN)}
    assert [found.name if found is not None else "" for found in names.values()] == ["anonymous", "anonymous", ""]
    bob = accounts.of(Identity("bob", "token"))
    assert bob is not None
    assert bob.quota.topics == 1
    assert [each.name for each in accounts] == ["anonymous", "bob"]


@pytest.mark.parametrize("quota", ['{"topics":-1}', '{"topics":"many"}', f'{{"stored_bytes":{QUOTA_MAX + 1}}}'])
def test_a_file_with_a_quota_that_is_none_is_refused(quota: str) -> None:
    with pytest.raises(ConfigError, match="is no file of users"):
        Book.of(f'{{"format":1,"users":[],"anonymous":{quota}}}'.encode(), "users.json")


def test_a_book_with_quotas_is_read_as_it_was_written_and_changes_keep_them() -> None:
    book = Book([user("bob", quota=UserQuota(connections=5))], UserQuota(messages_per_second=7))
    for changed in (book.having(user("eve")), book.having(user("eve")).lacking("eve")):
        read = Book.of(changed.content(), "users.json")
        assert (read.quota("bob"), read.quota("anonymous")) == (book.quota("bob"), book.anonymous)
    assert b"quota" not in Book([user("bob")]).content()
    assert msgspec.json.decode(book.content())["anonymous"] == {"messages_per_second": 7}
