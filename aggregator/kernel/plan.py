"""Plan of a read for the kernel: the wanted windows, and how to count each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lagloss.wire.format import SAMPLE_ALL, WINDOW_S, block_key
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.model.graph import Graph

LATE_SHARE = 0.6
DEAD_SHARE = 0.002
"""Share of the messages from which on dead ones are picked: where fewer are, nothing is wrong."""


@dataclass(frozen=True)
class WindowPlan:
    """How to count one window: its pipeline's graph as of its start, the cuts on "last seen" (epoch ms, ascending), and
    the lowest sample its tallies speak of. `others` are checkpoints that only other versions of the definition have."""

    graph: Graph
    window_start_s: int
    cuts: tuple[float, ...] = ()
    sample: int = SAMPLE_ALL
    others: frozenset[str] = frozenset()

    @cached_property
    def key(self) -> bytes:
        return block_key(self.graph.definition.name, self.window_start_s)

    @cached_property
    def checkpoints(self) -> frozenset[str]:
        """The checkpoints of all versions of the definition."""
        return self.others.union(self.graph.checkpoints)

    @property
    def window_end_ms(self) -> int:
        return (self.window_start_s + WINDOW_S) * 1000

    @property
    def lag_targets_ms(self) -> tuple[int, ...]:
        """The lag target of each destination."""
        sla = self.graph.definition.spec.sla
        return tuple(sla.lag_at(destination.name).target for destination in self.graph.destinations)

    @property
    def late_shares(self) -> tuple[float, ...]:
        """Return the share of late messages from which on they are kept one by one, of each destination: somewhat below
        where its target is breached, since a part of a window may have fewer than the whole."""
        sla = self.graph.definition.spec.sla
        return tuple(LATE_SHARE * (1 - sla.lag_at(destination.name).share) for destination in self.graph.destinations)

    def has_names_to_keep(self, proven: WindowFacts) -> bool:
        """Return whether a window that its tallies prove has so many late or dead messages that they are picked: only
        its blocks name them."""
        are_late = any(
            arrived.count - arrived.count_up_to(target_ms) > share * arrived.count
            for arrived, target_ms, share in zip(proven.arrivals, self.lag_targets_ms, self.late_shares, strict=True)
        )
        counts = {name: checkpoint.beacons for name, checkpoint in proven.checkpoints.items()}
        dead = sum(counts.get(name, 0) for name in self.graph.names(self.graph.dead_mask))
        return are_late or dead > DEAD_SHARE * sum(counts.get(name, 0) for name in self.graph.entrances)


@dataclass(frozen=True)
class ReadPlan:
    """The windows of one read, by block key, the names of all pipelines there are, and up to which offset each
    partition has been looked at before: bad records from there on are new."""

    windows: Mapping[bytes, WindowPlan]
    pipelines: frozenset[str]
    audited: Mapping[int, int] = field(default_factory=dict)
