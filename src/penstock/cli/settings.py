"""Settings of topics and subscriptions as options, derived from `penstock.settings`.

The node reads durations and sizes as text and checks every value, so they pass as they are written.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import typer

from penstock.quantity import format_duration, format_size
from penstock.settings import SubscriptionSettings, TopicSettings


def options(
    kind: type[TopicSettings] | type[SubscriptionSettings], *, changes: bool = False, defaults: bool = False
) -> list[inspect.Parameter]:
    """Return an option for each setting; without those chosen for good where one changes what is there."""
    found = []
    for field in msgspec.structs.fields(kind):
        meta = get_args(field.type)[1] if get_origin(field.type) is Annotated else None
        if isinstance(meta, msgspec.Meta) and not (changes and (meta.extra or {})["once"]):
            found.append(_option(field, meta, shows_default=defaults))
    return found


def chosen(**values: object) -> dict[str, object]:
    """Return the settings that were given."""
    return {name: value for name, value in values.items() if value is not None}


def _option(field: msgspec.structs.FieldInfo, meta: msgspec.Meta, *, shows_default: bool) -> inspect.Parameter:
    name, type_ = field.name.removesuffix("_ns"), get_args(field.type)[0]
    flag = f"--{name.replace('_', '-')}"
    written: Any = str
    metavar, default = None, str(field.default)
    if name != field.name:
        metavar, default = "DURATION", format_duration(field.default)
    elif name.endswith("_bytes"):
        metavar, default = "SIZE", format_size(field.default)
    elif get_origin(type_) is Literal:
        metavar = "|".join(get_args(type_))
    else:
        written = type_
    if written is bool:
        flag, default = f"{flag}/--no-{flag[2:]}", ""
    least = (meta.extra or {})["least"] if written is int else None
    shown = shows_default and default
    option = typer.Option(flag, help=meta.description, metavar=metavar, min=least, show_default=shown or False)
    annotation = Annotated[written | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
