"""The page of coverage: shares by prefix or label, what no definition names, and what is not current."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from dashboard.pages.coverage import page
from dashboard.pages.page import Visit
from dashboard.pages.printing import html_of
from dashboard.queries.services import Services
from dashboard.request.links import Address
from lagloss_server.base.settings import Settings
from lagloss_server.groups.coverage import ClusterCoverage, KafkaName

NOW_S = 1_000.0
COVERAGE = ClusterCoverage(
    {KafkaName("", "orders"): ["shop"], **{KafkaName("", f"audit-{number:03}"): [] for number in range(120)}},
    {KafkaName("", "mailer"): []},
    {"shop": {"team": "web"}},
    {"": 990_000},
)


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    monkeypatch.setattr(page, "read_coverage", lambda _store: COVERAGE)
    created = Services(cast("Any", None), Settings())
    yield created
    created.threads.close()


def first(services: Services, now_s: float = NOW_S, **query: str) -> str:
    return html_of(page.PAGE.first(services, {}, Address("/coverage", query), now_s))


def test_shares_and_names_are_in_the_first_answer(services: Services) -> None:
    said = first(services)
    assert "Topics measured: 1 of 121 (0.83 %); groups measured: 0 of 1 (0 %)" in said
    assert said.index("audit</th>") < said.index("mailer</th>") < said.index("orders</th>")
    assert "Named by no definition" in said
    assert "audit-099" in said
    assert "audit-100" not in said
    assert "1–100 of 121 names" in said
    assert "Not current" not in said
    assert "mailer" in first(services, page="2")


def test_shares_are_by_label_and_lists_that_are_old_are_said(services: Services) -> None:
    said = first(services, NOW_S + 600, by="label:team")
    assert "Label team" in said
    assert "web</th>" in said
    assert "topics were not listed in the last three minutes" in said
    assert "Prefix" in first(services, by="nonsense")


def test_what_is_sent_to_the_browser_is_one_tree_a_panel(services: Services) -> None:
    visit = Visit(services, Address("/coverage", {}), {}, NOW_S)
    drawn = page.PAGE.draw(visit)
    for panel, value in zip((page.PAGE.notice_panel, *page.PAGE.panels), drawn, strict=True):
        if panel.id in (page.CoverageId.SHARES, page.CoverageId.NAMES):
            assert len(list(value.nodes)) == 1


def test_without_topics_and_groups_the_page_says_what_to_check(services: Services, monkeypatch: Any) -> None:
    monkeypatch.setattr(page, "read_coverage", lambda _store: ClusterCoverage({}, {}))
    assert "No topics and consumer groups" in first(services)
