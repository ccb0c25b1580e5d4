from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Node, inside, penstock

#: A walk through the program as a newcomer takes it, every step a process of its own, and what it prints.
TOUR = (
    (("topic", "create", "orders"), "topic orders made: 1 shard, os"),
    (("pub", "orders", "one", "two"), "2 messages published to orders"),
    (("sub", "orders", "billing", "--max", "1"), "one"),
    (("subscription", "list", "orders"), "billing"),
    (("peek", "orders"), "0/1"),
    (("tail", "orders", "--no-follow"), "two"),
    (("routing", "set", "production=0"), "1 traffic type known: production=0"),
    (("ledger",), "nothing was refused or dropped"),
    (("log", "verify", "--data", "data"), "good"),
    (("log", "cat", "orders", "--data", "data"), "two"),
    (("topic", "delete", "orders", "--yes"), "topic orders is gone"),
)


def test_the_tour_of_a_newcomer(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        for arguments, text in TOUR:
            done = penstock(*arguments, cwd=tmp_path, PENSTOCK_URL=node.url)
            assert (done.code, done.error) == (0, ""), done
            assert text in done.out


def test_help_lists_every_command_and_the_exit_codes(tmp_path: Path) -> None:
    done = penstock("--help", cwd=tmp_path)
    assert done.code == 0
    for name in ("up", "pub", "sub", "tail", "peek", "topic", "subscription", "routing", "redrive", "log", "backup"):
        assert f"\n  {name} " in done.out
    assert "3 no node" in done.out


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_the_version_is_printed(tmp_path: Path, arguments: list[str]) -> None:
    assert penstock(*arguments, cwd=tmp_path).out == "penstock 0.1.0\n"


def test_the_version_is_printed_for_scripts(tmp_path: Path) -> None:
    assert inside("version", "--json", cwd=tmp_path).json == {"penstock": "0.1.0"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense"], "No such command 'nonsense'. `penstock --help` says how it is used."),
        (["topic", "list", "--nonsense"], "No such option: --nonsense. `penstock topic list --help` says how"),
        (["sub", "orders"], "Missing argument 'SUBSCRIPTION'. `penstock sub --help` says how it is used."),
        (["sub", "orders", "audit", "--max", "none"], "--max"),
    ],
)
def test_a_command_line_that_is_not_understood_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    done = inside(*arguments, cwd=tmp_path)
    assert (done.code, done.error.count("\n"), done.out) == (2, 1, "")
    assert text in done.error


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["ledgr"], "No such command 'ledgr'. Did you mean 'ledger'? `penstock --help` says how it is used."),
        (
            ["subscription", "seek", "a", "b"],
            "Missing argument 'TO'. `penstock subscription seek --help` says how it is used.",
        ),
    ],
)
def test_a_sentence_about_the_command_line_ends_once(tmp_path: Path, arguments: list[str], line: str) -> None:
    assert inside(*arguments, cwd=tmp_path).error == f"penstock: {line}\n"


@pytest.mark.parametrize("arguments", [[], ["topic"], ["log"]])
def test_a_command_that_needs_another_prints_its_help_and_nothing_else(tmp_path: Path, arguments: list[str]) -> None:
    done = inside(*arguments, cwd=tmp_path)
    assert (done.code, done.error) == (2, "")
    assert done.out == inside(*arguments, "--help", cwd=tmp_path).out


def test_commands_are_completed_in_a_shell(tmp_path: Path) -> None:
    def completed(words: str, at: str) -> list[str]:
        asked = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": at}
        return penstock(cwd=tmp_path, stdin=b"", **asked).out.split()

    assert completed("penstock top", "1") == ["top", "topic"]
    assert completed("penstock topic li", "2") == ["list"]


def test_every_command_explains_itself(tmp_path: Path) -> None:
    for arguments in (["up"], ["pub"], ["subscription", "create"], ["routing", "test"], ["log", "verify"], ["bench"]):
        done = inside(*arguments, "--help", cwd=tmp_path)
        assert done.code == 0
        assert done.out.startswith(f"Usage: penstock {' '.join(arguments)}")
        assert "3 no node" in done.out
