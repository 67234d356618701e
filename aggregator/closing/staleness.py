"""Staleness of windows that are being closed, and windows to judge again because an earlier minute was seen sooner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import structs
from sqlalchemy import BigInteger, Connection, Text, select, text

from aggregator.closing.window_store import Closing
from lagloss.wire.sketch import bin_value_ms
from lagloss_server.judging.staleness import (
    FRESH_MS,
    LOOK_BACK_S,
    SeenMinutes,
    awaited,
    ins_and_outs,
    lowest_lags_ms,
    staleness_ms,
)
from lagloss_server.model.graph import Graph, node_of
from lagloss_server.store.results import unpack_window
from lagloss_server.store.schema import core as tables

Checkpoint = tuple[str, str]
"""(pipeline, checkpoint)."""
_LOOKS_BACK_S: Final = (600, 3_600, LOOK_BACK_S)
"""Most checkpoints were seen minutes before."""


def add_staleness(
    connection: Connection, closings: Sequence[Closing], graphs: Mapping[tuple[str, int], Graph]
) -> list[Closing]:
    """Return the closings with the staleness of their checkpoints, by the tallies of earlier minutes where the windows'
    own messages do not say it. History that is filled in has none."""
    own = {closing.window: lowest_lags_ms(closing.facts) for closing in closings if _has_staleness(closing)}
    open_ = {
        closing.window: names
        for closing in closings
        if closing.window in own and (names := _not_fresh(graphs[closing.window], closing, own[closing.window]))
    }
    seen_minutes = _read_seen(connection, open_, graphs)

    def of(closing: Closing) -> dict[str, float]:
        (pipeline, start), lowest_ms, result = closing.window, own[closing.window], {}
        graph = graphs[closing.window]
        came_in = {source: seen_minutes.get((pipeline, f"{source}.in"), {}) for source in graph.sources}
        for name in ins_and_outs(graph):
            stale_ms = max(0.0, lowest_ms[name]) if name in lowest_ms else None
            if name in open_.get(closing.window, ()):
                minutes = SeenMinutes(seen_minutes.get((pipeline, name), {}))
                came = {start: 0.0}
                for source in graph.leading_to(node_of(name)).intersection(came_in):
                    came = {**came_in[source], **came}
                stale_ms = staleness_ms(start, minutes, SeenMinutes(came))
            if stale_ms is not None:
                result[name] = stale_ms
        return result

    return [
        replace(closing, result=structs.replace(closing.result, staleness_ms=of(closing)))
        if closing.window in own
        else closing
        for closing in closings
    ]


def restate_later(connection: Connection, closed: Sequence[Closing]) -> list[tuple[str, int, int]]:
    """Let time judge again those windows whose checkpoints are less stale by what was closed now than they were known
    to be; return pipeline, start and basis of each."""
    lags_by_place: defaultdict[Checkpoint, dict[int, float]] = defaultdict(dict)
    for closing in closed:
        pipeline, start = closing.window
        for name, lowest_ms in lowest_lags_ms(closing.facts).items():
            lags_by_place[pipeline, name][start] = lowest_ms
    minutes = {place: SeenMinutes(lags) for place, lags in lags_by_place.items()}

    def is_fresher(row: Any) -> bool:
        result = unpack_window(row.pipeline, row.window_start, row.document)
        for name, known_ms in ({} if result is None else result.staleness_ms).items():
            found_ms = staleness_ms(row.window_start, minutes.get((row.pipeline, name), SeenMinutes()), SeenMinutes())
            if found_ms is not None and found_ms < known_ms:
                return True
        return False

    fresher = [row for row in _read_stale(connection, closed) if is_fresher(row)]
    if fresher:
        connection.execute(
            text(
                'UPDATE "window" w SET deadline = :now'
                " FROM unnest(CAST(:pipelines AS text[]), CAST(:starts AS bigint[])) wanted(pipeline, start)"
                " WHERE w.pipeline = wanted.pipeline AND window_start = start AND state = 'closed'"
            ),
            {
                "now": max(closing.judged_at for closing in closed),
                "pipelines": [row.pipeline for row in fresher],
                "starts": [row.window_start for row in fresher],
            },
        )
    return [(row.pipeline, row.window_start, row.basis) for row in fresher]


def _has_staleness(closing: Closing) -> bool:
    return not closing.history and closing.result.messages > 0


def _not_fresh(graph: Graph, closing: Closing, lowest_ms: Mapping[str, float]) -> frozenset[str]:
    """Return the checkpoints whose staleness earlier minutes decide."""
    unseen = {name for name in ins_and_outs(graph) if name not in lowest_ms}
    late = {name for name in ins_and_outs(graph) if lowest_ms.get(name, 0.0) > FRESH_MS}
    return frozenset(late | (unseen & awaited(graph, closing.result) if unseen else unseen))


def _read_seen(
    connection: Connection, watched: Mapping[tuple[str, int], Collection[str]], graphs: Mapping[tuple[str, int], Graph]
) -> dict[Checkpoint, dict[int, float]]:
    """Read minutes with live beacons before these windows at these checkpoints and the sources' `in`, each with its
    lowest lag: as far back as tells, since a day of tallies may be millions."""
    windows: defaultdict[Checkpoint, set[int]] = defaultdict(set)
    for (pipeline, start), names in watched.items():
        for name in (*graphs[pipeline, start].entrances, *names):
            windows[pipeline, name].add(start)
    lags_by_place: defaultdict[Checkpoint, dict[int, float]] = defaultdict(dict)
    for back_s in _LOOKS_BACK_S:
        if not windows:
            break
        for place, start, lowest_ms in _read_minutes(connection, windows, back_s):
            lags_by_place[place][start] = lowest_ms
        # since when messages came in is asked as far back as any checkpoint of the pipeline is
        further = {place[0] for place, starts in windows.items() if not _tells(lags_by_place[place], starts, back_s)}
        windows = defaultdict(set, {place: starts for place, starts in windows.items() if place[0] in further})
    return lags_by_place


def _tells(lags_by_minute: Mapping[int, float], window_starts_s: Collection[int], back_s: int) -> bool:
    """Return whether for each window no minute further back than this can be fresher than those that were seen."""
    soon = [start for start, lowest_ms in lags_by_minute.items() if lowest_ms < back_s * 1_000]
    return all(any(window - back_s <= start < window for start in soon) for window in window_starts_s)


def _read_minutes(
    connection: Connection, windows: Mapping[Checkpoint, Collection[int]], back_s: int
) -> Iterator[tuple[Checkpoint, int, float]]:
    """Yield the minutes with live beacons at most so long before windows, and the lowest lag of each."""
    firsts = [min(starts) - back_s for starts in windows.values()]
    lasts = [max(starts) for starts in windows.values()]
    rows = connection.execute(
        text(
            "SELECT t.pipeline, t.checkpoint, window_start, min(lowest_bin) AS lowest"
            " FROM unnest(CAST(:pipelines AS text[]), CAST(:checkpoints AS text[]), CAST(:firsts AS bigint[]),"
            " CAST(:lasts AS bigint[])) asked(pipeline, checkpoint, first, last)"
            " JOIN tally t ON t.pipeline = asked.pipeline AND t.checkpoint = asked.checkpoint"
            " AND window_start > first AND window_start < last AND replay = '' AND beacons > 0"
            " AND window_start > :low AND window_start < :high"  # for the planner, which then leaves other days out
            " GROUP BY t.pipeline, t.checkpoint, window_start HAVING min(lowest_bin) IS NOT NULL"
        ),
        {
            "pipelines": [pipeline for pipeline, _ in windows],
            "checkpoints": [name for _, name in windows],
            "firsts": firsts,
            "lasts": lasts,
            "low": min(firsts),
            "high": max(lasts),
        },
    )
    for row in rows:
        yield (row.pipeline, row.checkpoint), row.window_start, bin_value_ms(row.lowest)


def _read_stale(connection: Connection, closed: Sequence[Closing]) -> list[Any]:
    """Read the windows after these that are stale by an earlier basis."""
    starts: defaultdict[str, list[int]] = defaultdict(list)
    for closing in closed:
        starts[closing.result.pipeline].append(closing.result.start_s)
    if not starts:
        return []
    basis = max(closing.basis for closing in closed)
    firsts = [min(starts_of_pipeline) for starts_of_pipeline in starts.values()]
    lasts = [max(starts_of_pipeline) + LOOK_BACK_S for starts_of_pipeline in starts.values()]
    query = tables.rows_of(
        zip(starts, firsts, lasts, strict=True), pipeline=Text(), first=BigInteger(), last=BigInteger()
    )
    window = tables.table_of(tables.WindowRow)
    return list(
        connection.execute(
            select(window.c.pipeline, window.c.window_start, window.c.basis, window.c.document)
            .join(query, window.c.pipeline == query.c.pipeline)
            .where(window.c.window_start > query.c.first, window.c.window_start < query.c.last)
            .where(window.c.state == "closed", window.c.basis < basis, window.c.stale_ms >= FRESH_MS)
            .where(window.c.window_start > min(firsts), window.c.window_start < max(lasts))  # for the planner
        )
    )
