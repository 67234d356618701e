"""The overview names the definitions that are set aside, beside the pipelines that are well and without any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.pages.overview import page
from dashboard.pages.printing import html_of
from dashboard.queries.overview import Overview
from dashboard.queries.shared_reads import SharedReads
from dashboard.request.links import Address
from lagloss_server.store.unreadable import NEWER, UnreadableRow
from tests.unit.dashboard.queries.test_overview import WELL

ROW = UnreadableRow("definition", "orders", "3", f"{NEWER}: unknown key spec.futureField")


@pytest.mark.parametrize("standings", [(), (WELL,)], ids=["alone", "beside others"])
def test_the_overview_names_what_is_set_aside(monkeypatch: pytest.MonkeyPatch, standings: tuple[Any, ...]) -> None:
    monkeypatch.setattr(page, "detailed", lambda _store, shown, _now_s: list(shown))
    found = Overview(0.0, standings, (ROW,))
    services: Any = SimpleNamespace(overview=lambda: found, reads=SharedReads(10), drawn=SharedReads(10), store=None)
    drawn = html_of(page.PAGE.first(services, {}, Address("/", {}), 0.0))
    assert "definition orders/3 (written by a newer version of lagloss" in drawn
    assert "spec.futureField" in drawn
    listed = found.document(len(standings), standings)
    assert listed["set_aside"] == [{"pipeline": "orders", "version": 3, "error": ROW.why}]
    assert found.among(frozenset({"clicks"})).unreadable == ()
