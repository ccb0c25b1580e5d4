"""The HTTP kit without sockets: order, bodies, limits, answers that come later, clients that leave."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.budget import WINDOW_NS, Budget
from penstock.callers import Caller
from penstock.clock import SECOND
from penstock.config import LimitsConfig, MemoryConfig
from penstock.errors import Refusal
from penstock.http import App, Broken, Connection, Listener, NoMethod, Request, Response, Route, Routes, Shortcut
from penstock.http.app import Done
from penstock.http.connection import BEGUN_MAX, KEEP_ALIVE_NS
from penstock.http.incoming import BODY_PAUSE_NS, HEAD_NS
from tests.fakes import FakeClock, gate_of
from tests.http.line import Line

LIMIT = 1000
MEMORY = 3000


class Echo(App):
    """Answers with what it got; /later when told to; /quick takes the short way."""

    starts = (b"POST /quick",)

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.faults: list[str] = []
        self.waiting: list[Request] = []
        self.quick: list[tuple[bytes, Done]] = []
        self.left: list[str] = []
        self.body_bytes_max = LIMIT
        self.answer = Response(b"quick").wire()
        self.in_turn = False
        self._routes = Routes(
            [
                ("GET", "/now", Route(self._now)),
                ("POST", "/echo/{name}", Route(self._echo, LIMIT)),
                ("POST", "/later", Route(self._later, LIMIT)),
                ("POST", "/later-large", Route(self._later, 1 << 20)),
                ("POST", "/wide", Route(self._echo, 1 << 20)),
                ("GET", "/poll", Route(self._poll)),
                ("GET", "/bug", Route(self._bug)),
                ("GET", "/bare", Route(lambda request: Response(b"", (), 204))),
                ("POST", "/quick", Route(self._quick, LIMIT)),
            ],
            head=True,
        )

    def begin(self, request: Request) -> None:
        request.route, request.names = self._routes.find(request.method, request.path)

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        code = error.code if isinstance(error, Refusal) else type(error).__name__
        self.faults.append("broken" if isinstance(error, Broken) else code)
        return Response(code.encode(), (), error.reason.http if isinstance(error, Refusal) else 500)

    def not_http(self, text: str, connection: Connection) -> None:
        self.faults.append("not http")

    def shortcut(
        self, method: bytes, target: bytes, head: bytes, caller: Caller, connection: Connection
    ) -> Shortcut | None:
        return self if target == b"/quick" else None

    def take(self, body: bytes, done: Done) -> bool:
        if body == b"long":
            return False
        self.quick.append((body, done))
        return True

    def _now(self, request: Request) -> Response:
        self.begun.append(request.path)
        return Response(b"now")

    def _quick(self, request: Request) -> Response:
        self.begun.append(request.path)
        return Response(b"quick")

    def _echo(self, request: Request) -> Response:
        self.begun.append(request.path)
        return Response(request.names["name"].encode() + b":" + request.body)

    def _later(self, request: Request) -> None:
        self.begun.append(request.path)
        self.waiting.append(request)

    def _poll(self, request: Request) -> None:
        request.on_gone(lambda: self.left.append(request.path))
        self.waiting.append(request)

    def _bug(self, request: Request) -> Response:
        raise ZeroDivisionError


class Place:
    """A listener with an application, on a clock in your hand."""

    def __init__(self) -> None:
        self.app = Echo()
        self.clock = FakeClock()
        limits = LimitsConfig(body_timeout_ns=100 * SECOND)
        budget = self.budget = Budget(MemoryConfig(body_bytes=MEMORY, output_bytes=MEMORY), limits, self.clock)
        self.memory, self.output = budget.body, budget.output
        self.listener = Listener("here", self.app, self.clock, budget, gate_of(self.clock))

    def line(self) -> Line:
        return Line(self.listener)

    def advance(self, ns: int) -> None:
        self.clock.advance(ns)

    def release(self) -> None:
        """Response what waits now, the last one first."""
        waiting, self.app.waiting = self.app.waiting, []
        quick, self.app.quick = self.app.quick, []
        for request in reversed(waiting):
            request.answer(Response(b"later " + request.body))
        for _, done in reversed(quick):
            done(None, None)
        self.clock.run()


@pytest.fixture
def place() -> Place:
    return Place()


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: localhost", *headers, "", ""]).encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


def contents(line: Line) -> list[bytes]:
    found = []
    while line.out:
        found.append(line.answer()[2])
    return found


def test_a_pattern_takes_any_one_part_and_no_other_path(place: Place) -> None:
    line = place.line()
    line.send(post("/echo/a%2Fb", b"x") + post("/echo/", b"") + post("/echo/a/b", b"") + get("/echo/a"))
    assert line.answer()[2] == b"a%2Fb:x"
    assert [line.answer()[0] for _ in range(3)] == [404, 404, 405]
    with pytest.raises(NoMethod, match="possible: POST") as caught:
        Routes([("POST", "/x", Route(lambda request: None))]).find("GET", "/x")
    assert caught.value.allowed == ("POST",)


def test_head_answers_like_get_without_the_content(place: Place) -> None:
    line = place.line()
    line.send(get("/now", method="HEAD"))
    assert line.out == Response(b"now").wire(is_head=True)
    assert b"content-length: 3" in line.out


def test_an_answer_without_content_says_no_length(place: Place) -> None:
    line = place.line()
    line.send(get("/bare"))
    assert line.out == b"HTTP/1.1 204 No Content\r\n\r\n"


def test_a_request_begins_when_those_before_it_are_answered(place: Place) -> None:
    line = place.line()
    line.send(post("/later", b"a") + get("/now") + post("/later", b"b") + post("/echo/x", b"c"))
    assert place.app.begun == ["/later"]
    assert not line.is_read()
    place.release()
    assert place.app.begun == ["/later", "/now", "/later"]
    assert contents(line) == [b"later a", b"now"]
    place.release()
    assert contents(line) == [b"later b", b"x:c"]
    assert line.is_read()
    assert place.memory.used == 0


def test_shortcuts_overlap_and_are_answered_in_order(place: Place) -> None:
    line = place.line()
    line.send(post("/quick", b"a") + post("/quick", b"b") + post("/quick", b"long") + post("/quick", b"c"))
    assert [body for body, _ in place.app.quick] == [b"a", b"b"]
    place.release()
    assert contents(line) == [b"quick"] * 4
    assert place.app.begun == ["/quick"] * 2  # behind one that goes the long way, the rest of a read does so too
    line.send(post("/quick", b"d"))
    place.release()
    assert contents(line) == [b"quick"]


def test_a_shortcut_in_turn_begins_when_everything_before_it_is_answered(place: Place) -> None:
    line = place.line()
    place.app.in_turn = True
    line.send(post("/quick", b"a") + post("/quick", b"b"))
    assert [body for body, _ in place.app.quick] == [b"a"]
    place.release()
    place.clock.run()
    assert [body for body, _ in place.app.quick] == [b"b"]
    place.release()
    assert contents(line) == [b"quick"] * 2


def test_a_shortcut_without_an_answer_of_its_own_sends_what_it_was_told(place: Place) -> None:
    line = place.line()
    place.app.answer = b""
    line.send(post("/quick", b"a") + post("/quick", b"b"))
    (_, first), (_, second) = place.app.quick
    second(Response(b"two").wire(), None)
    first(Response(b"one").wire(), None)
    assert contents(line) == [b"one", b"two"]


def test_a_client_that_leaves_is_told_to_whoever_waits_for_it(place: Place) -> None:
    line = place.line()
    line.send(get("/poll"))
    line.close()
    assert place.app.left == ["/poll"]
    place.release()  # nobody is answered, nothing fails
    assert line.out == b""
    assert not place.listener.connections


def test_who_only_stops_sending_is_answered_unless_somebody_waits(place: Place) -> None:
    line, poll = place.line(), place.line()
    line.send(post("/later", b"a") + get("/now"))
    line.stop_sending()
    poll.send(get("/poll"))
    poll.stop_sending()
    assert place.app.left == ["/poll"]
    place.release()
    assert contents(line) == [b"later a", b"now"]
    assert line.closed


@pytest.mark.parametrize(
    ("request_", "is_last"),
    [
        (get("/now", version="1.0"), True),
        (get("/now", "Connection: keep-alive", version="1.0"), False),
        (get("/now", "Connection: close"), True),
        (get("/now"), False),
    ],
)
def test_the_connection_ends_where_the_client_wants_it(place: Place, request_: bytes, is_last: bool) -> None:
    line = place.line()
    line.send(request_ + get("/now"))
    assert len(contents(line)) == 2 - is_last
    assert line.closed is is_last


def test_a_body_may_come_in_chunks_and_is_asked_for(place: Place) -> None:
    line = place.line()
    line.send(get("/echo/x", "Transfer-Encoding: chunked", method="POST") + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
    assert line.answer()[2] == b"x:abc"
    line.send(get("/echo/x", "Content-Length: 3", "Expect: 100-continue", method="POST"))
    assert line.out == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.out = b""
    line.send(b"def")
    assert line.answer()[2] == b"x:def"


@pytest.mark.parametrize("framing", [f"Content-Length: {LIMIT + 1}", "Transfer-Encoding: chunked"])
def test_too_large_a_body_is_refused_early_and_the_rest_passed_over(place: Place, framing: str) -> None:
    line = place.line()
    line.send(get("/echo/x", framing, method="POST"))
    chunked = "chunked" in framing
    body = b"x" * (LIMIT + 1)
    line.send(b"%x\r\n%b\r\n" % (len(body), body[:-1] + b"y") if chunked else body[:-1])
    assert line.answer()[0] == 413
    line.send((b"0\r\n\r\n" if chunked else b"y") + get("/now"))
    assert contents(line) == [b"now"]
    assert (place.app.faults, place.memory.used) == (["message_too_big"], 0)


def test_bodies_are_held_within_their_memory_and_the_slowest_gives_way(place: Place) -> None:
    lines = [place.line() for _ in range(4)]
    for line in lines:
        line.send(post("/echo/x", b"x" * LIMIT)[:-1])
    assert [bool(line.out) for line in lines] == [True, False, False, False]
    assert lines[0].answer()[0] == 503
    assert place.memory.used == 3 * (LIMIT - 1)
    lines[0].send(b"x" + get("/now"))
    assert contents(lines[0]) == [b"now"]
    lines[3].send(b"x")
    assert lines[3].answer()[0] == 200
    for line in lines[1:3]:
        line.close()
    assert place.app.faults == ["memory_full", "broken", "broken"]
    assert place.memory.used == 0


def test_a_large_body_that_is_worked_on_counts_until_it_is_answered(place: Place) -> None:
    memory, place.memory.bytes_max = place.budget.input, 1 << 20
    memory.bytes_max = 250_000
    lines = [place.line() for _ in range(3)]
    for line in lines:
        line.send(post("/later-large", bytes(100_000)))
    assert (memory.used, [len(line.out) > 0 for line in lines]) == (200_000, [False, False, True])
    assert lines[2].answer()[0] == 503
    lines[0].close()  # whoever works on it does so all the same
    assert memory.used == 200_000
    place.app.waiting[0].answer(Response(b"done"))
    place.app.waiting[1].let_go()
    assert memory.used == 0
    place.app.waiting[1].answer(Response(b"done"))
    assert (memory.used, contents(lines[1])) == (0, [b"done"])


def test_a_body_that_comes_too_slowly_is_given_up(place: Place) -> None:
    drip, steady = place.line(), place.line()
    drip.send(get("/echo/x", "Content-Length: 900", method="POST"))
    steady.send(get("/wide", "Content-Length: 500000", method="POST"))
    for _ in range(WINDOW_NS // SECOND + 1):
        drip.send(b"x")
        steady.send(b"x" * 2000)
        place.memory.bytes_max = 1 << 20
        place.advance(SECOND)
    assert drip.answer()[0] == 408
    assert drip.closed
    assert not steady.out
    for _ in range(100 - WINDOW_NS // SECOND):
        steady.send(b"x" * 2000)
        place.advance(SECOND)
    assert steady.answer()[0] == 408
    assert place.app.faults == ["too_slow", "too_slow"]
    assert place.memory.used == 0


def test_answers_that_are_not_read_are_held_within_their_memory_and_for_some_time(place: Place) -> None:
    lines = [place.line() for _ in range(4)]
    for line in lines:
        line.out = b"x" * 900
        line.connection.pause_writing()
    assert [line.closed for line in lines] == [True, False, False, False]
    lines[1].connection.resume_writing()
    place.advance(300 * SECOND)
    assert [line.closed for line in lines[2:]] == [True, True]
    assert place.output.used == 0


def test_what_waits_behind_an_answer_is_given_back_with_its_client(place: Place) -> None:
    line = place.line()
    line.send(post("/later", b"a") + post("/echo/x", b"b" * 100))
    assert place.memory.used == 100
    line.close()
    assert place.memory.used == 0


def test_what_was_read_and_waits_for_answers_is_kept_as_it_came_and_counted(place: Place) -> None:
    place.memory.bytes_max = 1 << 20
    line, wanted = place.line(), 2000
    line.send(post("/later", b"a") + get("/now") * wanted)
    assert len(line.connection.behind) < 100  # as requests all of it would be some megabytes
    assert place.memory.used > 60_000
    assert not line.is_read()
    place.release()
    assert contents(line) == [b"later a", *[b"now"] * wanted]
    assert (place.memory.used, line.is_read()) == (0, True)


def test_what_was_read_and_waits_gives_way_where_memory_is_full(place: Place) -> None:
    line = place.line()
    line.send(post("/later", b"a") + get("/now") * 2000)
    assert place.memory.used == 0
    place.release()
    assert line.closed
    assert line.answer()[2] == b"later a"
    assert len(contents(line)) < 100


def test_of_one_read_some_requests_begin_in_each_turn(place: Place) -> None:
    place.memory.bytes_max = 1 << 20
    line = place.line()
    line.send(get("/now") * 100)
    assert len(place.app.begun) == BEGUN_MAX
    place.clock.run()
    assert contents(line) == [b"now"] * 100
    line.send(get("/nowhere") * 100)
    assert len(contents(line)) < 100
    place.clock.run()
    assert line.is_read()


def test_no_request_begins_while_its_client_reads_no_answers(place: Place) -> None:
    place.memory.bytes_max = 1 << 20
    line = place.line()
    line.high_water = 1000
    line.send(post("/echo/x", b"x" * 900) * 2 + get("/now") * 1000)
    place.clock.run()
    assert place.app.begun == ["/echo/x"] * 2
    begun = 0
    while not line.is_read():
        assert not line.closed
        line.drain()
        place.clock.run()
        assert len(place.app.begun) - begun < 50
        begun = len(place.app.begun)
    assert begun == 1002
    assert place.memory.used == place.output.used == 0


def test_who_stops_sending_is_answered_what_waits_as_well(place: Place) -> None:
    place.memory.bytes_max = 1 << 20
    line = place.line()
    line.send(post("/later", b"a") + get("/now") * 500)
    line.stop_sending()
    place.release()
    assert contents(line) == [b"later a", *[b"now"] * 500]
    assert line.closed


def test_what_waits_here_is_not_late(place: Place) -> None:
    place.memory.bytes_max = 1 << 20
    line = place.line()
    line.send(post("/later", b"a") + get("/now") * 500)
    place.advance(3 * HEAD_NS)
    place.release()
    assert len(contents(line)) == 501
    assert not line.closed


@pytest.mark.parametrize("sent", [-1, -3])
def test_a_body_that_stops_coming_is_given_up(place: Place, sent: int) -> None:
    line = place.line()
    line.send(post("/echo/x", b"abc")[:sent])
    place.advance(BODY_PAUSE_NS // 2)
    assert line.out == b""
    place.advance(BODY_PAUSE_NS)
    assert line.answer()[0] == 408
    assert line.closed
    assert place.app.faults == ["too_slow"]


def test_a_head_that_stops_coming_and_an_idle_client_are_hung_up_on(place: Place) -> None:
    slow, idle, busy = place.line(), place.line(), place.line()
    slow.send(get("/now")[:10])
    idle.send(get("/now"))
    busy.send(post("/later", b""))
    place.advance(2 * HEAD_NS)
    assert (slow.closed, idle.closed) == (True, False)
    place.advance(2 * KEEP_ALIVE_NS)
    assert (idle.closed, busy.closed) == (True, False)


def test_another_protocol_that_is_offered_is_not_taken_up(place: Place) -> None:
    line = place.line()
    line.send(get("/now", "Connection: Upgrade", "Upgrade: h2c") + get("/now"))
    assert contents(line) == [b"now", b"now"]


def test_a_handler_that_fails_costs_one_request(place: Place) -> None:
    line = place.line()
    line.send(get("/bug") + get("/now"))
    assert line.answer()[0] == 500
    assert contents(line) == [b"now"]


def test_garbage_is_answered_behind_what_was_asked_before_it(place: Place) -> None:
    line = place.line()
    line.send(post("/later", b"a") + b"\x00\x01garbage\r\n\r\n")
    assert line.out == b""
    place.release()
    assert line.answer()[2] == b"later a"
    assert line.answer()[0] == 400
    assert line.closed


requests = st.sampled_from(
    [
        get("/now"),
        get("/nowhere"),
        get("/now", method="HEAD"),
        post("/echo/x", b"body"),
        post("/echo/x", b"x" * (LIMIT + 1)),
        post("/later", b"late"),
        post("/quick", b"q"),
        post("/quick", b"long"),
        get("/bug"),
    ]
)


@given(asked=st.lists(requests, min_size=1, max_size=8), data=st.data())
def test_however_requests_are_cut_each_is_answered_as_if_alone(asked: list[bytes], data: st.DataObject) -> None:
    alone = b""
    for request in asked:
        place = Place()
        line = place.line()
        line.send(request)
        place.release()
        alone += line.out
    place = Place()
    line = place.line()
    whole = b"".join(asked)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=6).map(sorted))
    for start, stop in pairwise([0, *cuts, len(whole)]):
        line.send(whole[start:stop])
        if data.draw(st.booleans()):
            place.release()
    while place.app.waiting or place.app.quick:
        place.release()
    assert line.out == alone
    assert place.memory.used == 0
