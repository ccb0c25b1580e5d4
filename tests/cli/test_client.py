from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.client import Client, address_of, part
from penstock.cli.failure import UNREACHABLE, Failure
from penstock.cli.table import load
from tests.cli.program import inside


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """Give each connection one answer and hang up; yield the port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


def reply(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def test_no_node_is_exit_code_3_and_says_how_to_start_one(tmp_path: Path) -> None:
    done = inside("topic", "list", "--url", "http://127.0.0.1:1", cwd=tmp_path)
    assert done.code == 3
    assert done.error == (
        "penstock: http://127.0.0.1:1 cannot be reached: nobody listens there. "
        "Start a node with `penstock up`, or name another with --url.\n"
    )


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://", "http://127.0.0.1:many", "http://127.0.0.1:70000"])
def test_an_address_that_is_none_is_exit_code_2(tmp_path: Path, url: str) -> None:
    done = inside("topic", "list", "--url", url, cwd=tmp_path)
    assert done.code == 2
    assert url in done.error
    assert done.error.count("\n") == 1


def test_an_address_needs_neither_scheme_nor_port() -> None:
    assert (Client("localhost").host, Client("localhost").port) == ("localhost", 7070)
    assert Client("http://[::1]:80").port == 80


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (reply(b"<html>hello</html>"), 1, "is it a Penstock node?"),
        (reply(b"not found", b"404 Not Found"), 1, "status 404: not found"),
        (b"SSH-2.0-OpenSSH\r\n", 3, "Is a Penstock node there?"),
        (b"", 3, "Is a Penstock node there?"),
    ],
)
def test_something_else_behind_the_port_is_told_from_a_node(
    tmp_path: Path, answer: bytes, code: int, text: str
) -> None:
    with answering(answer) as port:
        done = inside("topic", "list", "--url", f"http://127.0.0.1:{port}", cwd=tmp_path)
    assert (done.code, done.error.count("\n")) == (code, 1), done
    assert text in done.error


def test_reading_is_asked_for_again_when_a_kept_connection_was_closed() -> None:
    with answering(reply(b"1"), reply(b"2")) as port:
        client = Client(f"http://127.0.0.1:{port}")
        assert client.get("/x").raw == b"1"
        assert client.get("/x").raw == b"2"
        client.close()


def test_a_request_that_may_have_been_carried_out_is_not_sent_twice() -> None:
    with answering(reply(b"1")) as port:
        client = Client(f"http://127.0.0.1:{port}")
        assert client.get("/x").raw == b"1"
        with pytest.raises(Failure) as failure:
            client.call("POST", "/x", {})
        assert failure.value.code == UNREACHABLE


def test_the_node_may_be_named_before_the_command_or_behind_it(tmp_path: Path) -> None:
    page = reply(b'{"topics":[],"next":null}')
    with answering(page, page, page) as port:
        here, elsewhere = f"http://127.0.0.1:{port}", "http://127.0.0.1:1"
        for arguments in (["--url", here, "topic", "list"], ["--url", elsewhere, "topic", "list", "--url", here]):
            assert inside(*arguments, cwd=tmp_path, PENSTOCK_URL=elsewhere).out == "there is no topic yet\n"
        assert inside("topic", "list", cwd=tmp_path, PENSTOCK_URL=here).code == 0


def test_a_wrong_token_is_told_from_a_missing_one(tmp_path: Path) -> None:
    refused = reply(b"{}", b"401 Unauthorized")
    with answering(refused, refused) as port:
        url = f"http://127.0.0.1:{port}"
        missing = inside("topic", "list", "--url", url, cwd=tmp_path)
        wrong = inside("topic", "list", "--url", url, cwd=tmp_path, PENSTOCK_TOKEN="guess")
    assert (missing.code, "wants a token" in missing.error) == (1, True)
    assert (wrong.code, "does not know this token" in wrong.error) == (1, True)


def test_the_node_of_the_configuration_is_the_one_that_is_asked(tmp_path: Path) -> None:
    page = reply(b'{"topics":[],"next":null}')
    with answering(page) as port:
        (tmp_path / "penstock.toml").write_text(f"[api]\nport = {port}\n")
        assert inside("topic", "list", cwd=tmp_path).out == "there is no topic yet\n"
    (tmp_path / "penstock.toml").write_text("[api]\nport = 0\n")
    unknown = inside("topic", "list", cwd=tmp_path)
    assert (unknown.code, "--url http://127.0.0.1:PORT" in unknown.error) == (2, True)


def test_a_node_that_listens_everywhere_is_asked_on_this_machine() -> None:
    flags: dict[str, object] = {"api.address": "0.0.0.0", "token": "x", "insecure": True}
    assert address_of(load(flags=flags, environment={}).config) == "http://127.0.0.1:7070"
    assert address_of(load(flags={**flags, "api.address": "::"}, environment={}).config) == "http://[::1]:7070"


def test_a_name_is_one_part_of_a_path_whatever_it_holds() -> None:
    assert part("a/b c?#%") == "a%2Fb%20c%3F%23%25"
