"""The matrix of a window as grid rows and footers, without a server."""

from __future__ import annotations

import dataclasses

from dashboard.pages.window.grid import footers, missing_grid, missing_row, shown_points
from dashboard.pages.window.table import ANY_OUT
from dashboard.queries.window import WindowRead
from dashboard.request.links import Address
from lagloss.wire.format import SAMPLE_ALL
from lagloss.wire.traces import TraceContext
from lagloss_server.base.trace_links import NO_LINKS, TraceLinks
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.window_blocks import WindowBlocks
from lagloss_server.store.store import MissingMessage
from tests.support.window_documents import clicks, document, window_of

START_S = 1_795_250_400


def read() -> WindowRead:
    window = document(clicks(), START_S, verdict="loss", messages=100, lost={"event-router": (4, 5), "conn-ga": (1, 1)})
    return WindowRead("clicks", START_S, clicks(), clicks().graph, window_of(window), (), (), ())


def test_what_a_router_loses_stands_at_its_first_out_and_says_so() -> None:
    presence = Presence(WindowBlocks(clicks().graph, START_S, {}, SAMPLE_ALL))
    points = shown_points(clicks().graph, presence)
    assert not any(name.endswith((".filtered", ".dead")) for name in points)
    _, node_loss, loss, share = footers(read(), presence, points)
    assert node_loss[f"c{points.index('event-router.out:conn-ga')}"] == f"4–5{ANY_OUT}"
    assert node_loss[f"c{points.index('conn-ga.out')}"] == "1"
    assert (loss["missing"], share["missing"]) == ("5–6", "5 % – 6 %")


def test_an_open_minute_has_counts_and_no_losses() -> None:
    found = dataclasses.replace(read(), window=window_of(document(clicks(), START_S, verdict=None)))
    presence = Presence(WindowBlocks(clicks().graph, START_S, {}, SAMPLE_ALL))
    _, node_loss, loss, _ = footers(found, presence, shown_points(found.graph, presence))
    assert (node_loss, loss["missing"]) == ({"message": "Per-Node Loss"}, "–")


def test_a_message_without_a_name_is_shown_by_its_hash_and_leads_to_its_page() -> None:
    missing = MissingMessage(
        START_S, 0xFF, None, "perhaps", ["link src->mid", "node mid"], "src.out", START_S * 1000 + 7.0
    )
    row = missing_row(missing, read(), Address("/", {"zone": "Asia/Tokyo"}))
    assert (row["message"], row["place"]) == ("00000000000000ff", "link src → mid, node mid")
    assert (row["fate"], row["seen"]) == ("possibly lost", "17:40:00.007")
    assert "id=00000000000000ff" in row["href"]
    assert "zone=Asia/Tokyo" in row["href"]


def test_missing_messages_have_a_column_of_traces_where_one_of_them_is_known() -> None:
    plain = MissingMessage(START_S, 1, "a", "lost", ["link src->mid"], "src.out", START_S * 1000 + 7.0)
    traced = dataclasses.replace(plain, id_hash=2, trace=TraceContext("ab" * 16, "cd" * 8))
    here, links = Address("/", {}), TraceLinks("https://traces.example/{trace_id}")

    def shown(missing: tuple[MissingMessage, ...], where: TraceLinks) -> tuple[bool, list[tuple[str | None, ...]]]:
        grid = missing_grid("grid", dataclasses.replace(read(), missing=missing), here, where)
        columns = {column["field"] for column in grid.columnDefs}
        return "trace" in columns, [(row.get("trace"), row.get("traceHref")) for row in grid.rowData]

    assert shown((plain,), links) == (False, [(None, None)])
    url = f"https://traces.example/{'ab' * 16}"
    assert shown((plain, traced), links) == (True, [(None, None), ("ab" * 16, url)])
    assert shown((traced,), NO_LINKS) == (True, [("ab" * 16, "")])
