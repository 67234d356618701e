"""Reasons, late messages and exports on the page of a window, without a server."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.window.grid import matrix_grid
from dashboard.pages.window.layout import frame
from dashboard.pages.window.matrix import MatrixFilters
from dashboard.pages.window.table import reasons_part, talks_table
from dashboard.queries.window import WindowRead
from dashboard.request.links import Address
from lagloss_server.base.trace_links import NO_LINKS
from lagloss_server.model.window import rfc3339
from tests.support.window_documents import chain, document, window_of
from tests.unit.lagloss_server.queries.test_presence import LATE, presence

START_S = 1_795_250_400
HERE = Address("/", {})


def parts_of(component: Any, kind: Any) -> list[Any]:
    found = component if isinstance(component, list) else [component]
    every = [each for one in found if one is not None for each in (one, *one._traverse())]
    return [each for each in every if isinstance(each, kind)]


def window(**more: Any) -> dict[str, Any]:
    counts = {"mid.filtered": 25, "snk.dead": 5}
    return document(chain(), START_S, counts=counts, lags_ms={"snk.out": 50.0}) | more


def cells(table: Any) -> list[str]:
    return [cell.children for cell in parts_of(table, dmc.TableTd)]


def test_reasons_come_most_frequent_first_and_the_unknown_are_counted() -> None:
    known = {"mid": {"filtered": {"no consent": 25}}, "snk": {"dead": {"x" * 200: 3}}}
    found = cells(reasons_part(window_of(window(reasons_by_node=known))))
    assert found[:8] == ["mid", "filtered", "no consent", "25", "snk", "dead", f"{'x' * 99}…", "3"]
    assert found[8:] == ["snk", "dead", "unknown", "2"]


def test_the_talks_table_has_a_column_of_messages_out_of_order_only_if_there_are_some() -> None:
    found = window()
    plain = talks_table(window_of(found), chain().graph)
    found["checkpoints"][-1]["out_of_order"] = 1_200
    ordered = talks_table(window_of(found), chain().graph)
    for table, columns in ((plain, 5), (ordered, 6)):
        heads, *rows = parts_of(table, dmc.TableTr)
        assert {len(row.children) for row in (heads, *rows)} == {columns}
    assert "1,200" in cells(ordered)
    assert "Out of order" in [head.children for head in parts_of(ordered, dmc.TableTh)]


def test_where_no_beacon_was_read_the_table_says_why_reasons_are_not_known() -> None:
    shown = reasons_part(window_of(window(reasons_by_node=None)))
    assert cells(shown)[2::4] == ["unknown", "unknown"]
    assert "proven by tallies" in parts_of(shown, dmc.Text)[-1].children
    assert reasons_part(window_of(document(chain(), START_S))).children == "None."


def test_the_matrix_has_a_column_of_what_held_late_messages_only_if_there_are_some() -> None:
    read = WindowRead("chain", START_S, chain(), chain().graph, window_of(window()), (), (), ())
    found = presence(LATE)
    rows = found.select(only="late")
    grid = matrix_grid("grid", read, found, found.messages(rows), HERE, NO_LINKS)
    assert grid.rowData[0]["late"] == "9.5 s, 9 s of it at link src->mid"
    assert "late" in [column["field"] for column in grid.columnDefs]
    on_time = found.messages(found.select(text="message-1"))
    plain = matrix_grid("grid", read, found, on_time, HERE, NO_LINKS)
    assert "late" not in [column["field"] for column in plain.columnDefs]
    assert MatrixFilters.of(HERE.asking(only="late")).only == "late"
    assert MatrixFilters.of(HERE.asking(only="odd")).only is None


def test_the_menu_has_every_kind_in_every_format() -> None:
    shown = frame({"pipeline": "chain", "start": rfc3339(START_S)}, HERE)
    (menu,) = (part for part in parts_of(shown, html.Details))
    links = [item.href for item in parts_of(menu, html.A)]
    assert {urlsplit(link).path for link in links} == {f"/api/v1/pipelines/chain/windows/{rfc3339(START_S)}/export"}
    asked = [tuple(dict(parse_qsl(urlsplit(link).query)).values()) for link in links]
    assert asked == [(what, form) for what in ("lost", "late", "dead", "all") for form in ("csv", "parquet", "json")]
