"""The directory of one pipeline: its checkpoints, who runs it, and what it last said of itself.

Owns the lock that keeps two processes from one checkpoint, and the names of what lies there.
Invariant: whoever holds the lock is the only one that writes below; looking needs no lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from penstock.client.wire import PipelineReport, made
from penstock.disk import LocalDisk, private
from penstock.errors import ConfigError, PenstockError
from penstock.pipeline.plan.document import Place

LOCK = "owner.lock"
STATUS = "status.json"
QUERY = "query.json"


def base_of(place: Place) -> str:
    """Return where the pipelines of a node are kept: in its data directory, or else here."""
    return os.path.join(place.path, "pipelines") if place.path else "penstock-pipelines"


class Home:
    """The directory of one pipeline."""

    def __init__(self, path: str, name: str) -> None:
        self.path = os.path.abspath(path)
        self.name = name

    def checkpoint(self, query: str) -> str:
        """Return the directory of a query's checkpoint."""
        return os.path.join(self.path, query, "checkpoint")

    def check(self) -> None:
        """Refuse a directory that another process has, or another pipeline."""
        if os.path.exists(os.path.join(self.path, LOCK)):
            with self.owned():
                pass

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the directory against any other process; ConfigError says who has it."""
        try:
            LocalDisk().make(self.path)
            file = private(os.path.join(self.path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be used for checkpoints: {error.strerror}") from None
        try:
            owner = _owner(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"pipeline {owner.get('name', '?')} (pid {owner.get('pid', '?')}) runs on {self.path}: "
                    f"stop it with `penstock pipeline stop {owner.get('name', 'NAME')}`, or set another home"
                ) from None
            if owner.get("name", self.name) != self.name:
                raise ConfigError(
                    f"{self.path} belongs to pipeline {owner['name']}: set another home, or remove the directory to "
                    "begin anew"
                )
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps({"name": self.name, "pid": os.getpid()}).encode(), 0)
            yield
        finally:
            os.close(file)  # which lets the lock go

    def owner(self) -> int | None:
        """Return the pid of the process that runs the pipeline, None if none does."""
        try:
            file = os.open(os.path.join(self.path, LOCK), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(_owner(file).get("pid", 0)) or None
        finally:
            os.close(file)
        return None

    def stop(self, patience_s: float) -> int:
        """Ask the pipeline to end, and wait until it has; return its pid."""
        pid = self.owner()
        if pid is None:
            raise PenstockError(f"pipeline {self.name} does not run")
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + patience_s
        while self.owner() == pid:
            if time.monotonic() > end:
                raise PenstockError(f"pipeline {self.name} (pid {pid}) was asked to stop and still runs")
            time.sleep(0.05)
        return pid

    def identity(self, query: str, stateful: list[Any]) -> str:
        """Return the id of a query, made with its checkpoint; ConfigError if its state would not fit any more."""
        place = os.path.join(self.path, query, QUERY)
        declared = json.loads(json.dumps(stateful))
        try:
            with open(place, "rb") as file:
                known = json.load(file)
        except FileNotFoundError:
            known = {"id": uuid.uuid4().hex, "stateful": declared}
            _replace(place, known)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{place} cannot be read: {error}") from None
        if known["stateful"] != declared:
            raise ConfigError(
                f"query {query}: its steps keep state, and are not what they were when {place} was written. Put them "
                f"back, rename the step, or remove {os.path.dirname(place)} to begin anew"
            )
        return str(known["id"])

    def tell(self, report: PipelineReport) -> None:
        """Write down what is to be known of the pipeline."""
        _replace(os.path.join(self.path, STATUS), asdict(report), sync=False)

    def told(self) -> PipelineReport | None:
        """Return what the pipeline last said of itself; None if it never did."""
        try:
            with open(os.path.join(self.path, STATUS), "rb") as file:
                report = made(json.load(file), PipelineReport)
        except (OSError, ValueError, PenstockError):
            return None
        return report


def homes(base: str) -> list[Home]:
    """Return the pipelines that were ever run below a directory."""
    try:
        names = sorted(os.listdir(base))
    except FileNotFoundError:
        return []
    return [Home(os.path.join(base, name), name) for name in names if os.path.exists(os.path.join(base, name, LOCK))]


def _owner(file: int) -> dict[str, Any]:
    try:
        values = json.loads(os.pread(file, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _replace(path: str, values: Any, *, sync: bool = True) -> None:
    """Put a document there in one step."""
    LocalDisk().make(os.path.dirname(path))
    with open(path + ".new", "w", encoding="utf-8", opener=private) as file:
        json.dump(values, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(path + ".new", path)
