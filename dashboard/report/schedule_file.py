"""The reports file: which reports are mailed when and to whom. YAML that operators write, named by
LAGLOSS_REPORTS_FILE."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from dashboard.report.schedule import Schedule
from lagloss.fields import Name, Strict, Zone, refuse
from lagloss.outgoing.mail import Recipients, ServerConfig
from lagloss.settings import Settings
from lagloss.yaml_files import load_yaml

Range = Literal["last-day", "last-week", "last-month", "last-quarter", "last-year"]
Format = Literal["pdf", "html", "csv", "md", "json"]


def _none_if_all(given: object) -> object:
    if given == "all":
        return None
    if not isinstance(given, list) or not given:
        raise ValueError(f"expected `all` or a list of pipelines, found {given!r}")
    return given


class ReportSpec(Strict):
    """One scheduled report. `pipelines` None: all that there are when it is made; `range` is seen from when it is
    due."""

    name: Name
    pipelines: Annotated[tuple[Name, ...] | None, BeforeValidator(_none_if_all)]
    range: Range
    zone: Zone = "UTC"
    rrule: str
    formats: Annotated[tuple[Format, ...], Field(min_length=1)] = ("pdf",)
    to: Recipients

    @property
    def schedule(self) -> Schedule:
        return Schedule.parse(self.rrule, self.zone)


class ReportsFile(Strict):
    """The mail server, and the reports."""

    api_version: Literal["lagloss/v1"] = Field(alias="apiVersion")
    kind: Literal["Reports"]
    mail: ServerConfig
    reports: tuple[ReportSpec, ...]

    @model_validator(mode="after")
    def _can_be_scheduled(self) -> ReportsFile:
        names = [report.name for report in self.reports]
        problems = [
            (("reports", at, "name"), f"expected each report once, found {name} twice")
            for at, name in enumerate(names)
            if name in names[:at]
        ]
        for at, report in enumerate(self.reports):
            try:
                Schedule.parse(report.rrule, report.zone)
            except ValueError as error:
                problems.append((("reports", at, "rrule"), str(error)))
        refuse(problems)
        return self

    def report(self, name: str) -> ReportSpec | None:
        """The report of this name."""
        return next((report for report in self.reports if report.name == name), None)


def load_reports(settings: Settings) -> ReportsFile | None:
    """The file that the settings name; None without one.

    Raises:
        BadDefinition: with file, line and what was expected.
    """
    return load_reports_from(settings.reports_file) if settings.reports_file else None


def load_reports_from(path: Path) -> ReportsFile:
    return load_yaml(ReportsFile, path)
