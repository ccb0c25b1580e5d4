"""`dory`: Dory's inputs, its pages and the relay to Kafka, under the name and with the file of upstream's daemon.

Whoever starts Dory starts this: the file is Dory's own XML, and nothing else listens. Settings that Dory has no element
for come from PENSTOCK_* variables; no penstock.toml is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from penstock import __version__
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.dialect import Bound, Dialect

#: What a script that checks exit codes of Dory expects.
OK, FAILED = 0, 1

USAGE = """Usage: dory --config-path FILE [--daemon]
       dory --version

  --config-path FILE  Dory's configuration file (XML)
  --daemon            run in the background; the command ends once everything listens
  --version           show the version
  --help              show this

Data is kept in ./penstock-data, or where PENSTOCK_DATA_DIR says. `penstock config import FILE` shows what the file
is in Penstock's own words.
"""

#: Told to the process that waits for a daemon to be ready.
_READY = b"ready"


class _Line(NamedTuple):
    config_path: str = ""
    daemon: bool = False
    version: bool = False
    help: bool = False


def main() -> None:
    """Run the program and end with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Carry out one command line and return its exit code."""
    try:
        line = _parsed(arguments)
        if line.help:
            print(USAGE, end="")
            return OK
        if line.version:
            print(f"dory (penstock {__version__})")
            return OK
        config = load(line.config_path)
        return _in_background(config) if line.daemon else _serve(config, None)
    except PenstockError as error:
        print(f"dory: {error}", file=sys.stderr)
        return FAILED


def load(path: str) -> Config:
    """Return the configuration that a file of Dory's asks for, and say what of it has no effect."""
    from penstock.cli import import_dory, table

    try:
        with open(path, encoding="utf-8") as opened:
            settings, left = import_dory.imported(opened.read())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    loaded = table.load(os.devnull, settings, table=_table())
    for name, why in left.items():
        print(f"dory: {name} has no effect here: {why}", file=sys.stderr)
    return loaded.config


def _table() -> tuple[Dialect, ...]:
    """Return what is served: nothing else listens."""
    from penstock.dialects import dory
    from penstock.relays import kafka

    return (dory.DIALECT, kafka.RELAY)


def _parsed(arguments: list[str]) -> _Line:
    found: dict[str, object] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name in ("--config-path", "--config_path"):
            path = value if equals else next(rest, "")
            if not path:
                raise ConfigError(f"{name} needs the path of a file")
            found["config_path"] = path
        elif name in ("--daemon", "--version", "--help", "-h") and not equals:
            found["help" if name == "-h" else name[2:]] = True
        else:
            raise ConfigError(f"{argument} is not known; `dory --help` shows what is")
    line = _Line(**found)  # type: ignore[arg-type]
    if not (line.config_path or line.version or line.help):
        raise ConfigError("--config-path is missing; name Dory's configuration file")
    return line


def _serve(config: Config, ready: int | None) -> int:
    from penstock.cli.daemon import run as serve

    def show(config: Config, bound: Sequence[Bound]) -> None:
        for each in bound:
            print(f"dory: {each.endpoint.purpose} at {each.place}", file=sys.stderr)
        if ready is not None:
            os.write(ready, _READY)
            os.close(ready)

    serve(config, None, show, table=_table())
    return OK


def _in_background(config: Config) -> int:
    """Become a daemon; the process that was started ends when everything listens, or cannot."""
    told, tells = os.pipe()
    if os.fork():
        os.close(tells)
        with os.fdopen(told, "rb") as pipe:
            said = pipe.read()
        if said != _READY:
            print(f"dory: {said.decode(errors='replace') or 'it ended before it was ready'}", file=sys.stderr)
        return OK if said == _READY else FAILED
    os.close(told)
    os.setsid()
    if os.fork():
        os._exit(OK)
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    os.close(quiet)
    code = FAILED
    try:
        code = _serve(config, tells)
    except BaseException as error:
        told_text = str(error) if isinstance(error, PenstockError) else f"it failed: {error!r}"
        with suppress(OSError):  # whoever waited has heard that everything listens, and is gone
            os.write(tells, told_text.encode())
    os._exit(code)
