"""History: what became known of a pipeline's windows and when, as it is stored: results and their revisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs
from sqlalchemy import Connection, select

from alerting.backtest.replay import Past, ReplayedClosing
from alerting.rules import rules_of
from alerting.rules.budget import LONGEST_S
from alerting.rules.habits import HOUR_S, NO_HABITS, Habits
from alerting.rules.windows import WindowReader
from alerting.views.habit_cache import KEPT_S, habits_of, needs_volume, read_shares, read_volume, shares_of
from alerting.views.window_cache import CONTEXT_S
from lagloss_server.groups.progress import PartitionNow
from lagloss_server.judging.arithmetic import worst
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import NONE_LOST, SideCounts, Verdict, Window
from lagloss_server.runs.dag_runs import DagRun
from lagloss_server.store.results import unpack_window
from lagloss_server.store.schema.core import WindowRevisionRow, WindowRow, table_of

_WINDOW: Final = table_of(WindowRow)
_REVISION: Final = table_of(WindowRevisionRow)


@dataclass(frozen=True)
class StoredHistory:
    """`closings`: of windows with from <= start < to and of those before that rules need. `documents`: newest results
    by window start, of those and a few before; `revised`: how many results of them were replaced."""

    closings: list[ReplayedClosing]
    documents: Mapping[int, Window]
    revised: int


def read_history(
    connection: Connection,
    reader: WindowReader,
    pipeline: str,
    from_s: int,
    to_s: int,
    judged: Callable[[Window], Window],
) -> StoredHistory:
    """Read the stored results. `judged` returns a result's document under the rules to try. The connection is in a
    REPEATABLE READ transaction."""
    documents_from_s, first_s = from_s // HOUR_S * HOUR_S - CONTEXT_S, from_s - LONGEST_S
    in_span = (_WINDOW.c.pipeline == pipeline, _WINDOW.c.window_start < to_s)
    counts = select(*(column for column in _WINDOW.c if column.name not in ("document", "facts")))
    closings, filled_in = [], set()
    for row in connection.execute(counts.where(*in_span, _WINDOW.c.window_start >= first_s)):
        if row.history:
            filled_in.add(row.window_start)
            closings.append(ReplayedClosing(row.closed_at / 1_000, row.window_start, None))
        elif row.window_start < documents_from_s:  # context that only spans reach back to
            closings.append(ReplayedClosing(row.closed_at / 1_000, row.window_start, reader.counts(row)))
    documents: dict[int, Window] = {}
    newest = select(_WINDOW.c.window_start, _WINDOW.c.closed_at, _WINDOW.c.document)
    for start, closed_at, document in connection.execute(
        newest.where(*in_span, _WINDOW.c.window_start >= documents_from_s).execution_options(yield_per=500)
    ):
        result = unpack_window(pipeline, start, document)
        if result is None:
            continue
        documents[start] = judged(result)
        if start not in filled_in:
            closings.append(ReplayedClosing(closed_at / 1_000, start, reader.row(start, documents[start])))
    revised = 0
    columns = (_REVISION.c.window_start, _REVISION.c.revision, _REVISION.c.closed_at, _REVISION.c.document)
    within = (_REVISION.c.pipeline == pipeline, _REVISION.c.window_start >= first_s, _REVISION.c.window_start < to_s)
    for start, revision, closed_at, document in connection.execute(
        select(*columns).where(*within).execution_options(yield_per=500)
    ):
        revised += start >= from_s
        result = unpack_window(pipeline, start, document, revision)
        if start not in filled_in and result is not None:
            closings.append(ReplayedClosing(closed_at / 1_000, start, reader.row(start, judged(result))))
    return StoredHistory(closings, documents, revised)


def past_of(
    definition: Definition,
    documents: Mapping[int, Window],
    habits: Habits = NO_HABITS,
    runs: Sequence[DagRun] = (),
    partitions: Mapping[int, Sequence[PartitionNow]] | None = None,
) -> Past:
    """Return when messages came in and at watched checkpoints, as known afterwards, what was usual, the runs, and the
    partitions that consumer groups read."""
    starts: dict[str, list[int]] = {name: [] for rule in rules_of(definition) for name in rule.watches}
    arrived = []
    for start, document in sorted(documents.items()):
        for checkpoint in document.checkpoints:
            if checkpoint.beacons and checkpoint.name in starts:
                starts[checkpoint.name].append(start)
        if document.messages:
            arrived.append(start)
    return Past(starts, arrived, habits, runs, partitions or {})


def read_habits(connection: Connection, definition: Definition, from_s: int, to_s: int) -> Habits:
    """Read what was usual at any time with from <= time < to."""
    rules = rules_of(definition)
    first_s = from_s // HOUR_S * HOUR_S - KEPT_S
    quarters = read_volume(connection, definition.name, first_s, to_s) if needs_volume(rules) else {}
    shares = shares_of(rules)
    return habits_of(quarters, read_shares(connection, definition.name, shares, first_s, to_s) if shares else {})


def judging_by(most: float, sources: Collection[str]) -> Callable[[Window], Window]:
    """Return a function that gives documents the verdict under this `sla.loss.max` (rules 10 and 18)."""

    def of_side(side: Window | SideCounts, nodes: Collection[str], incomplete: frozenset[str]) -> Verdict:
        messages, lost = side.messages, side.lost or NONE_LOST
        if not messages:
            return side.verdict or "unknown"
        unsure = (lost.max + (side.pending or 0)) / messages > most
        is_complete = incomplete.isdisjoint(name for name in sources if name in nodes)
        return "loss" if lost.min / messages > most else "unknown" if unsure or not is_complete else "ok"

    def judged(window: Window) -> Window:
        if not window.messages:
            return window
        incomplete = frozenset(node.name for node in window.nodes if not node.complete)
        sides: list[tuple[Window | SideCounts, Collection[str]]] = [(side, side.nodes) for side in window.sides]
        sides = sides or [(window, sources)]
        return structs.replace(window, verdict=worst(of_side(side, nodes, incomplete) for side, nodes in sides))

    return judged
