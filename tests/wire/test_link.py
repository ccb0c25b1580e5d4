"""A kept connection, on a clock in your hand: who is refused, cut off or not answered comes back, later and later."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, cast

import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.wire.dial import Dialling, Failed
from penstock.wire.layers import LayerError
from penstock.wire.link import Backoff, Link
from penstock.wire.tls import Tls, client_context
from tests.fakes import FakeClock
from tests.nsq.certificates import certificates

FILES = certificates()
FIRST_NS, MOST_NS, BEAT_NS = 100 * MILLISECOND, 10 * SECOND, 3 * SECOND


class Peer:
    """The far end, which is also the transport; it may speak TLS."""

    def __init__(self, link: asyncio.Protocol, clock: FakeClock, tls: Tls | None = None) -> None:
        self.link = link
        self.clock = clock
        self.tls = tls
        self.heard = b""
        self.gone = False

    def write(self, data: bytes) -> None:
        assert not self.gone
        if self.tls is None:
            self.heard += bytes(data)
            return
        try:
            if not self.tls.done:
                self.say(self.tls.handshake(data), raw=True)
                data = b""
            if self.tls.done:
                self.heard += self.tls.receive(data)
        except LayerError as error:
            self.say(error.last, raw=True)

    def say(self, data: bytes, *, raw: bool = False) -> None:
        sent = data if raw or self.tls is None else self.tls.send(data)
        self.clock.call_soon(lambda: None if self.gone else self.link.data_received(sent))

    def hang_up(self, error: Exception | None = None) -> None:
        self.gone = True
        self.link.connection_lost(error)
        self.clock.run()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.gone:
            self.gone = True
            self.clock.call_soon(lambda: self.link.connection_lost(None))


class Outside:
    """What is dialled: it refuses, accepts, or says nothing at all."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.mood = "accept"
        self.dials: list[int] = []
        self.peers: list[Peer] = []
        self.secure: Callable[[], Tls] | None = None

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Dialling:
        now_ns = self.clock.monotonic()
        self.dials.append(now_ns)

        def accept() -> None:
            self.peers.append(Peer(protocol, self.clock, self.secure() if self.secure is not None else None))
            protocol.connection_made(cast(Any, self.peers[-1]))

        late_ns = 3600 * SECOND if self.mood == "silent" else 0
        call = (lambda: failed("refused")) if self.mood == "refuse" else accept
        return self.clock.call_at(now_ns + late_ns, call)

    @property
    def peer(self) -> Peer:
        return self.peers[-1]


class Speaker:
    """Says hello, and ping; remembers what it heard."""

    def __init__(self) -> None:
        self.link: Link
        self.story: list[str] = []
        self.gives_up = False

    def opened(self) -> None:
        self.story.append("opened")
        self.link.write(b"hello")

    def received(self, data: bytes) -> None:
        self.story.append(data.decode())
        self.link.settled()

    def beat(self) -> None:
        if self.gives_up:
            self.link.drop("no answer")
        else:
            self.link.write(b"ping")

    def hold(self, full: bool) -> None:
        pass

    def closed(self, why: str) -> None:
        self.story.append(f"closed: {why}")


class Scene:
    """A link, who speaks over it, and what is outside."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.clock = FakeClock()
        self.outside = Outside(self.clock)
        self.speaker = Speaker()
        backoff = Backoff(FIRST_NS, MOST_NS, Random(1))
        address = ("localhost", 4160)
        log = logging.getLogger("test")
        self.link = self.speaker.link = Link(
            "peer", address, self.speaker, self.clock, self.outside, backoff, beat_ns=BEAT_NS, log=log, tls=tls
        )

    def go(self, seconds: float = 0) -> None:
        self.clock.advance(int(seconds * SECOND))

    @property
    def story(self) -> list[str]:
        story, self.speaker.story = self.speaker.story, []
        return story


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.link.connect()
    scene.go()
    return scene


def test_a_speaker_speaks_when_the_connection_stands(scene: Scene) -> None:
    assert scene.outside.peer.heard == b"hello"
    scene.outside.peer.say(b"welcome")
    scene.go(2.9)
    assert scene.outside.peer.heard == b"hello"
    scene.go(0.1)
    assert scene.outside.peer.heard == b"helloping"
    scene.go(6)
    assert scene.outside.peer.heard == b"hello" + b"ping" * 3
    assert scene.story == ["opened", "welcome"]
    assert len(scene.outside.dials) == 1


def test_who_is_refused_comes_back_later_and_later_and_not_at_the_same_time_as_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses = []
    for seed in range(20):
        scene = Scene()
        scene.link._backoff = Backoff(FIRST_NS, MOST_NS, Random(seed))
        scene.outside.mood = "refuse"
        scene.link.connect()
        scene.go(60)
        assert scene.link.problem == "refused"
        dials = scene.outside.dials
        steps = [later - sooner for sooner, later in pairwise(dials)]
        for number, step in enumerate(steps):
            longest = min(FIRST_NS << number, MOST_NS)
            assert longest // 2 <= step <= longest + MILLISECOND
        pauses.append(tuple(steps))
    assert len(set(pauses)) == 20
    assert [record.message for record in caplog.records] == [
        "peer localhost:4160 cannot be used: refused; trying again"
    ] * 20


def test_a_peer_that_proved_itself_is_tried_again_soon(scene: Scene) -> None:
    for _ in range(3):
        scene.outside.peer.say(b"welcome")
        scene.go()
        assert scene.link.problem == ""
        before_ns = scene.clock.monotonic()
        scene.outside.peer.hang_up(ConnectionResetError("reset"))
        assert scene.link.problem == "reset"
        assert not scene.link.is_open
        scene.go(0.1)
        assert scene.outside.dials[-1] - before_ns <= FIRST_NS + MILLISECOND
    assert scene.story == ["opened", "welcome", "closed: reset"] * 3 + ["opened"]


def test_a_peer_that_hangs_up_before_it_proved_itself_is_tried_later_and_later(scene: Scene) -> None:
    for _ in range(5):
        scene.outside.peer.hang_up()
        scene.go(FIRST_NS * 32 / SECOND)
    steps = [later - sooner for sooner, later in pairwise(scene.outside.dials)]
    assert len(scene.outside.dials) == 6
    assert scene.link.problem == "it hung up"
    assert steps[4] > FIRST_NS * 4


def test_who_does_not_accept_is_given_up_after_a_while() -> None:
    scene = Scene()
    scene.outside.mood = "silent"
    scene.link.connect()
    scene.go(4.9)
    assert (scene.link.problem, len(scene.outside.dials)) == ("", 1)
    scene.go(0.2)
    assert (scene.link.problem, len(scene.outside.dials)) == ("it did not accept for 5 s", 2)
    scene.outside.mood = "accept"
    scene.go(6)
    assert scene.story == ["opened"]
    scene.go(7200)
    assert len(scene.outside.peers) == 1  # what was given up comes no more


def test_who_does_not_answer_is_dropped_by_the_speaker(scene: Scene) -> None:
    scene.speaker.gives_up = True
    scene.go(3)
    assert scene.story == ["opened", "closed: no answer"]
    assert scene.link.problem == "no answer"
    scene.go(0.1)
    assert scene.story == ["opened"]


def test_a_dropped_peer_is_neither_heard_nor_spoken_to(scene: Scene) -> None:
    scene.link.drop("enough")
    scene.link.drop("again")
    scene.outside.peer.gone = False
    scene.link.data_received(b"more")
    scene.link.write(b"more")
    assert scene.outside.peer.heard == b"hello"
    scene.go()
    assert scene.story == ["opened", "closed: enough"]


@pytest.mark.parametrize("mood", ["accept", "refuse", "silent"])
def test_a_closed_link_stays_closed(mood: str) -> None:
    scene = Scene()
    scene.outside.mood = mood
    scene.link.connect()
    scene.link.close()
    scene.link.connect()
    scene.go(7200)
    assert (scene.story, scene.outside.peers, len(scene.outside.dials)) == ([], [], 1)


def test_closing_ends_the_connection(scene: Scene) -> None:
    scene.link.close()
    scene.link.write(b"more")
    scene.go(60)
    assert scene.outside.peer.gone
    assert scene.outside.peer.heard == b"hello"
    assert scene.story == ["opened", "closed: it hung up"]
    assert len(scene.outside.dials) == 1


# --- TLS --------------------------------------------------------------------------------------------------------------


def secured(*, ask: bool = False, shown: bool = False, trusted: bool = True) -> Scene:
    certificate, key = (str(FILES.client), str(FILES.client_key)) if shown else ("", "")
    scene = Scene(client_context(str(FILES.authority) if trusted else "", certificate, key))
    scene.outside.secure = lambda: Tls(FILES.server_context(ask=ask))
    scene.link.connect()
    scene.go()
    return scene


@pytest.mark.parametrize("shown", [False, True])
def test_all_is_said_inside_tls(shown: bool) -> None:
    scene = secured(ask=shown, shown=shown)
    peer = scene.outside.peer
    assert peer.tls is not None
    assert peer.tls.common_name == ("someone" if shown else "")
    assert peer.heard == b"hello"
    peer.say(b"welcome")
    scene.go(3)
    assert peer.heard == b"helloping"
    assert scene.story == ["opened", "welcome"]
    scene.link.close()
    scene.go()
    assert peer.tls.ended


def test_a_server_that_nobody_vouches_for_is_told_nothing() -> None:
    scene = secured(trusted=False)
    assert scene.story == []
    assert scene.outside.peers[0].heard == b""
    assert "certificate verify failed" in scene.link.problem


def test_a_server_that_wants_a_certificate_says_so() -> None:
    scene = secured(ask=True)
    assert "certificate required" in scene.link.problem
    assert scene.outside.peers[0].heard == b""


def test_a_server_that_does_not_agree_on_keys_is_given_up() -> None:
    scene = Scene(client_context(str(FILES.authority)))
    scene.link.connect()
    scene.go(4.9)
    assert scene.link.problem == ""
    scene.go(0.1)
    assert scene.link.problem == "it did not agree on keys for 5 s"
    assert scene.story == []


def test_a_server_that_ends_tls_is_gone() -> None:
    scene = secured()
    peer = scene.outside.peer
    assert peer.tls is not None
    peer.say(b"last words")
    peer.say(peer.tls.close(), raw=True)
    scene.go()
    assert scene.story == ["opened", "last words", "closed: it hung up"]
