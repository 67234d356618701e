"""The matrix of a window as a grid: ids down, checkpoints across, missing cells marked, and footers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import dash_ag_grid as dag

from dashboard import format as words
from dashboard.pages.base import Part
from dashboard.pages.window.table import ANY_OUT, table_rows
from dashboard.queries.window import WindowRead
from dashboard.request import links
from dashboard.request.links import Address
from lagloss_server.base import format as fmt
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.model.graph import Graph, GraphPlace
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.matrix import OUT_OF_ORDER, MatrixMessage, Presence
from lagloss_server.store.store import MissingMessage

_OPTIONS: Final = {
    "theme": "themeQuartz",
    "enableCellTextSelection": True,
    "ensureDomOrder": True,
    "rowHeight": 30,
    "headerHeight": 34,
}
_HEIGHT_PX: Final = 520


def matrix_grid(
    id_: str,
    result: WindowRead,
    presence: Presence,
    messages: Sequence[MatrixMessage],
    address: Address,
    traces: TraceLinks,
) -> Part:
    """`messages`: the rows to show. The footers are of the whole window, whatever is shown of it."""
    points = shown_points(result.graph, presence)
    fates = {missing.id_hash: missing.kind for missing in result.missing}
    rows = [
        _message_row(message, result, points, fates, address) | _traced(message, result, traces) for message in messages
    ]
    columns: list[dict[str, Any]] = [
        _column(
            "message",
            "Message",
            width=_width(rows, "message", 320),
            pinned="left",
            cellRenderer="MessageLink",
            tooltipField="message",
        ),
        _column("missing", "Missing at", width=_width(rows, "missing", 480), tooltipField="missing"),
        *([_column("late", "Late", width=_width(rows, "late", 420), tooltipField="late")] if _any_late(rows) else []),
        *_trace_columns(rows),
        _column("event", f"Event time ({address.zone.label(result.start_s)})", width=180),
        *(
            _column(f"c{index}", name, width=max(120, 9 * len(name) + 30), cellRenderer="LagCell")
            for index, name in enumerate(points)
        ),
    ]
    return _grid(id_, columns, rows, pinnedBottomRowData=footers(result, presence, points))


def _width(rows: Iterable[Mapping[str, str]], field: str, most: int) -> int:
    """px that hold the longest text of a column, within bounds: ids, and what is missing where, differ at their end."""
    return min(max(180, 40 + 8 * max((len(row[field]) for row in rows), default=0)), most)


def shown_points(graph: Graph, presence: Presence) -> tuple[str, ...]:
    """Return every `in` and `out`, and `filtered` and `dead` where something came there, in the order of the flow."""
    return tuple(name for name in graph.checkpoints if name in presence.at or not name.endswith((".filtered", ".dead")))


def footers(result: WindowRead, presence: Presence, points: Sequence[str]) -> list[dict[str, str]]:
    """Count, Per-Node Loss, E2E Loss and E2E Loss %, as in the talk; losses as the window's result has them."""
    window = result.window
    talked = [] if window is None else table_rows(window, result.graph)
    lost = {row.checkpoint: fmt.count_interval(row.lost) for row in talked if row.lost}
    counts = {
        f"c{index}": fmt.count(presence.at[name].size if name in presence.at else 0)
        for index, name in enumerate(points)
    }
    losses = {f"c{index}": lost[name] for index, name in enumerate(points) if name in lost}
    for row in (name for name in lost if name.endswith(ANY_OUT)):
        node = row.removesuffix(ANY_OUT)
        first_out = next(index for index, name in enumerate(points) if name.startswith(f"{node}.out"))
        losses[f"c{first_out}"] = f"{lost[row]}{ANY_OUT}"
    return [
        {"message": "Count", "missing": f"{fmt.counted(presence.ids.size, 'message')}", **counts},
        {"message": "Per-Node Loss", **losses},
        {"message": "E2E Loss", "missing": fmt.count_interval(None if window is None else window.lost)},
        {"message": "E2E Loss %", "missing": fmt.percent_interval(None if window is None else window.loss_ratio)},
    ]


def _message_row(
    message: MatrixMessage, result: WindowRead, points: Sequence[str], fates: Mapping[int, str], address: Address
) -> dict[str, str]:
    absent = result.graph.names(_missing_mask(message.missing))
    cells = {f"c{index}": _cell(message, name, absent) for index, name in enumerate(points)}
    fate = fates.get(message.id_hash)
    where = ", ".join(words.place_label(label) for label in message.missing_at)
    return {
        "message": message.message_id,
        "missing": f"{where} ({words.FATES[fate]})" if where and fate in words.FATES else where,
        "late": str(message.late or ""),
        "event": fmt.NOTHING if message.event_time_ms is None else address.zone.precise(message.event_time_ms),
        "href": _href(result, message.message_id, address),
        **cells,
    }


def _any_late(rows: Iterable[Mapping[str, str]]) -> bool:
    return any(row["late"] for row in rows)


def _missing_mask(missing: Sequence[GraphPlace]) -> int:
    mask = 0
    for place in missing:
        mask |= place.targets
    return mask


def _cell(message: MatrixMessage, checkpoint: str, absent: Sequence[str]) -> str:
    lag = message.lags_ms.get(checkpoint)
    if lag is None:
        is_missing = checkpoint in absent and not checkpoint.endswith((".filtered", ".dead"))
        return "✖ missing" if is_missing else "·"
    more = message.duplicates.get(checkpoint)
    order = f" {OUT_OF_ORDER}" if checkpoint in message.out_of_order else ""
    return f"● {fmt.duration(lag)}" + (f" ×{more + 1}" if more else "") + order


def missing_grid(id_: str, result: WindowRead, address: Address, traces: TraceLinks) -> Part:
    """Draw the stored missing messages, in place of the matrix if the log cannot be read."""
    rows = [missing_row(missing, result, address) | _traced(missing, result, traces) for missing in result.missing]
    columns = [
        _column("message", "Message", flex=3, minWidth=180, cellRenderer="MessageLink", tooltipField="message"),
        _column("fate", "Fate", flex=2, minWidth=150),
        _column("place", "Missing at", flex=3, minWidth=180, tooltipField="place"),
        _column("last", "Last checkpoint", flex=2, minWidth=140),
        _column("seen", f"Last seen ({address.zone.label(result.start_s)})", flex=2, minWidth=190),
        *_trace_columns(rows),
    ]
    return _grid(id_, columns, rows)


def missing_row(missing: MissingMessage, result: WindowRead, address: Address) -> dict[str, str]:
    """Return a hash in hex stands for a name that is not known."""
    name = missing.message_id if missing.message_id is not None else f"{missing.id_hash:016x}"
    return {
        "message": name,
        "fate": words.FATES.get(missing.kind, missing.kind),
        "place": ", ".join(words.place_label(place) for place in missing.places),
        "last": missing.last_checkpoint,
        "seen": address.zone.precise(missing.last_seen_ms),
        "href": _href(result, name, address),
    }


def _traced(message: MatrixMessage | MissingMessage, result: WindowRead, traces: TraceLinks) -> dict[str, str]:
    """Return the fields of a row whose message's trace is known."""
    if message.trace is None:
        return {}
    return {"trace": message.trace.trace_id, "traceHref": traces.url(message.trace, result.start_s) or ""}


def _trace_columns(rows: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the column of traces, if any row has one."""
    has_traces = any("trace" in row for row in rows)
    return [_column("trace", "Trace", width=170, cellRenderer="TraceLink", tooltipField="trace")] if has_traces else []


def _href(result: WindowRead, message_id: str, address: Address) -> str:
    return address.to(links.message(result.pipeline), id=message_id, around=rfc3339(result.start_s)).href


def _column(field: str, name: str, **more: Any) -> dict[str, Any]:
    return {"field": field, "headerName": name, **more}


def _grid(id_: str, columns: list[dict[str, Any]], rows: list[dict[str, str]], **options: Any) -> Part:
    footer_rows = len(options.get("pinnedBottomRowData", ()))
    height = min(_HEIGHT_PX, 34 + 30 * (max(len(rows), 3) + footer_rows) + 20)
    return dag.AgGrid(
        id=id_,
        columnDefs=columns,
        rowData=rows,
        defaultColDef={"sortable": False, "resizable": True},  # texts: `20 s` is not less than `5 ms`
        dashGridOptions={**_OPTIONS, **options},
        style={"width": "100%", "height": height},
    )
