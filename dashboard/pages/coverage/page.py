"""Coverage: which topics and consumer groups of the clusters a definition names, by prefix or label, and which none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, alert, live
from dashboard.pages.page import LIGHT, Control, Instead, Page, Panel, Visit
from dashboard.pages.paging import PageOf, chosen_page, pager
from dashboard.pages.printing import Printed, card_row, card_table, element
from dashboard.queries.services import Services
from dashboard.request import links
from dashboard.request.links import Address
from lagloss_server.base import format as fmt
from lagloss_server.groups.cluster_groups import cluster_text
from lagloss_server.groups.coverage import (
    BY_LABEL,
    BY_PREFIX,
    KINDS,
    ClusterCoverage,
    CoverageRow,
    KafkaName,
    is_grouping,
    read_coverage,
    share_text,
)

_NOT_READ: Final = (
    "The aggregator lists the topics of Kafka once a minute and its groups every 10 s. If none appears, check that it "
    "runs (Health), and that an ACL lets lagloss DESCRIBE them."
)
_NOUNS: Final = {"topics": "topic", "groups": "consumer group"}


class CoverageId(StrEnum):
    """Ids of this page."""

    NOTICE = "coverage-notice"
    TOTALS = "coverage-totals"
    BY = "coverage-by"
    SHARES = "coverage-shares"
    NAMES = "coverage-names"
    PAGER = "coverage-pager"


def frame(_params: Mapping[str, str], address: Address) -> Part:
    by = dmc.Select(
        id=CoverageId.BY, label="Group by", data=_choices(address, ()), value=grouping_of(address), size="xs",
        allowDeselect=False, w=200,
    )  # fmt: skip
    return html.Div(
        [
            html.H1("Coverage", className="page-title"),
            live(CoverageId.TOTALS, className="totals"),
            live(CoverageId.NOTICE),
            dmc.Group([by], align="end", gap="md", my="sm"),
            html.Div(id=CoverageId.SHARES),
            html.Div(id=CoverageId.NAMES),
            html.Div(id=CoverageId.PAGER),
        ]
    )


def grouping_of(address: Address) -> str:
    """Return by what the address groups: prefix, or label:NAME."""
    by = address.query.get("by", BY_PREFIX)
    return by if is_grouping(by) else BY_PREFIX


def _choices(address: Address, labels: Sequence[str]) -> list[str]:
    """Return what can be grouped by; what is chosen stays, there or not."""
    return list(dict.fromkeys([BY_PREFIX, *(f"{BY_LABEL}{name}" for name in labels), grouping_of(address)]))


def read(visit: Visit) -> ClusterCoverage:
    """Read the coverage.

    Raises:
        Instead: no topic or group can be seen.
    """
    coverage = read_coverage(visit.store)
    if not coverage.topics and not coverage.groups:
        raise Instead(alert("No topics and consumer groups", _NOT_READ, "gray", "○"))
    return coverage


def _totals(coverage: ClusterCoverage, _visit: Visit) -> str:
    return "; ".join(f"{kind} measured: {share_text(coverage.share(kind))}" for kind in KINDS).capitalize()


def _notice(coverage: ClusterCoverage, visit: Visit) -> Part:
    stale = coverage.not_current(visit.now_s)
    if not stale:
        return None
    names = ", ".join(map(cluster_text, stale))
    what = f"Cluster {names}: topics were not listed in the last three minutes."
    return alert("Not current", what, "orange", "!")


def _shares(coverage: ClusterCoverage, visit: Visit) -> Printed:
    by = grouping_of(visit.address)
    head = "Prefix" if by == BY_PREFIX else f"Label {by.removeprefix(BY_LABEL)}"
    return _table((head, "Topics measured", "Groups measured"), [_row(row) for row in coverage.rows(by)])


def _row(row: CoverageRow) -> tuple[Part, ...]:
    value = fmt.NOTHING if row["value"] is None else row["value"]
    return value, share_text(row["topics"]), share_text(row["groups"])


def _not_measured(coverage: ClusterCoverage) -> list[tuple[str, KafkaName]]:
    """Return the topics and groups that no definition names, each with its noun."""
    return [(_NOUNS[kind], place) for kind in KINDS for place in coverage.not_measured(kind)]


def _page(coverage: ClusterCoverage, visit: Visit) -> PageOf:
    return PageOf(chosen_page(visit.address), len(_not_measured(coverage)))


def _names(coverage: ClusterCoverage, visit: Visit) -> Printed | None:
    rows = _page(coverage, visit).rows(_not_measured(coverage))
    if not rows:
        return None
    several = len({place.cluster for place in (*coverage.topics, *coverage.groups)}) > 1
    heads = ("Name", "Kind", *(["Cluster"] if several else []))
    cells = [(place.name, noun, *([cluster_text(place.cluster)] if several else [])) for noun, place in rows]
    title = element("h2", "Named by no definition", className="section-title")
    return element("section", [title, _table(heads, cells)])


def _table(heads: Sequence[str], rows: Sequence[tuple[Part, ...]]) -> Printed:
    return card_table(heads, [card_row(heads, name, values) for name, *values in rows])


def _labels(services: Services, address: Address) -> list[str]:
    labels = {name for stored in services.store.pipelines() for name in stored.definition.metadata.labels}
    return _choices(address, sorted(labels))


PAGE: Final = Page(
    name="coverage",
    pattern=re.compile(re.escape(links.COVERAGE)),
    title=lambda _params: "Coverage",
    frame=frame,
    notice=Panel(CoverageId.NOTICE, _notice),
    read=read,
    panels=(
        Panel(CoverageId.SHARES, _shares, LIGHT),
        Panel(CoverageId.NAMES, _names, LIGHT),
        Panel(CoverageId.TOTALS, _totals, blank=""),
        Panel(CoverageId.PAGER, lambda result, visit: pager(_page(result, visit), "name", visit.address, "foot")),
    ),
    controls=(
        Control(
            CoverageId.BY,
            grouping_of,
            lambda address, chosen: address.asking(by=None if chosen == BY_PREFIX else chosen, page=None),
            choices=_labels,
        ),
    ),
)
