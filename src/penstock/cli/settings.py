"""Options that several commands share because they set the same thing on a topic or a subscription.

The node reads durations and sizes as text and checks every value, so they pass as they are written.
"""

from __future__ import annotations

from typing import Annotated

import typer

Durability = Annotated[
    str | None, typer.Option(help="When a publish is answered: memory, os or fsync. For good.", show_default=False)
]
Compression = Annotated[str | None, typer.Option(help="Of sealed segments: none, lz4 or zstd.", show_default=False)]
RetentionAge = Annotated[
    str | None, typer.Option(help="History is kept while younger, like 24h.", metavar="DURATION", show_default=False)
]
RetentionBytes = Annotated[
    str | None, typer.Option(help="History is kept while smaller, like 1GiB.", metavar="SIZE", show_default=False)
]
SegmentBytes = Annotated[
    str | None, typer.Option(help="A file of the log ends at this, like 64MiB.", metavar="SIZE", show_default=False)
]
DedupWindow = Annotated[
    str | None, typer.Option(help="Duplicates are recognised this long.", metavar="DURATION", show_default=False)
]
Extend = Annotated[str | None, typer.Option(help="NSQ's message headers: on, off or auto.", show_default=False)]

Traffic = Annotated[
    list[str] | None,
    typer.Option("--traffic", help="Take only this traffic type. May be repeated.", metavar="NAME", show_default=False),
]
TrafficDefault = Annotated[
    bool | None,
    typer.Option(
        "--traffic-default/--no-traffic-default",
        help="Take messages without traffic bits, and all while the routing mapping does not know a name.",
        show_default=False,
    ),
]
MaxAttempts = Annotated[
    int | None, typer.Option(min=0, help="Then a message goes to the dead letters; 0 for no limit.", show_default=False)
]
DeadLetter = Annotated[
    str | None, typer.Option(help="Topic for dead letters.", metavar="TOPIC", show_default="TOPIC.dead")
]
Order = Annotated[
    str | None,
    typer.Option(help="none; key: rows of a key one after the other; shard: one row at a time.", show_default="none"),
]
KeyRun = Annotated[
    int | None, typer.Option(min=1, help="Rows of a key out at once, with --order key.", show_default="1")
]
Ttl = Annotated[
    str | None,
    typer.Option(help="Older messages are not handed out; 0 for ever.", metavar="DURATION", show_default=False),
]
Lease = Annotated[
    str | None, typer.Option(help="How long a consumer may hold a message.", metavar="DURATION", show_default="1m")
]
LeaseMax = Annotated[
    str | None, typer.Option(help="How long it may at most, however it asks.", metavar="DURATION", show_default="15m")
]


def chosen(**values: object) -> dict[str, object]:
    """Return the settings that were given."""
    return {name: value for name, value in values.items() if value is not None}
