"""The job: two frames in, a page out.

Owns the one call. Pure but for the clock that says when the report was made.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from penstock.pipeline.jobs.report.figures import Figures
from penstock.pipeline.jobs.report.gather import gather
from penstock.pipeline.jobs.report.options import Report
from penstock.pipeline.jobs.report.page.document import document

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Page(msgspec.Struct, frozen=True):
    """A report: the HTML document, and the figures in it."""

    html: str
    figures: Figures


def report(messages: DataFrame, events: DataFrame | None = None, options: Report | None = None) -> Page:
    """Return a report on messages, of one topic or many, and on what became of them by the node's events."""
    options = options or Report()
    figures = gather(messages, events, options)
    return Page(document(figures, options.title, time.time_ns() // 1000), figures)
