"""The process that Spark forks its Python workers from, as PySpark has it, but for two things.

A worker whose task was stopped finds its pipe closed, which is no error of anybody's and prints no traceback. A worker
looks for garbage after each task, and the next one waits for that: what was imported is left out of it. Run as a
program, by Spark, for tasks; workers that plan are always forked from PySpark's own, and are mended once they run.
"""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Any

PYSPARK = "pyspark.daemon"


def mend() -> None:
    """Give what differs to a worker that was forked from PySpark's own process; nothing happens in any other."""
    main: Any = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", "") == PYSPARK:
        _give(main)


def _give(daemon: Any) -> None:
    daemon.traceback = _Tracebacks()
    daemon.gc = _Garbage()


class _Tracebacks:
    """What PySpark's module needs of `traceback`."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print what went wrong, unless it is that nobody listens any more."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


class _Garbage:
    """What PySpark's module needs of `gc`."""

    #: Nothing that outlived a worker's first task is garbage later: modules, classes, code.
    kept = False

    @classmethod
    def collect(cls) -> None:
        """Collect what a task left. Some 40 ms with all that PySpark and Arrow bring, 1 ms without."""
        gc.collect()
        if not cls.kept:
            gc.freeze()
            cls.kept = True


if __name__ == "__main__":
    from pyspark import daemon

    _give(daemon)
    daemon.manager()
