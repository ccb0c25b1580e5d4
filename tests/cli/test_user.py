"""`penstock user`: users come and go while a node runs, and no secret is where others could see it."""

from __future__ import annotations

import http.client
import stat
import subprocess
from pathlib import Path

import pytest

from tests.callers.parts import bearer
from tests.cli.processes import until
from tests.cli.program import COMMAND, Done, Node, environment, inside


def user(cwd: Path, *arguments: str, stdin: bytes = b"") -> Done:
    done = inside("user", *arguments, "--data", "data", cwd=cwd, stdin=stdin)
    assert done.code == 0, done
    return done


def test_a_secret_is_made_and_shown_once(tmp_path: Path) -> None:
    done = user(tmp_path, "add", "bob", "--publish", "orders.*", "--consume", "*")
    first, secret = done.out.splitlines()
    assert first == "user bob made: publish orders.*, consume *"
    assert len(secret) >= 40
    file = tmp_path / "data/users.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in file.read_text()
    assert secret not in user(tmp_path, "list").out + user(tmp_path, "list", "--json").out
    assert user(tmp_path, "list", "--json").json == [
        {
            "name": "bob",
            "rights": ["publish orders.*", "consume *"],
            "secret": True,
            "tokens": {},
            "keys": [],
            "quota": {},
        }
    ]


def test_a_secret_comes_from_standard_input_and_is_not_said_again(tmp_path: Path) -> None:
    done = user(tmp_path, "add", "bob", "--admin", "*", "--stdin", stdin=b"a secret of mine\n")
    assert "a secret of mine" not in done.out + done.error
    short = inside("user", "add", "eve", "--stdin", "--data", "data", cwd=tmp_path, stdin=b"short\n")
    assert (short.code, short.error) == (
        2,
        "penstock: a secret has at least 12 characters; leave --stdin out to get one\n",
    )


def test_no_command_takes_a_secret_as_an_argument(tmp_path: Path) -> None:
    for command in ("add", "secret", "token"):
        text = inside("user", command, "--help", cwd=tmp_path).out
        assert "--secret" not in text
        assert "--password" not in text


@pytest.mark.parametrize(
    ("action", "topic", "answer"),
    [
        ("publish", "orders.eu", "yes: user bob may publish topic orders.eu, because it has publish orders.*"),
        ("consume", "orders.eu", "no: user bob may not receive topic orders.eu, because it has publish orders.*; "),
        ("publish", "_penstock.x", "no: user bob may not publish topic _penstock.x, because topics that begin with "),
        (
            "admin",
            "",
            "no: user bob may not admin the node as a whole, because it has publish orders.*; it needs admin",
        ),
    ],
)
def test_may_says_yes_or_no_and_why(tmp_path: Path, action: str, topic: str, answer: str) -> None:
    user(tmp_path, "add", "bob", "--publish", "orders.*")
    done = inside("user", "may", "bob", action, topic, "--data", "data", cwd=tmp_path)
    assert done.out.startswith(answer)
    assert done.code == (0 if answer.startswith("yes") else 1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["add", "bob"], "there is a user bob already"),
        (["add", "a:b"], "'a:b' is no name for a user"),
        (["add", "anonymous"], "'anonymous' is no name for a user: it stands for those who show nothing"),
        (["quota", "eve", "--topics", "1"], "there is no user eve; there is bob"),
        (["quota", "bob", "--stored", "much"], '"much" is not a size'),
        (["quota", "bob", "--topics", "-1"], "--topics"),
        (["quota", "bob", "--stored", "2000000TiB"], "stored_bytes of 2199023255552000000 is too much"),
        (["remove", "eve"], "there is no user eve; there is bob"),
        (["may", "bob", "dance", "t"], "dance is no action"),
        (["token", "bob", "laptop", "--revoke"], "user bob has no token laptop"),
        (["token", "bob", "laptop", "--expires", "soon"], '"soon" is not a duration'),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, arguments: list[str], error: str) -> None:
    user(tmp_path, "add", "bob")
    done = inside("user", *arguments, "--data", "data", cwd=tmp_path)
    assert done.code != 0
    assert error in done.error


def test_a_quota_is_set_bound_by_bound_and_shown(tmp_path: Path) -> None:
    user(tmp_path, "add", "bob", "--publish", "orders.*")
    assert user(tmp_path, "quota", "bob").out == "user bob: no quota\n"
    bounds = ("--messages-per-second", "100", "--bytes-per-second", "1MiB", "--connections", "5", "--topics", "3")
    user(tmp_path, "quota", "bob", *bounds)
    done = user(tmp_path, "quota", "bob", "--stored", "10GiB", "--topics", "0")
    assert done.out == "user bob: 100 messages/s, 1MiB/s, 5 connections, 10GiB stored\n"
    user(tmp_path, "rights", "bob", "--admin", "*")  # keeps it
    shown = {"messages_per_second": 100, "bytes_per_second": 1 << 20, "connections": 5, "stored_bytes": 10 << 30}
    assert user(tmp_path, "show", "bob", "--json").json["quota"] == shown
    assert user(tmp_path, "show", "bob").out.splitlines()[-1] == (
        "quota   100 messages/s, 1MiB/s, 5 connections, 10GiB stored"
    )
    assert "10GiB stored" in user(tmp_path, "list").out


def test_those_who_are_no_users_have_a_quota_of_their_own(tmp_path: Path) -> None:
    assert "there is nobody in" in user(tmp_path, "list").out
    done = user(tmp_path, "quota", "anonymous", "--messages-per-second", "7", "--json")
    assert done.json == {"user": "anonymous", "quota": {"messages_per_second": 7}}
    (shown,) = user(tmp_path, "list", "--json").json
    assert (shown["name"], shown["quota"]) == ("anonymous", {"messages_per_second": 7})
    user(tmp_path, "quota", "anonymous", "--messages-per-second", "0")
    assert user(tmp_path, "list", "--json").json == []


def test_a_running_node_takes_up_a_quota(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        assert node.call("topic", "create", "one").code == 0
        user(tmp_path, "quota", "anonymous", "--topics", "1")
        until(lambda: "user anonymous has another quota" in node.errors())
        refused = node.call("topic", "create", "two")
        assert "the quota of user anonymous is 1 topics, and it made as many; delete one" in refused.error


def ask(node: Node, path: str, shown: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", node.port("api.port"), timeout=30)
    try:
        connection.request("GET", path, headers=bearer(shown) if shown else {})
        return connection.getresponse().status
    finally:
        connection.close()


def test_users_come_and_go_while_the_node_runs(tmp_path: Path) -> None:
    with Node(tmp_path, "--set=callers.anonymous=off") as node:
        assert ask(node, "/metrics") == 401
        secret = user(tmp_path, "add", "bob", "--admin", "*").out.splitlines()[-1]
        until(lambda: ask(node, "/metrics", f"bob:{secret}") == 200)
        token = user(tmp_path, "token", "bob", "laptop", "--expires", "1h").out.splitlines()[-1]
        until(lambda: ask(node, "/metrics", token) == 200)
        assert node.call("topic", "create", "t", PENSTOCK_TOKEN=token).code == 0
        assert node.call("topic", "list", PENSTOCK_TOKEN=f"bob:{secret}").out.split()[-8:]
        user(tmp_path, "token", "bob", "laptop", "--revoke")
        until(lambda: ask(node, "/metrics", token) == 401)
        user(tmp_path, "rights", "bob", "--publish", "t")
        until(lambda: ask(node, "/metrics", f"bob:{secret}") == 403)
        user(tmp_path, "remove", "bob")
        until(lambda: ask(node, "/metrics", f"bob:{secret}") == 401)
        errors = node.errors()
    assert "user bob was removed" in errors
    assert secret not in errors
    assert token not in errors


def test_a_secret_is_in_no_list_of_processes(tmp_path: Path) -> None:
    command = [*COMMAND, "user", "add", "bob", "--stdin", "--data", "data"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, env=environment(), bufsize=0
    )
    with process:
        assert process.stdin is not None
        process.stdin.write(b"the secret of bob\n")
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes() + Path(f"/proc/{process.pid}/environ").read_bytes()
        process.communicate()
    assert process.returncode == 0
    assert b"the secret of bob" not in shown
