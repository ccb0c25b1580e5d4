"""`python -m penstock.pipeline.jobs.report`: a report from the command line.

Owns its words and what it prints. Everything else is the job's.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import ConfigError, PenstockError
from penstock.pipeline import session
from penstock.pipeline.jobs.report import Report, frames, report
from penstock.pipeline.jobs.report.draw import units


def main(words: Sequence[str] | None = None) -> int:
    """Make a report; return the exit code."""
    given = _parser().parse_args(words)
    try:
        options = Report(
            title=given.title,
            from_=_moment("--from", given.since),
            until=_moment("--until", given.until),
            topics=tuple(given.topics.split(",")) if given.topics else (),
            top=given.top,
            topics_max=given.topics_max,
            sample_bytes=given.sample_bytes,
        )
        _write(given, options)
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    return 0


def _write(given: argparse.Namespace, options: Report) -> None:
    start = time.monotonic()
    spark = session("report", master=given.master)
    messages, events = frames(
        spark,
        options,
        path=given.path,
        url=given.url,
        token=given.token,
        tls_roots=given.tls_roots,
        tables=given.table,
    )
    page = report(messages, events, options)
    Path(given.output).write_text(page.html, encoding="utf-8")
    said = f"{units.plural(page.figures.messages, 'message')} of {units.plural(page.figures.topics_all, 'topic')}"
    print(f"{given.output}: {said}, {time.monotonic() - start:.0f} s")


def _parser() -> argparse.ArgumentParser:
    default = Report()
    parser = argparse.ArgumentParser(prog="python -m penstock.pipeline.jobs.report", description=__doc__)
    parser.add_argument("--path", default="", help="a data directory")
    parser.add_argument("--url", default="", help="a node, as grpc://host:7071")
    parser.add_argument("--token", default="", help="the node's token")
    parser.add_argument("--tls-roots", default="", help="a PEM file with the authority of the node's certificate")
    parser.add_argument("--table", action="append", default=[], help="a table of an archive; may be repeated")
    parser.add_argument("--topics", default="", help="names with commas; all but the node's own if not given")
    parser.add_argument("--from", dest="since", default="", help="where the range begins, as 2026-01-31T12:00, UTC")
    parser.add_argument("--until", default="", help="where it ends, not included")
    parser.add_argument("--top", type=int, default=default.top, help="keys, tags, buckets shown of a topic")
    parser.add_argument("--topics-max", type=int, default=default.topics_max, help="topics shown one by one")
    parser.add_argument("--sample-bytes", type=int, default=default.sample_bytes, help="bodies compressed of a topic")
    parser.add_argument("--title", default=default.title)
    parser.add_argument("--master", default="local[*]", help="local[n], spark://host:port or sc://host:port")
    parser.add_argument("-o", "--output", default="report.html")
    return parser


def _moment(word: str, text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigError(f"{word} is {text!r}, which is no time: write it as 2026-01-31T12:00") from None


if __name__ == "__main__":
    sys.exit(main())
