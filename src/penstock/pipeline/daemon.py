"""The process that Spark forks its Python workers from, as PySpark has it, but for a traceback for each one stopped.

Run as a program, by Spark. A worker whose task was stopped finds its pipe closed; that is no error of anybody's.
"""

from __future__ import annotations

import sys
import traceback

from pyspark import daemon


class _Tracebacks:
    """What PySpark's module needs of `traceback`."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print what went wrong, unless it is that nobody listens any more."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


if __name__ == "__main__":
    daemon.traceback = _Tracebacks()  # type: ignore[assignment,attr-defined]
    daemon.manager()
