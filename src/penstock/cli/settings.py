"""Settings of topics and subscriptions as options, derived from `penstock.settings`.

The node reads durations and sizes as text and checks every value, so they pass as they are written.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import typer

from penstock.dialect import Choices
from penstock.dialects import DIALECTS
from penstock.settings import SubscriptionSettings, TopicSettings
from penstock.units.quantity import format_duration, format_size

#: Between the name of a dialect and that of its setting, in the names of parameters.
_BETWEEN = "__"


def options(
    kind: type[TopicSettings | SubscriptionSettings | Choices],
    *,
    changes: bool = False,
    defaults: bool = False,
    dialect: str = "",
) -> list[inspect.Parameter]:
    """Return an option for each setting; without those chosen for good where one changes what is there.

    Those of a dialect begin with its name.
    """
    found = []
    for field in msgspec.structs.fields(kind):
        meta = get_args(field.type)[1] if get_origin(field.type) is Annotated else None
        if isinstance(meta, msgspec.Meta) and meta.extra and not (changes and meta.extra["once"]):
            found.append(_option(field, meta, dialect, shows_default=defaults))
    return found


def of_topics(*, changes: bool = False) -> list[inspect.Parameter]:
    """Return an option for each setting of a topic, also for those that dialects have."""
    found = options(TopicSettings, changes=changes)
    for dialect in DIALECTS:
        if dialect.choices is not None:
            found += options(dialect.choices, changes=changes, dialect=dialect.name)
    return found


def nested(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings as the node takes them: those of a dialect under its name."""
    found = {name: value for name, value in settings.items() if _BETWEEN not in name}
    dialects: dict[str, dict[str, object]] = {}
    for name, value in settings.items():
        dialect, between, inner = name.partition(_BETWEEN)
        if between:
            dialects.setdefault(dialect, {})[inner] = value
    return found | {"dialects": dialects} if dialects else found


def flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings by the names that people see: those of a dialect are nsq.extend."""
    found = {name: value for name, value in settings.items() if name != "dialects"}
    dialects = settings.get("dialects")
    for dialect, part in dialects.items() if isinstance(dialects, dict) else ():
        found |= {f"{dialect}.{name}": value for name, value in part.items()}
    return found


def chosen(**values: object) -> dict[str, object]:
    """Return the settings that were given."""
    return {name: value for name, value in values.items() if value is not None}


def _option(
    field: msgspec.structs.FieldInfo, meta: msgspec.Meta, dialect: str, *, shows_default: bool
) -> inspect.Parameter:
    name, type_ = field.name.removesuffix("_ns"), get_args(field.type)[0]
    flag = f"--{dialect}{'-' if dialect else ''}{name.replace('_', '-')}"
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
    name = f"{dialect}{_BETWEEN}{name}" if dialect else name
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
