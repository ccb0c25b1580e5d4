"""Message ids."""

from __future__ import annotations

from uuid import UUID

from penstock.columns import OFFSET_MAX, SHARD_MAX, id_of
from penstock.dialects.sqs.ids import message_id
from penstock.shown import shown_id

LAST = id_of(SHARD_MAX, OFFSET_MAX)


def test_message_ids_are_uuids_that_no_two_messages_share_and_hold_the_shown_id() -> None:
    ids = [*range(1, 2000), *(id_of(3, offset) for offset in range(500)), LAST]
    shown = [message_id(77, id_) for id_ in ids]
    assert len(set(shown)) == len(ids)
    assert message_id(78, 1) not in shown
    for id_, text in zip(ids, shown, strict=True):
        found = UUID(text)
        assert (str(found), found.version, found.variant) == (text, 4, "specified in RFC 4122")
        assert found.int & (1 << 62) - 1 | (found.int >> 64 & 1) << 62 == shown_id(id_, 77)
