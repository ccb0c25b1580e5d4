from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.nsq.takeover import diskqueue
from penstock.dialects.nsq.takeover.backlog import Backlog
from penstock.dialects.nsq.takeover.diskqueue import HEAD_BYTES, JSON, TAG, Place
from penstock.dialects.nsq.takeover.queues import Piece, Queue, Queues, Topic, locked
from penstock.errors import ConfigError

#: From the protocol's page: attempts 1, id 7, trace 123, a header with tag "tagA", body "hi".
VECTOR = bytes.fromhex(
    "14d1120d7b160000a0010000000000000007000000000000007b0400207b222323636c69656e745f64697370617463685f746167223a22746167"
    "41227d6869"
)
HEADER = b'{"##client_dispatch_tag":"tagA"}'
TIME_NS = 1_500_000_000_000_000_000


def plain(body: bytes, number: int = 1, attempts: int = 0, time_ns: int = TIME_NS) -> bytes:
    """Return a record of upstream's, without its length."""
    return struct.pack(">qH", time_ns, attempts) + b"%016x" % number + body


def raw(body: bytes, number: int = 1, trace: int = 0, attempts: int = 0, extension: bytes | None = None) -> bytes:
    """Return a record of Youzan's, without its length."""
    mark = 0 if extension is None else 0xA000
    return struct.pack(">qHQQ", TIME_NS, mark + attempts, number, trace) + (extension or b"") + body


def file_of(*records: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(record)) + record for record in records)


def backlog(path: Path, *queues: tuple[str | None, bytes]) -> Backlog:
    topic = Topic("orders")
    for number, (channel, content) in enumerate(queues):
        (path / str(number)).write_bytes(content)
        topic.queues.append(Queue(channel, [Piece(str(path / str(number)), 0)]))
        if channel is not None:
            topic.channels[channel] = False
    return Backlog(topic)


def everything(found: Backlog) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(len(found))


# --- records ------------------------------------------------------------------------------------------------------


def test_the_disk_record_of_the_protocol_page_is_read(tmp_path: Path) -> None:
    data = file_of(VECTOR)
    found = diskqueue.scan(data, 0, len(data))
    assert (found.starts.tolist(), found.lengths.tolist(), found.damage) == ([4], [len(VECTOR)], None)
    heads = diskqueue.heads(data, found.starts, found.lengths)
    assert (heads.time_ns[0], heads.attempts[0], heads.id_high[0], heads.id_low[0]) == (TIME_NS, 1, 7, 123)
    assert (heads.raw[0], heads.version[0], heads.bad[0]) == (True, JSON, False)
    assert data[heads.body_starts[0] :] == b"hi"

    left = backlog(tmp_path, ("audit", data))
    rows = left.rows(everything(left))
    assert (rows.body, list(rows.cuts)) == (b"hi", [0, 2])
    assert rows.columns == {"event_time": [TIME_NS], "trace": [123], "headers": [HEADER], "tag": ["tagA"]}
    assert left.copies(everything(left))[0].attempts.tolist() == [1]


def test_plain_and_extended_records_share_a_file(tmp_path: Path) -> None:
    data = file_of(
        raw(b"old", 1, attempts=3),
        raw(b"bare", 2, extension=b"\0", attempts=5),
        raw(b"tagged", 3, extension=bytes([TAG]) + struct.pack(">H", 4) + b"tagB"),
        raw(b"odd", 4, extension=bytes([JSON]) + struct.pack(">H", 4) + b"[12]"),
        raw(b"", 5),
    )
    left = backlog(tmp_path, ("audit", data))
    rows = left.rows(everything(left))
    assert (rows.body, list(rows.cuts)) == (b"oldbaretaggedodd", [0, 3, 7, 13, 16, 16])
    assert rows.columns == {"event_time": [TIME_NS] * 5, "tag": [None, None, "tagB", None, None]}
    assert left.copies(everything(left))[0].attempts.tolist() == [3, 5, 0, 0, 0]
    assert left.problems == []


def test_attempts_of_upstream_carry_no_marks(tmp_path: Path) -> None:
    data = file_of(plain(b"tried often", attempts=0xA001))
    found = diskqueue.scan(data, 0, len(data))
    heads = diskqueue.heads(data, found.starts, found.lengths)
    assert (heads.attempts[0], heads.version[0], heads.bad[0]) == (0xA001, 0, False)
    # Beyond what is counted here.
    left = backlog(tmp_path, ("audit", data))
    assert left.copies(everything(left))[0].attempts.tolist() == [4000]


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(plain(b"x", time_ns=0), id="no time"),
        pytest.param(plain(b"x", time_ns=1 << 62), id="a time far away"),
        pytest.param(raw(b"x", number=0), id="no id"),
        pytest.param(raw(b"x", attempts=0xB001), id="a reserved mark"),
        pytest.param(raw(b"", extension=b""), id="no version"),
        pytest.param(raw(b"", extension=b"\x03\0\0"), id="an unknown version"),
        pytest.param(raw(b"", extension=b"\x04\0"), id="half a length"),
        pytest.param(raw(b"{}", extension=b"\x04\0\x03"), id="a header beyond the record"),
    ],
)
def test_a_record_that_is_none_is_told_and_the_others_are_kept(tmp_path: Path, record: bytes) -> None:
    before = plain(b"before", 1)
    left = backlog(tmp_path, ("audit", file_of(before, record, plain(b"after", 3))))
    assert [(problem.position, problem.reason) for problem in left.problems] == [
        (4 + len(before), "the record is none of nsqd's")
    ]
    assert left.rows(everything(left)).body == b"beforeafter"


def test_a_file_torn_anywhere_keeps_what_is_whole_before() -> None:
    records = [plain(b"one", 1), plain(b"", 2), plain(b"three", 3)]
    data = file_of(*records)
    ends = np.cumsum([4 + len(record) for record in records]).tolist()
    for cut in range(len(data) + 1):
        whole = sum(end <= cut for end in ends)
        found = diskqueue.scan(data[:cut], 0, cut)
        assert len(found.starts) == len(found.lengths) == whole
        torn = cut not in (0, *ends)
        assert (found.damage is not None) == torn
        if found.damage is not None:
            assert found.damage.position == (0, *ends)[whole]


@pytest.mark.parametrize("length", [-1, 0, HEAD_BYTES - 1, 1 << 30])
def test_a_length_that_cannot_be_ends_the_file_there(length: int) -> None:
    good = file_of(plain(b"one"))
    found = diskqueue.scan(good + struct.pack(">i", length) + bytes(100), 0, len(good) + 104)
    assert len(found.starts) == 1
    assert found.damage is not None
    assert found.damage.position == len(good)


@given(st.binary(max_size=300), st.integers(0, 40))
def test_garbage_gives_whole_records_or_damage_and_never_an_error(data: bytes, start: int) -> None:
    found = diskqueue.scan(data, start, len(data))
    heads = diskqueue.heads(data, found.starts, found.lengths)
    ends = found.starts + found.lengths
    assert (found.starts >= start + 4).all()
    assert (ends <= len(data)).all()
    assert ((found.starts + HEAD_BYTES <= heads.body_starts) & (heads.body_starts <= ends))[~heads.bad].all()
    assert found.damage is not None or start >= len(data) or int(ends[-1]) == len(data)


EXTENSIONS = st.one_of(
    st.none(),
    st.just(b"\0"),
    st.builds(
        lambda version, header: bytes([version]) + struct.pack(">H", len(header)) + header,
        st.sampled_from([TAG, JSON]),
        st.binary(max_size=20),
    ),
    st.binary(max_size=5),
)


@given(
    st.lists(
        st.builds(raw, st.binary(max_size=10), st.integers(0, 3), st.integers(0, 2), st.integers(0, 4000), EXTENSIONS),
        max_size=20,
    )
)
def test_records_with_any_extension_are_read_or_told(records: list[bytes]) -> None:
    data = file_of(*records)
    found = diskqueue.scan(data, 0, len(data))
    assert (len(found.starts), found.damage) == (len(records), None)
    heads = diskqueue.heads(data, found.starts, found.lengths)
    ends = found.starts + found.lengths
    assert ((found.starts + HEAD_BYTES <= heads.body_starts) & (heads.body_starts <= ends))[~heads.bad].all()


# --- copies of one message ----------------------------------------------------------------------------------------


def test_copies_in_several_channels_are_one_message(tmp_path: Path) -> None:
    one, two, three = plain(b"one", 1), plain(b"two", 2, time_ns=TIME_NS + 1), plain(b"three", 3, time_ns=TIME_NS + 2)
    left = backlog(
        tmp_path,
        ("audit", file_of(one, two)),
        ("billing", file_of(three, plain(b"one", 1, attempts=2))),
        (None, file_of(plain(b"new", 4))),
    )
    rows = left.rows(everything(left))
    assert (rows.body, left.own_from) == (b"onetwothreenew", 3)
    audit, billing = left.copies(everything(left))
    assert audit.unread.tolist() == [True, True, False, True]
    assert billing.unread.tolist() == [True, False, True, True]
    assert (audit.attempts.tolist(), billing.attempts.tolist()) == ([0, 0, 0, 0], [2, 0, 0, 0])
    assert left.unread() == {None: 1, "audit": 2, "billing": 2}


MESSAGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from([b"", b"a", b"bc"])), max_size=8)


@given(st.lists(MESSAGES, min_size=1, max_size=3))
def test_whatever_ids_say_each_channel_gets_what_it_had(queues: list[list[tuple[int, int, bytes]]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        contents = [
            (f"c{at}", file_of(*(plain(body, number, 0, TIME_NS + late) for number, late, body in queue)))
            for at, queue in enumerate(queues)
        ]
        left = backlog(Path(directory), *contents)
        assert len(np.unique(left.keys, axis=0)) == len(left)
        got: dict[str, list[bytes]] = {name: [] for name, _ in contents}
        for picked in left.batches(np.ones(len(left), np.bool_)):
            rows = left.rows(picked)
            bodies = [bytes(rows.body[rows.cuts[at] : rows.cuts[at + 1]]) for at in range(rows.count)]
            for channel, copies in zip(left.channels, left.copies(picked), strict=True):
                got[channel] += [body for body, unread in zip(bodies, copies.unread.tolist(), strict=True) if unread]
        for at, queue in enumerate(queues):
            assert sorted(got[f"c{at}"]) == sorted(body for _, _, body in queue)


def test_the_same_messages_are_the_same_batch_wherever_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = backlog(tmp_path / "a", ("audit", file_of(plain(b"one", 1), plain(b"two", 2))))
    other = backlog(tmp_path / "b", ("audit", file_of(plain(b"two", 2), plain(b"one", 1))), ("x", b""))
    assert one.rows(everything(one)).sequence == other.rows(everything(other)).sequence
    assert one.rows(everything(one)[:1]).sequence != other.rows(everything(other)).sequence


# --- directories --------------------------------------------------------------------------------------------------


def test_positions_and_names_are_nsqds() -> None:
    assert diskqueue.positions(b"7\n1,20\n3,40\n") == (Place(1, 20), Place(3, 40))
    assert diskqueue.positions(b"7\n1,20\n3\n") is None
    assert diskqueue.writer_end(b"9\n2,30,400\n\xae\x83") == Place(2, 30)
    assert diskqueue.reader_start(b"4\n9\n1,10,110\n2,30,400\n\xae\x83") == Place(1, 10)
    assert diskqueue.file_name("t.x:c-1.diskqueue.000012.dat") == ("t.x", "c-1", 12)
    assert diskqueue.file_name("t.diskqueue.meta.dat") == ("t", None, None)
    for other in (
        "t.diskqueue.000000.dat.bad",
        "t.diskqueue.meta.dat.123.tmp",
        "nsqd.dat",
        "t:c:d.diskqueue.000000.dat",
    ):
        assert diskqueue.file_name(other) is None


def test_what_lies_behind_the_positions_of_a_killed_nsqd_is_unread_too(tmp_path: Path) -> None:
    (tmp_path / "t.diskqueue.000000.dat").write_bytes(bytes(100))
    (tmp_path / "t.diskqueue.meta.dat").write_bytes(b"1\n0,10\n0,50\n")
    assert Queues(str(tmp_path)).topics[0].queues == [
        Queue(None, [Piece(str(tmp_path / "t.diskqueue.000000.dat"), 10)])
    ]


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        (b"1\n0,10\n0,200\n", "it ends here, and should reach to byte 200"),
        (b"1\n0,150\n1,0\n", "it ends here, and byte 150 is the first unread one"),
        (b"1\n0,10\n2,5\n", "file 000001 of a queue is missing there"),
        (b"nonsense", "it does not say from where the queue is unread"),
    ],
)
def test_positions_that_do_not_fit_the_files_are_told(tmp_path: Path, meta: bytes, told: str) -> None:
    (tmp_path / "t.diskqueue.000000.dat").write_bytes(bytes(100))
    (tmp_path / "t.diskqueue.meta.dat").write_bytes(meta)
    assert [problem.reason for problem in Queues(str(tmp_path)).problems] == [told]


def test_channels_of_youzans_are_positions_in_the_topics_files(tmp_path: Path) -> None:
    records = [raw(b"one", 1, 11), raw(b"two", 2), raw(b"three", 3)]
    sizes = [4 + len(record) for record in records]
    place = tmp_path / "orders"
    place.mkdir()
    (tmp_path / "nsqd.1.dat").write_bytes(
        b'{"version":"0.3.7-HA","topics":[{"name":"orders","partition":0,"ext":false,"channels":[]}]}'
    )
    (place / "orders-0.diskqueue.000000.dat").write_bytes(file_of(*records[:2]))
    (place / "orders-0.diskqueue.000000.dat.offsetmeta.dat").write_bytes(b"2\n0,70\n")
    (place / "orders-0.diskqueue.000001.dat").write_bytes(file_of(*records[2:]))
    (place / "orders-0.diskqueue.meta.writer.dat").write_bytes(b"3\n1,%d,%d\n\xae\x83" % (sizes[2], sum(sizes)))
    (place / "channel_meta0").write_bytes(
        b'[{"name":"audit","paused":false,"skipped":false},{"name":"billing","paused":true,"skipped":false}]'
    )
    for channel, file, at in (("audit", 0, sizes[0]), ("billing", 1, 0)):
        (place / f"orders-0:{channel}.diskqueue.meta.v2.reader.dat").write_bytes(
            b"1\n3\n%d,%d,%d\n1,%d,%d\n\xae\x83" % (file, at, at, sizes[2], sum(sizes))
        )
    queues = Queues(str(tmp_path))
    assert queues.problems == []
    (topic,) = queues.topics
    assert topic.channels == {"audit": False, "billing": True}
    left = Backlog(topic)
    assert left.rows(everything(left)).body == b"twothree"
    assert [copies.unread.tolist() for copies in left.copies(everything(left))] == [[True, True], [False, True]]

    (tmp_path / "meta.db").write_bytes(b"bolt")
    assert "this database, which is not read" in Queues(str(tmp_path)).problems[0].reason


def test_a_directory_that_is_none_of_nsqds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no nsqd\.dat"):
        Queues(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read"):
        Queues(str(tmp_path / "nowhere"))


def test_nsqds_lock_is_held_meanwhile(tmp_path: Path) -> None:
    with locked(str(tmp_path)), pytest.raises(ConfigError, match="still runs"), locked(str(tmp_path)):
        pass
    with locked(str(tmp_path)):
        pass
