"""What nsqd 1.3.0 answers to what is wrong, byte for byte: both daemons get the same and must say the same."""

from __future__ import annotations

import http.client
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pytest

from tests.nsq.lookup.programs import PATIENCE_S, Program, ours, upstream
from tests.nsq.parts import sized

FLAGS = ("--max-msg-size=100", "--max-body-size=4096", "--max-channel-consumers=1")

#: Errors that leave the connection open.
OPEN = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")

ID = b"0123456789abcdef"
SUB = b"SUB t%d ch\n"


class Pair(NamedTuple):
    """Their daemon and ours."""

    theirs: Program
    ours: Program


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path = tmp_path_factory.mktemp("daemons")
    for name in ("theirs", "ours"):
        (path / name).mkdir()
    with (
        Program(upstream("nsqd"), f"--data-path={path / 'theirs'}", *FLAGS, cwd=path) as theirs,
        Program(ours("nsqd"), f"--data-path={path / 'ours'}", *FLAGS, cwd=path) as mine,
    ):
        yield Pair(theirs, mine)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path = tmp_path_factory.mktemp("services")
    with Program(upstream("nsqlookupd"), cwd=path) as theirs, Program(ours("nsqlookupd"), cwd=path) as mine:
        yield Pair(theirs, mine)


class Talk:
    """One connection, step by step: each step is answered by one frame."""

    def __init__(self, program: Program) -> None:
        self._socket = socket.create_connection(("127.0.0.1", program.port("TCP")), PATIENCE_S)
        self._held = b""
        self._id = b""
        self._socket.sendall(b"  V2")

    def run(self, steps: tuple[bytes, ...]) -> list[bytes]:
        with self._socket:
            told: list[bytes] = []
            for step in steps:
                self._socket.sendall(step.replace(b"{id}", self._id))
                told.append(self._frame())
            if told[-1].startswith(b"E_") and not told[-1].startswith(OPEN):
                with pytest.raises((EOFError, ConnectionError)):
                    self._frame()
            return told

    def _frame(self) -> bytes:
        while True:
            size, kind = struct.unpack(">II", self._take(8))
            data = self._take(size - 4)
            if kind == 2:
                self._id = data[10:26]
                return b"message"
            if data != b"_heartbeat_":
                return data.replace(self._id, b"{id}") if self._id else data

    def _take(self, count: int) -> bytes:
        while len(self._held) < count:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError
            self._held += data
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def identify(body: object) -> bytes:
    return b"IDENTIFY\n" + sized(body if isinstance(body, bytes) else msgspec.json.encode(body))


def items(*bodies: bytes) -> bytes:
    return struct.pack(">I", len(bodies)) + b"".join(map(sized, bodies))


LINES = [
    *(b"\n", b"\r\n", b" \n", b"ASDF\n", b"asdf x y\n", b"pub t\n", b"hang up\n", b"\xc3\xa9\n", b"CLS\n", b"RDY\n"),
    *(b"RDY x\n", b"FIN\n", b"FIN \n", b"FIN " + ID + b"\n", b"REQ\n", b"TOUCH\n", b"TOUCH " + ID + b"\n"),
    *(b"SUB\n", b"SUB t\n", b"SUB \n", b"SUB t \n", b"SUB  ch\n", b"SUB t! ch\n", b"SUB t ch!\n", b"SUB t\tx ch\n"),
    *(b"SUB " + b"a" * 65 + b" ch\n", b'SUB t"x ch\n', b"SUB t\\x ch\n", b"SUB \xc3\xa9 ch\n", b"SUB \xff ch\n"),
    *(b"SUB t \xe2\x82\xac\n", b"SUB t\x7f ch\n", b"SUB t\x01 ch\n", b"SUB t \xe2\x80\xa8\n", b"SUB t:ephemeral ch\n"),
    *(b"PUB\n", b"PUB \n", b"PUB t!\n", b"PUB " + b"a" * 65 + b"\n", b"MPUB\n", b"MPUB \n", b"MPUB t!\n", b"DPUB\n"),
    *(b"DPUB t\n", b"DPUB t! 1\n", b"DPUB t x\n", b"DPUB t -1\n", b"DPUB t 99999999\n", b"DPUB  1\n", b"AUTH x\n"),
]

BODIES = [
    *(b"PUB t\n" + size for size in (sized(b""), b"\xff\xff\xff\xff", b"\0\0\0\xc8", b"\x80\0\0\0")),
    *(b"DPUB t 1\n" + size for size in (sized(b""), b"\xff\xff\xff\xff", b"\0\0\0\xc8")),
    *(b"MPUB t\n" + size for size in (sized(b""), b"\xff\xff\xff\xff", b"\0\1\0\0", sized(b"\0\0\0\0"))),
    *(b"MPUB t\n" + sized(body) for body in (b"\xff\xff\xff\xff", b"\0\1\0\0", items(b"a", b""), items(b"x" * 200))),
    b"MPUB t\n" + sized(b"\0\0\0\1\xff\xff\xff\xff"),
    *(b"AUTH\n" + size for size in (sized(b""), b"\xff\xff\xff\xff", b"\0\1\0\0", sized(b"secret"))),
    *(b"IDENTIFY\n" + size for size in (sized(b""), b"\xff\xff\xff\xff", b"\0\1\0\0")),
]

IDENTITIES: list[object] = [
    *(b"{", b"[]", b"[1]", b'"a"', b"1", b"null", b"true", b"{}", b"{} x", b"{}{}", b" {} ", b'{"a":1,}', b"[" * 100),
    *(b'{"client_id":"\xff"}', b'{"client_id":"a\tb"}', b'{"client_id":"a","client_id":5}', b"\xef\xbb\xbf{}"),
    *({"client_id": 5}, {"client_id": None}, {"feature_negotiation": "true"}, {"unknown": 1}, {"tls_v1": 1}),
    *({"heartbeat_interval": value} for value in ("1000", 1000.5, 1000.0, -2, -1, 0, 1, 999, 1000, 60000, 60001)),
    *({"output_buffer_size": value} for value in (-2, -1, 0, 1, 63, 64, 65536, 65537)),
    *({"output_buffer_timeout": value} for value in (-2, -1, 0, 1, 24, 25, 30000, 30001)),
    *({"sample_rate": value} for value in (1.5, -1, 0, 99, 100, 1 << 32)),
    *({"msg_timeout": value} for value in (-1, 0, 1, 999, 1000, 900_000, 900_001, (1 << 63) - 1)),
    *({"deflate_level": value} for value in (-1, 0, 10, "1")),
    b'{"msg_timeout":99999999999999999999}',
    {"feature_negotiation": True, "snappy": True, "deflate": True},
]

SUBSCRIBED = [
    *(b"RDY x\n", b"RDY -1\n", b"RDY 2501\n", b"RDY +1\n", b"RDY 1.5\n", b"RDY 1 2\nASDF\n", b"RDY \nASDF\n"),
    *(b"FIN\n", b"FIN \n", b"FIN abc\n", b"FIN " + ID + b"\n", b"FIN " + ID + b"0\n", b"FIN zzzzzzzzzzzzzzzz\n"),
    *(b"REQ\n", b"REQ " + ID + b"\n", b"REQ \n", b"REQ abc 1\n", b"REQ abc x\n", b"REQ " + ID + b" x\n"),
    *(b"REQ " + ID + b" -1\n", b"REQ " + ID + b" \n", b"REQ zzzzzzzzzzzzzzzz 0\n", b"TOUCH\n", b"TOUCH \n"),
    *(b"TOUCH abc\n", b"TOUCH " + ID + b"\n", b"SUB t ch\n", identify({}), b"AUTH\n" + sized(b"s"), b"NOP\nASDF\n"),
]

#: A channel has one consumer here, so each of these has its own topic.
TALKS = [
    *((SUB % number, data) for number, data in enumerate(SUBSCRIBED)),
    (identify({"heartbeat_interval": -1}), b"SUB t ch\n"),
    (SUB % 100, b"CLS\n", b"CLS\n"),
    (SUB % 101, b"CLS\n", b"RDY x\nASDF\n"),
    (SUB % 102, b"CLS\n", b"FIN " + ID + b"\n"),
    *(
        (b"PUB t%d\n" % number + sized(b"m"), SUB % number, b"RDY 1\n", b"FIN {id}\n" + late)
        for number, late in enumerate((b"FIN {id}\n", b"TOUCH {id}\n", b"REQ {id} 0\n"), 103)
    ),
]


@pytest.mark.parametrize("steps", [*((data,) for data in (*LINES, *BODIES, *map(identify, IDENTITIES))), *TALKS])
def test_an_error_reads_as_nsqds(daemons: Pair, steps: tuple[bytes, ...]) -> None:
    assert Talk(daemons.ours).run(steps) == Talk(daemons.theirs).run(steps)


def test_one_consumer_too_many_reads_as_nsqds(daemons: Pair) -> None:
    told = []
    for program in daemons:
        first = socket.create_connection(("127.0.0.1", program.port("TCP")), PATIENCE_S)
        with first:
            first.sendall(b"  V2SUB full ch\n")
            assert first.recv(100).endswith(b"OK")
            told.append(Talk(program).run((b"SUB full ch\n",)))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("steps", "theirs", "ours"),
    [
        # Go's numbers wrap around; ours are read or they are not.
        ((b"DPUB t 99999999999999999999\n",), b"timeout 7766279631452241919 out of range", b"could not parse timeout"),
        # An error is text in UTF-8 here; libraries decode it.
        ((b"A\xff\n",), b"command A\xff", b"command A\\xff"),
        # Go reads names of members in any case, and half of a surrogate pair as U+FFFD.
        ((identify(b'{"CLIENT_ID":5}'),), b"failed to decode", b"OK"),
        ((identify(b'{"client_id":"\\ud800"}'),), b"OK", b"failed to decode"),
        # An id is a number here.
        ((SUB % 200, b"FIN ABCDEFABCDEFABCD\n"), b"FIN ABCDEF", b"FIN abcdef"),
    ],
)
def test_what_differs_is_known(daemons: Pair, steps: tuple[bytes, ...], theirs: bytes, ours: bytes) -> None:
    assert theirs in Talk(daemons.theirs).run(steps)[-1]
    assert ours in Talk(daemons.ours).run(steps)[-1]


NAMES = ("", "?topic=", "?topic=a!", "?topic=none")
PLACES = ("", "?topic=t", "?topic=t&channel=", "?topic=t&channel=c!", "?topic=none&channel=c", "?topic=a!&channel=c")

REQUESTS = [
    *(("GET", "/nope", b""), ("POST", "/stats", b""), ("POST", "/ping", b""), ("GET", "/pub", b"")),
    *(("POST", f"/pub{query}", b"x") for query in ("", "?topic=", "?topic=a!", "?topic=%zz", "?topic=t&defer=x")),
    *(("POST", f"/pub?topic=t&defer={delay}", b"x") for delay in ("", "-1", "99999999")),
    *(("POST", "/pub?topic=t", b""), ("POST", "/pub?topic=t", b"x" * 200), ("POST", "/mpub?topic=t", b"x" * 200)),
    *(("POST", "/mpub", b"x"), ("POST", "/mpub?topic=a!", b"x"), ("POST", "/mpub?topic=t", b"x\n" * 3000)),
    *(
        ("POST", "/mpub?topic=t&binary=true", body)
        for body in (b"", b"\0\0\0\0", items(b""), items(b"x" * 200), b"\xff\xff\xff\xff")
    ),
    *(("POST", f"/topic/{word}{q}", b"") for word in ("create", "empty") for q in NAMES[:3]),
    *(("POST", f"/topic/{word}{q}", b"") for word in ("empty", "pause", "unpause", "delete") for q in NAMES),
    *(
        ("POST", f"/channel/{word}{q}", b"")
        for word in ("create", "empty", "pause", "unpause", "delete")
        for q in PLACES
    ),
    *(("POST", f"/channel/{word}?topic=t&channel=none", b"") for word in ("empty", "pause", "unpause", "delete")),
    *(("GET", "/config/nope", b""), ("PUT", "/config/nope", b"x"), ("PUT", "/config/log_level", b"")),
    *(("PUT", "/config/", b"x"), ("POST", "/config/log_level", b"x"), ("GET", "/topic/create?topic=t", b"")),
]


def asked(program: Program, method: str, target: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(program.http, timeout=PATIENCE_S)
    try:
        connection.request(method, target, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_an_error_over_http_reads_as_nsqds(daemons: Pair) -> None:
    for program in daemons:
        asked(program, "POST", "/topic/create?topic=t", b"")
    for method, target, body in REQUESTS:
        theirs, mine = (asked(program, method, target, body) for program in daemons)
        assert (method, target, body, mine) == (method, target, body, theirs)


def test_an_error_over_http_reads_as_nsqlookupds(services: Pair) -> None:
    requests = [
        *(("GET", "/nope"), ("POST", "/lookup?topic=t"), ("GET", "/lookup"), ("GET", "/channels")),
        *(("GET", f"/lookup{query}") for query in NAMES[1:]),
        *(("POST", f"/topic/{word}{query}") for word in ("create", "delete") for query in NAMES[:3]),
        *(("POST", f"/channel/{word}{query}") for word in ("create", "delete") for query in PLACES),
        *(("POST", f"/topic/tombstone{query}") for query in ("", "?topic=t", "?topic=none&node=x:1")),
    ]
    for method, target in requests:
        theirs, mine = (asked(program, method, target, b"") for program in services)
        assert (method, target, mine) == (method, target, theirs)
