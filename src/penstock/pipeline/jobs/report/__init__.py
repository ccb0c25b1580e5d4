"""The report: one HTML page with tables and plots on the messages of a range of time, from topics or archives."""

from typing import TYPE_CHECKING, Any

from penstock.pipeline.jobs.report.options import Report
from penstock.pipeline.jobs.report.report import Page, page_of, report
from penstock.pipeline.jobs.report.small import small

if TYPE_CHECKING:
    from penstock.pipeline.jobs.report.origin import frames

__all__ = ["Page", "Report", "frames", "page_of", "report", "small"]


def __getattr__(name: str) -> Any:
    """Import Spark with the one function here that cannot do without it."""
    if name == "frames":
        from penstock.pipeline.jobs.report.origin import frames

        return frames
    raise AttributeError(name)
