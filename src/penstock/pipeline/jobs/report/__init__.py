"""The report: one HTML page with tables and plots on the messages of a range of time, from topics or archives."""

from penstock.pipeline.jobs.report.frames import frames
from penstock.pipeline.jobs.report.options import Report
from penstock.pipeline.jobs.report.report import Page, report

__all__ = ["Page", "Report", "frames", "report"]
