"""Tables at the end of proposed flows: which topic fills them, through which node, and why others are not tapped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from lagloss_server.extraction import Records
from lagloss_server.model.definition import Definition, parse_definition
from taps.discovery import TopicGuess, as_yaml, propose
from taps.discovery.proposal import Proposal
from taps.discovery.tables import TableGuess
from tests.unit.taps.test_discovery import AT_MS, IDS, guessed, topic

CURSORS = {"n": ""}


def table(
    ids: Sequence[str],
    *,
    later_ms: int = 500,
    name: str = "public.orders",
    time: str | None = "created_at",
    cursors: Mapping[str, str] = CURSORS,
    problem: str = "",
) -> TableGuess:
    """A table with these orders, each written so much later than its record."""
    stamps = np.array([AT_MS + IDS.index(message_id) + later_ms for message_id in ids], np.int64)
    rows = [
        {"order_id": message_id, "written": int(stamp), **({time: AT_MS + IDS.index(message_id)} if time else {})}
        for message_id, stamp in zip(ids, stamps, strict=True)
    ]
    records = Records(stamps, [None] * len(rows), [json.dumps(row).encode() for row in rows], [None] * len(rows))
    columns = {f"$.{column}": column for column in rows[0]}
    return TableGuess("shop", name, columns, guessed(name, records), "written", cursors, problem)


def definition(proposal: Proposal) -> Definition:
    (flow,) = proposal.flows
    return parse_definition(as_yaml("found", flow, "10m"))


def tapped(proposal: Proposal) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return node, cursor and places of each tapped table."""
    taps = definition(proposal).table_taps
    return [(tap.node, tap.table.cursor or "", tap.places) for tap in taps]


def notes(proposal: Proposal) -> str:
    return "\n".join(note for flow in proposal.flows for node in flow for note in node.notes)


def flow_of_two() -> list[TopicGuess]:
    return [topic("orders", IDS, 0), topic("enriched", IDS, 100)]


def test_the_group_that_writes_no_topic_fills_the_table() -> None:
    found = propose(flow_of_two(), {"enrich": ["orders"], "sink": ["enriched"]}, (), [table(IDS)])
    assert tapped(found) == [("sink", "n", ("out",))]
    assert found.table_reasons == {}
    assert "100% of the newest ids in public.orders of shop also occur in enriched" in notes(found)
    (tap,) = definition(found).table_taps
    assert (tap.table.database, tap.table.table) == ("shop", "public.orders")
    assert (tap.table.id, tap.table.event_time) == ("order_id", "created_at")


def test_a_table_that_no_group_fills_is_a_node_by_its_own_name() -> None:
    found = propose(flow_of_two(), {"enrich": ["orders"]}, (), [table(IDS)])
    assert tapped(found) == [("orders", "n", ("in", "out"))]


def test_the_last_topic_that_has_as_many_of_its_ids_fills_it() -> None:
    topics = [topic("orders", IDS, 0), topic("paid", IDS[:100], 100)]
    groups = {"pay": ["orders"], "paid-sink": ["paid"], "sink": ["orders"]}
    whole, half = table(IDS), table(IDS[:100], name="public.paid")
    found = propose(topics, groups, (), [whole, half])
    assert tapped(found) == [("sink", "n", ("out",)), ("paid-sink", "n", ("out",))]
    assert [node for node, *_ in tapped(propose(topics, groups, (), [table(IDS[:97])]))] == ["paid-sink"]


def test_of_several_groups_the_likest_name_is_taken_and_the_doubt_written_down() -> None:
    found = propose([topic("o", IDS, 0)], {"mail": ["o"], "orders-writer": ["o"]}, (), [table(IDS)])
    assert [node for node, *_ in tapped(found)] == ["orders-writer"]
    assert "public.orders of shop could also be filled by mail, which also reads o" in notes(found)


def test_ids_that_only_the_table_shares_are_those_of_the_flow() -> None:
    orders = [
        {"event_id": message_id[::-1], "order_id": message_id, "at": AT_MS + row} for row, message_id in enumerate(IDS)
    ]
    values = [json.dumps(order).encode() for order in orders]
    stamps = AT_MS + np.arange(len(IDS))
    topics = [guessed("o", Records(stamps, [None] * len(IDS), values, [None] * len(IDS)))]
    alone = propose(topics, {"sink": ["o"]})
    assert [output.id for node in alone.flows[0] for output in node.outputs] == ["$.event_id"]
    found = propose(topics, {"sink": ["o"]}, (), [table(IDS)])
    assert [output.id for node in found.flows[0] for output in node.outputs] == ["$.order_id"]
    assert tapped(found) == [("sink", "n", ("out",))]


def test_a_table_that_holds_some_of_the_ids_is_a_doubt() -> None:
    found = propose([topic("o", IDS, 0)], {"sink": ["o"]}, (), [table(IDS[::3])])
    assert "it holds 34% of the ids of o in that time: the others would count as lost" in notes(found)


@pytest.mark.parametrize(
    ("guess", "reason", "text"),
    [
        (table(IDS, time=None), "no event time", "but no column with their event times"),
        (table(IDS, later_ms=-500), "older than its topic", "by written its rows are older"),
        (
            table(IDS, cursors={}, problem="seq: it can be null"),
            "no cursor",
            (
                'cursor (seq: it can be null); add one: ALTER TABLE "public"."orders" ADD lagloss_xid xid8 NOT NULL'
                ' DEFAULT pg_current_xact_id(); CREATE INDEX CONCURRENTLY ON "public"."orders" (lagloss_xid)'
            ),
        ),
        (table(IDS, cursors={"created_at": ""}), "no cursor", "no column that can be the cursor"),
    ],
)
def test_a_table_that_cannot_be_tapped_is_named_with_its_reason(guess: TableGuess, reason: str, text: str) -> None:
    found = propose([topic("o", IDS, 0)], {"sink": ["o"]}, (), [guess])
    assert tapped(found) == []
    assert found.table_reasons == {"public.orders of shop": reason}
    assert text in notes(found)


def test_the_second_table_of_a_sink_is_not_tapped() -> None:
    tables = [table(IDS), table(IDS[:100], name="public.audit")]
    found = propose([topic("o", IDS, 0)], {"sink": ["o"]}, (), tables)
    assert [tap.table.table for tap in definition(found).table_taps] == ["public.orders"]
    assert found.table_reasons == {"public.audit of shop": "another table"}


def test_a_cursor_without_an_index_is_proposed_with_the_index_that_it_needs() -> None:
    found = propose([topic("o", IDS, 0)], {"sink": ["o"]}, (), [table(IDS, cursors={"n": "no index begins with n"})])
    assert tapped(found) == [("sink", "n", ("out",))]
    assert 'no index begins with n: CREATE INDEX CONCURRENTLY ON "public"."orders" ("n")' in notes(found)


def test_tables_with_other_ids_are_left_out() -> None:
    found = propose([topic("o", IDS[:100], 0)], {"sink": ["o"]}, (), [table(IDS[100:])])
    assert (tapped(found), found.table_reasons) == ([], {"public.orders of shop": "no ids of a topic"})
