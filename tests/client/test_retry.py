"""What passes is waited for, for as long as was said; what does not is told at once."""

from __future__ import annotations

import pytest

from penstock.client.connection import Unreachable
from penstock.client.retry import PAUSE_S_MAX, PAUSE_S_MIN, RetryPolicy
from penstock.errors import PenstockError, Refusal


@pytest.mark.parametrize("error", [Refusal("not_found", "no"), PenstockError("bug")], ids=["refusal", "other"])
def test_error_that_does_not_pass_is_raised_at_once(error: PenstockError) -> None:
    pauses: list[float] = []
    with pytest.raises(type(error)):
        RetryPolicy(60, pauses.append).rest(error)
    assert pauses == []


@pytest.mark.parametrize("error", [Unreachable("away"), Refusal("disk_full", "full")], ids=["away", "full"])
def test_pauses_grow_up_to_a_bound_and_begin_anew_once_it_worked(error: PenstockError) -> None:
    pauses: list[float] = []
    retry = RetryPolicy(60, pauses.append)
    for _ in range(8):
        retry.rest(error)
    assert pauses[:3] == [PAUSE_S_MIN, 2 * PAUSE_S_MIN, 4 * PAUSE_S_MIN]
    assert max(pauses) == PAUSE_S_MAX
    retry.renew()
    retry.rest(error)
    assert pauses[-1] == PAUSE_S_MIN


def test_without_patience_nothing_is_waited_for() -> None:
    pauses: list[float] = []
    with pytest.raises(Unreachable):
        RetryPolicy(0, pauses.append).rest(Unreachable("away"))
    assert pauses == []


def test_a_node_that_says_how_long_is_left_alone_for_as_long() -> None:
    pauses: list[float] = []
    retry = RetryPolicy(60, pauses.append)
    retry.rest(Refusal("rate_limited", "too fast", 2_500_000_000))
    retry.rest(Refusal("rate_limited", "too fast", 3_600_000_000_000))
    assert pauses[0] == 2.5
    assert 50 < pauses[1] <= 60
