"""Where clicks, zooms and paths on the pipeline's page lead, and what it says in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures.time_axis import TimeAxis
from dashboard.pages.pipeline import parts as pipeline_parts
from dashboard.pages.pipeline import steps as pipeline_steps
from dashboard.pages.pipeline.tables import worst
from dashboard.queries import buckets
from dashboard.queries.series import Series
from dashboard.queries.sla_periods import SlaPeriod, SlaPeriods
from dashboard.request.links import Address
from dashboard.request.shown_range import ShownRange, requested_range
from dashboard.request.zones import Zone
from tests.support.window_documents import chain, document, window_of

START = 1_795_250_400
NOW = START + 86_400
TERMS = SlaPeriods((SlaPeriod(START, START + 3_600, chain()),))
HERE = Address("/pipelines/chain", {"zone": "Asia/Tokyo", "range": "24h", "path": "snk"})


def clicked(start_s: int, length_s: int) -> dict[str, Any]:
    return {"points": [{"x": "2026-11-21 08:40", "customdata": [start_s, length_s, "text"]}]}


def test_a_click_on_a_minute_leads_to_its_window_and_one_on_an_hour_into_it() -> None:
    minute = pipeline_steps.of_click(HERE, "chain", clicked(START, 60))
    assert minute.path == "/pipelines/chain/windows/2026-11-21T08:40:00Z"
    assert minute.query == {"zone": "Asia/Tokyo", "range": "24h"}
    hour = pipeline_steps.of_click(HERE, "chain", clicked(START, 3_600))
    assert hour.path == HERE.path
    assert requested_range(hour.query, NOW) == ShownRange(START, START + 3_600)
    assert (hour.query["path"], hour.query["zone"]) == ("snk", "Asia/Tokyo")


@pytest.mark.parametrize("click", [None, {}, {"points": []}, {"points": [{"x": 1}]}, {"points": [{"customdata": "x"}]}])
def test_a_click_beside_everything_leads_nowhere(click: Any) -> None:
    assert pipeline_steps.of_click(HERE, "chain", click) == HERE


@given(st.integers(0, 86_400), st.integers(1, 86_400), st.sampled_from([0, 19_800, -34_200]))
def test_a_drag_shows_the_whole_minutes_it_went_over(first: int, length: int, offset_s: int) -> None:
    clock = TimeAxis(START, START + 60, offset_s, "")
    ends = [clock.at(START + first), clock.at(START + first + length)]
    for zoom in ({"xaxis.range": ends}, {"xaxis.range[0]": ends[1], "xaxis.range[1]": ends[0]}):
        span = requested_range(pipeline_steps.of_zoom(HERE, zoom, offset_s).query, NOW)
        assert span.from_s <= START + first < START + first + length <= span.to_s
        assert span.length_s <= length + 118


@pytest.mark.parametrize("zoom", [None, {"autosize": True}, {"xaxis.range[0]": "yesterday", "xaxis.range[1]": "now"}])
def test_what_is_no_zoom_changes_nothing(zoom: Any) -> None:
    assert pipeline_steps.of_zoom(HERE, zoom, 0) == HERE
    assert not pipeline_steps.is_double_click(zoom)


def test_a_double_click_goes_back_zoom_by_zoom_and_then_to_a_wider_span() -> None:
    hour = HERE.over(ShownRange(START, START + 3_600))
    minute = HERE.over(ShownRange(START, START + 60))
    assert pipeline_steps.back(minute, [HERE.search, hour.search], NOW) == (hour, [HERE.search])
    assert pipeline_steps.back(hour, [HERE.search, hour.search], NOW) == (HERE, [])
    wider, left = pipeline_steps.back(hour, [], NOW)
    assert (requested_range(wider.query, NOW), left) == (ShownRange(START - 3_600, START + 7_200), [])


def test_no_double_click_leads_into_the_future() -> None:
    hour = HERE.over(ShownRange(NOW - 3_600, NOW))
    assert requested_range(pipeline_steps.back(hour, [], NOW)[0].query, NOW).to_s == NOW


def test_the_slowest_path_is_not_named() -> None:
    assert pipeline_steps.of_path(HERE, "slowest").query.get("path") is None
    assert pipeline_steps.of_path(HERE, "snk") == HERE


def series(*windows: dict[str, Any]) -> Series:
    found = tuple(buckets.of_window(window_of(window), chain().graph) for window in windows)
    return Series("chain", ShownRange(START, START + 3_600), 60, found, None)


def test_the_caption_says_what_the_panels_show() -> None:
    shown = series(
        document(chain(), START, lags_ms={"snk.out": 20.0}),
        document(chain(), START + 60, verdict="loss", lost={"mid": (30, 30)}, lags_ms={"snk.out": 1_200.0}),
        document(chain(), START + 120, verdict=None),
    )
    told = pipeline_parts.describe_panels(shown, TERMS, Zone.named("Asia/Tokyo"))
    assert told == (
        "3 minutes: 1 OK, 1 LOSS, 1 OPEN; highest E2E p95 1.2 s at 2026-11-21 17:41; highest loss 3 % at "
        "2026-11-21 17:41"
    )
    assert pipeline_parts.describe_panels(series(), TERMS, Zone.named(None)) == "no data for this range"


def test_the_worst_minutes_are_those_with_most_loss_then_without_a_verdict_or_late() -> None:
    shown = series(
        document(chain(), START, lags_ms={"snk.out": 20.0}),
        document(chain(), START + 60, verdict="loss", lost={"mid": (30, 30)}),
        document(chain(), START + 120, verdict="loss", lost={"mid": (40, 40)}),
        document(chain(), START + 180, lags_ms={"snk.out": 9_000.0}),
        document(chain(), START + 240, verdict="unknown"),
    )
    found = worst(shown, TERMS)
    assert [(bucket.start_s - START) // 60 for bucket in found] == [2, 1, 3, 4]
