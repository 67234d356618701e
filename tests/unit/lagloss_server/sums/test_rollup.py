"""Roll-ups against a slow oracle that merges everything: sums of counts, percentiles of all lags together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss.wire.sketch import Sketch
from lagloss_server.judging.facts import CheckpointFacts, WindowFacts
from lagloss_server.model.window import rfc3339
from lagloss_server.sums.rollup import Rollup, period_of
from tests.support.window_documents import window_of

NAMES = ("src.in", "src.out", "snk.in", "snk.out")
DESTINATIONS = ("ga", "fb")
FATES = ("delivered", "filtered", "dead", "pending")


@dataclass(frozen=True)
class Made:
    """A window as closing stores it, with the lags that its sketches were made of."""

    document: dict[str, Any]
    facts: WindowFacts
    e2e: list[float]
    lags: dict[str, list[float]]
    on_time: int | None
    arrivals: dict[str, list[float]]
    by_source: dict[str, list[float]]


LAGS = st.lists(st.floats(-1e6, 1e6, width=32), max_size=8)


@st.composite
def destinations(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """What a window says of one destination."""
    number = st.integers(0, 10**7)
    fates, lost = {fate: draw(number) for fate in FATES}, draw(number)
    asked = fates["delivered"] + fates["pending"] + lost
    return {
        "name": name,
        **fates,
        "due": sum(fates.values()) + lost,
        "lost": {"min": draw(st.integers(0, lost)), "max": lost},
        "on_time_share": draw(st.integers(0, asked)) / asked if asked else None,
    }


@st.composite
def sources(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """What a window says of one of several sources."""
    there = draw(destinations(name))
    of = draw(st.integers(0, 10**7))
    share = draw(st.integers(0, of)) / of if of else None
    return {"messages": there.pop("due"), **there, "on_time_share": share, "on_time_of": of}


@st.composite
def windows(draw: st.DrawFn) -> Made:
    number = st.integers(0, 10**7)
    lags = draw(st.dictionaries(st.sampled_from(NAMES), LAGS))
    arrivals = {name: draw(LAGS) for name in draw(st.sampled_from([DESTINATIONS, DESTINATIONS[:1]]))}
    e2e, proof = (
        [lag for lags_there in arrivals.values() for lag in lags_there],
        draw(st.sampled_from(["beacons", "tallies"])),
    )
    delivered, filtered, dead, pending, lost = (draw(number) for _ in range(5))
    due = delivered + pending + lost
    on_time = draw(st.none() | st.integers(0, due)) if due else None
    counted = {"min": draw(st.integers(0, lost)), "max": lost}
    checked = draw(st.none() | number) if proof == "beacons" else None
    document = {
        "window_start": rfc3339(60 * draw(st.integers(0, 1_000))),
        "verdict": draw(st.sampled_from(["ok", "loss", "unknown", "idle"])),
        "proof": proof,
        "messages": due + filtered + dead,
        "delivered": delivered,
        "filtered": filtered,
        "dead": dead,
        "pending": pending,
        "unexplained": draw(number),
        "lost": counted,
        "on_time_share": None if on_time is None else on_time / due,
        "on_time_of": due,
        "reasons_by_node": None,
        "nodes": [{"name": "src", "lost": None}, {"name": "snk", "lost": counted}],
        "links": [
            {
                "from": "src",
                "to": "snk",
                "lost": None,
                "corrupted": checked and draw(st.integers(0, checked)),
                "checked": checked,
            }
        ],
        "staleness_ms": draw(st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1e8))),
        "destinations": [draw(destinations(name)) for name in arrivals],
        "checkpoints": [
            {
                "name": name,
                "beacons": draw(number),
                "distinct": draw(number),
                "duplicates": draw(number) if proof == "beacons" else None,
                "replayed": draw(number),
                **({"out_of_order": late} if (late := draw(st.integers(0, 3))) else {}),
            }
            for name in NAMES
            if name in lags
        ],
    }
    by_source = {name: draw(LAGS) for name in draw(st.sampled_from([(), ("web", "app")]))}
    document |= {"sources": [draw(sources(name)) for name in by_source]} if by_source else {}
    document |= {"sides": [draw(sources(name)) for name in ("src", "agg-new")]} if draw(st.booleans()) else {}
    facts = WindowFacts(
        checkpoints={name: CheckpointFacts(lags=Sketch.of(np.array(values))) for name, values in lags.items()},
        arrivals=tuple(Sketch.of(np.array(values)) for values in arrivals.values()),
        source_arrivals=tuple(Sketch.of(np.array(values)) for values in by_source.values()),
    )
    return Made(document, facts, e2e, lags, on_time, arrivals, by_source)


def rolled_up(found: list[Made]) -> Rollup:
    return Rollup.merged(Rollup.of_window(window_of(window.document), window.facts) for window in found)


def percentile(lags: list[float], q: float) -> float | None:
    """The slow way: the smallest of them that at least a share q does not exceed."""
    enough = (lag for lag in sorted(lags) if Fraction(sum(each <= lag for each in lags), len(lags)) >= Fraction(str(q)))
    return next(enough, None)


def assert_near(found: float | None, expected: float | None) -> None:
    if expected is None:
        assert found is None
    else:
        assert found == pytest.approx(expected, rel=0.0100001, abs=0.001)


@settings(max_examples=50)
@given(st.lists(windows(), max_size=6))
def test_a_rollup_is_what_all_its_windows_come_to(found: list[Made]) -> None:
    document = rolled_up(found).document()
    documents = [window.document for window in found]
    assert document["windows"] == len(found)
    assert document["verdicts"] == Counter(one["verdict"] for one in documents)
    assert document["proofs"] == Counter(one["proof"] for one in documents)
    for count in ("messages", "delivered", "filtered", "dead", "pending", "unexplained"):
        assert document[count] == sum(one[count] for one in documents)
    for side in ("min", "max"):
        assert document["lost"][side] == sum(one["lost"][side] for one in documents)
        if document["messages"]:
            assert document["loss_ratio"][side] == document["lost"][side] / document["messages"]
    lost_at = {label: {"min": lost["min"], "max": lost["max"]} for label, lost in [("node snk", document["lost"])]}
    assert document["lost_at"] == (lost_at if document["lost"]["max"] else {})
    told = [window for window in found if window.on_time is not None]
    due = sum(one.document["messages"] - one.document["filtered"] - one.document["dead"] for one in told)
    on_time = sum(window.on_time or 0 for window in told)
    assert document["on_time_share"] == (on_time / due if due else None)
    every = [lag for window in found for lag in window.e2e]
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
        assert_near(document["e2e_lag_ms"][name], percentile(every, q))
    assert {one["name"] for one in document["checkpoints"]} == {name for window in found for name in window.lags}
    for one in document["checkpoints"]:
        parts = [there for each in documents for there in each["checkpoints"] if there["name"] == one["name"]]
        for count in ("beacons", "distinct", "duplicates", "replayed"):
            assert one[count] == sum(there[count] or 0 for there in parts)
        assert one["counted"] == sum(there["beacons"] for there in parts if there["duplicates"] is not None)
        assert one.get("out_of_order", 0) == sum(there.get("out_of_order", 0) for there in parts)
        every = [lag for window in found for lag in window.lags.get(one["name"], ())]
        for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert_near(one["lag_ms"][name], percentile(every, q))


@settings(max_examples=50)
@given(st.lists(windows(), max_size=6))
def test_qualities_of_a_rollup_are_those_of_all_its_windows(found: list[Made]) -> None:
    total, documents = rolled_up(found), [window.document for window in found]
    links = [window["links"][0] for window in documents if window["links"][0]["checked"]]
    counts = {"corrupted": sum(link["corrupted"] for link in links), "checked": sum(link["checked"] for link in links)}
    assert total.document()["checksums"] == ({"src->snk": counts} if links else {})
    for name, stale_ms in total.staleness_ms.items():
        assert stale_ms == max(window["staleness_ms"].get(name, 0.0) for window in documents)
    if any(link["corrupted"] for link in links):
        worst, start_s = total.worst["corruption link src->snk"]
        assert worst == max(link["corrupted"] for link in links)
        at = {window["window_start"] for window in documents if window["links"][0]["corrupted"] == worst}
        assert rfc3339(start_s) == min(at)


@settings(max_examples=50)
@given(st.lists(windows(), max_size=6))
def test_each_destination_of_a_rollup_is_what_that_of_all_its_windows_comes_to(found: list[Made]) -> None:
    made = {one["name"]: one for one in rolled_up(found).document()["destinations"]}
    assert made.keys() == {name for window in found for name in window.arrivals}
    for name, one in made.items():
        parts = [there for window in found for there in window.document["destinations"] if there["name"] == name]
        for count in ("due", *FATES):
            assert one[count] == sum(there[count] for there in parts)
        assert one["lost"] == {side: sum(there["lost"][side] for there in parts) for side in ("min", "max")}
        asked = [there["due"] - there["filtered"] - there["dead"] for there in parts]
        on_time = sum(round((there["on_time_share"] or 0) * of) for there, of in zip(parts, asked, strict=True))
        assert one["on_time_share"] == (on_time / sum(asked) if sum(asked) else None)
        every = [lag for window in found for lag in window.arrivals.get(name, ())]
        for label, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
            assert_near(one["e2e_lag_ms"][label], percentile(every, q))


@settings(max_examples=50)
@given(st.lists(windows(), max_size=6))
def test_each_source_of_a_rollup_is_what_that_of_the_windows_with_several_comes_to(found: list[Made]) -> None:
    total = rolled_up(found)
    made = {one["name"]: one for one in total.document().get("sources", [])}
    assert made.keys() == {name for window in found for name in window.by_source}
    for name, one in made.items():
        parts = [there for window in found for there in window.document.get("sources", []) if there["name"] == name]
        for count in ("messages", *FATES, "on_time_of"):
            assert one[count] == sum(there[count] for there in parts)
        on_time = sum(round((there["on_time_share"] or 0) * there["on_time_of"]) for there in parts)
        assert one["on_time_share"] == (on_time / one["on_time_of"] if one["on_time_of"] else None)
        every = [lag for window in found for lag in window.by_source.get(name, ())]
        assert_near(one["e2e_lag_ms"]["p95"], percentile(every, 0.95))
        alone = total.from_source(name)
        assert (alone.messages, alone.lost_min, alone.windows) == (one["messages"], one["lost"]["min"], len(found))


@settings(max_examples=50)
@given(st.lists(windows(), max_size=6))
def test_each_side_of_a_rollup_is_what_that_of_the_windows_with_several_comes_to(found: list[Made]) -> None:
    total = rolled_up(found)
    rows = [side for window in found for side in window.document.get("sides", [])]
    made = {one["name"]: one for one in total.document().get("sides", [])}
    assert made.keys() == {side["name"] for side in rows}
    for name, one in made.items():
        mine = [side for side in rows if side["name"] == name]
        assert one["messages"] == sum(side["messages"] for side in mine)
        assert one["lost"]["max"] == total.of_side(name).lost_max == sum(side["lost"]["max"] for side in mine)


@settings(max_examples=50)
@given(st.lists(st.lists(windows(), max_size=3), max_size=4))
def test_a_day_of_its_hours_is_the_day_of_its_windows(hours: list[list[Made]]) -> None:
    of_hours = Rollup.merged(rolled_up(hour) for hour in hours)
    of_windows = rolled_up([window for hour in hours for window in hour])
    assert of_hours.pack() == of_windows.pack()


@settings(max_examples=50)
@given(st.lists(windows(), max_size=3))
def test_a_rollup_comes_back_as_it_was_packed(found: list[Made]) -> None:
    before = rolled_up(found)
    after = Rollup.unpack(before.pack())
    assert (after, after.document(), after.pack()) == (before, before.document(), before.pack())


def test_a_rollup_of_nothing_has_no_ratios() -> None:
    document = Rollup().document()
    assert (document["windows"], document["on_time_share"], document["e2e_lag_ms"]["p95"]) == (0, None, None)
    assert document["loss_ratio"] == {"min": None, "max": None}


def test_hours_and_days_begin_on_the_clock_in_utc() -> None:
    assert period_of("hour", 1_780_003_599) == 1_780_002_000
    assert period_of("day", 1_780_003_599) % 86_400 == 0
