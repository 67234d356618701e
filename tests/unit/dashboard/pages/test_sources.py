"""Three sources: each has its own numbers, and the page can be narrowed to the messages of one."""

from __future__ import annotations

from typing import Any

from dashboard.pages.breakdown import source_choice, source_of, sources
from dashboard.request.links import Address
from lagloss_server.model.definition import Sla
from tests.support.window_documents import window_of
from tests.unit.dashboard.pages.test_destinations import rows, there

NAMES = ("web", "app", "till")
HERE = Address.parse("/pipelines/orders", "?range=1h&source=app")


def source(name: str, lost: int) -> dict[str, Any]:
    row = there(name, lost, 250.0, 0.99)
    return {"messages": row.pop("due"), **row, "on_time_of": 1_000}


def test_the_source_that_lost_most_of_its_messages_comes_first() -> None:
    window = {"sources": [source("web", 0), source("app", 20)]}
    assert rows(sources(window_of(window), Sla())) == [
        ["app", "1,000", "2 %", "p95 250 ms", "99 %"],
        ["web", "1,000", "0 %", "p95 250 ms", "99 %"],
    ]


def test_where_messages_are_split_the_parents_that_lost_a_child_are_counted() -> None:
    split = {**source("items-new", 30), "parents_not_whole": {"min": 7, "max": 9}}
    found = rows(sources(window_of({"sources": [source("web", 0), split]}), Sla()))
    assert [row[-1] for row in found] == ["7–9", "–"]


def test_a_window_of_one_source_has_no_table_of_sources() -> None:
    assert sources(window_of({}), Sla()) is None
    assert source_choice(HERE, ("web",), None) is None


def test_the_links_lead_to_the_same_page_and_span_and_mark_where_the_reader_is() -> None:
    part = source_choice(HERE, NAMES, source_of(HERE, NAMES))
    assert part is not None
    links = part.children[1:]
    assert [link.href for link in links] == [
        "/pipelines/orders?range=1h",
        "/pipelines/orders?range=1h&source=web",
        "/pipelines/orders?range=1h&source=app",
        "/pipelines/orders?range=1h&source=till",
    ]
    assert [getattr(link, "aria-current", None) for link in links] == [None, None, "true", None]


def test_an_address_that_names_no_source_of_the_pipeline_shows_all_messages() -> None:
    assert source_of(HERE, NAMES) == "app"
    assert source_of(HERE, ("web", "till")) is None
    assert source_of(HERE, ("app",)) is None
