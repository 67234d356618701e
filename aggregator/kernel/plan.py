"""Plan of a read for the kernel: the wanted windows, and how to count each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lagloss.wire.format import SAMPLE_ALL, WINDOW_S, block_key
from lagloss_server.model.graph import Graph


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


@dataclass(frozen=True)
class ReadPlan:
    """The windows of one read, by block key, the names of all pipelines there are, and up to which offset each
    partition has been looked at before: bad records from there on are new."""

    windows: Mapping[bytes, WindowPlan]
    pipelines: frozenset[str]
    audited: Mapping[int, int] = field(default_factory=dict)
