from __future__ import annotations

import io
import json

from penstock.cli import banner
from penstock.cli.printer import Printer
from penstock.config import Config, Endpoint
from penstock.dialect import Bound


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


COLUMNS = ("topic", "rows")
ROWS = [("orders", "12"), ("[bold]markup[/bold]", "3")]


def bound(api_port: int = 7070) -> list[Bound]:
    """Return where a node listens."""
    curl = "curl -d hello '{}/pub?topic=greetings'"
    return [
        Bound(Endpoint("api.port", "http", "admin API", "127.0.0.1", api_port), None),
        Bound(Endpoint("nsq.tcp_port", "tcp", "NSQ", "127.0.0.1", 4150), None),
        Bound(Endpoint("nsq.http_port", "http", "NSQ HTTP", "::1", 4151, example=curl), None),
    ]


def test_a_pipe_gets_plain_aligned_text() -> None:
    stream = io.StringIO()
    Printer(stream=stream).table([], COLUMNS, ROWS)
    assert stream.getvalue() == "topic                rows\norders                 12\n[bold]markup[/bold]     3\n"


def test_a_terminal_gets_a_table_and_names_are_not_markup() -> None:
    stream = Terminal()
    Printer(stream=stream).table([], COLUMNS, ROWS)
    assert "─" in stream.getvalue()
    assert "[bold]markup[/bold]" in stream.getvalue()


def test_a_script_gets_the_document_and_nothing_else() -> None:
    stream = Terminal()
    out = Printer(json=True, stream=stream)
    out.table([{"topic": "orders"}], COLUMNS, ROWS)
    out.fields({"a": 1}, {"a": "1"})
    out.done(b'{"b":2}', "done")
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [[{"topic": "orders"}], {"a": 1}, {"b": 2}]


def test_the_banner_says_the_same_on_a_terminal_and_in_a_pipe() -> None:
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        banner.show(Config(), bound(), "1.2.3", stream)
        for text in (
            "Penstock 1.2.3 is up",
            "http://127.0.0.1:7070",
            "127.0.0.1:4150",
            "http://[::1]:4151",
            "curl -d hello",
        ):
            assert text in stream.getvalue()
    assert "\x1b[" not in plain.getvalue()


def test_the_commands_to_try_name_the_node_only_where_it_is_not_the_default() -> None:
    stream = io.StringIO()
    banner.show(Config(), bound(), "1.2.3", stream)
    assert "--url" not in stream.getvalue()
    banner.show(Config(), bound(8070), "1.2.3", stream)
    assert 'penstock pub greetings "hello" --url http://127.0.0.1:8070' in stream.getvalue()
