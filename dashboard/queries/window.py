"""One window of a pipeline: its result, its earlier results, and what is missing of it as PostgreSQL holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs
from sqlalchemy import select

from dashboard.queries.evidence import Gap, read_gaps
from lagloss.wire.format import WINDOW_S
from lagloss_server.blame.window_blame import WindowBlame, read_blame
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import Graph
from lagloss_server.model.window import ListedWindow, PrintedWindow
from lagloss_server.queries.difference import check_points
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import MissingMessage, Store

_COMPARED: Final = ("verdict", "messages", "delivered", "filtered", "dead", "pending", "unexplained", "lost", "reasons")
"""The figures that revisions are compared by."""


@dataclass(frozen=True, slots=True)
class RevisionChange:
    """One figure that differs between a result and the next."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Revision:
    """One result of a window: when it was found, and what it changed of the one before."""

    number: int
    closed_at: str
    verdict: str
    changes: tuple[RevisionChange, ...]


class ExplainedWindow(PrintedWindow, frozen=True, kw_only=True, omit_defaults=True):
    """A window, and what the evidence of its nodes lacks."""

    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class WindowRead:
    """A window and what explains it. `window` None: nothing is stored of it. `graph`: of the version in force.
    `missing`: what its result named, lost ones first; 1,000 at most. `blame`: what the bad messages have in common."""

    pipeline: str
    start_s: int
    definition: Definition
    graph: Graph
    window: ListedWindow | None
    gaps: tuple[Gap, ...]
    revisions: tuple[Revision, ...]
    missing: tuple[MissingMessage, ...]
    blame: tuple[WindowBlame, ...] = ()

    def document(self) -> ExplainedWindow | None:
        """Return the window as `windows --json` prints it, and the nodes whose evidence is missing."""
        if self.window is None:
            return None
        return ExplainedWindow(**structs.asdict(self.window.contract()), gaps=self.gaps)


def read_window_page(store: Store, pipeline: str, start_s: int, now_s: float) -> WindowRead:
    """Raise UnknownPipeline."""
    definition = store.definition_at(pipeline, start_s)
    windows = store.windows(pipeline, start_s, start_s + WINDOW_S)
    window = windows[0] if windows else None
    is_unsure = window is not None and (window.verdict is None or _lacks_evidence(window))
    return WindowRead(
        pipeline=pipeline,
        start_s=start_s,
        definition=definition,
        graph=definition.graph,
        window=window,
        gaps=read_gaps(store, pipeline, start_s, now_s) if is_unsure else (),
        revisions=read_revisions(store, pipeline, start_s, window),
        missing=tuple(store.missing(pipeline, start_s)) if window is not None and window.verdict else (),
        blame=tuple(read_blame(store, pipeline, [start_s])) if window is not None and window.verdict else (),
    )


def _lacks_evidence(window: ListedWindow) -> bool:
    return any(reason.startswith("evidence:") for reason in window.reasons)


def read_revisions(store: Store, pipeline: str, start_s: int, newest: ListedWindow | None) -> tuple[Revision, ...]:
    """Read every kept result, newest first; the oldest has no changes. Empty for an open window."""
    if newest is None or newest.verdict is None:
        return ()
    results = [*store.revisions(pipeline, start_s), newest]
    before = [None, *results[:-1]]
    revisions = [
        Revision(result.revision, result.closed_at or "", result.verdict or "open", _changes(earlier, result))
        for earlier, result in zip(before, results, strict=True)
    ]
    return tuple(reversed(revisions))


def _changes(before: ListedWindow | None, after: ListedWindow) -> tuple[RevisionChange, ...]:
    if before is None:
        return ()
    was_all, now_all = before.document(), after.document()
    pairs = ((name, was_all[name], now_all[name]) for name in _COMPARED)
    return tuple(RevisionChange(name, was, now) for name, was, now in pairs if was != now)


def check_known(store: Store, pipeline: str, start_s: int, *checkpoints: str) -> Graph:
    """Return the graph in force then, which has these checkpoints.

    Raises:
        UnknownPipeline, UnknownCheckpoint.
    """
    graph = store.graph_at(pipeline, start_s)
    check_points(graph, *checkpoints)
    return graph


def count_difference(store: Store, pipeline: str, start_s: int, source: str, target: str) -> int | None:
    """Return how many messages of a closed window are at one point and not at another: a sum over its presence
    patterns, so that no beacon has to be read. None where it has none: it is open, or the tallies proved it.

    Raises:
        UnknownPipeline, UnknownCheckpoint.
    """
    graph = check_known(store, pipeline, start_s, source, target)
    window = tables.WindowRow
    packed = select(window.facts).where(window.pipeline == pipeline, window.window_start == start_s)
    with store.engine.connect() as connection:
        raw = connection.execute(packed).scalar_one_or_none()
    facts = WindowFacts.unpack(raw) if raw else None
    if facts is None or facts.proven:
        return None
    with_, without = graph.bit[source], graph.bit[target]
    return sum(
        pattern.count for pattern in facts.patterns if pattern.mask >> with_ & 1 and not pattern.mask >> without & 1
    )
