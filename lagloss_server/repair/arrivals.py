"""Arrivals of what a repair sent: where its messages were seen under its replay, and whether they are lost again."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Final

import numpy as np
from sqlalchemy import Engine, Text, and_, cast, func, or_, select
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, array

from lagloss.wire.format import OffsetRange, unpack_ranges
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.judging.arithmetic import has_passed
from lagloss_server.model.graph import Graph, GraphPlace
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.named_ranges import believed
from lagloss_server.queries.offset_ranges import clamp, merge_ranges, without
from lagloss_server.queries.window_blocks import good_block, read_window
from lagloss_server.repair.plan import MessageState, PlannedMessage
from lagloss_server.repair.records import MessageKey
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.repair import RepairMessageRow
from lagloss_server.store.store import Store

NO_GAP: Final = 0


class Arrivals:
    """What the log shows of a replay's messages in some windows; each block is read once. Of where they were seen, only
    what lies behind the place that they were sent to counts.

    A row of a table names no replay: one that its tap has reported since the repair was planned counts, too.

    Methods raise KafkaException when the broker does not answer.

    Args:
        label: of the place.
        since_ms: when the repair was planned (epoch ms).
    """

    def __init__(
        self,
        store: Store,
        log: BeaconLog,
        pipeline: str,
        label: str,
        replay: str,
        windows: Collection[int],
        since_ms: float,
    ) -> None:
        self._store, self._log, self._pipeline, self._replay = store, log, pipeline, replay
        self._label, self._since_ms = label, since_ms
        self._windows = sorted(windows)
        self.changed_at = time.monotonic()
        """When a look last showed something new (monotonic s)."""
        self._graphs: dict[int, Graph] = {}
        self._places: dict[int, tuple[GraphPlace, ...]] = {}
        """The place in each window's graph; of a retrier the place of each node that hands over to it."""
        self._tables: dict[int, frozenset[str]] = {}
        """Checkpoints whose beacons are rows."""
        for start in self._windows:
            definition = store.definition_at(pipeline, start)
            self._graphs[start] = definition.graph
            self._places[start] = tuple(place for place in definition.graph.places if place.label == label)
            self._tables[start] = frozenset(
                f"{tap.node}.{place}" for tap in definition.table_taps for place in tap.places
            )
        self._read: dict[int, list[OffsetRange]] = {start: [] for start in self._windows}
        self._masks: dict[MessageKey, int] = {}
        self._named: set[MessageKey] = set()
        """What was seen under the replay itself."""

    def look(self) -> None:
        """Read what was reported since the last look."""
        watermarks = self._log.watermarks()
        for start, named in self._tallied().items():
            ranges = merge_ranges(believed(self._log, self._pipeline, start, named), NO_GAP)
            fresh = clamp(without(ranges, self._read[start]), watermarks)
            graph = self._graphs[start]
            for record in self._log.records(fresh):
                block = good_block(record, self._pipeline)
                if block is None or block.window_start != start:
                    continue
                is_named = block.replay == self._replay
                is_row = block.replay is None and block.checkpoint in self._tables[start]
                if not is_named and not (is_row and record.appended_ms >= self._since_ms):
                    continue
                self.changed_at = time.monotonic()
                bit = 1 << graph.bit[block.checkpoint] if block.checkpoint in graph.bit else 0
                keys = [(start, id_hash) for id_hash in block.id_hash.tolist()]
                for key in keys:
                    self._masks[key] = self._masks.get(key, 0) | bit
                if is_named:
                    self._named.update(keys)
            self._read[start] = merge_ranges([*self._read[start], *fresh], NO_GAP)

    def is_seen(self, key: MessageKey) -> bool:
        """Return whether a message was seen anywhere under the replay."""
        return key in self._named

    def has_arrived(self, key: MessageKey) -> bool:
        """Return whether a message was delivered behind the place, and is missing nowhere there."""
        return self._has_come_to(key, self._graphs[key[0]].delivery_mask)

    def has_ended(self, key: MessageKey) -> bool:
        """Return whether a message has arrived, or was filtered or dead-lettered, at each destination that it has."""
        graph = self._graphs[key[0]]
        return self._has_come_to(key, graph.delivery_mask | graph.dead_mask | graph.filtered_mask)

    def _has_come_to(self, key: MessageKey, ends: int) -> bool:
        start, mask = key[0], self._masks.get(key, 0)
        return any(
            mask & place.beyond & ends and has_passed(self._graphs[start], place, mask) for place in self._places[start]
        )

    @cached_property
    def behind(self) -> frozenset[str]:
        """The labels of the places behind the place."""
        return frozenset(
            later.label
            for start in self._windows
            for place in self._places[start]
            for later in self._graphs[start].places
            if later.origin & place.beyond and later.label != self._label
        )

    def _tallied(self) -> dict[int, list[tuple[tuple[OffsetRange, ...], int]]]:
        """Return by window the ranges and beacons of the tallies of the replay, and of tables."""
        tally = tables.TallyRow
        of_tables = frozenset().union(*self._tables.values())
        named: dict[int, list[tuple[tuple[OffsetRange, ...], int]]] = {}
        with self._store.engine.connect() as connection:
            rows = connection.execute(
                select(tally.window_start, tally.ranges, tally.beacons).where(
                    tally.pipeline == self._pipeline,
                    tally.window_start.in_(self._windows),
                    or_(
                        tally.replay == self._replay,
                        and_(tally.replay == "", tally.checkpoint.in_(of_tables)),
                    ),
                )
            )
            for row in rows:
                named.setdefault(row.window_start, []).append((unpack_ranges(row.ranges), row.beacons))
        return named


def count_lost_since(engine: Engine, pipeline: str, label: str, since_s: float) -> int:
    """Return how many messages of windows that began since then are lost for certain at a place, as far as they are
    named."""
    missing = table_of(tables.MissingMessageRow).c
    query = select(func.count()).where(
        missing.pipeline == pipeline,
        missing.window_start >= int(since_s),
        missing.kind == "lost",
        missing.places.contains(cast([label], JSONB)),
    )
    with engine.connect() as connection:
        return int(connection.execute(query).scalar_one())


def count_lost_again(engine: Engine, repair_id: str, label: str, behind: Collection[str], since_ms: float) -> int:
    """Return how many messages that a repair has sent are lost for certain again, as far as they are named: at places
    `behind` that of the repair, or there after they were seen once more."""
    missing, message = table_of(tables.MissingMessageRow).c, table_of(RepairMessageRow).c
    query = select(func.count()).where(
        message.repair == repair_id,
        message.state == "sent",
        missing.pipeline == message.pipeline,
        missing.window_start == message.window_start,
        missing.id_hash == message.id_hash,
        missing.kind == "lost",
        or_(
            missing.places.has_any(cast(array(sorted(behind), type_=Text), ARRAY(Text))),
            and_(missing.places.contains(cast([label], JSONB)), missing.seen_by_ms > since_ms),
        ),
    )
    with engine.connect() as connection:
        return int(connection.execute(query).scalar_one())


def came_meanwhile(
    store: Store, log: BeaconLog, pipeline: str, label: str, planned: Iterable[PlannedMessage]
) -> dict[MessageState, list[int]]:
    """Return the positions of planned messages that the log shows as missing at the place no longer: those that have
    `arrived`, and those that came further and are `elsewhere`, missing or at another end. Of messages that a window
    does not show at all nothing is known, nor of windows that the log no longer holds.

    Raises:
        KafkaException: the broker does not answer.
    """
    by_window: dict[int, list[PlannedMessage]] = {}
    for message in planned:
        by_window.setdefault(message.message.window_start_s, []).append(message)
    came: dict[MessageState, list[int]] = {"arrived": [], "elsewhere": []}
    for start, messages in by_window.items():
        try:
            presence = Presence(read_window(store, log, pipeline, start))
        except NotEnoughData:
            continue
        outcomes = _outcomes(presence, label)
        hashes = np.array([message.message.id_hash for message in messages], np.uint64)
        rows = np.searchsorted(presence.ids, hashes)
        for message, id_hash, row in zip(messages, hashes, rows.tolist(), strict=True):
            if (
                row < presence.ids.size
                and presence.ids[row] == id_hash
                and (outcome := outcomes[presence.patterns[0][row]])
            ):
                came[outcome].append(message.position)
    return came


def _outcomes(presence: Presence, label: str) -> list[MessageState | None]:
    """Return for each pattern what became of its messages; None: they are missing at the place."""
    _, masks = presence.patterns
    _, missing = presence.missing_of
    outcomes: list[MessageState | None] = []
    for mask, places in zip(masks, missing, strict=True):
        is_whole = not places and bool(mask & presence.graph.delivery_mask)
        is_missing = any(place.label == label for place in places)
        outcomes.append(None if is_missing else "arrived" if is_whole else "elsewhere")
    return outcomes
