"""Tables in a definition: which are read for which checkpoints, and what is refused."""

from __future__ import annotations

import json

import pytest

from lagloss_server.base.errors import BadDefinition
from lagloss_server.model.definition import Definition, as_document, parse_definition
from lagloss_server.model.tables import TableSpec, TableTap, tap_of
from taps.wanted import by_emitter, taps_after
from tests.unit.lagloss_server.model.test_taps import HEAD, SHOP
from tests.unit.taps.test_wanted import version

ORDERS = "{database: shop, table: public.orders, id: order_id, eventTime: created_at, cursor: n}"
SPEC = TableSpec(database="shop", table="public.orders", id="order_id", event_time="created_at", cursor="n")
SENT = f"{{name: shop, to: [sink], taps: {{out: {SHOP}}}}}"


def definition(*nodes: str) -> Definition:
    return parse_definition(HEAD + "\n".join(f"  - {node}" for node in nodes))


def test_a_sink_s_row_takes_the_place_of_its_group_s_commit() -> None:
    read = definition(SENT, f"{{name: sink, taps: {{in: {{group: g}}, out: {ORDERS}}}}}")
    assert read.table_taps == (TableTap("orders", "sink", SPEC, ("out",), False),)
    assert [(tap.node, tap.places) for tap in read.taps if tap.group] == [("sink", ("in",))]
    assert read.committed_by == {}
    assert read.groups == {"sink": "g"}
    assert Definition.model_validate(as_document(read)) == read


def test_a_source_takes_messages_in_where_its_rows_are_and_a_sink_delivers_by_them() -> None:
    read = definition(
        f"{{name: outbox, to: [mart], taps: {{out: {ORDERS}}}}}", f"{{name: mart, taps: {{in: {ORDERS}}}}}"
    )
    assert read.table_taps == (
        TableTap("orders", "outbox", SPEC, ("in", "out"), True),
        TableTap("orders", "mart", SPEC, ("in", "out"), False),
    )


def test_a_stored_tap_is_read_back_as_its_kind() -> None:
    read = definition(SENT, f"{{name: sink, taps: {{in: {{group: g}}, out: {ORDERS[:-1]}, flush: 30s}}}}}}")
    for tap in (*read.taps, *read.table_taps):
        assert tap_of(json.loads(json.dumps(tap.document()))) == tap
    assert read.table_taps[0].table.flush == 30_000
    assert read.table_taps[0].source == "table public.orders of shop"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{database: shop, table: orders, id: a, eventTime: b}", "out.table: expected a table as SCHEMA.TABLE"),
        ("{database: shop, id: a, eventTime: b}", "taps.out.table: expected a value, found none"),
        ("{database: shop, table: a.b, eventTime: b}", "taps.out.id: expected a value, found none"),
        ("{database: shop, table: a.b, id: c}", "taps.out.eventTime: expected a value, found none"),
        ("{database: a b, table: a.b, id: c, eventTime: d}", "taps.out.database: expected a name"),
        ("{database: s, table: a.b, id: c, eventTime: d, flush: soon}", "taps.out.flush: expected a duration"),
        ("{database: s, table: a.b, id: c, eventTime: d, recheck: 32d}", "expected a duration of up to 31d, found 32d"),
        ("{database: s, table: a.b, id: c, eventTime: d, group: g}", "expected one of these keys: "),
        ("{topic: t, id: a b}", "taps.out.id: expected"),
        ("committed", "taps.out: expected a mapping, or 'beacons' or 'commit', found 'committed'"),
        ("5", "taps.out: expected a mapping"),
    ],
)
def test_what_is_no_table_is_refused_with_its_place(source: str, expected: str) -> None:
    with pytest.raises(BadDefinition) as refused:
        definition(SENT, f"{{name: sink, taps: {{in: {{group: g}}, out: {source}}}}}")
    assert expected in str(refused.value)


def test_a_place_that_the_node_has_not_is_refused_for_tables_too() -> None:
    with pytest.raises(BadDefinition, match=r"taps\.out:nowhere: expected one of in, out"):
        definition(SENT, f"{{name: sink, taps: {{'out:nowhere': {ORDERS}}}}}")


def test_recheck_is_that_of_the_tap_else_of_the_pipeline() -> None:
    def rechecks(own: str, of_pipeline: str) -> list[int]:
        nodes = (f"  - {SENT}", f"  - {{name: sink, taps: {{in: {{group: g}}, out: {ORDERS[:-1]}{own}}}}}}}")
        text = HEAD.replace("spec:\n", f"spec:\n{of_pipeline}") + "\n".join(nodes)
        read = parse_definition(text)
        (tap,) = Definition.model_validate(as_document(read)).table_taps
        assert tap_of(json.loads(json.dumps(tap.document()))) == tap
        return [tap.recheck_ms for tap in read.table_taps]

    assert rechecks("", "") == [0]
    assert rechecks("", "  recheck: 7d\n") == [7 * 86_400_000]
    assert rechecks(", recheck: 1h", "  recheck: 7d\n") == [3_600_000]
    assert rechecks(", recheck: 0s", "  recheck: 7d\n") == [0]


def test_table_taps_run_beside_others() -> None:
    read = definition(SENT, f"{{name: sink, taps: {{in: {{group: g}}, out: {ORDERS}}}}}")
    stored = version(1, "x")
    running = by_emitter([taps_after(None, [type(stored)("orders", 1, 0, read)])])
    assert {tap.tap.source for tap in running.values()} == {
        "topic orders",
        "group g of topic orders",
        "table public.orders of shop",
    }
