"""Whether lagloss itself can be trusted now: reports, windows due, emitters, clocks, sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages import notices
from dashboard.pages.base import Part, live
from dashboard.pages.health import parts as health_parts
from dashboard.pages.page import LIGHT, Control, Instead, Page, Panel, Visit, pipeline_names
from dashboard.queries.health import Health, read_health
from dashboard.queries.reports_topic import Ends, ReportsTopic
from dashboard.queries.services import Services
from dashboard.request import links
from dashboard.request.links import Address
from lagloss_server.base.errors import UnknownPipeline

_NOTICE: Final = "health-notice"
_ONLY: Final = "health-only"
_SECTIONS: Final = "health-sections"
_NOT_ASKED: Final = Ends(None, "Kafka has not been queried yet")


def frame(_params: Mapping[str, str], address: Address) -> Part:
    only = dmc.Select(
        id=_ONLY,
        label="Pipeline",
        placeholder="all pipelines",
        value=address.query.get("pipeline"),
        data=[address.query["pipeline"]] if "pipeline" in address.query else [],
        clearable=True,
        searchable=True,
        size="xs",
        w={"base": "100%", "sm": 280},
        mb="sm",
    )
    title = html.H1("Health of lagloss", className="page-title")
    return html.Div([title, live(_NOTICE), only, html.Div(id=_SECTIONS)])


@cache
def _topic(bootstrap: str) -> ReportsTopic:
    return ReportsTopic(bootstrap)


def read(visit: Visit) -> Health:
    """Read the health of everything, or of the pipeline that the address names.

    Raises:
        Instead: there is no pipeline of this name.
    """
    only = visit.address.query.get("pipeline")
    try:
        return read_health(visit.store, visit.glance or _NOT_ASKED, visit.now_s, only)
    except UnknownPipeline:
        raise Instead(notices.unknown_pipeline(only or "", visit.store.names(), visit.address)) from None


def _choices(services: Services, address: Address) -> list[str]:
    """Return the names of pipelines; a field that has no such choice as the one in the address would empty itself."""
    names, chosen = pipeline_names(services), address.query.get("pipeline")
    return sorted({*names, chosen} if chosen else names)


PAGE: Final = Page(
    name="health",
    pattern=re.compile(re.escape(links.HEALTH)),
    title=lambda _params: "Health",
    frame=frame,
    notice=Panel(_NOTICE, lambda health, _visit: health_parts.verdict(health)),
    read=read,
    panels=(Panel(_SECTIONS, lambda health, visit: health_parts.sections(health, visit.address), LIGHT),),
    controls=(
        Control(
            _ONLY,
            lambda address: address.query.get("pipeline"),
            lambda address, pipeline: address.asking(pipeline=pipeline or None),
            choices=_choices,
        ),
    ),
    glance=lambda services: _topic(services.settings.kafka_bootstrap).ends(),
)
