"""The fuzzer itself: a moment of it on every listener, and that it finds what is there to be found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.dialects.nsq.lookup import codec
from tests.fuzz.fuzz import TARGETS, fuzz
from tests.fuzz.mutation import edited, pieces
from tests.fuzz.victim import Sick, Victim


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with Victim(tmp_path_factory.mktemp("fuzz") / "data") as made:
        yield made


@pytest.mark.parametrize("target", TARGETS)
def test_node_bears_what_it_is_told(victim: Victim, target: str) -> None:
    fuzz(target, victim, 7, 60)


def test_planted_bug_is_found_and_made_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = codec.Decoder.feed

    def broken(decoder: codec.Decoder, data: bytes) -> object:
        if b"PING" in bytes(data):
            raise ZeroDivisionError("planted")
        return feed(decoder, data)

    monkeypatch.setattr(codec.Decoder, "feed", broken)
    with Victim(tmp_path / "data") as victim, pytest.raises(Sick, match="planted"):
        fuzz("nsq.lookup_tcp_port", victim, 1, 200)


def test_pieces_are_the_whole() -> None:
    assert b"".join(pieces(b"abcdef", [0.2, 0.5, 0.5])) == b"abcdef"


def test_edits_change_a_sample_where_they_say() -> None:
    assert edited(b"abcdef", [("cut", 0.5, 2, b""), ("put", 0.0, 1, b"X"), ("end", 0.8, 1, b"")]) == b"Xabc"
