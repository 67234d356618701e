"""The reports file: reports, their schedules, recipients and receivers. YAML that operators write, named by
LAGLOSS_REPORTS_FILE."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dashboard.reports.ranges import PRESETS, CalendarRange, between, named_range
from dashboard.reports.render.formats import FORMATS
from dashboard.reports.schedule.rule import Schedule
from lagloss.errors import LaglossError
from lagloss_server.base.fields import MAX_LISTED, MAX_RULE, Name, Strict, Zone, describe, refuse
from lagloss_server.base.settings import Settings
from lagloss_server.base.yaml_files import load_yaml
from lagloss_server.model.definition import Definition
from lagloss_server.model.matchers import MatcherList, of_pipelines, reach
from lagloss_server.net.mail import Recipients, ServerConfig, addr_spec


def _none_if_all(value: object) -> object:
    if value == "all":
        return None
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected `all` or a list of pipelines, found {describe(value)}")
    return value


def _over(range_: str) -> str:
    over = [name for name in PRESETS if name.startswith("last-")]
    try:
        if range_.startswith("-"):
            between(range_, "now", "UTC", time.time())
        is_range = range_.startswith("-") or range_ in over
    except LaglossError:
        is_range = False
    if not is_range:
        raise ValueError(f"expected {', '.join(over)}, or a time such as -24h or -7d, found {range_!r}")
    return range_


def _format(name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"expected {', '.join(FORMATS)}, found {name!r}")
    return name


class ReportSpec(Strict):
    """One scheduled report.

    `pipelines` None: all that there are when it is made and that `match`. `range`, seen from when it is due: a week,
    month or quarter that is over then (`last-week`), or a time before it (`-24h`). `to` are mail addresses, `receivers`
    names of the alerting file.
    """

    name: Name
    pipelines: Annotated[
        Annotated[tuple[Name, ...], Field(max_length=MAX_LISTED)] | None, BeforeValidator(_none_if_all)
    ] = None
    match: Annotated[MatcherList, AfterValidator(of_pipelines)] = ()
    portfolio: bool = False
    """One document for all of them, worst first, in place of one for each."""
    range: Annotated[str, AfterValidator(_over)]
    zone: Zone = "UTC"
    rrule: Annotated[str, Field(max_length=MAX_RULE)]
    formats: Annotated[
        tuple[Annotated[str, AfterValidator(_format)], ...], Field(min_length=1, max_length=len(FORMATS))
    ] = ("pdf",)
    to: Recipients | tuple[()] = ()
    receivers: Annotated[tuple[Name, ...], Field(max_length=20)] = ()

    @model_validator(mode="after")
    def _can_be_made(self) -> ReportSpec:
        if not self.match and "pipelines" not in self.model_fields_set:
            raise ValueError("expected `pipelines` (`all` or a list) or `match`, found neither")
        if self.match and self.pipelines is not None:
            raise ValueError("expected a list of pipelines or `match`, found both")
        if self.portfolio and self.pipelines is not None:
            raise ValueError("expected `portfolio` with `pipelines: all` or `match`, found a list of pipelines")
        if not self.to and not self.receivers:
            raise ValueError("expected `to` or `receivers`, found neither")
        return self

    @property
    def ways(self) -> str:
        """Return the mail addresses and receivers, for people."""
        return ", ".join([*map(addr_spec, self.to), *(f"receiver {name}" for name in self.receivers)])

    def chosen(self, definitions: Iterable[Definition]) -> list[Definition]:
        """Return those of these pipelines that the report is of."""
        chosen = list(definitions)
        if self.pipelines is not None:
            return [definition for definition in chosen if definition.name in self.pipelines]
        matching = reach(self.match, {definition.name: definition.metadata.labels for definition in chosen})
        return [definition for definition in chosen if definition.name in matching]

    @property
    def schedule(self) -> Schedule:
        return Schedule.parse(self.rrule, self.zone)

    def span(self, due_s: int) -> CalendarRange:
        """Return the span that the report covers if it is due then."""
        if self.range.startswith("-"):
            return between(self.range, "now", self.zone, due_s)
        return named_range(self.range, self.zone, due_s)


class ReportsFile(Strict):
    """The mail server, for reports that are mailed, and the reports."""

    api_version: Literal["lagloss/v1"] = Field(alias="apiVersion")
    kind: Literal["Reports"]
    mail: ServerConfig | None = None
    reports: Annotated[tuple[ReportSpec, ...], Field(max_length=MAX_LISTED)]

    @model_validator(mode="after")
    def _can_be_scheduled(self) -> ReportsFile:
        names = [report.name for report in self.reports]
        problems = [
            (("reports", index, "name"), f"expected each report once, found {name} twice")
            for index, name in enumerate(names)
            if name in names[:index]
        ]
        for index, report in enumerate(self.reports):
            if report.to and self.mail is None:
                problems.append((("reports", index, "to"), "expected `mail`, the server, where a report is mailed"))
            try:
                Schedule.parse(report.rrule, report.zone)
            except ValueError as error:
                problems.append((("reports", index, "rrule"), str(error)))
        refuse(problems)
        return self

    def report(self, name: str) -> ReportSpec | None:
        """Return the report of this name."""
        return next((report for report in self.reports if report.name == name), None)


def load_reports(settings: Settings) -> ReportsFile | None:
    """Return the file that the settings name; None without one.

    Raises:
        BadDefinition: with file, line and what was expected.
    """
    return load_yaml(ReportsFile, settings.reports_file) if settings.reports_file else None
