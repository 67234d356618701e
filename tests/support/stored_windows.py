"""Windows and reports of days ago in a real database, written as the closer commits and the follower follows them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import text, update

from aggregator.closing import window_store as closings
from aggregator.closing.window_store import Closing
from aggregator.reports.batch import ReportRecord
from aggregator.reports.consumer import ReportConsumer
from lagloss.wire.format import EmitterReport, OffsetRange, Progress, Tally, encode_report
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.facts import CheckpointFacts, WindowFacts
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import CheckpointCounts, Interval, Lags, Percentiles, Window, loss_ratio, rfc3339
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store, read_basis

NOW_S = int(time.time())
NOW_MS = NOW_S * 1000
TODAY_S = NOW_S // DAY_S * DAY_S
DEFINITION = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: chain}
spec: {nodes: [{name: src, to: [snk]}, {name: snk}]}
"""
KNOWN = {"chain": frozenset(("src.in", "src.out", "snk.in", "snk.out"))}


def days_ago(days: int, hour: int = 12, minute: int = 0) -> int:
    """A window's start (epoch s) that many days before today, UTC."""
    return TODAY_S - days * DAY_S + hour * 3_600 + minute * 60


@dataclass(kw_only=True)
class Stored:
    """A two-node pipeline in a database; what it commits and follows is as the aggregator would."""

    store: Store
    follower: ReportConsumer = field(init=False)
    _offsets: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.follower = ReportConsumer(self.store.engine, "reports", "topic")
        self.store.apply(parse_definition(DEFINITION), 0)

    def waiting_backend(self) -> int | None:
        """The server process that waits for a lock, if one does."""
        with self.store.engine.connect() as connection:
            waits = text(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            pid: int | None = connection.execute(waits).scalar_one_or_none()
            return pid

    def close(self, start_s: int, messages: int = 100, lost: int = 0, lag_ms: float = 10, now_ms: int = NOW_MS) -> None:
        """Commit a window's closing, as of all reports followed so far."""
        with self.store.engine.begin() as connection:
            basis = read_basis(connection)
            closings.commit(connection, [closing(start_s, messages, lost, lag_ms, basis, now_ms)])

    def seal(self, *starts_s: int) -> None:
        with self.store.engine.begin() as connection:
            window = tables.WindowRow
            connection.execute(update(window).where(window.window_start.in_(starts_s)).values(state="sealed"))

    def report(
        self,
        emitter: str,
        appended_ms: int,
        windows: Sequence[int] = (),
        *,
        node: str = "snk",
        closed: bool = False,
        progress: Sequence[Progress] = (),
        pipeline: str = "chain",
        beacons: int = 100,
    ) -> None:
        """Follow one report of an emitter, with a tally of each of these windows."""
        offset = next(self._offsets)
        lags = Sketch.of(np.full(beacons, 10.0))
        tallies = tuple(
            Tally(f"{node}.in", start, beacons, offset, lags, (OffsetRange(0, offset, offset),)) for start in windows
        )
        told = EmitterReport(
            pipeline, node, emitter.encode().ljust(16), "host", offset + 1, appended_ms - 1_000, appended_ms, closed,
            appended_ms // 1000, tuple(progress), tallies,
        )  # fmt: skip
        self.follower.follow([ReportRecord(0, offset, appended_ms, encode_report(told))], KNOWN)


def closing(start_s: int, messages: int, lost: int, lag_ms: float, basis: int, now_ms: int) -> Closing:
    """A closing in which so many messages came in and all but the lost ones went out, with one lag."""
    counts = {"src.in": messages, "snk.out": messages - lost}
    lags = {name: Sketch.of(np.full(count, lag_ms)) for name, count in counts.items()}
    result = Window(
        pipeline="chain",
        window_start=rfc3339(start_s),
        verdict="loss" if lost else "ok",
        reasons=(),
        proof="beacons",
        sample=1.0,
        messages=messages,
        delivered=messages - lost,
        filtered=0,
        dead=0,
        pending=0,
        unexplained=0,
        clock_skew_ms=0,
        lost=Interval(lost, lost),
        loss_ratio=loss_ratio(Interval(lost, lost), messages),
        on_time_share=(messages - lost) / messages if messages else None,
        on_time_of=messages,
        e2e_lag_ms=Lags.of(lags["snk.out"]),
        checkpoints=tuple(
            CheckpointCounts(name, count, count, 0, 0, Percentiles.of(lags[name])) for name, count in counts.items()
        ),
        nodes=(),
        links=(),
        destinations=(),
        reasons_by_node=None,
        staleness_ms={},
        crashes=(),
        unknown_checkpoints=(),
    )
    facts = WindowFacts(
        checkpoints={name: CheckpointFacts(count, 0, count, 0, lags[name]) for name, count in counts.items()},
        arrivals=(lags["snk.out"],),
    )
    return Closing(result, facts, (), basis, judged_at=now_ms, deadline=None, history=False, log_start=())
