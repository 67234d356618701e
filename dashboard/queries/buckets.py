"""Buckets of a pipeline's series: the numbers of one minute, hour or day."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from msgspec import structs, to_builtins

from lagloss.wire.format import WINDOW_S
from lagloss_server.model import hops
from lagloss_server.model.graph import Graph
from lagloss_server.model.hops import HopLags
from lagloss_server.model.place import link_label, node_label
from lagloss_server.model.window import (
    NO_LAGS,
    DestinationCounts,
    Interval,
    Lags,
    Percentiles,
    ReasonCounts,
    ReasonRow,
    SourceCounts,
    Window,
    reason_rows,
    rfc3339,
)
from lagloss_server.sums.rollup import Rollup

_COUNTS: Final = ("messages", "delivered", "filtered", "dead", "pending")
_WORST_FIRST: Final = ("loss", "unknown", "ok", "idle", "open")


@dataclass(frozen=True, slots=True)
class Bucket:
    """[start_s, start_s + length_s) of a pipeline, in messages unless stated otherwise; None: not known.

    `verdicts`: how many minutes of it have which verdict, with `open` for one that is not closed. `messages` were
    expected (at the first checkpoint); see `tells_messages`. `seen`: distinct ids by checkpoint (beacons in an open
    minute). `lost_at`: by place (`node mid`, `link src->mid`), those that lost something. `durations`: for how long
    places kept messages (a node's process duration, a link's queue time), and `reasons`: why messages were filtered or
    dead, both of the minutes whose beacons were read. `destinations`, and `sources` where there are several: the
    numbers of each, with a window's field names. `history`: back-filled; None where only roll-ups are known, which do
    not have them.
    """

    start_s: int
    length_s: int
    verdicts: Mapping[str, int]
    messages: int | None
    delivered: int | None
    filtered: int | None
    dead: int | None
    pending: int | None
    seen: Mapping[str, int]
    lost: Interval | None
    lost_at: Mapping[str, Interval]
    on_time_share: float | None
    e2e_ms: Lags
    lags: HopLags = field(default_factory=HopLags)
    durations: Mapping[str, Percentiles] = field(default_factory=dict)
    reasons: ReasonCounts = field(default_factory=dict)
    destinations: Sequence[DestinationCounts] = ()
    sources: Sequence[SourceCounts] = ()
    history: bool | None = None

    def from_source(self, source: str) -> Bucket:
        """Return the numbers of one source's messages in place of the pipeline's; verdicts, places and hops stay. None
        of them is known where the bucket has no such source."""
        source_row = next((row for row in self.sources if row.name == source), None)
        if source_row is None or not self.sources:
            counts: dict[str, Any] = dict.fromkeys(_COUNTS)
            return replace(self, **counts, lost=None, on_time_share=None, e2e_ms=NO_LAGS)
        return replace(
            self,
            **_counts(source_row, self.verdicts),
            lost=source_row.lost,
            on_time_share=source_row.on_time_share,
            e2e_ms=source_row.e2e_lag_ms,
        )

    @property
    def verdict(self) -> str:
        """The worst of its minutes."""
        return next(verdict for verdict in _WORST_FIRST if self.verdicts.get(verdict))

    @property
    def minutes(self) -> int:
        """How many of its minutes are known, open ones too."""
        return sum(self.verdicts.values())

    @property
    def reached_an_end(self) -> int | None:
        """Messages whose way is known to its end: delivered, filtered or dead."""
        if self.delivered is None or self.filtered is None or self.dead is None:
            return None
        return self.delivered + self.filtered + self.dead

    @property
    def loss_ratio(self) -> tuple[float, float] | None:
        """(for certain, at most) of its messages; None of none, and while no minute of it is closed."""
        if self.lost is None or not self.messages:
            return None
        return self.lost.min / self.messages, self.lost.max / self.messages

    @property
    def reason_rows(self) -> list[ReasonRow]:
        """Why its messages were filtered or dead, most frequent first."""
        return reason_rows(self.reasons, self.seen.items())

    def document(self) -> dict[str, Any]:
        ratio = self.loss_ratio
        return {
            "start": rfc3339(self.start_s),
            "seconds": self.length_s,
            "verdicts": dict(self.verdicts),
            "history": self.history,
            "messages": self.messages,
            "delivered": self.delivered,
            "filtered": self.filtered,
            "dead": self.dead,
            "pending": self.pending,
            "seen": dict(self.seen),
            "lost": None if self.lost is None else structs.asdict(self.lost),
            "loss_ratio": None if ratio is None else {"min": ratio[0], "max": ratio[1]},
            "lost_at": {place: structs.asdict(lost) for place, lost in self.lost_at.items()},
            "on_time_share": self.on_time_share,
            "e2e_lag_ms": structs.asdict(self.e2e_ms),
            "reasons_by_node": self.reasons,
            "lag_in_p95_ms": dict(self.lags.lag_in),
            "lag_out_p95_ms": dict(self.lags.lag_out),
            "durations_ms": {place: structs.asdict(lags) for place, lags in self.durations.items()},
            "destinations": [to_builtins(destination) for destination in self.destinations],
            **({"sources": [to_builtins(source) for source in self.sources]} if self.sources else {}),
            "hops": [{**hop.document(), "p95_ms": value} for hop, value in self.lags.hops.items()],
        }


def knows_messages(messages: int, verdicts: Collection[str]) -> bool:
    """Return whether the number of messages of these minutes is known: none is, only where every one of them is idle,
    since its emitters say so; else it is unknown."""
    return messages > 0 or set(verdicts) == {"idle"}


def _counts(counts: Window | SourceCounts | Rollup, verdicts: Collection[str]) -> dict[str, Any]:
    is_known = knows_messages(counts.messages, verdicts)
    return {name: getattr(counts, name) if is_known else None for name in _COUNTS}


def of_window(window: Window, graph: Graph, *, history: bool = False) -> Bucket:
    """Return a minute. `history`: whether it was filled in after it was over."""
    verdict = window.verdict or "open"
    return Bucket(
        start_s=window.start_s,
        length_s=WINDOW_S,
        verdicts={verdict: 1},
        **_counts(window, [verdict]),
        seen={
            checkpoint.name: checkpoint.beacons if checkpoint.distinct is None else checkpoint.distinct
            for checkpoint in window.checkpoints
        },
        lost=window.lost,
        lost_at=dict(window.losses),
        on_time_share=window.on_time_share,
        e2e_ms=window.e2e_lag_ms,
        lags=hops.of_window(window, graph),
        durations={
            label: lags
            for label, lags in [
                *((node_label(node.name), node.process_duration_ms) for node in window.nodes),
                *((link_label(link.source, link.target), link.queue_time_ms) for link in window.links),
            ]
            if lags.p95 is not None
        },
        reasons=window.reasons_by_node or {},
        destinations=window.destinations,
        sources=window.sources,
        history=history,
    )


def of_rollup(total: Rollup, start_s: int, length_s: int, graph: Graph) -> Bucket:
    """Many minutes, from their sums; percentiles are read from the merged sketches."""
    return Bucket(
        start_s=start_s,
        length_s=length_s,
        verdicts=total.verdicts,
        **_counts(total, total.verdicts),
        seen={name: sums.distinct for name, sums in total.checkpoints.items()},
        lost=total.lost,
        lost_at=total.lost_at,
        on_time_share=total.on_time_share,
        e2e_ms=Lags.of(total.e2e_lags),
        lags=hops.of_checkpoints(cache(total.p95_ms), graph),
        durations={label: Percentiles.of(lags) for label, lags in total.durations.items()},
        reasons=total.reasons,
        destinations=[sums.at_destination(name) for name, sums in total.destinations.items()],
        sources=[sums.of_source(name) for name, sums in total.sources.items()],
    )
