from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Done, Node, inside


def call(tmp_path: Path, *arguments: str | Path, **variables: str) -> Done:
    return inside(*arguments, cwd=tmp_path, **{"stdin": b"", "XDG_CONFIG_HOME": str(tmp_path), **variables})  # type: ignore[arg-type]


def test_a_node_is_reached_by_its_name(node: Node, topic: str, tmp_path: Path) -> None:
    node.ok("topic", "create", topic)
    added = call(tmp_path, "context", "add", "here", "--url", node.url)
    assert (added.code, added.out) == (0, f"context here is {node.url}; it is in use\n")
    call(tmp_path, "context", "add", "prod", "--url", "http://127.0.0.1:1")
    assert topic in call(tmp_path, "topic", "list").out
    assert call(tmp_path, "--context", "prod", "topic", "list").code == 3
    assert call(tmp_path, "context", "use", "prod").out == "context prod is in use\n"
    assert call(tmp_path, "topic", "list").code == 3
    assert topic in call(tmp_path, "topic", "list", PENSTOCK_CONTEXT="here").out
    rows = [line.split() for line in call(tmp_path, "context", "list").out.splitlines()[1:]]
    assert rows == [["here", node.url, "-"], ["*", "prod", "http://127.0.0.1:1", "-"]]
    assert call(tmp_path, "context", "remove", "prod").code == 0
    assert call(tmp_path, "context", "list", "--json").json == {
        "contexts": {"here": {"url": node.url}},
        "current": None,
    }


def test_what_stands_nearer_to_the_command_wins(node: Node, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    call(tmp_path, "context", "add", "here", "--url", node.url)
    call(tmp_path, "context", "add", "nowhere", "--url", nowhere)
    assert call(tmp_path, "--context", "here", "topic", "list", PENSTOCK_URL=nowhere).code == 0
    assert call(tmp_path, "--url", node.url, "topic", "list", PENSTOCK_CONTEXT="nowhere").code == 0
    assert call(tmp_path, "--context", "nowhere", "topic", "list", "--url", node.url).code == 0
    both = call(tmp_path, "--context", "here", "--url", node.url, "topic", "list")
    assert (both.code, "choose one" in both.error) == (2, True)


def test_a_context_may_stand_behind_the_command(node: Node, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    call(tmp_path, "context", "add", "here", "--url", node.url)
    call(tmp_path, "context", "add", "nowhere", "--url", nowhere)
    call(tmp_path, "context", "use", "nowhere")
    assert call(tmp_path, "topic", "list", "--context", "here").code == 0
    assert call(tmp_path, "topic", "list", "--context", "here", PENSTOCK_URL=nowhere).code == 0
    assert call(tmp_path, "status", "--every", "1ms", "--context=here").code == 0
    assert call(tmp_path, "--context", "nowhere", "topic", "list", "--context", "here").code == 0
    assert call(tmp_path, "--url", nowhere, "topic", "list", "--context", "here").code == 0
    both = call(tmp_path, "topic", "list", "--context", "here", "--url", node.url)
    assert (both.code, "choose one" in both.error) == (2, True)
    wrong = call(tmp_path, "topic", "list", "--context", "her")
    assert (wrong.code, "did you mean here?" in wrong.error) == (2, True)


@pytest.mark.parametrize("behind", [True, False])
def test_a_pipeline_takes_the_node_of_a_context(node: Node, topic: str, tmp_path: Path, behind: bool) -> None:
    node.ok("pub", topic, "hello")
    call(tmp_path, "context", "add", "here", "--url", node.url)
    call(tmp_path, "context", "add", "nowhere", "--url", "http://127.0.0.1:1")
    call(tmp_path, "context", "use", "nowhere")
    words = ["pipeline", "replay", topic, "--to", f"{topic}.again", "--dry-run", "--json"]
    done = call(tmp_path, *([*words, "--context", "here"] if behind else ["--context", "here", *words]))
    assert (done.code, done.json["rows"]) == (0, 1)
    if behind:
        both = call(tmp_path, *words, "--context", "here", "--data", "elsewhere")
        assert (both.code, "choose one" in both.error) == (2, True)


def test_the_token_of_a_context_stays_in_its_file_and_goes_to_its_node(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    with Node(tmp_path, PENSTOCK_TOKEN="s3cret") as node:
        call(tmp_path, "context", "add", "here", "--url", node.url, "--token-file", "token")
        assert "s3cret" not in (tmp_path / "penstock" / "contexts.json").read_text()
        assert call(tmp_path, "topic", "list").code == 0
        assert "wants a token" in call(tmp_path, "topic", "list", "--url", node.url).error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["context", "use", "prd"], "there is no context 'prd'; did you mean prod?"),
        (["--context", "prd", "topic", "list"], "there is no context 'prd'; did you mean prod?"),
        (["context", "add", "x", "--url", "ftp://x"], "is no address"),
        (["context", "add", "x", "--url", "nonsense"], "write one like http://127.0.0.1:7070"),
        (["context", "add", "x", "--url", "http://x", "--token-file", "none"], "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arguments: list[str], text: str) -> None:
    call(tmp_path, "context", "add", "prod", "--url", "http://127.0.0.1:1")
    done = call(tmp_path, *arguments)
    assert (done.code, text in done.error) == (2, True), done
