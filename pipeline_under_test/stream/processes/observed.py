"""Observations of the nodes, once per second, in a thread: the scaler never waits for the broker."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Protocol

from confluent_kafka import KafkaException

from lagloss.kafka.commits import Partition
from pipeline_under_test.harness.group import CpuMeter
from pipeline_under_test.harness.policies import GroupObservation
from pipeline_under_test.stream.kafka.positions import Position
from pipeline_under_test.stream.topology import COL_SERVICE, NEXT

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
KEPT_S: Final = 300.0
"""Age up to which observations are kept, and the longest lag that can be measured."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A node's processes: the wanted number, and the pids."""

    wanted: int
    pids: Sequence[int]


class Watcher(Protocol):
    """Source of positions, such as a `GroupWatcher`, which asks the broker."""

    def positions(self) -> Mapping[str, Position]:
        """Return how far each consuming node has come in its topic. Raises KafkaException if no broker answers."""


class Observer:
    """Observer of nodes from `start` to `stop`: `set_groups` gives it their processes, `seen` returns observations."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._groups: Mapping[str, ProcessGroup] = {}
        self._seen: dict[str, tuple[GroupObservation, ...]] = {}
        self._ends: deque[tuple[float, Mapping[Partition, int]]] = deque(maxlen=int(KEPT_S / EVERY_S))
        self._cpu = CpuMeter()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that waits for a broker that does not answer ends with the process."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(EVERY_S)

    def set_groups(self, groups: Mapping[str, ProcessGroup]) -> None:
        """Set the processes of each node; only these nodes are observed."""
        self._groups = groups

    def seen(self, node: str) -> tuple[GroupObservation, ...]:
        """Return the observations of the last minutes, oldest first; another tuple whenever there is a new one."""
        return self._seen.get(node, ())

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            try:
                self._look()
            except KafkaException as error:
                log.warning("cannot observe the nodes: %s", error)

    def _look(self) -> None:
        positions, now, groups = self._watcher.positions(), time.monotonic(), self._groups
        self._ends.append((now, {key: end for position in positions.values() for key, end in position.ends.items()}))
        cpu = self._cpu.shares(pid for crew in groups.values() for pid in crew.pids)
        for node, crew in groups.items():
            shares = [cpu[pid] for pid in crew.pids if pid in cpu]
            observation = self._observation(node, positions, now, crew.wanted, fmean(shares) if shares else 0.0)
            recent = [seen_before for seen_before in self.seen(node) if seen_before.at_s >= now - KEPT_S]
            self._seen[node] = (*recent, observation)

    def _observation(
        self, node: str, positions: Mapping[str, Position], now: float, processes: int, cpu: float
    ) -> GroupObservation:
        if node == COL_SERVICE:  # nothing waits before it, and what it takes in it sends on
            [receiver] = NEXT[node]
            passed = sum(positions[receiver].ends.values())
            return GroupObservation(now, processes, passed, passed, cpu=cpu)
        position = positions[node]
        lag_s = max(lag_of(key, offset, self._ends) for key, offset in position.committed.items())
        appended, committed = sum(position.ends.values()), sum(position.committed.values())
        return GroupObservation(now, processes, appended, committed, lag_s, cpu)


def lag_of(partition: Partition, committed: int, ends: Sequence[tuple[float, Mapping[Partition, int]]]) -> float:
    """Return how long ago the record at `committed` was appended, at least: since when the partition's end is known to
    be past it. 0 if there is no such record yet.

    Args:
        partition: whose.
        committed: the offset of the oldest record that is not done.
        ends: the partitions' ends at some moments, oldest first; the last one is now.
    """
    now, known_since = ends[-1][0], ends[-1][0]
    for at_s, offset in reversed(ends):
        if offset[partition] <= committed:
            break
        known_since = at_s
    return now - known_since
