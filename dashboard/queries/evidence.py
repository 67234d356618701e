"""Whose evidence a window lacks: what keeps each node's account of it from being complete (rule 7), by emitter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select

from lagloss_server.judging.evidence import EmitterState, Evidence, TallyState
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.queries.emitters import read_emitters, read_whole_from
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

GapKind = Literal["silent", "not final", "dropped", "unread", "quarantined", "reports lost"]


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that a node's account of a window lacks. `emitter` in hex and its `host`, None without a particular
    emitter; `reported_s`: when its last report was appended (epoch s); `beacons`: how many were dropped, or reported
    and not found in the log."""

    node: str
    kind: GapKind
    emitter: str | None = None
    host: str | None = None
    reported_s: float | None = None
    beacons: int | None = None


def read_gaps(store: Store, pipeline: str, window_start_s: int, now_s: float) -> tuple[Gap, ...]:
    """Return the present gaps in the evidence by node and emitter. Empty for a window whose tallies are gone, and if
    only a changed definition makes a node unsure: `windows --json` names such nodes all the same."""
    now_ms = int(now_s * 1_000)
    window, tally, emitter = tables.WindowRow, tables.TallyRow, tables.EmitterRow
    in_window = (tally.pipeline == pipeline, tally.window_start == window_start_s)
    columns = (tally.emitter, tally.node, tally.checkpoint, tally.replay, tally.beacons, tally.dropped)
    packed = select(window.facts).where(window.pipeline == pipeline, window.window_start == window_start_s)
    with store.engine.connect() as connection:
        emitters = read_emitters(connection, [pipeline], now_ms)[pipeline]
        rows = connection.execute(select(*columns).where(*in_window)).all()
        gap_rows = connection.execute(select(emitter.emitter, emitter.host).where(emitter.pipeline == pipeline))
        hosts = {row.emitter: row.host for row in gap_rows}
        raw = connection.execute(packed).scalar_one_or_none()
        whole_from = read_whole_from(connection)
    tallies = [
        TallyState(row.emitter, row.node, row.checkpoint, row.replay or None, row.beacons, row.dropped) for row in rows
    ]
    evidence = Evidence(window_start_s, now_ms, emitters, tallies, whole_from=whole_from)
    if not tallies and not evidence.lacks_reports:
        return ()
    facts = WindowFacts.unpack(raw) if raw else None
    gaps = [*_of_emitters(evidence, hosts), *_of_tallies(evidence, facts, hosts)]
    gaps += [Gap(node, "quarantined") for node in sorted(facts.quarantined if facts else ())]
    if evidence.lacks_reports:  # whatever else is missing is the better reason: the window may be of before
        gaps += [Gap(node, "reports lost") for node in {state.node for state in emitters} - {gap.node for gap in gaps}]
    return tuple(sorted(gaps, key=lambda gap: (gap.node, gap.kind, gap.emitter or "")))


def _of_emitters(evidence: Evidence, hosts: dict[bytes, str]) -> Iterator[Gap]:
    silent = {state.emitter for state in evidence.silent()}
    unsure = {state.emitter: state for state in (*evidence.expected(), *evidence.silent())}
    for state in unsure.values():
        if state.emitter in silent:
            yield _gap(state, "silent", hosts)
        elif not evidence.is_final(state):
            yield _gap(state, "not final", hosts)


def _gap(state: EmitterState, kind: GapKind, hosts: dict[bytes, str]) -> Gap:
    return Gap(state.node, kind, state.emitter.hex(), hosts.get(state.emitter), state.appended_at / 1_000)


def _of_tallies(evidence: Evidence, facts: WindowFacts | None, hosts: dict[bytes, str]) -> Iterator[Gap]:
    dropped: dict[tuple[str, bytes], int] = {}
    unread: dict[tuple[str, bytes], int] = {}
    for tally in evidence.tallies:
        whose = tally.node, tally.emitter
        dropped[whose] = dropped.get(whose, 0) + tally.dropped
        if facts is not None and (short := tally.beacons - facts.read.get(tally.account, 0)) > 0:
            unread[whose] = unread.get(whose, 0) + short
    counted: tuple[tuple[GapKind, dict[tuple[str, bytes], int]], ...] = (("dropped", dropped), ("unread", unread))
    for kind, beacons in counted:
        for (node, emitter), count in beacons.items():
            if count:
                yield Gap(node, kind, emitter.hex(), hosts.get(emitter), beacons=count)
