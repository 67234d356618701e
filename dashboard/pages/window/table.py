"""Tables of one window: the talk's, of checkpoints with their counts, Per-Node Loss, and the E2E loss below them; and
that of the reasons for which messages were filtered or dead."""

from __future__ import annotations

from dataclasses import dataclass

import dash_mantine_components as dmc

from dashboard.pages.base import Part, TableColumn, number, table
from dashboard.pages.breakdown import reasons
from lagloss_server.base import format as fmt
from lagloss_server.model.graph import Graph
from lagloss_server.model.window import NONE_LOST, Interval, Window

ANY_OUT = ": not to any next node"
"""Ends the name of the row that holds what a node with several next nodes lost."""


@dataclass(frozen=True, slots=True)
class Row:
    """`count`: distinct messages at the checkpoint (beacons while open). `lost`: Per-Node Loss, {min, max}; None where
    the checkpoint does not carry one. `duplicates` and `lag_p95_ms` None where not known."""

    checkpoint: str
    count: int | None
    lost: Interval | None
    duplicates: int | None
    lag_p95_ms: float | None
    out_of_order: int = 0


def table_rows(window: Window, graph: Graph) -> list[Row]:
    """Return the rows in the order of the flow; every `in` and `out…`, and `filtered` and `dead` with beacons.

    Per-Node Loss of a node stands at its `in`: what was lost at the node before and on the link into it. What a sink
    loses has no such row: it stands at its `out`. What a node with several next nodes loses would have several: it
    stands in a row of its own before its outs.
    """
    checkpoints = {checkpoint.name: checkpoint for checkpoint in window.checkpoints}
    losses = _losses(window, graph)
    names = [name for name in graph.checkpoints if name in checkpoints or not name.endswith((".filtered", ".dead"))]
    for node in graph.steps:
        if _any_out(node) in losses:
            names.insert(names.index(f"{node}.in") + 1, _any_out(node))
    names += [name for name in checkpoints if name not in graph.bit]  # of another version of the definition
    rows = []
    for name in names:
        checkpoint = checkpoints.get(name)
        if name.endswith(ANY_OUT):
            rows.append(Row(name, None, losses[name], None, None))
        elif checkpoint is None:
            rows.append(Row(name, 0 if window.verdict else None, losses.get(name), None, None))
        else:
            count = checkpoint.distinct if checkpoint.distinct is not None else checkpoint.beacons
            rows.append(
                Row(
                    name,
                    count,
                    losses.get(name),
                    checkpoint.duplicates,
                    checkpoint.lag_ms.p95,
                    checkpoint.out_of_order,
                )
            )
    return rows


def _losses(window: Window, graph: Graph) -> dict[str, Interval]:
    at_node = {node.name: node.lost for node in window.nodes if node.lost}
    on_link = {(link.source, link.target): link.lost for link in window.links if link.lost}
    if not at_node and not on_link:
        return {}
    next_nodes = {node: [link.target for link in graph.links if link.source == node] for node in graph.steps}
    losses: dict[str, Interval] = {}
    for node in graph.steps:
        into = NONE_LOST
        for link in graph.links:
            if link.target == node:
                into = _added(into, on_link.get((link.source, node)))
                if next_nodes[link.source] == [node]:
                    into = _added(into, at_node.get(link.source))
        losses[f"{node}.in"] = into
        if len(next_nodes[node]) != 1:
            own = at_node.get(node, NONE_LOST)
            losses[_any_out(node) if next_nodes[node] else f"{node}.out"] = own
    for retrier in graph.retriers:
        if retrier in at_node:
            losses[f"{retrier}.in"] = at_node[retrier]
    return losses


def _any_out(node: str) -> str:
    return f"{node}{ANY_OUT}"


def _added(total: Interval, lost: Interval | None) -> Interval:
    return total if lost is None else Interval(total.min + lost.min, total.max + lost.max)


def talks_table(window: Window, graph: Graph) -> Part:
    """Return the table as it is shown."""
    live = window.verdict is None
    rows = table_rows(window, graph)
    is_ordered = not any(row.out_of_order for row in rows)
    more = [] if is_ordered else ["Out of order"]
    count = "Count (live beacons)" if live else "Count"
    columns = [
        TableColumn("Checkpoint", "checkpoint", names_rows=True),
        *map(number, [count, "Per-Node Loss", "Duplicates", *more, "Lag p95"]),
    ]
    return table(
        "Per-Node Loss",
        columns,
        [_table_row(row, is_ordered=is_ordered) for row in rows],
        foot=dmc.TableTfoot(
            [
                _foot("E2E Loss", fmt.count_interval(window.lost), len(columns)),
                _foot("E2E Loss %", fmt.percent_interval(window.loss_ratio), len(columns)),
            ]
        ),
        striped=True,
        withTableBorder=True,
        miw=480,
        tabularNums=True,
        verticalSpacing=4,
        className="talk",
    )


def _table_row(row: Row, *, is_ordered: bool) -> list[Part]:
    lost = fmt.count_interval(row.lost) if row.lost else ""
    order = [] if is_ordered else [fmt.count(row.out_of_order) if row.out_of_order else ""]
    return [
        row.checkpoint,
        fmt.count(row.count),
        dmc.TableTd(lost, className="number lossy") if row.lost and row.lost.max else lost,
        fmt.count(row.duplicates) if row.duplicates else "",
        *order,
        fmt.duration(row.lag_p95_ms),
    ]


def _foot(title: str, value: str, columns: int) -> Part:
    return dmc.TableTr(
        [
            dmc.TableTh(title, attributes={"root": {"scope": "row"}}),
            dmc.TableTh(""),
            dmc.TableTh(value, className="number"),
            *(dmc.TableTh("") for _ in range(columns - 3)),
        ]
    )


def reasons_part(window: Window) -> Part:
    """Return why messages were filtered or dead, most frequent first."""
    rows = window.reason_rows
    if not rows:
        return dmc.Text("None.", size="sm")
    if window.reasons_by_node is not None:
        return reasons(rows)
    note = "Reasons come from windows whose beacons were read, not from open windows or those proven by tallies."
    return [reasons(rows), dmc.Text(note, size="sm", c="dimmed", mt=4)]
