"""SLA periods: the definition in force over each part of a time range, and lags judged by it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dashboard.queries.buckets import Bucket
from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.sla import held_percentile, is_late
from lagloss_server.model.definition import Definition, LagSla, Sla, StoredPipeline, in_force
from lagloss_server.model.time_range import TimeRange

_ELSE: Final = "p95"


@dataclass(frozen=True, slots=True)
class SlaPeriod(TimeRange):
    """A time range, and the definition that its windows are judged by."""

    definition: Definition

    @property
    def sla(self) -> Sla:
        return self.definition.spec.sla


@dataclass(frozen=True, slots=True)
class SlaPeriods:
    """The parts of a time range, oldest first, without a gap; at least one. Neighbours differ in their SLA."""

    parts: tuple[SlaPeriod, ...]

    def at(self, start_s: int) -> SlaPeriod:
        """Return the period of a window; of a bucket that begins before the range, the first."""
        return self.parts[max(0, bisect_right(self.parts, start_s, key=lambda period: period.from_s) - 1)]

    @property
    def percentiles(self) -> tuple[str, ...]:
        """The percentiles that E2E lags are shown by, each once, the oldest first."""
        return tuple(dict.fromkeys(target_percentile(period.sla.lag) for period in self.parts))

    def percentile(self, bucket: Bucket) -> str:
        """Return the percentile of this bucket's E2E lag that has a target."""
        return target_percentile(self.at(bucket.start_s).sla.lag)

    def lag_ms(self, bucket: Bucket) -> float | None:
        """Return its E2E lag at that percentile."""
        lag: float | None = getattr(bucket.e2e_ms, self.percentile(bucket))
        return lag

    def is_late(self, bucket: Bucket) -> bool:
        """Return whether it breaches the lag target of its time; see `lagloss_server.judging.sla.is_late`."""
        return is_late(bucket.e2e_ms, bucket.on_time_share, self.at(bucket.start_s).definition)


def target_percentile(lag: LagSla) -> str:
    """Return the SLA's own percentile where results hold it, else p95: then it is the on-time share that is judged."""
    return held_percentile(lag.percentile) or _ELSE


def is_held(lag: LagSla) -> bool:
    """Return whether results hold the SLA's percentile."""
    return held_percentile(lag.percentile) is not None


def sla_periods_of(versions: Sequence[StoredPipeline], span: TimeRange) -> SlaPeriods:
    """`versions`: of one pipeline, oldest first."""
    parts: list[SlaPeriod] = []
    for version in versions[in_force(versions, span.from_s) :]:
        # it holds from the first window that begins once it is applied; the first also before that
        applied_s = -(-version.applied_at_ms // (1_000 * WINDOW_S)) * WINDOW_S
        from_s = max(span.from_s, applied_s) if parts else span.from_s
        if from_s >= span.to_s:
            break
        if parts:
            last = parts.pop()
            if last.from_s < from_s:
                parts.append(SlaPeriod(last.from_s, from_s, last.definition))
        if parts and parts[-1].sla == version.definition.spec.sla:
            from_s = parts.pop().from_s
        parts.append(SlaPeriod(from_s, span.to_s, version.definition))
    return SlaPeriods(tuple(parts))
