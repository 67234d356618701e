"""What the kernel is told before it reads: which windows are wanted, and how each is to be counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lagloss.graph import Graph
from lagloss.topics import RETENTION_MS
from lagloss.wire import MAX_AHEAD_MS, SAMPLE_ALL, WINDOW_S, BadRecord, block_key


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

    def names(self, pipeline: str, window_start_s: int) -> bool:
        """Whether this is the window."""
        return window_start_s == self.window_start_s and pipeline == self.graph.definition.metadata.name

    @property
    def window_end_ms(self) -> int:
        return (self.window_start_s + WINDOW_S) * 1000

    @property
    def lag_target_ms(self) -> int:
        return self.graph.definition.spec.sla.lag.target


@dataclass(frozen=True)
class ReadPlan:
    """The windows of one read, by block key, the names of all pipelines there are, and up to which offset each
    partition has been looked at before: bad records from there on are new."""

    windows: Mapping[bytes, WindowPlan]
    pipelines: frozenset[str]
    audited: Mapping[int, int] = field(default_factory=dict)

    def check(self, key: bytes | None, appended_ms: int, pipeline: str, window_start_s: int) -> None:
        """Whether a block may stand where it stands.

        Raises:
            BadRecord: key_mismatch, unknown_pipeline, window_invalid, window_ahead or window_too_old.
        """
        window = self.windows.get(key or b"")
        if window is not None and window.names(pipeline, window_start_s) and window_start_s * 1000 <= appended_ms:
            return  # the common case, at a third of the price
        if key != block_key(pipeline, window_start_s):
            raise BadRecord("key_mismatch")
        if pipeline not in self.pipelines:
            raise BadRecord("unknown_pipeline")
        if window_start_s % WINDOW_S:
            raise BadRecord("window_invalid")
        if window_start_s * 1000 > appended_ms + MAX_AHEAD_MS:
            raise BadRecord("window_ahead")
        if window_start_s * 1000 < appended_ms - RETENTION_MS:
            raise BadRecord("window_too_old")
