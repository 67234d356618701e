"""A tap of a table at work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import structlog
from sqlalchemy import Connection

from lagloss.sdk.outlets.kafka import Outlet
from lagloss.wire.format import Progress
from lagloss_server.model.tables import TableTap
from taps.kernel import AHEAD_MS, BlockMaker, Blocks
from taps.metrics import TapMetrics
from taps.plan_runner import IDLE_REPORT_S, PlanRunner
from taps.store import TapStore
from taps.tables.reading import SeenRow, TablePlan, TableReader, pack_rows, span_of
from taps.tables.recheck_store import RecheckStore
from taps.tables.remembered import by_minute
from taps.wanted import RunningTap

log = structlog.get_logger()


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
        self._recheck = RecheckStore(running, store) if self._tap.recheck_ms else None
        super().__init__(running, store, outlet, metrics, idle_report_s)

    def _next(self, last: TablePlan) -> TablePlan:
        last = self._made_for(last)
        self._looked_at = time.monotonic()
        read = self._reader.read(last.position, self._running.since_ms)
        last = last.as_of(read.by_ms)
        if read.break_:
            log.warning("table rows may be missing", tap=self._tap.source, reason=read.break_)
        after_ms = last.through_ms if last.is_complete else 0
        # what a stand-by that is behind showed is of an earlier time than that of the look
        known_ms = min(last.through_ms, last.until_ms.get(0) or last.through_ms)
        late_ms = max(read.late_ms, self._late_ms if read.break_ and self._late else 0)
        return replace(
            last,
            number=last.number + 1,
            planned_at_ms=read.by_ms,
            spans=(span_of(read.rows, after_ms, read.by_ms),) if read.rows else (),
            gone={0: 1} if read.break_ else {},
            # a look of a time in which the clock here was ahead may be the newest that shows all
            until_ms={0: min(read.by_ms, max(read.until_ms, last.until_ms.get(0, 0)))},
            through_ms=min(read.by_ms, max(last.through_ms, read.at_ms if read.is_complete else 0)),
            begins_ms=(known_ms if read.break_ else last.through_ms) - late_ms,
            rows=pack_rows(read.rows),
            position=read.position,
            is_complete=read.is_complete,
            version=read.version,
        )

    def _blocks(self, plan: TablePlan) -> Blocks:
        return self._maker.make(plan, plan.read())

    def _also_stored(self, plan: TablePlan) -> Callable[[Connection], None]:
        recheck, version = self._recheck, plan.version
        if recheck is None or version is None or not plan.spans:
            return super()._also_stored(plan)
        minutes = by_minute(self._rows_to_remember(plan), version, plan.planned_at_ms)
        return lambda connection: recheck.remember(connection, plan.number, minutes, plan.planned_at_ms)

    def _rows_to_remember(self, plan: TablePlan) -> Iterator[SeenRow]:
        """Yield the rows of a plan that are messages of the tap's windows."""
        last_ms = plan.planned_at_ms + AHEAD_MS if plan.ends_ms is None else plan.ends_ms - 1
        for read in plan.read().values():
            extracted = self._maker.extractor.extract(read.records)
            for row, id_, event_ms in zip(extracted.rows, extracted.ids, extracted.event_ms, strict=True):
                if self._running.since_ms <= event_ms <= last_ms:
                    yield SeenRow(int(read.offsets[row]), id_.decode(), int(event_ms))

    def _progress(self, plan: TablePlan) -> tuple[Progress, ...]:
        lanes = []
        if any(place != "in" for place in self._tap.places):
            left_ms = max(0, plan.until_ms.get(0, 0) - self._tap.table.flush)
            lanes.append(Progress(f"{self._tap.node}.out", self._lane, left_ms))
        else:  # a row shows what the node can take, not what it has taken
            lanes.append(Progress(f"{self._tap.node}.out", self._lane, 0))
        if "in" in self._tap.places and not self._tap.first:
            # whatever fills the table can be behind by any time
            lanes.append(Progress(f"{self._tap.node}.in", self._lane, 0))
        return tuple(lanes)

    def _pause(self) -> float:
        return max(0.0, self._looked_at + self._reader.interval_s - time.monotonic())

    def _is_behind(self, plan: TablePlan) -> bool:
        return not plan.is_complete and bool(plan.spans)

    def _without_news(self, last: TablePlan) -> TablePlan:
        return replace(super()._without_news(last), rows="")

    def _close_source(self) -> None:
        self._reader.close()
