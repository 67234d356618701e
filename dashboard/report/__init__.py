"""SLA reports: what a pipeline kept of what it promised, over any stretch of time."""

from dashboard.report.formats import FORMATS, file_name, render
from dashboard.report.making import make_report
from dashboard.report.model import Report

__all__ = ["FORMATS", "Report", "file_name", "make_report", "render"]
