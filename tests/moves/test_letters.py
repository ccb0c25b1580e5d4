"""Dead letters: rows as they stand in the topic for rows that failed too often."""

from __future__ import annotations

import msgspec
import pytest

from penstock.message import Batch, Rows
from penstock.moves.letters import as_letters, told
from penstock.moves.move import Origin, Piece

ORIGIN = Origin("t", 1, "audit")


@pytest.mark.parametrize("header", [b"", b"no JSON", b"[1]", b'{"a":"\xff"}', b'{"\xff":1}'])
def test_a_row_whose_headers_are_no_text_can_be_buried(header: bytes) -> None:
    rows = Rows.of([b"x"], "test", {"headers": [header]})
    batch = Batch(0, 1, 5, rows.cuts, rows.body, "test", rows.columns, 0)
    (kept,) = as_letters(Piece(ORIGIN, 0, batch, [0]), [3], "attempts")
    assert isinstance(kept, bytes)
    assert msgspec.json.decode(kept)["penstock.dead.attempts"] == "3"
    assert told(batch, 0, everything=True) in ({}, {"\ufffd": 1})
