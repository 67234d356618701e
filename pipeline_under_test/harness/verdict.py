"""The verdict: what the ledger says of each window beside what lagloss says of it, count by count and id by id."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from lagloss.broker.topics import BEACONS
from lagloss.wire.format import WINDOW_S, hash_id
from lagloss_server.base.settings import Settings as LaglossSettings
from lagloss_server.cli.options import open_store
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import NONE_LOST, ListedWindow, rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.store import Store
from pipeline_under_test.harness.measured import Measured, read_measured, unsure_places
from pipeline_under_test.harness.truth import OUTCOMES, TrueWindow, Truth

NAMED: Final = 10
"""How many of the messages that a difference is about are named."""
LATEST_S: Final = 90.0
"""How long after grace and maxWait lagloss may take to its last word: pending overtaken, tallies at rest, Spark on a
busy machine."""
Read = Callable[[ListedWindow], Measured]


@dataclass(frozen=True, slots=True)
class VerdictDifference:
    """Where ledger and lagloss disagree about a window; `ids` names some of the messages."""

    window_start_s: int
    what: str
    injected: object
    measured: object
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ledger and windows, by start (epoch seconds). `waiting` are those that lagloss has not said its last word on."""

    pipeline: str
    truths: Mapping[int, TrueWindow]
    windows: Mapping[int, ListedWindow]
    duplicates: Mapping[int, int]
    differences: tuple[VerdictDifference, ...]
    waiting: tuple[int, ...]

    @property
    def agrees(self) -> bool:
        return not self.differences

    def document(self) -> dict[str, Any]:
        injected = {start: truth.document(start) for start, truth in sorted(self.truths.items())}
        return {
            "pipeline": self.pipeline,
            "agree": self.agrees,
            "waiting": [rfc3339(start) for start in self.waiting],
            "injected": _injected(injected.values()),
            "measured": _measured(self.windows.values(), sum(self.duplicates.values())),
            "windows": [
                {"window_start": rfc3339(start), "injected": truth, "measured": _document(self.windows.get(start))}
                for start, truth in injected.items()
            ],
            "differences": [asdict(difference) for difference in self.differences],
        }


def verdicts_on(truths: Mapping[str, Truth[Any]], lagloss: LaglossSettings) -> list[Verdict]:
    """Compare these truths, by pipeline, none of them empty, with the lagloss that these settings name.

    Raises:
        LaglossError, KafkaException: a server cannot be reached, or lagloss has no such pipeline.
    """
    with open_store(lagloss) as store:
        log = BeaconLog(lagloss.require_kafka(), BEACONS)
        try:
            return [_verdict_on(pipeline, truth, store, log) for pipeline, truth in truths.items()]
        finally:
            log.close()


def _verdict_on(pipeline: str, truth: Truth[Any], store: Store, log: BeaconLog) -> Verdict:
    definition = store.pipeline(pipeline).definition
    windows = store.windows(pipeline, min(truth.windows), max(truth.windows) + 1)
    return compared(definition, truth, windows, lambda window: read_measured(store, log, pipeline, window))


def compared(
    definition: Definition,
    truth: Truth[Any],
    windows: Iterable[ListedWindow],
    read: Read,
    now_s: float | None = None,
) -> Verdict:
    """Compare all windows that the ledger or lagloss knows of. One that they disagree about is left waiting while
    lagloss has not settled it and may still."""
    now_s = time.time() if now_s is None else now_s
    by_start = {window.start_s: window for window in windows}
    patience_s = WINDOW_S + (definition.spec.grace + definition.spec.max_wait) / 1000 + LATEST_S
    all_differences: list[VerdictDifference] = []
    waiting: list[int] = []
    duplicates: dict[int, int] = {}
    for start in sorted({*truth.windows, *by_start}):
        window, truth_window = by_start.get(start), truth.windows.get(start, TrueWindow())
        closed = window is not None and window.state != "open"
        measured = (
            read(window) if window is not None and closed and (window.messages or truth_window.messages) else None
        )
        if measured is not None:
            duplicates[start] = sum(sum(counts.values()) for counts in measured.duplicates.values())
        differing = list(differences(start, truth_window, measured, window))
        if differing and not (closed and window is not None and window.is_settled) and now_s < start + patience_s:
            waiting.append(start)
        else:
            all_differences += differing
    return Verdict(definition.name, dict(truth.windows), by_start, duplicates, tuple(all_differences), tuple(waiting))


def differences(
    start_s: int, truth: TrueWindow, measured: Measured | None, window: ListedWindow | None
) -> Iterator[VerdictDifference]:
    """Return all that ledger and lagloss disagree about in one window; `measured` is None where it is not closed."""
    if measured is None:
        if truth.messages:
            yield VerdictDifference(start_s, "state", "closed", window.state if window else "no such window")
        return
    yield from _id_differences(start_s, truth, measured)
    yield from _duplicate_differences(start_s, truth, measured)
    yield from _count_differences(start_s, truth, measured)


def _id_differences(start_s: int, truth: TrueWindow, measured: Measured) -> Iterator[VerdictDifference]:
    """Return differences in fates and places of messages."""
    unknowable = _hashes(truth.unanswered)
    injected = {"messages": truth.messages, **truth.outcomes()}
    ids = {what: measured.ids[what] for what in injected}
    lost_at = truth.lost_at
    for place in sorted({*lost_at, *measured.lost_at}):
        injected[f"lost at {place}"] = lost_at.get(place, set())
        ids[f"lost at {place}"] = measured.lost_at.get(place, frozenset())
    for what, names in injected.items():
        expected, measured_ids = _hashes(names), ids[what] - unknowable
        if expected != measured_ids:
            yield VerdictDifference(
                start_s, what, len(expected), len(measured_ids), _named(truth, measured, expected ^ measured_ids)
            )


def _duplicate_differences(start_s: int, truth: TrueWindow, measured: Measured) -> Iterator[VerdictDifference]:
    """Return reported duplicate deliveries that did not happen.

    A destination gets a message twice, too, if its first answer never reached the node; which then knows, and beacons,
    only of one. So does one whose node is killed before it has sent the beacon. So what lagloss measures must be in the
    ledger, and not the other way round.
    """
    for checkpoint, reported in measured.duplicates.items():
        if checkpoint in truth.reruns:
            continue
        expected = {hash_id(name): times for name, times in truth.duplicates(checkpoint).items()}
        more = [id_hash for id_hash, times in reported.items() if times > expected.get(id_hash, 0)]
        if more:
            what = f"duplicates at {checkpoint}"
            yield VerdictDifference(start_s, what, len(expected), len(reported), _named(truth, measured, more))


def _count_differences(start_s: int, truth: TrueWindow, measured: Measured) -> Iterator[VerdictDifference]:
    """Return where the numbers that lagloss shows are not those of the ledger; both ends of each interval."""
    window, unknowable = measured.window, _hashes(truth.unanswered)
    in_ledger = {"messages": len(truth.messages), **{what: len(names) for what, names in truth.outcomes().items()}}
    # What is overdue counts in lost.max, never in lost.min: it is pending to the ledger. What is lost perhaps for good,
    # at a node with a dead process, is lost to it.
    shown: dict[str, int] = {what: getattr(window, what) for what in ("messages", "delivered", "dead", "filtered")}
    certain = window.lost_min + measured.unsure
    shown |= {"lost": certain, "pending": (window.pending or 0) + window.lost_max - certain}
    for what, count in shown.items():
        most = in_ledger[what] + len(measured.ids[what] & unknowable)
        if not in_ledger[what] <= count <= most:
            yield VerdictDifference(start_s, f"number of {what}", in_ledger[what], count)
    losses, expected = dict(window.losses), {place: len(ids) for place, ids in truth.lost_at.items()}
    unsure = unsure_places(window)
    for place in sorted({*losses, *expected}):
        count, loss = expected.get(place, 0), losses.get(place, NONE_LOST)
        least, most = loss.min, loss.max
        agree = least == count and (most == count or in_ledger["pending"])
        agree = agree or (place in unsure and least <= count <= most and (most == count or in_ledger["pending"]))
        if not agree and not unknowable:
            yield VerdictDifference(start_s, f"number of messages lost at {place}", count, [least, most])
    corrupted = {place: len(ids) for place, ids in truth.corrupted_at.items()}
    if corrupted != measured.corrupted_at:
        yield VerdictDifference(start_s, "number of corrupted messages", corrupted, measured.corrupted_at)


def _named(truth: TrueWindow, measured: Measured, ids: Iterable[int]) -> tuple[str, ...]:
    """Return the names of some of these ids."""
    names = {hash_id(name): name for ids in truth.ids.values() for name in ids}
    return tuple(sorted(names.get(id_hash) or measured.name(id_hash) for id_hash in sorted(ids)[:NAMED]))


def _hashes(names: Iterable[str]) -> frozenset[int]:
    return frozenset(map(hash_id, names))


def _injected(truths: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ledger over all windows."""
    counts: Counter[str] = Counter(dict.fromkeys(("messages", *OUTCOMES, "duplicates"), 0))
    lost_at: Counter[str] = Counter()
    for truth in truths:
        counts.update({what: truth[what] for what in counts})
        lost_at.update({place: len(ids) for place, ids in truth["lost_at"].items()})
    return {**counts, "lost_at": dict(lost_at)}


def _document(window: ListedWindow | None) -> dict[str, Any] | None:
    return None if window is None else window.document()


def _measured(windows: Iterable[ListedWindow], duplicates: int) -> dict[str, Any]:
    """lagloss over all closed windows."""
    counts: Counter[str] = Counter(dict.fromkeys(("messages", "pending", "delivered", "dead", "filtered"), 0))
    lost = [0, 0]
    lost_at: dict[str, list[int]] = {}
    for window in windows:
        if window.state == "open":
            continue
        counts.update({what: getattr(window, what) for what in counts})
        lost = [lost[0] + window.lost_min, lost[1] + window.lost_max]
        for place, loss in window.losses:
            before = lost_at.get(place, [0, 0])
            lost_at[place] = [before[0] + loss.min, before[1] + loss.max]
    intervals = {place: {"min": least, "max": most} for place, (least, most) in lost_at.items()}
    return {**counts, "duplicates": duplicates, "lost": {"min": lost[0], "max": lost[1]}, "lost_at": intervals}
