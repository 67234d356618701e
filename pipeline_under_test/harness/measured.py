"""lagloss's result for a window, id by id: its stored result and the window's blocks, by lagloss's own reading."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lagloss_server.model.place import node_label
from lagloss_server.model.window import ListedWindow
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.window_blocks import WindowBlocks, read_window
from lagloss_server.store.store import MissingMessage, Store

PENDING: Final = "pending"
STILL_WAITING: Final = frozenset({PENDING, "overdue"})
CERTAIN: Final = "lost"
PERHAPS: Final = "perhaps"
ALL_NAMES: Final = 1_000_000


def hexed(id_hash: int) -> str:
    """Return an id's hash in hex, to show for an id whose name is not known."""
    return f"{id_hash:016x}"


@dataclass(frozen=True)
class Measured:
    """One window. Ids are hashes; `name` gives the name of one.

    `ids` are those of each outcome and all `messages`; `duplicates` has by checkpoint which message has how many
    beacons too many. `unsure` of the lost are so perhaps, at a place that a dead process leaves unsure for good.
    """

    window: ListedWindow
    ids: Mapping[str, frozenset[int]]
    lost_at: Mapping[str, frozenset[int]]
    duplicates: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    name: Callable[[int], str] = hexed
    unsure: int = 0

    @property
    def corrupted_at(self) -> dict[str, int]:
        """Messages that were changed on the way, by link."""
        links = {link.label: link.corrupted or 0 for link in self.window.links}
        return {place: count for place, count in links.items() if count}


def read_measured(store: Store, log: BeaconLog, pipeline: str, window: ListedWindow) -> Measured:
    """Read lagloss's results of a closed window.

    Raises:
        NotEnoughData: the log no longer holds the window's blocks.
        KafkaException: the broker does not answer.
    """
    start_s = window.start_s
    blocks = read_window(store, log, pipeline, start_s)
    return as_measured(window, blocks, store.missing(pipeline, start_s, ALL_NAMES))


def as_measured(window: ListedWindow, blocks: WindowBlocks, missing: Iterable[MissingMessage]) -> Measured:
    """Return presence by the blocks, and lagloss's verdict on messages with something missing.

    A window keeps the verdict on 1,000 of them. Those beyond are taken as lost, or perhaps lost, where it has more of
    those than it has names, else as waiting.
    """
    presence = Presence(blocks)
    graph = blocks.graph
    incomplete = presence.select(only="missing")
    verdicts = {message.id_hash: message for message in missing}
    others = _fate_of_others(window, Counter(verdict.kind for verdict in verdicts.values()))
    lost_at, perhaps, waiting = _missing(presence, incomplete.tolist(), verdicts, others, unsure_places(window))
    outcomes: dict[str, frozenset[int]] = {"messages": frozenset(presence.ids.tolist())}
    outcomes |= {"lost": frozenset().union(*lost_at.values()), "pending": frozenset(waiting)}
    settled: frozenset[int] = frozenset(presence.ids[incomplete].tolist())
    ends = {"delivered": graph.delivery_mask, "dead": graph.dead_mask, "filtered": graph.filtered_mask}
    for outcome, mask in ends.items():
        arrived = {
            id_hash for name in graph.names(mask) if name in presence.at for id_hash in presence.at[name].tolist()
        }
        outcomes[outcome] = frozenset(arrived - settled)
        settled |= arrived
    duplicates = {name: _duplicates(presence, name) for name in graph.delivery}

    def name(id_hash: int) -> str:
        return blocks.names(np.array([id_hash], np.uint64))[0]

    by_place = {place: frozenset(ids) for place, ids in lost_at.items()}
    return Measured(window, outcomes, by_place, duplicates, name, len(perhaps))


def unsure_places(window: ListedWindow) -> frozenset[str]:
    """Return the places at which a dead process leaves it unsure for good whether messages were lost (rules 7, 16)."""
    crashed = {reason.removeprefix("crash:") for reason in window.reasons if reason.startswith("crash:")}
    links = {link.label for link in window.links if link.target in crashed}
    return frozenset({node_label(node) for node in crashed} | links)


def _fate_of_others(window: ListedWindow, named: Mapping[str, int]) -> str:
    """Return the kind of the missing messages beyond those that the window names; `named`: how many, by kind."""
    if window.lost_min > named.get(CERTAIN, 0):
        return CERTAIN
    return PERHAPS if window.lost_max > sum(named.values()) - named.get(PENDING, 0) else PENDING


def _missing(
    presence: Presence,
    rows: Iterable[int],
    verdicts: Mapping[int, MissingMessage],
    others: str,
    unsure: Collection[str],
) -> tuple[dict[str, set[int]], set[int], set[int]]:
    """Return, of the messages in these rows, those that are lost, by place; those of them that are so perhaps, at an
    unsure place; and those that may still come. `others`: the kind of those without a verdict."""
    which, places = presence.missing_of
    lost_at: dict[str, set[int]] = defaultdict(set)
    perhaps: set[int] = set()
    waiting: set[int] = set()
    for row in rows:
        id_hash = int(presence.ids[row])
        verdict = verdicts.get(id_hash)
        kind = verdict.kind if verdict else others
        places_ = set(verdict.places if verdict else (place.label for place in places[which[row]]))
        if kind in STILL_WAITING:
            waiting.add(id_hash)
            continue
        if kind == PERHAPS and (places_ := places_.intersection(unsure)):
            perhaps.add(id_hash)
        for place in places_:
            lost_at[place].add(id_hash)
    return lost_at, perhaps, waiting


def _duplicates(presence: Presence, checkpoint: str) -> dict[int, int]:
    counts: Any = presence.duplicates.get(checkpoint, np.zeros(0, np.int64))
    rows = np.flatnonzero(counts)
    return dict(zip(presence.ids[rows].tolist(), counts[rows].tolist(), strict=True))
