"""A tap of a table at work."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import structlog

from lagloss.sdk.outlets.kafka import Outlet
from lagloss.wire.format import Progress
from lagloss_server.model.tables import TableTap
from taps.kernel import BlockMaker, Blocks
from taps.metrics import TapMetrics
from taps.plan_runner import IDLE_REPORT_S, PlanRunner
from taps.store import TapStore
from taps.tables.reading import TablePlan, TableReader, pack_rows, span_of
from taps.wanted import RunningTap

log = structlog.get_logger()

RELEASED_MS: Final = 253_402_300_799_999
"""Progress of a lane that holds nothing back any more: the end of the year 9999."""


class TableRunner(PlanRunner[TablePlan]):
    """Runs a tap of a table. Rows are read before their plan is stored, and blocks are made of the plan."""

    plan_type = TablePlan

    def __init__(
        self,
        running: RunningTap,
        store: TapStore,
        outlet: Outlet,
        reader: TableReader,
        maker: BlockMaker,
        metrics: TapMetrics,
        idle_report_s: float = IDLE_REPORT_S,
    ) -> None:
        assert isinstance(running.tap, TableTap)
        self._tap, self._reader, self._maker = running.tap, reader, maker
        super().__init__(running, store, outlet, metrics, idle_report_s)

    def _next(self, last: TablePlan) -> TablePlan:
        last = self._made_for(last)
        self._looked_at = time.monotonic()
        read = self._reader.read(last.position, self._running.since_ms)
        if read.break_:
            log.warning("table rows may be missing", tap=self._tap.source, reason=read.break_)
        after_ms = last.through_ms if last.is_complete else 0
        return replace(
            last,
            number=last.number + 1,
            planned_at_ms=read.by_ms,
            spans=(span_of(read.rows, after_ms, read.by_ms),) if read.rows else (),
            gone={0: 1} if read.break_ else {},
            until_ms={0: max(read.until_ms, last.until_ms.get(0, 0))},
            through_ms=max(last.through_ms, read.at_ms if read.is_complete else 0),
            begins_ms=last.through_ms,
            rows=pack_rows(read.rows),
            position=read.position,
            is_complete=read.is_complete,
        )

    def _is_news(self, following: TablePlan, last: TablePlan) -> bool:
        return bool(
            following.spans
            or following.gone
            or following.through_ms // 60_000 != self._account.final_through // 60
            or time.monotonic() - self._reported_at >= self._idle_report_s
        )

    def _blocks(self, plan: TablePlan) -> Blocks:
        return self._maker.make(plan, plan.read())

    def _progress(self, plan: TablePlan) -> tuple[Progress, ...]:
        # Named, unlike work in flight: a lane of that name stands still while the database is away, however long.
        lane = f"{self._tap.source} {self._running.emitter.hex()[:8]}"
        until_ms = plan.until_ms.get(0, 0)
        lanes = []
        if any(place != "in" for place in self._tap.places):
            left_ms = until_ms if until_ms == RELEASED_MS else max(0, until_ms - self._tap.table.flush)
            lanes.append(Progress(f"{self._tap.node}.out", lane, left_ms))
        if "in" in self._tap.places and not self._tap.first:
            # whatever fills the table can be behind by any time
            lanes.append(Progress(f"{self._tap.node}.in", lane, until_ms if until_ms == RELEASED_MS else 0))
        return tuple(lanes)

    def _is_behind(self, plan: TablePlan) -> bool:
        return not plan.is_complete and bool(plan.spans)

    def _last_plan(self, plan: TablePlan) -> TablePlan:
        return replace(super()._last_plan(plan), rows="", until_ms={0: RELEASED_MS})

    def _close_source(self) -> None:
        self._reader.close()
