"""Traits: what each of some picked messages has, as numbers that can be counted: where it was due, which processes saw
it, on which hosts, of which version, from which input, when, and how its id begins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from lagloss_server.judging.arithmetic import implied
from lagloss_server.judging.picked import CORRUPTED, DEAD, GOOD, LATE, LATEST, MISSING, NOWHERE, SEEN_MS, PickedMessages
from lagloss_server.model.graph import Graph, node_of
from lagloss_server.model.place import Place, node_label
from lagloss_server.model.taps import TAP_LABEL

Of = Literal["loss", "lag", "dead", "corruption"]
"""What the bad messages have suffered."""
TraitKind = Literal["process", "host", "label", "input", "age", "destination", "time", "second", "prefix"]
LOST: Final = frozenset({"lost", "perhaps", "overdue"})
AGES_S: Final = (10, 60, 300)
"""Ages of a process, in seconds, below which a message may have met it young."""
PREFIX_CHARS: Final = (1, 2, 3, 4, 6)
_BAD: Final[Mapping[Of, int]] = {"loss": MISSING, "lag": LATE, "dead": DEAD, "corruption": CORRUPTED}
_OTHERS: Final[Mapping[Of, int]] = {
    "loss": GOOD | LATE | DEAD | CORRUPTED,
    "lag": GOOD | CORRUPTED,
    "dead": GOOD | LATE | CORRUPTED,
    "corruption": GOOD | LATE,
}
"""Samples that stand for the messages that have not suffered it."""
_SEPARATOR: Final = re.compile(r"[^0-9A-Za-z]")
_UNTIL_PID: Final = re.compile(r":\d+$")

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EmitterFacts:
    """What the reports say of an emitter. Times in epoch ms; `ended_at`: when it last reported, None while it does."""

    host: str
    started_at: int
    ended_at: int | None = None
    has_closed: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()

    @property
    def is_tap(self) -> bool:
        """Whether a tap of lagloss's made the beacons, so that what is known of it says nothing of the node."""
        return TAP_LABEL in self.labels

    @property
    def machine(self) -> str:
        """The host without the number of the process."""
        return _UNTIL_PID.sub("", self.host)


@dataclass(frozen=True, slots=True)
class SuspectWindow:
    """One window with its picked messages. `fates`: by id what was judged of its missing ones (`lost`, `pending`), and
    where they are missing."""

    start_s: int
    graph: Graph
    picked: PickedMessages
    fates: Mapping[int, tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Trait:
    """One thing that messages differ in: by row the number of its value, -1 where it is not known. Values of times are
    seconds in a row: any stretch of them is looked at. `node`: where; `name`: of a label."""

    kind: TraitKind
    values: Sequence[str]
    codes: Codes
    node: str | None = None
    name: str = ""


@dataclass(frozen=True)
class Population:
    """The bad messages and others, a row each.

    `bad`: which they are; `weights`: how many messages a row stands for; `names` of messages; `event_ms` (NaN where it
    is not known); `places` where the bad ones are missing, were held or died; `due` by destination; by node `emitter`
    (number in `emitters`, -1 of none or a tap) and `seen_ms` (NaN); `last`: number of the last node that saw it.
    """

    of: Of
    nodes: tuple[str, ...]
    sources: frozenset[str]
    emitters: tuple[bytes, ...]
    facts: Mapping[bytes, EmitterFacts]
    bad: Bools
    weights: F64
    names: tuple[str | None, ...]
    event_ms: F64
    places: tuple[tuple[str, ...], ...]
    due: Mapping[str, Bools]
    emitter: Mapping[str, Codes]
    seen_ms: Mapping[str, F64]
    last: Codes

    @classmethod
    def of_windows(
        cls, suffered: Of, windows: Sequence[SuspectWindow], facts: Mapping[bytes, EmitterFacts]
    ) -> Population:
        """Bring the messages of some windows together."""
        nodes = tuple(dict.fromkeys(node for window in windows for node in window.graph.nodes))
        emitters = tuple(dict.fromkeys(emitter for window in windows for emitter in window.picked.emitters))
        destinations = tuple(dict.fromkeys(to.name for window in windows for to in window.graph.destinations))
        taps = frozenset(emitter for emitter in emitters if (known := facts.get(emitter)) is not None and known.is_tap)
        parts = [_Rows.of(suffered, window, nodes, emitters, taps) for window in windows]

        def joined(columns: Iterable[npt.NDArray[Any]], kind: type[np.generic]) -> npt.NDArray[Any]:
            return np.concatenate([np.empty(0, kind), *columns])

        return cls(
            of=suffered,
            nodes=nodes,
            sources=frozenset(source for window in windows for source in window.graph.sources),
            emitters=emitters,
            facts=facts,
            bad=joined((part.bad for part in parts), np.bool_),
            weights=joined((part.weights for part in parts), np.float64),
            names=tuple(name for part in parts for name in part.names),
            event_ms=joined((part.event_ms for part in parts), np.float64),
            places=tuple(places for part in parts for places in part.places),
            due={to: joined((part.due(to) for part in parts), np.bool_) for to in destinations},
            emitter={node: joined((part.emitter[node] for part in parts), np.int64) for node in nodes},
            seen_ms={node: joined((part.seen_ms[node] for part in parts), np.float64) for node in nodes},
            last=joined((part.last for part in parts), np.int64),
        )

    @cached_property
    def traits(self) -> tuple[Trait, ...]:
        """Traits that the messages differ in; those that name a process or a host come first."""
        return tuple(self._traits())

    def _traits(self) -> Iterator[Trait]:
        for node in self.nodes:
            if (self.emitter[node][self.bad] >= 0).any():
                yield from self._of_emitters(node)
            is_dated = not np.isnan(self.seen_ms[node][self.bad]).all()
            if is_dated and (self.of != "lag" or node in self.sources):
                yield self._times(node)  # what was held is seen later from there on: that is no cause
        for to, due in self.due.items():
            yield Trait("destination", (to,), np.where(due, 0, -2), to)
        seconds = np.where(np.isnan(self.event_ms), -1, self.event_ms % 60_000 // 1000).astype(np.int64)
        yield Trait("second", tuple(map(str, range(60))), seconds)
        yield from self._prefixes()

    def _of_emitters(self, node: str) -> Iterator[Trait]:
        emitter_facts = [self.facts.get(emitter) for emitter in self.emitters]
        yield Trait("process", tuple(emitter.hex() for emitter in self.emitters), self.emitter[node], node)
        yield from self._described(node, "host", "", [None if fact is None else fact.machine for fact in emitter_facts])
        for name in sorted({name for fact in emitter_facts if fact is not None for name in fact.labels}):
            labels = [None if fact is None else fact.labels.get(name, "") for fact in emitter_facts]
            yield from self._described(node, "label", name, labels)
        inputs = [fact.inputs[0] if fact and len(fact.inputs) == 1 else None for fact in emitter_facts]
        yield from self._described(node, "input", "", inputs)
        yield from self._ages(node, emitter_facts)

    def _described(self, node: str, kind: TraitKind, name: str, texts: Sequence[str | None]) -> Iterator[Trait]:
        """Yield a trait that goes with the emitter, unless all have the same value."""
        values = tuple(dict.fromkeys(text for text in texts if text is not None))
        numbers = np.array([-1 if text is None else values.index(text) for text in texts] + [-1], np.int64)
        codes = numbers[self.emitter[node]]
        if len(set(codes[codes >= 0].tolist())) > 1:
            yield Trait(kind, values, codes, node, name)

    def _ages(self, node: str, all_facts: Sequence[EmitterFacts | None]) -> Iterator[Trait]:
        started = np.array([np.nan if fact is None else fact.started_at for fact in all_facts] + [np.nan])
        age_s = (self.seen_ms[node] - started[self.emitter[node]]) / 1000
        for limit_s in AGES_S:
            codes = np.where(np.isnan(age_s), -1, np.where((age_s >= -1) & (age_s < limit_s), 0, -2))
            if (codes == 0).any():
                yield Trait("age", (str(limit_s),), codes.astype(np.int64), node)

    def _times(self, node: str) -> Trait:
        """Seconds since the first of the bad was seen at the node, as far as the last; others before or after."""
        seen_s = np.floor(self.seen_ms[node] / 1000)
        mine = seen_s[self.bad & ~np.isnan(seen_s)]
        first_s, last_s = mine.min(), mine.max()
        codes = np.where(np.isnan(seen_s), -1, np.where((seen_s < first_s) | (seen_s > last_s), -2, seen_s - first_s))
        width = int(min(last_s - first_s + 1, MAX_SECONDS))
        step = int(np.ceil((last_s - first_s + 1) / width))
        codes = np.where(codes >= 0, codes // step, codes).astype(np.int64)
        values = tuple(str(int(first_s) + step * index) for index in range(width + 1))
        return Trait("time", values, codes, node, str(step))

    def _prefixes(self) -> Iterator[Trait]:
        """Beginnings of ids: up to the first separator, and of some lengths."""
        lengths: list[int | None] = [None, *PREFIX_CHARS]
        for length in lengths:
            texts = [None if name is None else _prefix(name, length) for name in self.names]
            mine = {text for text, bad in zip(texts, self.bad.tolist(), strict=True) if bad and text}
            values = tuple(sorted(mine))
            if not values or len(values) > sum(self.bad) // 2:
                continue
            numbers = {text: number for number, text in enumerate(values)}
            codes = np.array([-1 if text is None else numbers.get(text, -2) for text in texts], np.int64)
            yield Trait("prefix", values, codes, name=str(length or ""))


MAX_SECONDS: Final = 120
"""Seconds, or equal steps of more, that a stretch of time is cut into."""


def _prefix(name: str, length: int | None) -> str:
    if length is not None:
        return name[:length]
    match = _SEPARATOR.search(name)
    return name[: match.end()] if match else ""


@dataclass(frozen=True)
class _Rows:
    """One window's part of a population."""

    graph: Graph
    masks: Sequence[int]
    bad: Bools
    weights: F64
    names: Sequence[str | None]
    event_ms: F64
    places: Sequence[tuple[str, ...]]
    emitter: Mapping[str, Codes]
    seen_ms: Mapping[str, F64]
    last: Codes

    @classmethod
    def of(
        cls, kind: Of, window: SuspectWindow, nodes: Sequence[str], emitters: Sequence[bytes], taps: Set[bytes]
    ) -> _Rows:
        picked, start_ms = window.picked, window.start_s * 1000
        what = picked["what"]
        bad = (what & _BAD[kind]) > 0
        if kind == "loss":
            fates = [window.fates.get(id_hash, ("", ()))[0] for id_hash in picked["ids"].tolist()]
            bad &= np.array([fate in LOST for fate in fates], bool)
        spared = (what & _OTHERS[kind] > 0) & (what & (_BAD[kind] | (LATEST if kind == "lag" else 0)) == 0)
        rows = np.flatnonzero(bad | spared)
        weights = np.where(bad, 1.0, _weights(picked))
        offsets = picked["event_ms"][rows].astype(np.float64)
        columns = {
            node: [index for index, name in enumerate(picked.checkpoints) if name.split(".")[0] == node]
            for node in nodes
        }
        in_flow = [window.graph.bit[name] for name in picked.checkpoints]
        number_of = _numbers(picked.emitters, emitters)
        number_of[[index for index, emitter in enumerate(picked.emitters) if emitter in taps]] = -1
        codes, seen_by = picked["emitter"][rows], picked["seen"][rows]
        emitter, seen_ms = {}, {}
        last = np.full(rows.size, -1, np.int64)
        for number, node in enumerate(nodes):
            mine = sorted(columns[node], key=in_flow.__getitem__)
            where = _last_seen(codes[:, mine])
            is_there = where >= 0
            at = np.array([*mine, 0])[where]
            every = np.arange(rows.size)
            emitter[node] = np.where(is_there, number_of[codes[every, at]], -1)
            tenths = seen_by[every, at].astype(np.float64)
            seen_ms[node] = np.where(is_there & (tenths != NOWHERE), start_ms + SEEN_MS * tenths, np.nan)
            last[is_there] = number
        return cls(
            graph=window.graph,
            masks=[picked.masks[row] for row in rows.tolist()],
            bad=bad[rows],
            weights=weights[rows],
            names=[picked.names[row] for row in rows.tolist()],
            event_ms=np.where(offsets < 0, np.nan, start_ms + offsets),
            places=[_places(kind, window, row) if bad[row] else () for row in rows.tolist()],
            emitter=emitter,
            seen_ms=seen_ms,
            last=last,
        )

    def due(self, destination: str) -> Bools:
        """Return which messages are due at a destination (rule 15)."""
        part = next((to.part for to in self.graph.destinations if to.name == destination), 0)
        answers = {mask: bool(implied(self.graph, mask) & part) for mask in set(self.masks)}
        return np.array([answers[mask] for mask in self.masks], bool)


def _weights(picked: PickedMessages) -> F64:
    """Return how many messages of the window each row of a sample stands for."""
    what, weights = picked["what"], np.ones(len(picked))
    for kind, name in ((LATE, "late"), (CORRUPTED, "corrupted"), (DEAD, "dead")):
        mine = (what & kind) > 0
        if mine.any():
            weights[mine] = max(1.0, picked.totals.get(name, 0) / mine.sum())
    good = np.flatnonzero(what & GOOD)
    by_row: dict[int, int] = {}
    for row in good.tolist():
        by_row[picked.masks[row]] = by_row.get(picked.masks[row], 0) + 1
    for row in good.tolist():
        mask = picked.masks[row]
        weights[row] = max(1.0, picked.good.get(mask, 0) / by_row[mask])
    return weights


def _numbers(mine: Sequence[Any], every: Sequence[Any]) -> Codes:
    """Return the numbers of these texts among all; the last is that of none."""
    places = {text: number for number, text in enumerate(every)}
    return np.array([*(places[text] for text in mine), -1], np.int64)


def _last_seen(codes: npt.NDArray[Any]) -> Codes:
    """Return the last column with a sighting, -1 for none."""
    if not codes.shape[1]:
        return np.full(codes.shape[0], -1)
    last = codes.shape[1] - 1 - np.argmax(codes[:, ::-1] >= 0, axis=1)
    return np.where((codes >= 0).any(axis=1), last, -1)


def _places(kind: Of, window: SuspectWindow, row: int) -> tuple[str, ...]:
    """Return where a bad message is missing, was held longest, died, or was corrupted."""
    picked = window.picked
    if kind == "loss":
        return tuple(window.fates[int(picked["ids"][row])][1])
    if kind == "lag":
        hop = int(picked["hop"][row])
        return (picked.hops[hop],) if hop >= 0 else ()
    if kind == "corruption":
        link = int(picked["link"][row])
        return (Place("link", picked.links[link]).label,) if link >= 0 else ()
    dead = window.graph.names(picked.masks[row] & window.graph.dead_mask)
    return tuple(node_label(node_of(name)) for name in dead)
