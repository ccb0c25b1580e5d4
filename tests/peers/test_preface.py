"""What two nodes say before a door opens."""

from __future__ import annotations

import pytest

from penstock.callers.carried import Carried
from penstock.errors import Refusal
from penstock.peers.preface import (
    FRAME_BYTES_MAX,
    MARK,
    NONCE_BYTES,
    Challenge,
    Frame,
    Frames,
    Guest,
    Hello,
    Host,
    Refused,
    Visit,
    Welcome,
    written,
)

SECRET = b"known to both"
ONE, OTHER = b"1" * NONCE_BYTES, b"2" * NONCE_BYTES
NOBODY = Carried()


def guest(secret: bytes = SECRET, cluster: str = "blue", to: str = "n2") -> Guest:
    return Guest(secret, cluster, "n1", to, ONE)


def host(secret: bytes = SECRET, nonce: bytes = OTHER) -> Host:
    return Host(secret, "blue", "n2", nonce)


def visited(coming: Guest, there: Host) -> Visit:
    challenge = there.challenge(coming.hello)
    return there.visit(coming.visit(challenge, "publish", NOBODY, b"x"))


def test_two_nodes_with_one_secret_open_a_door() -> None:
    there = host()
    visit = visited(guest(), there)
    assert (visit.door, visit.about, there.guest) == ("publish", b"x", "n1")


def test_whoever_does_not_know_the_secret_is_not_let_in_and_lets_nobody_in() -> None:
    there = host()
    challenge = there.challenge(guest(b"guessed").hello)
    with pytest.raises(Refusal, match="does not know the cluster's secret"):
        guest(b"guessed").visit(challenge, "publish", NOBODY, b"")
    with pytest.raises(Refusal, match="does not know the cluster's secret"):
        there.visit(Visit(b"0" * 32, "publish", NOBODY))


def test_a_proof_is_good_for_one_side_and_one_connection() -> None:
    there, again = host(), host(nonce=b"3" * NONCE_BYTES)
    challenge = there.challenge(guest().hello)
    visit = guest().visit(challenge, "publish", NOBODY, b"")
    again.challenge(guest().hello)
    with pytest.raises(Refusal):  # heard on one connection, said on the next
        again.visit(visit)
    with pytest.raises(Refusal):  # the other side's own words
        there.visit(Visit(challenge.proof, "publish", NOBODY))


@pytest.mark.parametrize(
    ("hello", "code", "text"),
    [
        (guest(cluster="green").hello, "forbidden", "is of cluster green"),
        (guest(to="n3").hello, "misdirected", "this is node n2, not n3"),
        (Hello(2, "blue", "n1", "n2", ONE), "conflict", "speaks version 2"),
        (Hello(1, "blue", "n1", "n2", b"short"), "bad_request", "32 bytes"),
        (Hello(1, "blue", "", "n2", ONE), "bad_request", "a name"),
        (Welcome(), "bad_request", "instead of a hello"),
    ],
)
def test_somebody_else_is_told_what_is_wrong(hello: Frame, code: str, text: str) -> None:
    with pytest.raises(Refusal, match=text) as refused:
        host().challenge(hello)
    assert refused.value.code == code


def test_another_node_than_the_one_that_was_meant_gets_no_proof() -> None:
    answers: list[tuple[Frame, str]] = [
        (Challenge(1, "n9", OTHER, b""), "node n9 is there"),
        (Challenge(7, "n2", OTHER, b""), "speaks version 7"),
        (Refused("stopping", "node n2 is stopping"), "node n2 is stopping"),
        (Refused("from the future", "no"), "from the future: no"),
        (Welcome(), "instead of a challenge"),
    ]
    for answer, text in answers:
        with pytest.raises(Refusal, match=text):
            guest().visit(answer, "publish", NOBODY, b"")


def test_frames_come_whole_however_they_are_cut() -> None:
    hello, rest = guest().hello, b"the door's own"
    wire = written(hello) + written(Welcome()) + rest
    for cut in range(len(wire)):
        frames, found, behind = Frames(), list[Frame](), b""
        for part in (wire[:cut], wire[cut:]):
            if len(found) == 2:
                behind += part
                continue
            frame = frames.feed(part)
            while frame is not None:
                found.append(frame)
                frame = frames.feed(b"") if len(found) < 2 else None
        assert found == [hello, Welcome()]
        assert frames.rest() + behind == rest


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00",
        b"  V2",
        MARK + (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        MARK + (2).to_bytes(4, "big") + b"{}",
        MARK + (4).to_bytes(4, "big") + b"\xff\xff\xff\xff",
        MARK + (40_000).to_bytes(4, "big") + b"[" * 40_000,
    ],
)
def test_what_is_no_word_of_a_node_is_refused(garbage: bytes) -> None:
    with pytest.raises(Refusal):
        Frames().feed(garbage)
