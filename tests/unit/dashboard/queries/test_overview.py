"""The overview without a server: the order of pipelines, totals in words, sparklines, light elements."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from dashboard.figures.sparkline import HEIGHT_PX, WIDTH_PX, sparkline, spoken
from dashboard.pages.overview.page import looked_for
from dashboard.pages.overview.parts import table, totals
from dashboard.pages.paging import PAGE_SIZE, PageOf, pager
from dashboard.pages.printing import html_of, inside_link
from dashboard.queries.condition import Condition, Freshness
from dashboard.queries.condition import condition as condition_of
from dashboard.queries.overview import Overview
from dashboard.queries.pipeline_status import Hour, Minute, Order, PipelineStatus, State, Targets, worst_first
from dashboard.request.links import Address
from lagloss_server.base import format as fmt
from lagloss_server.model.window import NONE_LOST, Interval
from lagloss_server.sums.error_budget import Budget

FRESH = Freshness(newest_s=600, verdict="ok", live_s=660, reported_s=700.0, emitters=2, reporting=2)
TARGETS = Targets(loss=0.01, lag_percentile=95, lag_ms=1_000)
MINUTE = Minute(600, "ok", 0, 1_000, NONE_LOST, 100.0, 1.0, is_late=False)


def budget(bad: int, more: int = 0, allowed: float = 1_000.0) -> Budget:
    """So many bad messages for certain, and more that may be."""
    return Budget(allowed, Interval(bad, bad + more))


WELL = PipelineStatus("calm", "", Condition.FINE, FRESH, TARGETS, MINUTE, {"loss": budget(100), "on-time": budget(500)})
WORSE: dict[State, dict[str, Any]] = {
    State.LOSS: {"newest": structs.replace(MINUTE, verdict="loss", lost=Interval(50, 50))},
    State.CRITICAL: {"critical": 1},
    State.BLIND: {"condition": Condition.BLIND},
    State.STALE: {"condition": Condition.STALE},
    State.UNKNOWN: {"newest": structs.replace(MINUTE, verdict="unknown")},
    State.LATE: {"newest": structs.replace(MINUTE, is_late=True)},
    State.BUDGET: {"budgets": {"loss": budget(800), "on-time": budget(1_000)}},
    State.WARNING: {"warning": 2},
    State.NOT_CLOSED: {"newest": None, "condition": Condition.NOT_CLOSED},
    State.OK: {},
    State.IDLE: {"newest": structs.replace(MINUTE, verdict="idle"), "condition": Condition.IDLE},
}


def of_state(state: State, name: str = "calm") -> PipelineStatus:
    return replace(WELL, pipeline=name, **WORSE[state])


def test_states_are_ordered_worst_first() -> None:
    in_order = [of_state(state, f"{99 - at:02}") for at, state in enumerate(State)]  # names would order them otherwise
    shuffled = random.Random(7).sample(in_order, len(in_order))
    assert worst_first(shuffled) == in_order
    assert [standing.state for standing in in_order] == list(State)


@given(
    live_s=st.none() | st.integers(0, 10_000),
    reporting=st.integers(0, 2),
    now_s=st.integers(0, 20_000),
    shown=st.booleans(),
)
def test_before_its_first_verdict_a_pipeline_is_shown_whatever_is_known_of_it(
    live_s: int | None, reporting: int, now_s: int, shown: bool
) -> None:
    fresh = replace(FRESH, newest_s=None, verdict=None, live_s=live_s, reporting=reporting)
    found = condition_of(fresh, 60, now_s, shown)
    standing = replace(WELL, condition=found, fresh=fresh, newest=None, budgets={})
    assert standing.state in (State.NOT_CLOSED, State.BLIND, State.STALE)
    assert table([standing], Address("/"), float(now_s))


@given(
    verdict=st.sampled_from(["ok", "loss", "unknown", "idle"]),
    condition=st.sampled_from([Condition.FINE, Condition.BLIND, Condition.STALE]),
    is_late=st.booleans(),
    critical=st.booleans(),
    warning=st.booleans(),
    one=st.sampled_from([None, budget(0), budget(999, 3_000), budget(1_000), budget(1, allowed=0.0)]),
)
def test_a_pipeline_is_in_the_worst_of_the_states_that_are_true_of_it(
    verdict: str, condition: Condition, is_late: bool, critical: bool, warning: bool, one: Budget | None
) -> None:
    is_now = condition is Condition.FINE
    true = {State.OK}
    if is_now:
        true |= {State(verdict)} | ({State.LATE} if is_late else set())
    else:
        true |= {State(condition.value)}
    true |= {State.CRITICAL} if critical else set()
    true |= {State.WARNING} if warning else set()
    true |= {State.BUDGET} if one is not None and one.used.min >= max(one.allowed, 1) else set()
    if State.IDLE in true:
        true -= {State.OK}  # idle is what a pipeline without traffic is instead
    standing = replace(
        WELL,
        newest=structs.replace(MINUTE, verdict=verdict, is_late=is_late),
        condition=condition,
        critical=int(critical),
        warning=int(warning),
        budgets={"loss": one, "on-time": budget(0)},
    )
    assert standing.state is min(true, key=list(State).index)


BUDGETS = st.builds(budget, st.integers(0, 2_000), st.integers(0, 2_000), st.sampled_from([0.0, 1_000.0]))


@st.composite
def standings(draw: st.DrawFn) -> list[PipelineStatus]:
    names = draw(st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=8))
    return [
        replace(
            of_state(draw(st.sampled_from(list(State))), name),
            critical=draw(st.integers(0, 2)),
            budgets={"loss": draw(st.none() | BUDGETS), "on-time": draw(st.none() | BUDGETS)},
        )
        for name in names
    ]


@given(standings(), st.randoms(use_true_random=False))
def test_the_order_is_total_whatever_order_pipelines_are_read_in(
    found: list[PipelineStatus], chance: random.Random
) -> None:
    ordered = worst_first(found)
    assert worst_first(chance.sample(found, len(found))) == ordered
    ranks = [list(State).index(standing.state) for standing in ordered]
    assert ranks == sorted(ranks)


@given(standings(), st.sampled_from(Order), st.randoms(use_true_random=False))
def test_every_order_shows_the_same_whatever_order_pipelines_are_read_in(
    found: list[PipelineStatus], order: Order, chance: random.Random
) -> None:
    shown = Overview(0.0, tuple(worst_first(found))).chosen(order=order)
    again = Overview(0.0, tuple(worst_first(chance.sample(found, len(found))))).chosen(order=order)
    assert list(shown) == list(again)
    assert worst_first(shown) == worst_first(found)


def test_columns_are_ordered_by_their_worst() -> None:
    lossy, late = structs.replace(MINUTE, lost=Interval(9, 9)), structs.replace(MINUTE, lag_ms=900.0)
    spent = {"loss": budget(900), "on-time": budget(500)}
    named = {"b": {"newest": lossy}, "a": {"newest": late}, "d": {"budgets": spent}, "c": {"critical": 1}}
    found = Overview(0.0, tuple(worst_first(replace(WELL, pipeline=name, **more) for name, more in named.items())))
    first = {order: found.chosen(order=order)[0].pipeline for order in Order if order is not Order.NEWEST}
    assert first == {
        Order.WORST: "c",
        Order.NAME: "a",
        Order.LOSS: "b",
        Order.LAG: "a",
        Order.BUDGET: "d",
        Order.INCIDENTS: "c",
    }


@given(st.integers(0, 1_000), st.integers(0, 20))
def test_pages_show_each_matching_pipeline_once(matching: int, asked: int) -> None:
    chosen = [replace(WELL, pipeline=str(number)) for number in range(matching)]
    last = PageOf(1, matching).last
    shown = [one for number in range(1, last + 1) for one in PageOf(number, matching).rows(chosen)]
    assert shown == chosen
    assert (
        list(PageOf(asked, matching).rows(chosen)) == chosen[(min(max(asked, 1), last) - 1) * PAGE_SIZE :][:PAGE_SIZE]
    )


def test_the_way_to_other_pages_keeps_what_is_chosen_and_says_how_many_there_are() -> None:
    here = Address("/", {"q": "p", "page": "2"})
    drawn = html_of(pager(PageOf(2, 10_000), "pipeline", here, "top"))
    assert "101–200 of 10,000 pipelines" in drawn
    links = ["/?q=p", "/?q=p", "/?q=p&amp;page=3", "/?q=p&amp;page=100"]
    assert [part.partition('"')[0] for part in drawn.split('href="')[1:]] == links
    assert pager(PageOf(1, PAGE_SIZE), "pipeline", here, "top") is None


def cell(drawn: str, label: str) -> str:
    """The HTML in the first cell of this label."""
    (first, *_) = re.findall(rf'<td[^>]*data-label="{label}"[^>]*>(.*?)</td>', drawn)
    return str(first)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (None, "–"),
        (budget(280), "72 %"),
        (budget(280, 600), "12 % – 72 %"),
        (budget(280, 900), "at most 72 %"),
        (budget(1_300), "none, 130 % used"),
        (budget(1_300, 1), "none, at least 130 % used"),
        (budget(1, 2, allowed=0.0), "1–3 bad, none allowed"),
    ],
)
def test_what_is_not_known_never_counts_as_budget_that_is_left(one: Budget | None, said: str) -> None:
    drawn = html_of(table([replace(WELL, budgets={"loss": one})], Address("/"), 700.0))
    assert f">loss: {said}<" in drawn
    assert ('class="budget bad"' in drawn) == (one is not None and one.is_used_up)


@pytest.mark.parametrize(
    ("verdict", "lost", "said"),
    [
        ("ok", (0, 0), "0 %"),
        ("ok", (5, 8), "0.5 % – 0.8 %"),
        ("unknown", (0, 0), "–"),
        ("unknown", (5, 5), "at least 0.5 %"),
        ("unknown", (0, 30), "0 % – 3 %"),
    ],
)
def test_of_a_minute_that_could_not_be_judged_no_loss_is_not_said_to_be_zero(
    verdict: str, lost: tuple[int, int], said: str
) -> None:
    newest = structs.replace(MINUTE, verdict=verdict, lost=Interval(*lost))
    assert cell(html_of(table([replace(WELL, newest=newest)], Address("/"), 700.0)), "Loss").startswith(said)


@pytest.mark.parametrize("condition", [Condition.BLIND, Condition.STALE])
def test_what_was_bad_before_a_pipeline_went_blind_or_stale_is_not_marked_as_of_now(condition: Condition) -> None:
    newest = structs.replace(MINUTE, verdict="loss", lost=Interval(50, 50), is_late=True)
    assert html_of(table([replace(WELL, newest=newest)], Address("/"), 700.0)).count('class="bad"') == 2
    old = replace(WELL, newest=newest, condition=condition)
    drawn = html_of(table([old], Address("/"), 700.0))
    assert 'class="bad"' not in drawn
    assert cell(drawn, "Loss") == '–<div class="small">was 5 %, 1 % allowed</div>'


def test_of_a_day_that_nothing_is_known_of_no_sparkline_is_drawn() -> None:
    def day(found: Hour) -> str:
        return cell(html_of(table([replace(WELL, hours=(Hour(0), found))], Address("/"), 700.0)), "24 hours")

    assert day(Hour(3_600)) == "–"
    assert day(Hour(3_600, 100.0, 0.0)).startswith("<img")


def test_a_sparkline_has_the_time_that_there_is_data_of_and_says_so() -> None:
    def drawn(**steps: tuple[Hour, ...]) -> str:
        return cell(html_of(table([replace(WELL, **steps)], Address("/"), 700.0)), "24 hours")

    hours = (*map(Hour, range(0, 22 * 3_600, 3_600)), Hour(79_200, 80.0, 0.0), Hour(82_800, 100.0, 0.0))
    assert "E2E p95 of the last 2 hours: 80 ms to 100 ms" in drawn(hours=hours)
    assert "last 2 hours</div>" in drawn(hours=hours)
    minutes = tuple(Hour(82_800 + 60 * index, 100.0 + index, 0.0) for index in range(12))
    assert "last 12 minutes</div>" in drawn(hours=hours, minutes=minutes)
    assert "</div>" not in drawn(hours=tuple(Hour(3_600 * index, 100.0, 0.0) for index in range(24)))


def test_what_was_lost_before_a_pipeline_went_stale_is_no_loss_of_now() -> None:
    stale = replace(of_state(State.LOSS), condition=Condition.STALE)
    assert stale.state is State.STALE
    assert worst_first([of_state(State.STALE, "a"), replace(stale, pipeline="b")])[0].pipeline == "b"


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([State.OK], "1 pipeline is healthy."),
        ([State.OK] * 3, "3 pipelines are healthy."),
        ([State.LOSS, State.OK, State.OK], "1 of 3 pipelines loses messages; 2 are healthy."),
        ([State.LOSS] * 2 + [State.BLIND], "2 of 3 pipelines lose messages; 1 is blind."),
    ],
)
def test_totals_are_a_sentence(states: list[State], said: str) -> None:
    found = tuple(worst_first(of_state(state, f"p{at}") for at, state in enumerate(states)))
    assert totals(Overview(0.0, found)) == said


def hours(*lags_ms: float | None, loss: dict[int, float] | None = None) -> list[Hour]:
    return [Hour(3_600 * at, lag, (loss or {}).get(at, 0.0)) for at, lag in enumerate(lags_ms)]


def drawn(found: Sequence[Hour]) -> tuple[list[str], list[dict[str, str]]]:
    """The lines' paths and the marks' attributes; the dashed line of the target is no line."""
    root = ElementTree.fromstring(sparkline(found, TARGETS))
    paths = [path.attrib["d"] for path in root.iterfind("{*}path") if "stroke-dasharray" not in path.attrib]
    return paths, [dict(mark.attrib) for mark in root.iterfind("{*}rect")]


def test_a_sparkline_draws_no_line_across_a_gap() -> None:
    lines, _ = drawn(hours(100, 200, None, None, 300, None, 100, 100))
    assert [line.count("L") for line in lines] == [1, 1, 1]
    assert lines[1] == "M67.5 1.0L67.5 1.0"  # a lone hour is a dot, here at the top


def test_marks_of_loss_are_tall_above_the_target_only() -> None:
    _, marks = drawn(hours(100, 100, 100, loss={0: 0.5, 2: 0.001}))
    assert [mark["height"] for mark in marks] == ["7", "3"]
    assert all(float(mark["y"]) + float(mark["height"]) == HEIGHT_PX for mark in marks)


@given(st.lists(st.none() | st.floats(-1e7, 1e9), min_size=1, max_size=24))
def test_whatever_the_lags_are_the_line_stays_inside(lags_ms: list[float | None]) -> None:
    lines, _ = drawn(hours(*lags_ms))
    for line in lines:
        for point in line.removeprefix("M").split("L"):
            x, y = map(float, point.split())
            assert 0 <= x <= WIDTH_PX
            assert 0 <= y <= HEIGHT_PX


def test_what_a_sparkline_shows_is_said_in_words() -> None:
    assert spoken(hours(120, 2_100, None, loss={1: 0.02}), TARGETS) == (
        "E2E p95 of the last 3 hours: 120 ms to 2.1 s; 1 hour without data; loss above the target in 1 hour"
    )
    nothing = [Hour(0), Hour(3_600)]
    assert spoken(nothing, TARGETS) == "no data for the last 2 hours"


@pytest.mark.parametrize("href", ["javascript:alert(1)", "//evil.example", "https://evil.example"])
def test_links_inside_lead_to_our_own_pages_only(href: str) -> None:
    with pytest.raises(ValueError, match="an address of ours"):
        inside_link("here", href)


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (8_192, "8.2 kB"), (276_807_680, "277 MB")]
)
def test_sizes_are_readable(number: int, said: str) -> None:
    assert fmt.size(number) == said


def test_a_text_to_find_leads_to_the_first_page_unless_it_came_from_the_address() -> None:
    here = Address("/", {"q": "clicks", "page": "3", "sort": "lag"})
    assert looked_for(here, " clicks ") == here
    assert looked_for(here, "views") == Address("/", {"q": "views", "sort": "lag"})
    assert looked_for(here, "") == Address("/", {"sort": "lag"})
    everything = Address("/", {"page": "3"})
    assert looked_for(everything, None) == everything
