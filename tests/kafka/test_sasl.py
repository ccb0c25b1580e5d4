"""How we log in: against RFC 5802's and RFC 7677's own examples, and against a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.kafka.opening import Opening
from penstock.kafka.produce import Part
from penstock.kafka.records import laid_out, sealed
from penstock.kafka.sasl import MECHANISMS, LoginFailed, Scram, login
from tests.kafka.brokers import USERS, Brokers
from tests.kafka.line import Line
from tests.kafka.test_wire import pieces_of

#: RFC 7677, section 3.
NONCE, USER, PASSWORD = "rOprNGfwEbeRWgbNEkqO", "user", "pencil"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(user: str = USER) -> Scram:
    return Scram("SCRAM-SHA-256", user, PASSWORD, lambda: NONCE)


def test_scram_says_what_its_rfc_says() -> None:
    me = scram()
    assert me.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert me.next(FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert me.next(LAST) is None
    assert scram("a=b,c").first() == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "something else"),
        (b"e=unknown-user", "refuses: unknown-user"),
        (FIRST.replace(b"r=rO", b"r=xx"), "something else"),
        (FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "something else"),
        (FIRST.replace(b"i=4096", b"i=1"), "asks for 1 rounds"),
        (FIRST.replace(b"i=4096", b"i=999999999999999999"), "asks for 9999"),
        (FIRST.replace(b"i=4096", b"i=-5"), "asks for -5 rounds"),
        (FIRST.replace(b"s=W22", b"s=***"), "not base64"),
        (FIRST + b",m=must", "something else"),
        (b"\xff\xfe", "no text"),
        (b"r=" + bytes(100_000), "more than SCRAM has to say"),
    ],
)
def test_a_broker_that_does_not_speak_scram_is_refused(said: bytes, why: str) -> None:
    with pytest.raises(LoginFailed, match=why):
        scram().next(said)


@pytest.mark.parametrize("said", [b"", b"v=", b"v=AAAA", b"e=other-error", b"v=" + LAST[2:].swapcase()])
def test_a_broker_that_does_not_know_the_password_is_refused(said: bytes) -> None:
    me = scram()
    me.next(FIRST)
    with pytest.raises(LoginFailed):
        me.next(said)
    with pytest.raises(LoginFailed, match="after the end"):
        me.next(LAST)


def opened(line: Line, mechanism: str, user: str, password: str) -> None:
    opening = Opening(line.exchange, login(mechanism, user, password, lambda: "nonce") if mechanism else None)
    line.write(opening.begin())
    while opening.versions is None:
        for asked, reader in line.read():
            line.write(opening.answered(asked, reader))
    line.versions = opening.versions


def test_users_of_a_real_broker_are_let_in_by_every_mechanism(one: Brokers, name: Callable[[str], str]) -> None:
    topic, member = one.create(name("users")), one.members[0]
    batch = sealed(laid_out(pieces_of([(None, b"hello", 1, {})]))).pieces
    rows = [("", "", member.port, None), ("", "", member.tls_port, one.ca)]
    for mechanism in MECHANISMS:
        for user in USERS:
            rows += [(mechanism, user, member.sasl_port, None), (mechanism, user, member.sasl_tls_port, one.ca)]
    for mechanism, user, port, ca in rows:
        with Line(port, ca) as line:
            opened(line, mechanism, user, USERS.get(user, ""))
            assert line.produce(Part(topic, 0, batch)).parts[0].error == 0
    assert len(one.read(topic)) == len(rows)


def test_strangers_are_told_why_they_are_not_let_in(one: Brokers) -> None:
    member = one.members[0]
    for mechanism in MECHANISMS:
        with (
            Line(member.sasl_port) as line,
            pytest.raises(LoginFailed, match="does not let us in: Authentication"),
        ):
            opened(line, mechanism, "alice", "wrong")
    with Line(member.port) as line, pytest.raises(LoginFailed):
        opened(line, "PLAIN", "alice", USERS["alice"])
    with pytest.raises(LoginFailed, match="take one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
        login("GSSAPI", "alice", "x", str)
