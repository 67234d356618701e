"""Making reports of stretches that a store would give: destinations by their own targets, hops by merged sketches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.reports import making, portfolio
from dashboard.reports.making import make_report
from dashboard.reports.model import Report
from dashboard.reports.portfolio import make_portfolio
from dashboard.reports.ranges import CalendarRange, previous
from dashboard.reports.sections import sections
from lagloss.errors import UsageError
from lagloss.wire.sketch import Sketch
from lagloss_server.incidents.response_times import Times
from lagloss_server.model.definition import StoredPipeline, parse_definition
from lagloss_server.model.matchers import parse_matchers
from lagloss_server.model.window import Interval
from lagloss_server.queries.canary import CanaryTotals
from lagloss_server.store.period_reading import RangeTotal
from lagloss_server.store.unreadable import ReadRows
from lagloss_server.sums.error_budget import targets_of
from lagloss_server.sums.rollup import CheckpointSums, PartSums, Rollup
from tests.support.window_documents import CLICKS

DAY_S = 86_400
TO_S = 20_000 * DAY_S
SPAN = CalendarRange(TO_S - 7 * DAY_S, TO_S, "UTC")
STRICT_FROM_S = TO_S - 2 * DAY_S
"""From here on conn-fb has a target of its own."""
LAGS = {"col-service.in": 10_000, "event-norm.in": 10_100, "conn-ga.out": 10_200, "conn-fb.out": 10_300}


def versions(name: str = "clicks", team: str = "web") -> list[StoredPipeline]:
    text = CLICKS.replace("{name: clicks}", f"{{name: {name}, labels: {{team: {team}}}}}")
    own = "    destinations: {conn-fb: {loss: {max: 0.001}}}\n"
    lag = "{percentile: 95, target: 1200ms}"
    stricter = text.replace(f"sla: {{loss: {{max: 0.01}}, lag: {lag}}}\n", f"sla:\n    lag: {lag}\n{own}")
    return [
        StoredPipeline(name, 1, 0, parse_definition(text)),
        StoredPipeline(name, 2, STRICT_FROM_S * 1_000, parse_definition(stricter)),
    ]


def stretch(from_s: int, to_s: int) -> RangeTotal:
    """100 messages a minute, of which conn-fb loses one each from the beginning of SPAN on."""
    minutes = (to_s - from_s) // 60
    lost = minutes if from_s >= SPAN.from_s else 0
    due = 100 * minutes
    names = ("col-service.in", "col-service.out", "event-norm.in", "event-norm.out", "event-router.in")
    outs = ("event-router.out:conn-ga", "event-router.out:conn-fb", "conn-ga.in", "conn-fb.in")
    checkpoints = {
        name: CheckpointSums(Sketch.from_bins({LAGS.get(name, 10_150): due}), due, due)
        for name in (*names, *outs, "conn-ga.out", "conn-fb.out")
    }
    total = Rollup(
        windows=minutes,
        verdicts={"ok": minutes},
        proofs={"beacons": minutes},
        messages=due,
        delivered=due - lost,
        lost=Interval(lost, lost),
        on_time=2 * due - lost,
        on_time_of=2 * due,
        checkpoints=checkpoints,
        destinations={
            "conn-ga": PartSums(due, due, on_time=due, on_time_of=due),
            "conn-fb": PartSums(due, due - lost, lost=Interval(lost, lost), on_time=due - lost, on_time_of=due),
        },
    )
    return RangeTotal(from_s, to_s, total)


def stretches(_store: Any, _pipeline: str, edges: Sequence[int], **_more: Any) -> list[RangeTotal]:
    assert list(edges) == sorted(set(edges))
    return [stretch(*each) for each in pairwise(edges)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(making, "series", stretches)
    monkeypatch.setattr(making, "first_known", lambda *_: 0)
    monkeypatch.setattr(making, "incidents", lambda *_, **__: [])
    monkeypatch.setattr(making, "overlapping_courses", lambda *_: [])
    monkeypatch.setattr(making, "read_repair_records", lambda *_: [])
    monkeypatch.setattr(making, "_lost_afterwards", lambda *_: ())
    monkeypatch.setattr(making, "_canary", lambda *_: CanaryTotals(1_440, 1_440, 8_640, 8_640, 0))
    known = {name: versions(name, team) for name, team in (("clicks", "web"), ("orders", "web"), ("stock", "other"))}

    def series_of(_store: Any, edges: Mapping[str, Sequence[int]], **_more: Any) -> dict[str, list[RangeTotal]]:
        return {name: stretches(None, name, of) for name, of in edges.items()}

    def targets(_store: Any, pipelines: Sequence[StoredPipeline]) -> dict[str, Any]:
        return {stored.name: targets_of(known[stored.name]) for stored in pipelines}

    monkeypatch.setattr(portfolio, "series_of", series_of)
    monkeypatch.setattr(portfolio, "read_targets", targets)
    monkeypatch.setattr(portfolio, "first_known_of", lambda _store, names: dict.fromkeys(names, 0))
    monkeypatch.setattr(portfolio, "open_by_severity", lambda _store, _names: {"orders": {"critical": 1}})
    return SimpleNamespace(
        versions_of=known.__getitem__, pipelines=lambda: ReadRows(each[-1] for each in known.values())
    )


def test_a_destination_is_judged_by_the_targets_that_it_had(store: Any) -> None:
    made = make_report(store, "clicks", SPAN, TO_S + 3_600)
    ga, fb = made.destinations
    assert (ga.name, fb.name) == ("conn-ga", "conn-fb")
    week = 7 * 1_440 * 100
    strict = 2 * 1_440 * 100
    loss = fb.whole.attainments[0]
    assert (loss.of, loss.bad.min, loss.allowed) == (week, week / 100, (week - strict) / 100 + strict / 1_000)
    assert (fb.whole.status, ga.whole.status) == ("missed", "met")
    assert [target.loss_max for target in fb.targets] == [0.01, 0.001]
    assert [target.loss_max for target in ga.targets] == [0.01]
    assert made.incidents.times == Times.of([])


def test_the_whole_is_the_same_however_destinations_part_the_range(store: Any) -> None:
    made = make_report(store, "clicks", SPAN, TO_S + 3_600)
    assert made.whole.document() == {
        **made.whole.document(),
        "messages": 7 * 1_440 * 100,
        "lost": {"min": 7 * 1_440, "max": 7 * 1_440},
        "status": "met",
    }
    assert made.previous.from_s == previous(SPAN).from_s


def test_hops_are_of_the_slowest_destination_and_changes_name_what_got_worse(store: Any) -> None:
    made = make_report(store, "clicks", SPAN, TO_S + 3_600)
    assert made.lag.delivery == "conn-fb"
    assert sum(made.lag.share(hop) or 0 for hop in made.lag.hops) == pytest.approx(1)
    assert len(made.lag.hops) > len(made.lag.path)  # the way to conn-ga is no part of it
    loss, lateness = made.changes
    assert loss.startswith("Loss rose from 0 % to 1 % of messages, on each of 7 days, most at destination conn-fb")
    assert loss.endswith("; no incident names a cause.")
    assert lateness.startswith("The on-time share fell from 100 % to 99.5 %")


def test_a_portfolio_has_the_figures_of_each_report_that_matches(store: Any) -> None:
    made = make_portfolio(store, parse_matchers(["team=web"]), SPAN, TO_S + 3_600)
    assert [(line.pipeline, line.critical) for line in made.lines] == [("orders", 1), ("clicks", 0)]
    for line in made.lines:
        report = make_report(store, line.pipeline, SPAN, TO_S + 3_600)
        assert line.whole.document() == report.whole.document()
        assert line.previous.document() == report.previous.document()
        assert [step.to_s - step.from_s for step in line.steps] == [DAY_S] * 7
    assert make_portfolio(store, parse_matchers(["team=none"]), SPAN, TO_S + 3_600).lines == ()


MERGED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: merged}
spec:
  nodes:
    - {name: web, to: [norm]}
    - {name: app, to: [norm]}
    - {name: norm}
"""


def merged_stretches(_store: Any, _pipeline: str, edges: Sequence[int], **more: Any) -> list[RangeTotal]:
    """100 messages a minute from web, 10 from app, which loses one of them each; the counts alone know no source."""

    def total(minutes: int) -> Rollup:
        web = PartSums(100 * minutes, 100 * minutes, on_time=100 * minutes, on_time_of=100 * minutes)
        app = PartSums(
            10 * minutes,
            9 * minutes,
            lost=Interval(minutes, minutes),
            on_time=9 * minutes,
            on_time_of=10 * minutes,
        )
        sources = {} if more.get("counts_only") else {"web": web, "app": app}
        return Rollup(
            windows=minutes,
            verdicts={"ok": minutes},
            messages=110 * minutes,
            lost=Interval(minutes, 0),
            sources=sources,
        )

    return [RangeTotal(from_s, to_s, total((to_s - from_s) // 60)) for from_s, to_s in pairwise(edges)]


@pytest.fixture
def merged(store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(making, "series", merged_stretches)
    known = [StoredPipeline("merged", 1, 0, parse_definition(MERGED))]
    return SimpleNamespace(versions_of=lambda _name: known)


def test_a_report_says_what_became_of_the_canary(store: Any) -> None:
    report = make_report(store, "clicks", SPAN, TO_S + 3_600)

    def said(report: Report) -> Sequence[str]:
        return next(section.sentences for section in sections(report) if section.title == "Minutes by verdict")

    shown = "shown 8,640 losses in this range, named 8,640, invented 0"
    assert said(report) == (f"To check lagloss itself, its canary was {shown}.",)
    assert said(replace(report, canary=None)) == ()


def test_the_report_of_a_source_is_of_its_messages_in_every_hour_and_day(merged: Any) -> None:
    made = make_report(merged, "merged", SPAN, TO_S + 3_600, "app")
    assert (made.whole.total.messages, made.whole.status) == (7 * 1_440 * 10, "missed")
    assert {day.total.messages for day in made.days} == {1_440 * 10}
    assert made.worst_hours[0].figures.total.messages == 600
    assert (made.source_names, made.sources, made.document()["source"]) == (("web", "app"), (), "app")
    assert "source=app" in made.links(SPAN.from_s, SPAN.to_s)["page"]


def test_the_report_of_all_messages_has_a_line_for_each_source(merged: Any) -> None:
    made = make_report(merged, "merged", SPAN, TO_S + 3_600)
    assert made.whole.total.messages == 7 * 1_440 * 110
    found = {there.name: (there.whole.total.messages, there.whole.status) for there in made.sources}
    assert found == {"web": (7 * 1_440 * 100, "met"), "app": (7 * 1_440 * 10, "missed")}


def test_a_source_that_a_pipeline_never_had_is_refused(merged: Any) -> None:
    with pytest.raises(UsageError, match=r"a source of merged \(web, app\), found till"):
        make_report(merged, "merged", SPAN, TO_S + 3_600, "till")
