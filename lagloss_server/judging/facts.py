"""Window facts: what the blocks of one window hold, summed up so far that no id has to be read again.

Facts of disjoint sets of ids (the partitions) add up. They know nothing of the wall clock, of reports or of verdicts.
"""

from __future__ import annotations

from base64 import b85decode, b85encode
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from lagloss.wire.format import SAMPLE_ALL, BadReason
from lagloss.wire.sketch import Sketch
from lagloss.wire.traces import TraceContext
from lagloss_server.judging.packed_sketches import pack_document, unpack_document, unpack_sketches
from lagloss_server.judging.picked import PickedMessages
from lagloss_server.model.window import bounded_reasons

MAX_NAMES = 1_000
"""Number of missing ids kept per window."""
MAX_REASONS = 100
"""Number of reasons kept per window and checkpoint."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Number of messages at exactly the checkpoints in `mask`, last seen in one range of time.

    A message was last seen between two moments, which are one if all its times are known (rule 4). `seen_first_ms`,
    `seen_last_ms`: the first and the last of the earlier moments among them (epoch ms), kept only where something is
    missing; `by_first_ms`, `by_last_ms`: of the later moments, where they differ; `on_time`: by destination
    (`Graph.destinations`), how many of them arrived there within its lag target; empty for none.
    """

    mask: int
    count: int
    on_time: tuple[int, ...] = ()
    seen_first_ms: float | None = None
    seen_last_ms: float | None = None
    by_first_ms: float | None = None
    by_last_ms: float | None = None

    @property
    def seen_ms(self) -> tuple[float | None, float | None]:
        """The first and the last moment from which on messages may have been last seen (epoch ms)."""
        return self.seen_first_ms, self.seen_last_ms

    @property
    def seen_by_ms(self) -> tuple[float | None, float | None]:
        """The first and the last moment by which messages were surely last seen (epoch ms)."""
        return self.seen_ms if self.by_first_ms is None else (self.by_first_ms, self.by_last_ms)


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Beacons of one checkpoint: live and replayed ones, distinct ids (both), and duplicates, lags and messages
    out of order (rule 20) of the live ones; duplicates are None if no block was read."""

    beacons: int = 0
    replayed: int = 0
    distinct: int = 0
    duplicates: int | None = 0
    lags: Sketch = field(default_factory=Sketch)
    out_of_order: int = 0


class MissingId(NamedTuple):
    """A message that something is missing of: its hash, name and trace where known, pattern, when it was last seen by
    what its beacons say, and between which moments it surely was (epoch ms, rule 4), and the emitter that sent its
    beacon at the last checkpoint it reached, where that is known."""

    id_hash: int
    mask: int
    last_seen_ms: float
    seen_from_ms: float
    seen_by_ms: float
    name: str | None
    trace: TraceContext | None = None
    emitter: bytes | None = None

    def pattern(self, mask: int) -> Pattern:
        """Return the pattern of this message alone, as far as these checkpoints (of its own) are concerned."""
        return Pattern(mask, 1, (), self.seen_from_ms, self.seen_from_ms, self.seen_by_ms, self.seen_by_ms)


Account = tuple[bytes, str, str | None]
"""Origin of a tally's beacons: emitter, checkpoint, replay."""


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """The facts of one window.

    `arrivals`: lags of messages' first arrivals, by destination; `source_arrivals`: those of all destinations, by the
    source that the messages are of (rule 17), where there are several sources. `read` counts beacons a tally account
    before sampling; `durations` says how long places kept messages (`Graph.spans`); `strangers` counts beacons of
    checkpoints that only other versions of the definition have, `bad` bad records under the window's key by reason;
    `corrupted` is by link name, of the messages `checked`, which carried checksums on both sides; `reasons` counts live
    beacons by checkpoint and the reason that they give; `quarantined` names nodes that a bad block belongs to.
    `missing` and `picked` are messages one by one, not all. `partitions` are the numbers of partitions its blocks were
    made for. Facts that are `scattered` (an id may lie in two partitions) or of `mixed_samples` (parts left different
    ids out) do not add up: the window has to be read in another way. Facts that are `proven` come from tallies alone
    (`tally_proof`) and have no patterns.
    """

    patterns: tuple[Pattern, ...] = ()
    checkpoints: dict[str, CheckpointFacts] = field(default_factory=dict)
    arrivals: tuple[Sketch, ...] = ()
    source_arrivals: tuple[Sketch, ...] = ()
    durations: dict[str, Sketch] = field(default_factory=dict)
    read: dict[Account, int] = field(default_factory=dict)
    strangers: dict[str, int] = field(default_factory=dict)
    bad: dict[BadReason, int] = field(default_factory=dict)
    corrupted: dict[str, int] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, dict[str, int]] = field(default_factory=dict)
    quarantined: frozenset[str] = frozenset()
    sample: int = SAMPLE_ALL
    cuts: tuple[float, ...] = ()
    missing: tuple[MissingId, ...] = ()
    picked: PickedMessages = field(default_factory=PickedMessages, compare=False)
    partitions: frozenset[int] = frozenset()
    proven: bool = False
    scattered: bool = False
    mixed_samples: bool = False

    @property
    def e2e_lags(self) -> Sketch:
        """Lags of first arrivals, all destinations together."""
        return Sketch.merged(self.arrivals)

    @classmethod
    def merged(cls, parts: Iterable[WindowFacts]) -> WindowFacts:
        """Return the facts of all parts together; their ids are disjoint and they were cut at the same times."""
        parts = list(parts)
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for part in parts for name in part.checkpoints)
        labels = dict.fromkeys(label for part in parts for label in part.durations)
        read: Counter[Account] = Counter()
        strangers: Counter[str] = Counter()
        bad: Counter[BadReason] = Counter()
        corrupted: Counter[str] = Counter()
        checked: Counter[str] = Counter()
        reasons: dict[str, Counter[str]] = {}
        for part in parts:
            read.update(part.read)
            strangers.update(part.strangers)
            bad.update(part.bad)
            corrupted.update(part.corrupted)
            checked.update(part.checked)
            for checkpoint, counts in part.reasons.items():
                reasons.setdefault(checkpoint, Counter()).update(counts)
        cuts = parts[0].cuts if parts else ()
        partitions = frozenset(number for part in parts for number in part.partitions)
        return cls(
            patterns=merge_patterns((pattern for part in parts for pattern in part.patterns), cuts),
            checkpoints={
                name: _merge_checkpoint([part.checkpoints[name] for part in parts if name in part.checkpoints])
                for name in names
            },
            arrivals=_merge_sketches(part.arrivals for part in parts),
            source_arrivals=_merge_sketches(part.source_arrivals for part in parts),
            durations={
                label: Sketch.merged(part.durations[label] for part in parts if label in part.durations)
                for label in labels
            },
            read=dict(read),
            strangers=dict(strangers),
            bad=dict(bad),
            corrupted=dict(corrupted),
            checked=dict(checked),
            reasons={checkpoint: dict(counts) for checkpoint, counts in reasons.items()},
            quarantined=frozenset(node for part in parts for node in part.quarantined),
            sample=min((part.sample for part in parts), default=SAMPLE_ALL),
            cuts=cuts,
            missing=tuple(
                sorted((missing for part in parts for missing in part.missing), key=attrgetter("id_hash"))[:MAX_NAMES]
            ),
            picked=PickedMessages.merged(part.picked for part in parts),
            partitions=partitions,
            scattered=len(partitions) > 1 or any(part.scattered for part in parts),
            mixed_samples=len({part.sample for part in parts}) > 1,
        )

    def pack(self) -> bytes:
        """Return the facts without the missing and the picked messages (which have tables of their own), packed; the
        same bytes however the parts were read."""
        return pack_document(self._document())

    @classmethod
    def unpack(cls, packed: bytes) -> WindowFacts:
        text, rest = unpack_document(packed)
        raw, sketches = msgspec.json.decode(text), unpack_sketches(rest)
        return cls(
            patterns=tuple(
                Pattern(int(mask, 16), count, tuple(on_time), *times)
                for mask, count, on_time, *times in raw["patterns"]
            ),
            checkpoints={
                name: CheckpointFacts(beacons, replayed, distinct, duplicates, sketches[lags], *more)
                for name, (beacons, replayed, distinct, duplicates, lags, *more) in raw["checkpoints"].items()
            },
            arrivals=tuple(sketches[number] for number in raw["arrivals"]),
            source_arrivals=tuple(sketches[number] for number in raw.get("source_arrivals", ())),
            durations={label: sketches[number] for label, number in raw["durations"].items()},
            strangers=raw["strangers"],
            read={(b85decode(emitter), checkpoint, replay): n for emitter, checkpoint, replay, n in raw["read"]},
            corrupted=raw["corrupted"],
            checked=raw["checked"],
            reasons=raw["reasons"],
            quarantined=frozenset(raw["quarantined"]),
            sample=raw["sample"],
            cuts=tuple(raw["cuts"]),
            proven=raw["proven"],
        )

    def _document(self) -> dict[str, Any]:
        return {
            "patterns": [
                (
                    *(f"{pattern.mask:x}", pattern.count, pattern.on_time, *pattern.seen_ms),
                    *(() if pattern.by_first_ms is None else pattern.seen_by_ms),
                )
                for pattern in self.patterns
            ],
            "checkpoints": {
                name: (
                    *(facts.beacons, facts.replayed, facts.distinct, facts.duplicates, facts.lags),
                    *([facts.out_of_order] if facts.out_of_order else []),
                )
                for name, facts in sorted(self.checkpoints.items())
            },
            "arrivals": self.arrivals,
            **({"source_arrivals": self.source_arrivals} if self.source_arrivals else {}),
            "durations": dict(sorted(self.durations.items())),
            "strangers": dict(sorted(self.strangers.items())),
            "read": [
                (b85encode(emitter).decode(), checkpoint, replay, beacons)
                for (emitter, checkpoint, replay), beacons in sorted(
                    self.read.items(), key=lambda read: (*read[0][:2], read[0][2] or "")
                )
            ],
            "corrupted": dict(sorted(self.corrupted.items())),
            "checked": dict(sorted(self.checked.items())),
            "reasons": {
                name: dict(sorted(bounded_reasons(counts, MAX_REASONS).items()))
                for name, counts in sorted(self.reasons.items())
            },
            "quarantined": sorted(self.quarantined),
            "sample": self.sample,
            "cuts": self.cuts,
            "proven": self.proven,
        }


def stretch_of(seen_ms: float, cuts: tuple[float, ...]) -> int:
    """Return how many cuts (ascending, epoch ms) are at or before a time."""
    return sum(cut <= seen_ms for cut in cuts)


def merge_patterns(patterns: Iterable[Pattern], cuts: tuple[float, ...]) -> tuple[Pattern, ...]:
    """Patterns of the same checkpoints and the same stretches between the cuts, summed."""
    merged: dict[tuple[int, ...], Pattern] = {}
    for pattern in patterns:
        firsts = pattern.seen_first_ms, pattern.by_first_ms
        key = pattern.mask, *(-1 if first_ms is None else stretch_of(first_ms, cuts) for first_ms in firsts)
        before = merged.get(key)
        merged[key] = pattern if before is None else _add_patterns(before, pattern)
    return tuple(merged[key] for key in sorted(merged))


def _add_patterns(a: Pattern, b: Pattern) -> Pattern:
    """Return the sum of two patterns, which both have times, and moments by which, or both have none."""
    on_time = tuple(map(sum, zip_longest(a.on_time, b.on_time, fillvalue=0)))
    return Pattern(
        a.mask,
        a.count + b.count,
        on_time,
        _of_both(min, a.seen_first_ms, b.seen_first_ms),
        _of_both(max, a.seen_last_ms, b.seen_last_ms),
        _of_both(min, a.by_first_ms, b.by_first_ms),
        _of_both(max, a.by_last_ms, b.by_last_ms),
    )


def _of_both(choose: Callable[[float, float], float], a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else choose(a, b)


def _merge_sketches(parts: Iterable[tuple[Sketch, ...]]) -> tuple[Sketch, ...]:
    return tuple(map(Sketch.merged, zip_longest(*parts, fillvalue=Sketch())))


def _merge_checkpoint(parts: list[CheckpointFacts]) -> CheckpointFacts:
    return CheckpointFacts(
        beacons=sum(part.beacons for part in parts),
        replayed=sum(part.replayed for part in parts),
        distinct=sum(part.distinct for part in parts),
        duplicates=sum(part.duplicates or 0 for part in parts),
        lags=Sketch.merged(part.lags for part in parts),
        out_of_order=sum(part.out_of_order for part in parts),
    )
