"""Roll-ups: what the windows of an hour or a day come to. Counts add up, sketches merge; no ratio is ever averaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Final, Literal

from msgspec import structs, to_builtins

from lagloss.wire.avro import decode_bytes, encode_bytes
from lagloss.wire.sketch import Sketch
from lagloss_server.model.window import (
    NO_LAGS,
    NO_PERCENTILES,
    CheckpointCounts,
    DestinationCounts,
    Interval,
    Lags,
    Percentiles,
    ReasonCounts,
    ReasonRow,
    SideCounts,
    SourceCounts,
    Window,
    bounded_reasons,
    loss_ratio,
    on_time_counts,
    reason_rows,
)
from lagloss_server.packing.packed_json import pack_json, unpack_json
from lagloss_server.rules.facts import WindowFacts
from lagloss_server.rules.packed_sketches import pack_document, unpack_document, unpack_sketches
from lagloss_server.rules.quality import stages_of_window, worst_of

Period = Literal["hour", "day"]
PERIOD_S: Final[Mapping[Period, int]] = {"hour": 3_600, "day": 86_400}


def period_of(period: Period, start_s: int) -> int:
    """Start (epoch s) of the hour or day, UTC, that a window or an hour belongs to."""
    return start_s // PERIOD_S[period] * PERIOD_S[period]


@dataclass(frozen=True, slots=True)
class CheckpointSums:
    """One checkpoint over many windows. `duplicates` is of the windows that have it, those whose blocks were read;
    `counted`: their live beacons."""

    lags: Sketch = field(default_factory=Sketch)
    beacons: int = 0
    distinct: int = 0
    duplicates: int = 0
    replayed: int = 0
    counted: int = 0
    out_of_order: int = 0

    def document(self, name: str) -> dict[str, Any]:
        counts = dict(zip(_CHECKPOINT_COUNTS, self.counts(), strict=False))
        return {"name": name, **counts, "lag_ms": structs.asdict(Percentiles.of(self.lags))}

    def counts(self) -> list[int]:
        """Return `_CHECKPOINT_COUNTS`, without the last one where it is 0."""
        found = [getattr(self, count) for count in _CHECKPOINT_COUNTS]
        return found if self.out_of_order else found[:-1]


_CHECKPOINT_COUNTS = ("beacons", "distinct", "duplicates", "replayed", "counted", "out_of_order")


@dataclass(frozen=True, slots=True)
class PartSums:
    """Some of the messages of many windows: the `due` ones at a destination (rule 15), or those of a source (rule 17)
    or
    of a side (rule 18); what became of them, and the lags of their first arrivals."""

    lags: Sketch = field(default_factory=Sketch)
    due: int = 0
    delivered: int = 0
    filtered: int = 0
    dead: int = 0
    pending: int = 0
    lost_min: int = 0
    lost_max: int = 0
    on_time: int = 0
    on_time_of: int = 0

    @classmethod
    def of_part(cls, there: DestinationCounts | SourceCounts, lags: Sketch) -> PartSums:
        """Return what one closed window adds at a destination or of a source, and the arrivals of these messages."""
        on_time, on_time_of = on_time_counts(there)
        return cls(lags, **_counted(there), on_time=on_time, on_time_of=on_time_of)

    @classmethod
    def of_side(cls, there: SideCounts) -> PartSums:
        """Return what one closed window adds of a side, of which lags and on-time share are unknown."""
        return cls(**_counted(there))

    @classmethod
    def merged(cls, parts: Sequence[PartSums]) -> PartSums:
        """All parts together; their windows are different ones."""
        counts = (sum(getattr(part, name) for part in parts) for name in _PART_COUNTS)
        return cls(Sketch.merged(part.lags for part in parts), *counts)

    @property
    def lost(self) -> Interval:
        return Interval(self.lost_min, self.lost_max)

    @property
    def on_time_share(self) -> float | None:
        return self.on_time / self.on_time_of if self.on_time_of else None

    def at_destination(self, name: str) -> DestinationCounts:
        """Return the sums as a window has them of a destination."""
        counts = (self.due, self.delivered, self.filtered, self.dead, self.pending)
        return DestinationCounts(name, *counts, self.lost, self.on_time_share, Lags.of(self.lags))

    def of_source(self, name: str) -> SourceCounts:
        """Return the sums as a window has them of a source."""
        counts = (self.due, self.delivered, self.filtered, self.dead, self.pending)
        return SourceCounts(name, *counts, self.lost, self.on_time_share, self.on_time_of, Lags.of(self.lags))

    def side_document(self, name: str) -> dict[str, Any]:
        """Return the sums of a side with a window's field names."""
        counts = {count: getattr(self, count) for count in ("delivered", "filtered", "dead", "pending")}
        return {"name": name, "messages": self.due, **counts, "lost": structs.asdict(self.lost)}


def _counted(there: DestinationCounts | SourceCounts | SideCounts) -> dict[str, Any]:
    counts = {name: getattr(there, name) or 0 for name in ("delivered", "filtered", "dead", "pending")}
    return {"due": there.messages or 0, **counts, "lost_min": there.lost_min, "lost_max": there.lost_max}


_PART_COUNTS = (*("due", "delivered", "filtered", "dead", "pending", "lost_min", "lost_max", "on_time", "on_time_of"),)


@dataclass(frozen=True, slots=True)
class Rollup:
    """Sums over closed windows, in messages unless stated otherwise; sampled windows count as scaled.

    `windows`: how many there are of them (minutes closed); `verdicts`, `proofs`: of these, by verdict and proof.
    `on_time` of the `on_time_of` messages that had to be delivered, one each for every destination (rule 15), were so
    within the lag target; windows without an on-time share count in neither. `checkpoints`, `destinations` and
    `sources`, of windows with several, are in the order of the flow. `lost_at`: what was lost at each place that lost
    something (`node mid`, `link src->mid`); a message may be so at several. `reasons`: why messages were filtered or
    dead, and `durations`: for how long places kept messages (`Graph.spans`), of the windows that were read.
    `checksums`: by link, how many messages were corrupted of how many that carried checksums on both sides.
    `staleness_ms`: the largest of each checkpoint. `worst`: see `quality.worst_of`, of any window.
    """

    windows: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    proofs: Mapping[str, int] = field(default_factory=dict)
    messages: int = 0
    delivered: int = 0
    filtered: int = 0
    dead: int = 0
    pending: int = 0
    unexplained: int = 0
    lost_min: int = 0
    lost_max: int = 0
    on_time: int = 0
    on_time_of: int = 0
    e2e_lags: Sketch = field(default_factory=Sketch)
    checkpoints: Mapping[str, CheckpointSums] = field(default_factory=dict)
    destinations: Mapping[str, PartSums] = field(default_factory=dict)
    sources: Mapping[str, PartSums] = field(default_factory=dict)
    sides: Mapping[str, PartSums] = field(default_factory=dict)
    lost_at: Mapping[str, Interval] = field(default_factory=dict)
    reasons: ReasonCounts = field(default_factory=dict)
    durations: Mapping[str, Sketch] = field(default_factory=dict)
    checksums: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    staleness_ms: Mapping[str, float] = field(default_factory=dict)
    worst: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    @classmethod
    def of_window(cls, window: Window, facts: WindowFacts) -> Rollup:
        """Make the roll-up of one closed window: counts of its result, sketches of its facts."""
        on_time, on_time_of = on_time_counts(window)
        no_lags = Sketch()
        counts: dict[str, Any] = {name: getattr(window, name) or 0 for name in _DOCUMENT_COUNTS}
        total = cls(
            windows=1,
            verdicts={window.verdict: 1} if window.verdict else {},
            proofs={window.proof: 1},
            **counts,
            lost_min=window.lost_min,
            lost_max=window.lost_max,
            on_time=on_time,
            on_time_of=on_time_of,
            e2e_lags=facts.e2e_lags,
            checkpoints={
                there.name: CheckpointSums(
                    facts.checkpoints[there.name].lags if there.name in facts.checkpoints else no_lags,
                    beacons=there.beacons,
                    distinct=there.distinct or 0,
                    duplicates=there.duplicates or 0,
                    replayed=there.replayed,
                    counted=0 if there.duplicates is None else there.beacons,
                    out_of_order=there.out_of_order,
                )
                for there in window.checkpoints
            },
            destinations=_parts(window.destinations, facts.arrivals),
            sources=_parts(window.sources, facts.source_arrivals),
            sides={there.name: PartSums.of_side(there) for there in window.sides},
            lost_at=dict(window.losses),
            reasons=window.reasons_by_node or {},
            durations=facts.durations,
            checksums={link.name: (link.corrupted or 0, link.checked) for link in window.links if link.checked},
            staleness_ms=window.staleness_ms,
        )
        return replace(total, worst=worst_of(stages_of_window(window), total, window.start_s))

    @classmethod
    def of_counts(cls, verdicts: Mapping[str, int], counts: Mapping[str, Any]) -> Rollup:
        """Make a roll-up of what objectives are judged by: windows by verdict, and `COUNTS`. It has no sketches and no
        places."""
        return cls(windows=sum(verdicts.values()), verdicts=verdicts, **{name: counts[name] for name in COUNTS})

    @classmethod
    def merged(cls, parts: Iterable[Rollup]) -> Rollup:
        """Return all parts together; their windows are different ones. Associative: a day is its hours is its
        windows (but for reasons, where there are more than `MAX_REASONS`)."""
        parts = list(parts)
        names = dict.fromkeys(name for part in parts for name in part.checkpoints)
        return cls(
            verdicts=_added(part.verdicts for part in parts),
            proofs=_added(part.proofs for part in parts),
            **{name: sum(getattr(part, name) for part in parts) for name in _SUMS},
            e2e_lags=Sketch.merged(part.e2e_lags for part in parts),
            checkpoints={
                name: _merge_checkpoint([part.checkpoints[name] for part in parts if name in part.checkpoints])
                for name in names
            },
            destinations=_merge_parts([part.destinations for part in parts]),
            sources=_merge_parts([part.sources for part in parts]),
            sides=_merge_parts([part.sides for part in parts]),
            lost_at=_added_intervals(part.lost_at for part in parts),
            reasons=_added_reasons([part.reasons for part in parts]),
            durations={
                label: Sketch.merged(part.durations[label] for part in parts if label in part.durations)
                for label in sorted({label for part in parts for label in part.durations})
            },
            checksums=_added_checksums(part.checksums for part in parts),
            staleness_ms=_largest(part.staleness_ms for part in parts),
            worst=_worst(part.worst for part in parts),
        )

    def at(self, destination: str) -> Rollup:
        """Return the sums of one destination in place of the pipeline's; the verdicts stay those of the windows."""
        return self._of_part(self.destinations.get(destination, PartSums()))

    def from_source(self, source: str) -> Rollup:
        """Return the sums of one source's messages in place of the pipeline's; the verdicts stay those of the
        windows."""
        return self._of_part(self.sources.get(source, PartSums()))

    def of_side(self, side: str) -> Rollup:
        """Return the sums of one side of the graph in place of the pipeline's; the verdicts stay those of the
        windows."""
        return self._of_part(self.sides.get(side, PartSums()))

    def _of_part(self, there: PartSums) -> Rollup:
        return Rollup(
            windows=self.windows,
            verdicts=self.verdicts,
            proofs=self.proofs,
            messages=there.due,
            **{name: getattr(there, name) for name in _PART_COUNTS if name != "due"},
            e2e_lags=there.lags,
        )

    def p95_ms(self, checkpoints: Iterable[str]) -> float | None:
        """Return the p95 of the live lags at some checkpoints together, from their merged sketches."""
        found = (self.checkpoints[name].lags for name in checkpoints if name in self.checkpoints)
        return Sketch.merged(found).quantile_ms(0.95)

    @property
    def lost(self) -> Interval:
        return Interval(self.lost_min, self.lost_max)

    @property
    def loss_ratio(self) -> dict[str, float | None]:
        """Loss ratio of the period; None without messages."""
        if not self.messages:
            return {"min": None, "max": None}
        return {"min": self.lost_min / self.messages, "max": self.lost_max / self.messages}

    @property
    def on_time_share(self) -> float | None:
        return self.on_time / self.on_time_of if self.on_time_of else None

    def document(self) -> dict[str, Any]:
        """Return the roll-up with a window's field names, as reports and pages show it."""
        return {
            "windows": self.windows,
            "verdicts": dict(self.verdicts),
            "proofs": dict(self.proofs),
            **{name: getattr(self, name) for name in _DOCUMENT_COUNTS},
            "lost": structs.asdict(self.lost),
            "loss_ratio": self.loss_ratio,
            "on_time_share": self.on_time_share,
            "e2e_lag_ms": structs.asdict(Lags.of(self.e2e_lags)),
            "checkpoints": [sums.document(name) for name, sums in self.checkpoints.items()],
            "destinations": [to_builtins(sums.at_destination(name)) for name, sums in self.destinations.items()],
            **(
                {"sources": [to_builtins(sums.of_source(name)) for name, sums in self.sources.items()]}
                if self.sources
                else {}
            ),
            **({"sides": [sums.side_document(name) for name, sums in self.sides.items()]} if self.sides else {}),
            "lost_at": {place: structs.asdict(lost) for place, lost in self.lost_at.items()},
            "reasons_by_node": self.reasons,
            "checksums": {
                link: {"corrupted": corrupted, "checked": checked}
                for link, (corrupted, checked) in self.checksums.items()
            },
            "staleness_ms": dict(self.staleness_ms),
        }

    @property
    def reason_rows(self) -> list[ReasonRow]:
        """Why messages were filtered or dead, most frequent first."""
        return reason_rows(self.reasons, ((name, there.beacons) for name, there in self.checkpoints.items()))

    def headline(self) -> dict[str, Any]:
        """Return the columns of the table `rollup`, to be read for many pipelines at once."""
        return {
            "windows": self.windows,
            **{column: self.verdicts.get(verdict, 0) for verdict, column in VERDICT_COLUMNS.items()},
            **{name: getattr(self, name) for name in COUNTS},
            "e2e_p95_ms": self.e2e_lags.quantile_ms(0.95),
        }

    def pack(self) -> bytes:
        """Return the roll-up packed, its counts first; equal ones give equal bytes."""
        counts = {"verdicts": self.verdicts, "proofs": self.proofs, **{name: getattr(self, name) for name in _SUMS}}
        return encode_bytes(pack_json(counts)) + pack_document(self._document_of_parts)

    def _document_of_parts(self, number: Callable[[Sketch], int]) -> dict[str, Any]:
        def pack_parts(parts: Mapping[str, PartSums]) -> dict[str, list[Any]]:
            return {
                name: [number(sums.lags), *(getattr(sums, count) for count in _PART_COUNTS)]
                for name, sums in parts.items()
            }

        return {
            "e2e_lags": number(self.e2e_lags),
            "checkpoints": {name: [number(sums.lags), *sums.counts()] for name, sums in self.checkpoints.items()},
            "destinations": pack_parts(self.destinations),
            **({"sources": pack_parts(self.sources)} if self.sources else {}),
            **({"sides": pack_parts(self.sides)} if self.sides else {}),
            "lost_at": {place: [lost.min, lost.max] for place, lost in self.lost_at.items()},
            "reasons": self.reasons,
            "durations": {label: number(sketch) for label, sketch in sorted(self.durations.items())},
            "checksums": self.checksums,
            "staleness_ms": self.staleness_ms,
            "worst": self.worst,
        }

    @classmethod
    def unpack(cls, packed: bytes) -> Rollup:
        raw, rest = _unpacked(packed)
        sketches = unpack_sketches(rest)

        def unpack_parts(parts: Mapping[str, list[Any]]) -> dict[str, PartSums]:
            return {name: PartSums(sketches[lags], *counts) for name, (lags, *counts) in parts.items()}

        checkpoints = {
            name: CheckpointSums(sketches[lags], *counts) for name, (lags, *counts) in raw.pop("checkpoints").items()
        }
        return cls(
            e2e_lags=sketches[raw.pop("e2e_lags")],
            checkpoints=checkpoints,
            destinations=unpack_parts(raw.pop("destinations")),
            sources=unpack_parts(raw.pop("sources", {})),
            sides=unpack_parts(raw.pop("sides", {})),
            lost_at={place: Interval(*lost) for place, lost in raw.pop("lost_at").items()},
            durations={label: sketches[lags] for label, lags in raw.pop("durations").items()},
            checksums={link: (bad, of) for link, (bad, of) in raw.pop("checksums").items()},
            worst={name: (value, start_s) for name, (value, start_s) in raw.pop("worst").items()},
            **raw,
        )


def _unpacked(packed: bytes) -> tuple[dict[str, Any], bytes]:
    """Return all that is packed, and what its sketches are found in."""
    counts, parts = decode_bytes(packed)
    raw, rest = unpack_document(parts)
    return unpack_json(counts) | raw, rest


def counts_of(beginning: bytes) -> dict[str, Any]:
    """Return the verdicts and counts of the whole pipeline alone, of the first `COUNTS_BYTES` bytes of a packed
    roll-up, or more of them."""
    counts: dict[str, Any] = unpack_json(decode_bytes(beginning)[0])
    return counts


def counted_window(packed: bytes) -> Window:
    """Return the counts of a roll-up as those of a window, and none of what its sketches hold."""
    raw, _ = _unpacked(packed)
    return _as_window(
        raw,
        # the last count is left out where it is 0
        checkpoints=tuple(_checkpoint(name, *counts) for name, (_, *counts) in raw["checkpoints"].items()),
        destinations=tuple(_destination(name, *counts) for name, (_, *counts) in raw["destinations"].items()),
    )


def whole_counts(beginning: bytes) -> Window:
    """Return the counts of a roll-up's whole pipeline as those of a window; see `counts_of`."""
    return _as_window(counts_of(beginning))


def _as_window(
    raw: Mapping[str, Any],
    checkpoints: tuple[CheckpointCounts, ...] = (),
    destinations: tuple[DestinationCounts, ...] = (),
) -> Window:
    lost = Interval(raw["lost_min"], raw["lost_max"])
    return Window(
        pipeline="",
        window_start="",
        verdict=None,
        reasons=(),
        proof="beacons",
        sample=1.0,
        **{name: raw[name] for name in _DOCUMENT_COUNTS},
        clock_skew_ms=None,
        lost=lost,
        loss_ratio=loss_ratio(lost, raw["messages"]),
        on_time_share=raw["on_time"] / raw["on_time_of"] if raw["on_time_of"] else None,
        on_time_of=raw["on_time_of"],
        e2e_lag_ms=NO_LAGS,
        checkpoints=checkpoints,
        nodes=(),
        links=(),
        destinations=destinations,
        reasons_by_node=None,
        staleness_ms={},
        crashes=(),
        unknown_checkpoints=(),
    )


def _checkpoint(
    name: str, beacons: int, distinct: int, duplicates: int, replayed: int, counted: int, out_of_order: int = 0
) -> CheckpointCounts:
    return CheckpointCounts(name, beacons, distinct, duplicates, replayed, NO_PERCENTILES, out_of_order)


def _destination(
    name: str, due: int, delivered: int, filtered: int, dead: int, pending: int, *lost_and_on_time: int
) -> DestinationCounts:
    lost_min, lost_max, on_time, on_time_of = lost_and_on_time
    share = on_time / on_time_of if on_time_of else None
    lost = Interval(lost_min, lost_max)
    return DestinationCounts(name, due, delivered, filtered, dead, pending, lost, share, NO_LAGS)


COUNTS: Final = ("messages", "delivered", "pending", "lost_min", "lost_max", "on_time", "on_time_of")
"""Counts by which objectives are judged, besides the windows by verdict; columns of tables `window` and `rollup`."""
VERDICT_COLUMNS: Final = {verdict: f"{verdict}_windows" for verdict in ("idle", "loss", "ok", "unknown")}
"""Columns of the table `rollup`: windows by verdict."""
COUNTS_BYTES: Final = 1_024
"""Length of the packed prefix that holds all counts, however large: they come first, in some 400 bytes of text."""
_DOCUMENT_COUNTS = ("messages", "delivered", "filtered", "dead", "pending", "unexplained")
_SUMS = ("windows", *_DOCUMENT_COUNTS, "lost_min", "lost_max", "on_time", "on_time_of")


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))


def _added_intervals(parts: Iterable[Mapping[str, Interval]]) -> dict[str, Interval]:
    total: dict[str, Interval] = {}
    for part in parts:
        for place, lost in part.items():
            before = total.get(place, Interval(0, 0))
            total[place] = Interval(before.min + lost.min, before.max + lost.max)
    return dict(sorted(total.items()))


def _added_checksums(parts: Iterable[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = {}
    for part in parts:
        for link, (corrupted, checked) in part.items():
            before = total.get(link, (0, 0))
            total[link] = before[0] + corrupted, before[1] + checked
    return dict(sorted(total.items()))


def _largest(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = max(value, total.get(name, value))
    return dict(sorted(total.items()))


def _worst(parts: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, tuple[float, int]]:
    """Return the largest value of each name, the first of equal ones."""
    total: dict[str, tuple[float, int]] = {}
    for part in parts:
        for name, (value, start_s) in part.items():
            found = total.get(name, (value, start_s))
            total[name] = max(found, (value, start_s), key=lambda each: (each[0], -each[1]))
    return dict(sorted(total.items()))


def _added_reasons(parts: Sequence[ReasonCounts]) -> ReasonCounts:
    total: dict[str, dict[str, Counter[str]]] = {}
    for part in parts:
        for node, exits in part.items():
            for exit_, counts in exits.items():
                total.setdefault(node, {}).setdefault(exit_, Counter()).update(counts)
    return {
        node: {exit_: bounded_reasons(counts) for exit_, counts in sorted(exits.items())}
        for node, exits in sorted(total.items())
    }


def _merge_parts(found: Sequence[Mapping[str, PartSums]]) -> dict[str, PartSums]:
    names = dict.fromkeys(name for parts in found for name in parts)
    return {name: PartSums.merged([parts[name] for parts in found if name in parts]) for name in names}


def _parts(found: Sequence[DestinationCounts | SourceCounts], arrivals: Sequence[Sketch]) -> dict[str, PartSums]:
    """Return the sums of each destination or source, of which each has its arrivals, or none has."""
    lags = arrivals or repeat(Sketch())
    return {there.name: PartSums.of_part(there, own) for there, own in zip(found, lags, strict=False)}


def _merge_checkpoint(parts: Sequence[CheckpointSums]) -> CheckpointSums:
    counts = (sum(getattr(part, name) for part in parts) for name in _CHECKPOINT_COUNTS)
    return CheckpointSums(Sketch.merged(part.lags for part in parts), *counts)
