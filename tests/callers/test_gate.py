"""Who somebody is: secrets, tokens, certificates, those who show nothing; and what follows a change of users."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.callers import Act, Action, Caller, Gate
from penstock.callers import gate as gates
from penstock.callers import secret as secrets
from penstock.callers.book import Book, User, check_name
from penstock.callers.gate import CHECKS_PER_ADDRESS_MAX, LOG_NS, host_of, is_here, shown_in
from penstock.callers.identity import Identity
from penstock.callers.rights import Rule
from penstock.clock import SECOND
from penstock.config import CallersConfig, Config
from penstock.errors import ConfigError, Refusal
from tests.callers.parts import SECRET, TOKEN, user, users_in
from tests.fakes import FakeClock, FakeDisk

HERE, ELSEWHERE = "127.0.0.1:5", "10.0.0.7:5"


class Place:
    """A gate on a clock in your hand, over a real file."""

    def __init__(self, path: Path, *users: User, **config: Any) -> None:
        self.path = path
        self.clock = FakeClock()
        self.disk = FakeDisk(self.clock)
        users_in(path, users)
        self.gate = Gate(Config(data_dir=str(path), **config), self.clock, self.disk)
        self.acts: list[Act] = []
        self.gate.told = self.acts.append

    def write(self, *users: User) -> None:
        users_in(self.path, users)

    def shows(self, shown: str, address: str = HERE) -> Identity:
        """Show something, and wait until it was looked at."""
        answer = self.gate.identify(shown.encode(), address)
        while not answer.is_given:
            self.disk.step()
        return answer.now()

    def caller(self, shown: str = "", address: str = HERE, *, asks_token: bool = False) -> Caller:
        found = Caller(self.gate, address, "nsq.tcp_port", asks_token=asks_token)
        return self.gate.noted(found.showing(self.shows(shown, address))) if shown else found


BOB = user("bob", ("publish", "orders.*"), token=TOKEN)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, BOB)


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [f"bob:{SECRET}", TOKEN, f"bob:{TOKEN}"])
def test_a_user_is_known_by_its_secret_or_a_token(place: Place, shown: str) -> None:
    assert place.shows(shown).user == "bob"


@pytest.mark.parametrize(
    "shown", ["bob:wrong secret here", "bob:", "eve:" + SECRET, f"eve:{TOKEN}", TOKEN + "x", "", "bob", "x" * 2000]
)
def test_anything_else_convinces_nobody(place: Place, shown: str) -> None:
    assert place.shows(shown).how == "wrong"


def test_a_secret_is_hashed_once_and_a_wrong_one_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    real = secrets.matches

    def matches(secret: bytes, kept: str) -> bool:
        hashed.append(secret)
        return real(secret, kept)

    monkeypatch.setattr(secrets, "matches", matches)
    for _ in range(3):
        assert place.shows(f"bob:{SECRET}").user == "bob"
        assert place.shows("bob:not this one, sorry").how == "wrong"
    assert hashed == [SECRET.encode(), b"not this one, sorry"]


def test_what_is_remembered_of_secrets_tells_none_of_them(place: Place) -> None:
    place.shows(f"bob:{SECRET}")
    place.shows("bob:not this one, sorry")
    kept = repr((place.gate._right, place.gate._wrong, place.gate.book.users, place.gate.__dict__))
    assert SECRET not in kept
    assert "not this one" not in kept


def test_one_address_cannot_keep_the_hash_busy(place: Place) -> None:
    waiting = [place.gate.identify(b"bob:wrong %d......" % number, ELSEWHERE) for number in range(20)]
    assert sum(answer.is_given for answer in waiting) == 20 - CHECKS_PER_ADDRESS_MAX
    assert waiting[-1].now().how == "busy"
    caller = Caller(place.gate, ELSEWHERE, "nsq.tcp_port", waiting[-1].now())
    with pytest.raises(Refusal, match="try again in a moment") as caught:
        caller.check_known()
    assert caught.value.reason.retry
    assert place.shows(f"bob:{SECRET}", HERE).user == "bob"


def test_nor_can_it_from_threads(place: Place) -> None:
    begun, found = threading.Barrier(CHECKS_PER_ADDRESS_MAX + 1), []

    def ask() -> None:
        begun.wait()
        found.append(place.gate.checked(b"bob:wrong", HERE).how)

    with place.gate._turn:
        threads = [threading.Thread(target=ask) for _ in range(CHECKS_PER_ADDRESS_MAX)]
        for thread in threads:
            thread.start()
        begun.wait()
        while sum(place.gate._checks.values()) < CHECKS_PER_ADDRESS_MAX:
            pass
        assert place.gate.checked(b"bob:wrong", HERE).how == "busy"
        assert place.gate.identify(b"bob:wrong", HERE).now().how == "busy"
        assert place.gate.checked(TOKEN.encode(), HERE).how == "token"
        assert not place.gate.identify(b"bob:wrong", ELSEWHERE).is_given
    for thread in threads:
        thread.join()
    assert found == ["wrong"] * CHECKS_PER_ADDRESS_MAX
    assert place.gate.checked(b"bob:another", HERE).how == "wrong"


def test_a_token_that_has_expired_counts_no_more(tmp_path: Path) -> None:
    place = Place(tmp_path, user("bob", ("publish", "*"), token=TOKEN, expires_ns=FakeClock().now() + 10 * SECOND))
    caller = place.caller(TOKEN)
    assert caller.may("publish", "t")
    gone: list[bool] = []
    caller.on_change = lambda: gone.append(caller.is_known)
    place.gate.follow(caller)
    place.gate.watch()
    place.clock.advance(12 * SECOND)
    assert gone == [False]
    assert not caller.may("publish", "t")
    assert place.shows(TOKEN).how == "wrong"


def test_a_certificate_is_the_user_of_its_name(place: Place) -> None:
    assert place.gate.certified("bob").user == "bob"
    assert place.gate.certified("mallory").how == "nothing"
    caller = Caller(place.gate, ELSEWHERE, "nsq.tcp_port", place.gate.certified("bob"))
    assert caller.may("publish", "orders.eu")
    assert not caller.may("publish", "payments")


def test_without_users_a_certificate_is_enough_to_use_topics(tmp_path: Path) -> None:
    place = Place(tmp_path)
    caller = Caller(place.gate, ELSEWHERE, "nsq.tcp_port", place.gate.certified("mallory"))
    assert caller.may("publish", "payments")
    assert not caller.may("admin", "")
    place.write(BOB)
    place.gate.reload()
    assert not caller.is_known


def test_the_nodes_own_token_opens_everything(tmp_path: Path) -> None:
    place = Place(tmp_path, token="open:sesame")
    caller = place.caller("open:sesame", ELSEWHERE)
    assert caller.may("admin", "")
    with pytest.raises(Refusal):
        place.caller("open sesame", ELSEWHERE).check_known()


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer   a:b ", b"a:b"),
        (b"Basic Ym9iOng6eQ==", b"bob:x:y"),
        (b"Basic %%%", None),
        (b"Digest abc", None),
        (b"abc", None),
    ],
)
def test_what_a_header_shows(header: bytes, shown: bytes | None) -> None:
    assert shown_in(header) == shown


# --- those who show nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["127.0.0.1:5", "127.8.9.1:5", "::1:5", "ipv4:127.0.0.1:5", "ipv6:%5B::1%5D:5", "unix"]
)
def test_on_this_machine_nobody_has_to_say_who_it_is(place: Place, address: str) -> None:
    assert is_here(address)
    assert place.caller(address=address).may("admin", "")


@pytest.mark.parametrize(
    "address", ["10.0.0.7:5", "", "None", "localhost:5", "fe80::1:5", "ipv4:10.0.0.7:5", "127.0.0.1.example:5"]
)
def test_from_elsewhere_everybody_has_to(place: Place, address: str) -> None:
    assert not is_here(address)
    with pytest.raises(Refusal, match="say who you are") as caught:
        place.caller(address=address).check("see", "t")
    assert caught.value.code == "unauthorized"


def test_insecure_without_token_or_users_lets_everybody_in(tmp_path: Path) -> None:
    assert Place(tmp_path, insecure=True).caller(address=ELSEWHERE).is_known
    assert not Place(tmp_path, insecure=True, token="x").caller(address=ELSEWHERE).is_known
    off = CallersConfig(anonymous="off")
    assert not Place(tmp_path, insecure=True, callers=off).caller(address=ELSEWHERE).is_known
    assert not Place(tmp_path, BOB, insecure=True).caller(address=ELSEWHERE).is_known


def test_anonymous_can_be_switched_off(tmp_path: Path) -> None:
    place = Place(tmp_path, BOB, callers=CallersConfig(anonymous="off"))
    assert not place.caller().is_known
    assert place.caller(TOKEN).is_known


def test_where_the_token_is_asked_for_it_is_asked_for_here_too(tmp_path: Path) -> None:
    place = Place(tmp_path, token="sesame")
    assert not place.caller(asks_token=True).is_known
    assert place.caller().is_known


def test_hosts_are_told_apart_however_they_are_written() -> None:
    assert [host_of(a) for a in ("10.0.0.1:5", "::1:5", "[::1]:5", "ipv6:%5Bfe80::1%5D:9")] == [
        "10.0.0.1",
        "::1",
        "::1",
        "fe80::1",
    ]


# --- changes ----------------------------------------------------------------------------------------------------------


def test_a_change_of_users_is_taken_up_within_a_second(place: Place) -> None:
    caller = place.caller(TOKEN)
    told: list[bool] = []
    caller.on_change = lambda: told.append(caller.is_known)
    place.gate.follow(caller)
    place.gate.watch()
    assert caller.may("publish", "orders.eu")
    place.write(user("bob", ("consume", "*"), token=TOKEN))
    place.clock.advance(SECOND)
    assert told == [True]
    assert not caller.may("publish", "orders.eu")
    assert caller.may("receive", "orders.eu")
    place.write()
    place.clock.advance(SECOND)
    assert told == [True, False]
    assert [act.what for act in place.acts if act.act == "users"] == ["user bob was changed", "user bob was removed"]


@pytest.mark.parametrize(
    ("shown", "left"),
    [
        (f"bob:{SECRET}", user("bob", ("publish", "*"), secret=secrets.hashed(b"another secret"), token=TOKEN)),
        (TOKEN, user("bob", ("publish", "*"))),
    ],
)
def test_another_secret_or_a_token_taken_back_ends_what_it_opened(place: Place, shown: str, left: User) -> None:
    caller = place.caller(shown)
    place.write(left)
    place.gate.reload()
    assert not caller.is_known
    assert place.shows(shown).how == "wrong"


def test_an_empty_file_of_users_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "users.json").touch()
    clock = FakeClock()
    with pytest.raises(ConfigError, match="is empty"):
        Gate(Config(data_dir=str(tmp_path)), clock, FakeDisk(clock))


def test_a_file_that_cannot_be_read_changes_nothing_and_is_said_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    (place.path / "users.json").write_text("{")
    place.gate.watch()
    place.clock.advance(5 * SECOND)
    assert place.shows(TOKEN).user == "bob"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("content", ["{", '{"format": 2, "users": []}', '{"format": 1, "users": [{"name": "a:b"}]}'])
def test_a_node_does_not_start_with_a_file_that_it_cannot_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "users.json").write_text(content)
    with pytest.raises(ConfigError, match="users"):
        Gate(Config(data_dir=str(tmp_path)), FakeClock(), FakeDisk(FakeClock()))


def test_the_file_is_where_the_configuration_says_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "who.json"
    Book([BOB]).write(str(path))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    config = Config(data_dir=str(tmp_path), callers=CallersConfig(users=str(path)))
    assert list(Gate(config, FakeClock(), FakeDisk(FakeClock())).book) == [BOB]


@pytest.mark.parametrize("name", ["", "a:b", "a b", "-a", "x" * 65, "ü"])
def test_a_user_has_a_name_that_can_be_sent(name: str) -> None:
    with pytest.raises(ConfigError, match="no name for a user"):
        check_name(name)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals_are_counted_by_reason_and_logged_now_and_then(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caller = place.caller(TOKEN)
    attempts: list[Callable[[], object]] = [
        lambda: caller.check("publish", "payments"),
        lambda: caller.check("publish", "_penstock.audit"),
        lambda: place.caller(address=ELSEWHERE).check("see", "t"),
        lambda: place.caller("nonsense", ELSEWHERE).check("see", "t"),
    ]
    for attempt in attempts * 10:
        with pytest.raises(Refusal):
            attempt()
    tcp = "nsq.tcp_port"
    reasons = ("no_right", "own_topic", "no_secret", "wrong_secret")
    assert place.gate.refusals == {(reason, tcp): 10 for reason in reasons}
    assert len(caplog.records) == 1
    assert "bob at 127.0.0.1:5" in caplog.text
    place.clock.advance(LOG_NS)
    with pytest.raises(Refusal):
        attempts[0]()
    assert "39 refusals since this was last said" in caplog.text


def test_no_secret_is_in_a_log_an_error_or_what_the_audit_hears(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(gates, "LOG_NS", 0)
    shown = [f"bob:{SECRET}", TOKEN, "bob:a wrong secret", "a wrong:token", "another wrong token", f"{SECRET}:bob"]
    said = []
    for each in shown:
        caller = place.caller(each, ELSEWHERE)
        said += [repr(caller.identity), str(caller), repr(place.gate.book.users)]
        with pytest.raises(Refusal) as caught:
            caller.check("delete", "t")
        said.append(repr(caught.value))
    text = caplog.text + "".join(said) + repr([act._replace(who=None) for act in place.acts])
    for secret in (SECRET, TOKEN, "a wrong", "another wrong", place.gate.book.user("bob").secret):
        assert secret not in text
    assert place.acts


def test_what_is_decided_is_decided_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = place.caller(TOKEN)
    judged: list[str] = []

    def judge(gate: Gate, caller: Caller, action: Action, topic: str) -> None:
        judged.append(topic)

    monkeypatch.setattr(Gate, "judge", judge)
    for _ in range(100):
        caller.check("publish", "orders.eu")
    assert judged == ["orders.eu"]


def test_rules_say_themselves() -> None:
    assert str(Rule("publish", "orders.*")) == "publish orders.*"
