"""The hour on paper is one at a small scale, too: what it prints are figures of real deals."""

from __future__ import annotations

import sys

import pytest

from bench.micro import churn


@pytest.mark.parametrize("dealer", ["simple", "rack"])
def test_an_hour_of_churn_deals_evenly_and_moves_what_the_lost_had(
    dealer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(churn, "BUCKETS", 120)
    monkeypatch.setattr(churn, "CONSUMERS", 30)
    monkeypatch.setattr(churn, "BROKERS", 5)
    hour = churn.run("rack" if dealer == "rack" else "simple")
    assert hour.deals >= 4, "a broker and a rack leave and come back"
    assert hour.moves >= 24 + 40
    assert hour.most - hour.least <= 1
    assert 0 < hour.table_bytes < 4096
    assert hour.busiest <= 30 + 5 + 5 + 1
    monkeypatch.setattr(sys, "argv", ["churn", "--dealer", dealer])
    churn.main()
    assert "an hour" in capsys.readouterr().out
