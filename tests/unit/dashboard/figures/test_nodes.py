"""The rows of nodes, without a browser or a server."""

from __future__ import annotations

from typing import Any

from dashboard.figures import nodes
from dashboard.queries import buckets
from dashboard.request.shown_range import ShownRange
from tests.support.window_documents import window_of
from tests.unit.dashboard.figures.test_panels import CHAIN_LAGS, START, chain, document, frame, known

KEPT = {"p50": 1.0, "p95": 2.0, "p99": 6_000.0}


def windows(number: int) -> list[dict[str, Any]]:
    """Minutes of the talk's example, of which every second was read; the last is ten times as late."""
    found = []
    for at in range(number):
        lags = {name: lag * (10 if at == number - 1 else 1) for name, lag in CHAIN_LAGS.items()}
        window = document(chain(), START + 60 * at, lags_ms=lags)
        for place in [*window["nodes"], *window["links"]]:
            kept = KEPT if at % 2 else dict.fromkeys(KEPT)
            place["process_duration_ms" if "name" in place else "queue_time_ms"] = kept
        found.append(window)
    return found


def lines(figure: Any, number: int) -> dict[str, list[float | None]]:
    suffix = "" if number == 1 else str(number)
    return {trace.name: known(trace.y) for trace in figure.data if trace.yaxis == f"y{suffix}" and trace.name}


def test_each_node_has_its_lags_its_durations_and_the_queue_times_into_it() -> None:
    figure = nodes.nodes_figure(frame(chain(), windows(2)))
    assert lines(figure, 1) == {"lag in": [1.0, 10.0], "lag out": [2.0, 20.0]}
    assert lines(figure, 4) == {"lag in": [3.0, 30.0], "lag out": [4.0, 40.0]}
    assert lines(figure, 5) == {"p50": [None, 0.001], "p95": [None, 0.002], "p99": [None, 6.0]}, "in s, as its largest"
    assert lines(figure, 3) == {}, "no link leads into the first node"
    assert set(lines(figure, 6)) == {"from src p50", "from src p95", "from src p99"}
    assert figure.layout.yaxis5.ticksuffix == " s"
    assert figure.layout.height == nodes.height_px(chain().graph)


def test_the_caption_says_of_how_many_minutes_distributions_are_known() -> None:
    assert (
        nodes.caption(frame(chain(), windows(5)))
        == "distributions need windows whose beacons were read: 2 of 5 minutes"
    )


def test_a_point_of_a_long_span_is_the_highest_of_its_minutes() -> None:
    drawn = frame(chain(), windows(24))
    object.__setattr__(drawn.series, "span", ShownRange(START, START + 6 * 3_600))  # so that a point is of 3 minutes
    figure = nodes.nodes_figure(drawn)
    found = lines(figure, 1)["lag out"]
    assert (len(found), set(found[:-1]), found[-1]) == (9, {2.0}, 20.0)
    assert nodes.caption(drawn).startswith("each point is the maximum of 3 minutes; ")


def test_buckets_of_minutes_that_were_not_read_have_no_durations() -> None:
    window = document(chain(), START, lags_ms=CHAIN_LAGS)
    found = buckets.of_window(window_of(window), chain().graph)
    assert (found.durations, found.document()["durations_ms"]) == ({}, {})
