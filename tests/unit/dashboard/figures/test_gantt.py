"""A message's stays and their Gantt chart, without a server."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.figures.gantt import gantt
from dashboard.queries.message_timeline import longest, stays
from dashboard.request.zones import Zone
from lagloss_server.queries.message_trace import Beacon
from tests.support.window_documents import chain, clicks

EVENT_MS = 1_795_250_400_000
CHAIN = {"src.in": 5, "src.out": 10, "mid.in": 100, "mid.out": 130, "snk.in": 400, "snk.out": 410}


def beacons(*seen: tuple[str, float], replay: str | None = None) -> list[Beacon]:
    return [Beacon(name, EVENT_MS + lag_ms, lag_ms, "00" * 16, replay=replay) for name, lag_ms in seen]


def told(seen: Sequence[Beacon]) -> list[tuple[str, float | None]]:
    return [(stay.place, stay.length_ms) for stay in stays(chain().graph, seen)]


def test_a_message_stays_in_nodes_and_on_links_in_the_order_of_the_flow() -> None:
    assert told(beacons(*CHAIN.items())) == [
        ("node src", 5),
        ("link src->mid", 90),
        ("node mid", 30),
        ("link mid->snk", 270),
        ("node snk", 10),
    ]


def test_what_never_left_has_no_end() -> None:
    assert told(beacons(("src.in", 5), ("src.out", 10), ("mid.in", 100)))[-1] == ("node mid", None)


def test_clocks_that_disagree_make_a_negative_time() -> None:
    assert told(beacons(("src.out", 10), ("mid.in", 4)))[0] == ("link src->mid", -6)


def test_what_held_a_message_longest_comes_first_with_the_time_before_the_first_node() -> None:
    again = {"mid.in": 500, "mid.out": 900}
    seen = [*beacons(*CHAIN.items(), *again.items()), *beacons(("snk.in", 9_000), ("snk.out", 9_999), replay="r")]
    assert longest(chain().graph, seen)[:3] == [("node mid", 430), ("link mid->snk", 270), ("link src->mid", 90)]
    assert dict(longest(chain().graph, seen))["source"] == 5
    assert longest(chain().graph, beacons(("src.in", 7_000)))[0] == ("source", 7_000)


def test_a_replay_has_stays_of_its_own() -> None:
    found = stays(
        chain().graph, [*beacons(*CHAIN.items()), *beacons(("snk.in", 9_000), ("snk.out", 9_500), replay="r")]
    )
    assert [(stay.replay, stay.length_ms) for stay in found if stay.place == "node snk"] == [(None, 10), ("r", 500)]


def test_a_router_keeps_a_message_until_its_last_next_node_has_it() -> None:
    seen = beacons(("event-router.in", 5), ("event-router.out:conn-ga", 10), ("event-router.out:conn-fb", 30))
    (stay,) = (stay for stay in stays(clicks().graph, seen) if stay.kind == "node")
    assert stay.length_ms == 25


def test_a_bar_is_drawn_only_where_both_ends_are_known_and_markup_is_escaped() -> None:
    found = stays(chain().graph, beacons(("src.in", 5), ("src.out", 10), ("mid.in", 100)))
    figure = gantt(found, {"node mid": "<b>lost</b>"}, EVENT_MS, EVENT_MS + 100, Zone.named("Asia/Tokyo"), dark=False)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert sum(len(bar.x) for bar in bars) == 2
    assert [bar.base[0] for bar in bars] == [5, 10]
    assert "ms since the event" in figure.layout.xaxis.title.text
    (marks,) = (trace for trace in figure.data if trace.name == "missing")
    assert marks.text == ("&lt;b&gt;lost&lt;/b&gt; ",)
    assert "JST" in bars[0].customdata[0]
    assert "UTC" in bars[0].customdata[0]


def test_a_message_that_was_nowhere_yet_has_an_empty_chart() -> None:
    assert gantt((), {}, EVENT_MS, EVENT_MS, Zone.named(None), dark=True).data
