"""SLA reports: what a pipeline kept of what it promised, over any time range."""

from dashboard.reports.making import make_report
from dashboard.reports.model import Report
from dashboard.reports.portfolio import Portfolio, make_portfolio
from dashboard.reports.render.formats import FORMATS, file_name, render

__all__ = [
    "FORMATS",
    "Portfolio",
    "Report",
    "file_name",
    "make_portfolio",
    "make_report",
    "render",
]
