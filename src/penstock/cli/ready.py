"""Where a node listens, told to those who look for it: a ready file for scripts, `node.json` for readers of its data.

Invariant: who waits for one of the files never reads half of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.cli import banner
from penstock.disk import GROUP, PRIVATE
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.dialect import Bound

_log = logging.getLogger("penstock.daemon")


def prepare(path: str) -> None:
    """Take away what an earlier node left there, and see now rather than later whether it can be written."""
    try:
        open(path + ".new", "wb").close()
        if os.path.exists(path):
            os.unlink(path)
    except OSError as error:
        raise ConfigError(f"--ready-file {path} cannot be written: {error.strerror}.") from error


def write(path: str, config: Config, bound: Sequence[Bound]) -> None:
    """Tell whoever waits for the file where everything listens."""
    import msgspec

    document = {
        "pid": os.getpid(),
        "data_dir": os.path.abspath(config.data_dir),
        "ports": {each.endpoint.key: each.port for each in bound},
        "url": banner.api_place(bound),
    }
    # In one step: who waits for the file never reads half of it.
    with open(path + ".new", "wb") as file:
        file.write(msgspec.json.encode(document) + b"\n")
    os.replace(path + ".new", path)


@contextmanager
def announced(config: Config, bound: Sequence[Bound]) -> Iterator[None]:
    """Let readers of the data directory find its node; one that was killed leaves a file whose pid is dead."""
    import msgspec

    path = os.path.join(config.data_dir, "node.json")
    # Each under its name, the first of its places.
    places = {each.endpoint.key.partition(".")[0]: each.place for each in reversed(bound)}
    document = {"pid": os.getpid(), **places}
    try:
        mode = (GROUP if config.data_mode == "group" else PRIVATE)[0]
        with open(path + ".new", "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(msgspec.json.encode(document) + b"\n")
        os.replace(path + ".new", path)
    except OSError:  # a full disk must not keep a node from starting
        _log.warning("%s was not written: readers of the data directory do not find this node", path)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
