"""Turns that leave out most pipelines, compared with evaluations that read everything anew, whatever happens.

LAGLOSS_ALERTING_HISTORIES is how many random histories each test lives through (1 by default), LAGLOSS_ALERTING_SEED
the seed of the first.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, update

from alerting.incidents import repository
from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from alerting.incidents.routing import ReceiverRoute
from alerting.views import judged_windows
from alerting.views.judged_windows import read as read_judged
from alerting.views.window_cache import JudgedWindows
from lagloss_server.model.definition import Definition, StoredPipeline, parse_definition
from lagloss_server.store.partitions import DAY_S, ensure_days
from lagloss_server.store.schema.alerting import IncidentChangeRow, IncidentRow, OutboxMessageRow, PendingBreachRow
from lagloss_server.store.schema.audit import AuditTrailRow
from lagloss_server.store.schema.core import Base, EmitterRow, ReportsPositionRow, TallyRow, WindowRow, table_of
from lagloss_server.store.store import Store
from tests.support.window_documents import CHAIN, document, store_missing, store_window

HISTORIES = int(os.environ.get("LAGLOSS_ALERTING_HISTORIES", "1"))
FIRST_SEED = int(os.environ.get("LAGLOSS_ALERTING_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + HISTORIES)
BEGAN_S = 1_795_000_020 // 3_600 * 3_600
NAMES = tuple(f"chain-{number}" for number in range(3))
NODES = ("src", "mid", "snk")
ALERTS = {
    "chain-1": "pendingAge: {max: 5m}, duplicates: on, negativeLag: on",
    "chain-2": "blind: {breaches: 2, of: 3}, staleness: {max: 3m}",
    "chain-3": "volume: off, lag: [{}, {at: checkpoint=mid.in, target: 1s}]",
}


def defined(name: str, more: str = "") -> Definition:
    alerts = ", ".join(part for part in (ALERTS.get(name), more) if part)
    return parse_definition(CHAIN.replace("name: chain", f"name: {name}") + f"  alerts: {{{alerts}}}\n")


class World:
    """What the aggregator commits, on a clock of its own."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.chance = store, random.Random(seed)
        self.now_s = float(BEGAN_S + 5)
        self.next_s = dict.fromkeys(NAMES, BEGAN_S - 180)
        self.revisions: dict[tuple[str, int], int] = {}
        self.quiet = {name: self.chance.random() < 0.8 for name in NAMES}
        self.basis = 0
        with store.engine.begin() as connection:
            ensure_days(connection, [BEGAN_S + days * DAY_S for days in (-1, 0, 1)])
            connection.execute(insert(ReportsPositionRow).values(topic_partition=0, next_offset=0, topic_id="t"))
            connection.execute(
                insert(EmitterRow), [emitter(name, node, self.now_s) for name in NAMES for node in NODES]
            )
        for name in NAMES:
            store.apply(defined(name), 0)

    def move(self) -> dict[str, set[int]]:
        """Let time go on and something happen; return the windows that were closed, as notifications name them."""
        self.now_s += self.chance.choice([3.0, 10.0, 20.0, 60.0, 60.0, 200.0])
        if self.chance.random() < 0.04:
            self.now_s += self.chance.choice([1_800, 7_000])
        closed: dict[str, set[int]] = {}
        with self.store.engine.begin() as connection:
            for name in NAMES:
                self._report(connection, name)
                for start in self._closed(name):
                    self._close(connection, name, start)
                    closed.setdefault(name, set()).add(start)
        if self.chance.random() < 0.1:
            self.store.apply(
                defined(
                    self.chance.choice(NAMES),
                    f"onTime: {{breaches: 1, of: {self.chance.randrange(1, 9)}, minMessages: 1}}",
                )
            )
        if self.chance.random() < 0.02:
            name = self.chance.choice(NAMES)
            self.store.delete(name)
            self.store.apply(defined(name))
        return closed

    def _closed(self, name: str) -> Iterator[int]:
        while self.next_s[name] < self.now_s - 120 and self.chance.random() < 0.9:
            yield self.next_s[name]
            self.next_s[name] += 60
        if self.chance.random() < 0.1:
            yield self.next_s[name] - 60 * self.chance.randrange(1, 40)

    def _close(self, connection: Connection, name: str, start: int) -> None:
        self.quiet[name] ^= self.chance.random() < (0.02 if self.quiet[name] else 0.15)
        revision = self.revisions[name, start] = self.revisions.get((name, start), 0) + 1
        bad = 0.005 if self.quiet[name] else 0.5

        def strikes() -> bool:
            return self.chance.random() < bad

        verdict = self.chance.choice(["loss", "unknown", "idle"]) if strikes() else "ok"
        messages = 0 if verdict == "idle" else self.chance.choice([40, 700])
        lags = {
            "src.in": 10.0,
            "mid.in": 2_000.0 if strikes() else -3_000.0 if strikes() else 100.0,
            "snk.out": 9_000.0 if strikes() else 400.0,
        }
        pending = 3 if verdict == "unknown" and messages else 0
        found = document(
            defined(name),
            start,
            verdict=verdict,
            messages=messages,
            lags_ms=lags if messages else {},
            lost={"mid": (messages // 5, messages // 2)} if verdict == "loss" else None,
            pending=pending,
            reasons=("evidence:mid",) if verdict == "unknown" else (),
            history=strikes() and strikes(),
            revision=revision,
        )
        store_window(connection, found, start, notify=False)
        closed_ms = int(self.now_s * 1_000)
        is_this = (WindowRow.pipeline == name) & (WindowRow.window_start == start)
        connection.execute(update(WindowRow).where(is_this).values(closed_at=closed_ms))
        if pending and revision == 1:
            store_missing(connection, name, start, f"{start}", kind="pending", place="link src->mid", last="src.out")

    def _report(self, connection: Connection, name: str) -> None:
        """Let nodes report, but for one that is silent for now."""
        now_ms = int(self.now_s * 1_000)
        for node in NODES:
            if self.chance.random() < (0.97 if node != "mid" or self.quiet[name] else 0.4):
                is_this = (EmitterRow.pipeline == name) & (EmitterRow.node == node)
                connection.execute(update(EmitterRow).where(is_this).values(appended_at=now_ms))
                if node != "mid":
                    self._tally(connection, name, node, int(self.now_s) // 60 * 60)

    def _tally(self, connection: Connection, name: str, node: str, start: int) -> None:
        self.basis += 1
        checkpoint = "src.in" if node == "src" else "snk.out"
        key = (TallyRow.pipeline == name) & (TallyRow.window_start == start) & (TallyRow.checkpoint == checkpoint)
        values = {"changed_at": int(self.now_s * 1_000), "changed_basis": self.basis, "beacons": 5}
        if not connection.execute(update(TallyRow).where(key).values(**values)).rowcount:
            more: dict[str, Any] = dict.fromkeys(("seq", "sample", "payload_bytes", "id_sum", "dropped"), 0)
            row = {"pipeline": name, "window_start": start, "emitter": node.encode(), "checkpoint": checkpoint}
            connection.execute(
                insert(TallyRow).values(**row, replay="", node=node, sketch=b"", ranges=b"", **more, **values)
            )
        connection.execute(update(ReportsPositionRow).values(next_offset=self.basis))


def emitter(name: str, node: str, now_s: float) -> dict[str, Any]:
    """An emitter that has run since before yesterday."""
    started_ms = int((now_s - 2 * DAY_S) * 1_000)
    return {
        "pipeline": name, "emitter": node.encode(), "node": node, "host": "h", "seq": 1, "started_at": started_ms,
        "sent_at": 0, "closed": False, "final_through": 0, "appended_at": int(now_s * 1_000),
    }  # fmt: skip


def history(store: Store) -> list[tuple[Any, ...]]:
    """Return all that happened to incidents, whatever their ids are."""
    incident, change = table_of(IncidentRow), table_of(IncidentChangeRow)
    columns = (change.c.at, incident.c.pipeline, incident.c.rule, change.c.change, change.c.note, change.c.value)
    windows = (change.c.worst, change.c.first_window, change.c.last_window, incident.c.detail["breaches"].astext)
    asked = select(*columns, *windows).join(incident, incident.c.id == change.c.incident_id)
    with store.engine.connect() as connection:
        return sorted((tuple(row) for row in connection.execute(asked)), key=str)


def clear(store: Store) -> None:
    with store.engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            if table.name != AuditTrailRow.__tablename__:
                connection.execute(table.delete())


def everything(store: Store) -> list[list[Any]]:
    with store.engine.connect() as connection:
        return [
            list(connection.execute(select(table_of(table)).order_by(*table_of(table).primary_key)))
            for table in (IncidentRow, IncidentChangeRow, OutboxMessageRow, PendingBreachRow)
        ]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_evaluation_that_reads_everything_anew_would_leave_each_pipeline_as_its_turn_does(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    world = World(store, seed)
    monkeypatch.setattr(repository, "clock", lambda _: datetime.fromtimestamp(world.now_s, UTC))
    monkeypatch.setattr(judged_windows, "read", lambda *_: None)
    notifier = Notifier([ReceiverRoute(matchers=(), receivers=("hook",))])
    watching = Evaluator(store, notifier)
    left_out = changes = by_news = 0
    for _ in range(90):
        closed = world.move()
        pipelines = {one.name: one for one in store.pipelines()}
        versions = {name: one.version for name, one in pipelines.items()}
        looked_at = [pipelines[name] for name in {*closed, *watching.find_due(versions)}]
        news = watching.assess_news(looked_at, closed)
        by_news += sum(len(watching.apply(findings)) for findings in news.findings)
        for name in news.unread:
            changes += len(watching.evaluate(pipelines[name]))
        before = everything(store)
        had_turns = {findings.pipeline.name for findings in news.findings} | set(news.unread)
        fresh, knowing = Evaluator(store, notifier), Evaluator(store, notifier)
        fresh._views._since_s = knowing._views._since_s = watching._views._since_s  # all have watched as long
        knowing._views._minutes = watching._views._minutes  # when messages came in, of which only the newest is stored
        for name in pipelines:
            assert (knowing if name in had_turns else fresh).evaluate(pipelines[name]) == [], name
        left_out += len(pipelines.keys() - had_turns)
        assert everything(store) == before
    assert (left_out > 50, changes + by_news > 3) == (True, True), (left_out, changes, by_news)


@pytest.mark.parametrize("seed", SEEDS)
def test_incidents_are_those_of_an_alerter_that_reads_and_judges_a_day_anew_each_time_whoever_takes_over(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    notifier, restored = Notifier([ReceiverRoute(matchers=(), receivers=("hook",))]), 0

    def restore(connection: Connection, pipeline: StoredPipeline) -> JudgedWindows | None:
        nonlocal restored
        found = read_judged(connection, pipeline)
        restored += found is not None
        return found

    def lived_through(evaluator: Evaluator, *, anew: bool) -> list[tuple[Any, ...]]:
        clear(store)
        world, handover = World(store, seed), random.Random(seed)
        monkeypatch.setattr(repository, "clock", lambda _: datetime.fromtimestamp(world.now_s, UTC))
        monkeypatch.setattr(judged_windows, "read", lambda *_: None if anew else restore(*_))
        for _ in range(100):
            closed = world.move()
            pipelines = {one.name: one for one in store.pipelines()}
            if anew or handover.random() < 0.05:
                before, evaluator = evaluator, Evaluator(store, notifier)
                evaluator._views._since_s, evaluator._views._minutes = before._views._since_s, before._views._minutes
            due = evaluator.find_due({name: one.version for name, one in pipelines.items()})
            news = evaluator.assess_news([pipelines[name] for name in {*closed, *due}], closed)
            for findings in news.findings:
                evaluator.apply(findings)
            for name in news.unread:
                evaluator.evaluate(pipelines[name])
        return history(store)

    found = lived_through(Evaluator(store, notifier), anew=False)
    assert found == lived_through(Evaluator(store, notifier), anew=True)
    assert (len(found) > 10, restored > 0) == (True, True), (len(found), restored)
