"""Roll-ups: the windows of an hour or a day, merged. Counts add up, sketches merge; no ratio is ever averaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct, field, structs, to_builtins

from lagloss.wire.avro import decode_bytes, encode_bytes
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.judging.packed_sketches import pack_document, unpack_document, unpack_sketches
from lagloss_server.model.window import (
    NONE_LOST,
    DestinationCounts,
    Interval,
    Lags,
    LossRatio,
    Part,
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
from lagloss_server.packing.packed_json import pack_text, unpack_text
from lagloss_server.sums.quality import stages_of_window, worst_of

T = TypeVar("T")
Period = Literal["hour", "day"]
PERIOD_S: Final[Mapping[Period, int]] = {"hour": 3_600, "day": 86_400}


def period_of(period: Period, start_s: int) -> int:
    """Start (epoch s) of the hour or day, UTC, that a window or an hour belongs to."""
    return start_s // PERIOD_S[period] * PERIOD_S[period]


class LinkSums(Struct, frozen=True, array_like=True, gc=False):
    """One link over many windows: messages that were `corrupted`, of those `checked`, with checksums on both sides."""

    corrupted: int = 0
    checked: int = 0


class CheckpointSums(Struct, frozen=True, array_like=True):
    """One checkpoint over many windows. `duplicates` is of the windows that have it, those whose blocks were read;
    `counted`: their live beacons."""

    lags: Sketch = field(default_factory=Sketch)
    beacons: int = 0
    distinct: int = 0
    duplicates: int = 0
    replayed: int = 0
    counted: int = 0
    out_of_order: int = 0


class Sums(Part, frozen=True):
    """Messages of many windows, all or some of them. `on_time` of the `on_time_of` messages that had to be delivered,
    one each for every destination (rule 15), were so within the lag target; windows without an on-time share count in
    neither."""

    messages: int = 0
    delivered: int = 0
    filtered: int = 0
    dead: int = 0
    pending: int = 0
    lost: Interval = NONE_LOST
    on_time: int = 0
    on_time_of: int = 0

    @property
    def on_time_share(self) -> float | None:
        return self.on_time / self.on_time_of if self.on_time_of else None

    @property
    def loss_ratio(self) -> LossRatio:
        """The share of the messages that was lost; None without messages."""
        return loss_ratio(self.lost, self.messages)


class PartSums(Sums, frozen=True, array_like=True):
    """The messages that were due at a destination (rule 15), or those of a source (rule 17) or of a side (rule 18), of
    which no lags are known; `lags`: of their first arrivals."""

    lags: Sketch = field(default_factory=Sketch)

    @classmethod
    def of(cls, part: DestinationCounts | SourceCounts | SideCounts, lags: Sketch | None = None) -> PartSums:
        """Return what one closed window adds, and the lags of its arrivals."""
        return cls(**_sums_of(part), lags=lags or Sketch())

    @classmethod
    def merged(cls, parts: Sequence[PartSums]) -> PartSums:
        """Return all parts together; their windows are different ones."""
        total: PartSums = _merged(parts) if parts else cls()
        return total

    def at_destination(self, name: str) -> DestinationCounts:
        """Return the sums as a window has them of a destination."""
        return DestinationCounts(name, *self.fates(), self.on_time_share, Lags.of(self.lags))

    def of_source(self, name: str) -> SourceCounts:
        """Return the sums as a window has them of a source."""
        return SourceCounts(name, *self.fates(), self.on_time_share, self.on_time_of, Lags.of(self.lags))

    def fates(self) -> tuple[int, int, int, int, int, Interval]:
        """Return the messages and their fates, in the order of a window's fields."""
        return self.messages, self.delivered, self.filtered, self.dead, self.pending, self.lost


class RollupCounts(Sums, frozen=True):
    """What is known of a whole pipeline without its places and sketches.

    `windows`: how many there are of them (minutes closed); `verdicts`, `proofs`: of these, by verdict and proof.
    """

    windows: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    proofs: Mapping[str, int] = field(default_factory=dict)
    unexplained: int = 0


class Rollup(RollupCounts, frozen=True, omit_defaults=True):
    """Sums over closed windows, in messages unless stated otherwise; sampled windows count as scaled.

    `checkpoints`, `destinations` and `sources`, of windows with several, are in the order of the flow. `lost_at`: what
    was lost at each place that lost something (`node mid`, `link src->mid`); a message may be so at several. `reasons`:
    why messages were filtered or dead, and `durations`: for how long places kept messages (`Graph.spans`), of the
    windows that were read. `checksums`: by link. `staleness_ms`: the largest of each checkpoint. `worst`: see
    `quality.worst_of`, of any window.
    """

    e2e_lags: Sketch = field(default_factory=Sketch)
    checkpoints: Mapping[str, CheckpointSums] = field(default_factory=dict)
    destinations: Mapping[str, PartSums] = field(default_factory=dict)
    sources: Mapping[str, PartSums] = field(default_factory=dict)
    sides: Mapping[str, PartSums] = field(default_factory=dict)
    lost_at: Mapping[str, Interval] = field(default_factory=dict)
    reasons: ReasonCounts = field(default_factory=dict)
    durations: Mapping[str, Sketch] = field(default_factory=dict)
    checksums: Mapping[str, LinkSums] = field(default_factory=dict)
    staleness_ms: Mapping[str, float] = field(default_factory=dict)
    worst: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    @classmethod
    def of_window(cls, window: Window, facts: WindowFacts) -> Rollup:
        """Make the roll-up of one closed window: counts of its result, sketches of its facts."""
        no_lags = Sketch()
        total = cls(
            **_sums_of(window),
            windows=1,
            verdicts={window.verdict: 1} if window.verdict else {},
            proofs={window.proof: 1},
            unexplained=window.unexplained or 0,
            e2e_lags=facts.e2e_lags,
            checkpoints={
                counts.name: CheckpointSums(
                    facts.checkpoints[counts.name].lags if counts.name in facts.checkpoints else no_lags,
                    beacons=counts.beacons,
                    distinct=counts.distinct or 0,
                    duplicates=counts.duplicates or 0,
                    replayed=counts.replayed,
                    counted=0 if counts.duplicates is None else counts.beacons,
                    out_of_order=counts.out_of_order,
                )
                for counts in window.checkpoints
            },
            destinations=_parts(window.destinations, facts.arrivals),
            sources=_parts(window.sources, facts.source_arrivals),
            sides=_parts(window.sides),
            lost_at=dict(window.losses),
            reasons=window.reasons_by_node or {},
            durations=facts.durations,
            checksums={link.name: LinkSums(link.corrupted or 0, link.checked) for link in window.links if link.checked},
            staleness_ms=window.staleness_ms,
        )
        return structs.replace(total, worst=worst_of(stages_of_window(window), total, window.start_s))

    @classmethod
    def of_counts(cls, verdicts: Mapping[str, int], counts: Mapping[str, int]) -> Rollup:
        """Make a roll-up of what objectives are judged by: windows by verdict, and `COUNTS`. It has no sketches and no
        places."""
        sums: dict[str, Any] = dict(counts)
        lost = Interval(sums.pop("lost_min"), sums.pop("lost_max"))
        return cls(windows=sum(verdicts.values()), verdicts=verdicts, lost=lost, **sums)

    @classmethod
    def merged(cls, parts: Iterable[Rollup]) -> Rollup:
        """Return all parts together; their windows are different ones. Associative: a day is its hours is its
        windows (but for reasons, where there are more than `MAX_REASONS`)."""
        parts = list(parts)
        if not parts:
            return cls()
        fields = {name: [getattr(part, name) for part in parts] for name in cls.__struct_fields__}
        return cls(**{name: _MERGES.get(name, _merged_by_name)(values) for name, values in fields.items()})

    def at(self, destination: str) -> Rollup:
        """Return the sums of one destination in place of the pipeline's; the verdicts stay those of the windows."""
        return self._of_part(self.destinations, destination)

    def from_source(self, source: str) -> Rollup:
        """Return the sums of one source's messages in place of the pipeline's; the verdicts stay those of the
        windows."""
        return self._of_part(self.sources, source)

    def of_side(self, side: str) -> Rollup:
        """Return the sums of one side of the graph in place of the pipeline's; the verdicts stay those of the
        windows."""
        return self._of_part(self.sides, side)

    def _of_part(self, parts: Mapping[str, PartSums], name: str) -> Rollup:
        part = parts.get(name, PartSums())
        sums = {name: getattr(part, name) for name in Sums.__struct_fields__}
        return Rollup(**sums, windows=self.windows, verdicts=self.verdicts, proofs=self.proofs, e2e_lags=part.lags)

    def p95_ms(self, checkpoints: Iterable[str]) -> float | None:
        """Return the p95 of the live lags at some checkpoints together, from their merged sketches."""
        lags = (self.checkpoints[name].lags for name in checkpoints if name in self.checkpoints)
        return Sketch.merged(lags).quantile_ms(0.95)

    def document(self) -> dict[str, Any]:
        """Return the roll-up with a window's field names, as reports and pages show it."""
        document: dict[str, Any] = to_builtins(
            {
                **{name: getattr(self, name) for name in ("windows", "verdicts", "proofs", *_FATES, "unexplained")},
                "lost": self.lost,
                "loss_ratio": self.loss_ratio,
                "on_time_share": self.on_time_share,
                "e2e_lag_ms": Lags.of(self.e2e_lags),
                "checkpoints": [
                    {
                        "name": name,
                        **{count: getattr(sums, count) for count in _CHECKPOINT_COUNTS},
                        **({"out_of_order": sums.out_of_order} if sums.out_of_order else {}),
                        "lag_ms": Percentiles.of(sums.lags),
                    }
                    for name, sums in self.checkpoints.items()
                ],
                "destinations": [sums.at_destination(name) for name, sums in self.destinations.items()],
                **({"sources": [sums.of_source(name) for name, sums in self.sources.items()]} if self.sources else {}),
                **({"sides": [_side(name, sums) for name, sums in self.sides.items()]} if self.sides else {}),
                "lost_at": self.lost_at,
                "reasons_by_node": self.reasons,
                "checksums": {link: structs.asdict(checksums) for link, checksums in self.checksums.items()},
                "staleness_ms": self.staleness_ms,
            }
        )
        return document

    @property
    def reason_rows(self) -> list[ReasonRow]:
        """Why messages were filtered or dead-lettered, most frequent first."""
        return reason_rows(self.reasons, ((name, sums.beacons) for name, sums in self.checkpoints.items()))

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
        counts = RollupCounts(*(getattr(self, name) for name in RollupCounts.__struct_fields__))
        places = structs.replace(self, **structs.asdict(RollupCounts()))  # JSON is without counts of 0
        return encode_bytes(pack_text(msgspec.json.encode(counts))) + pack_document(places)

    @staticmethod
    def unpack(packed: bytes) -> Rollup:
        """Return the roll-up that `pack` packed.

        Raises:
            ValueError, zstandard.ZstdError: it is something else.
        """
        return _unpack(packed, unpack_sketches)

    @staticmethod
    def unpack_counts(packed: bytes) -> Rollup:
        """Return the roll-up that `pack` packed, with empty sketches. Raises as `unpack`."""
        return _unpack(packed, lambda _: defaultdict(Sketch))

    @staticmethod
    def unpack_beginning(beginning: bytes) -> Rollup:
        """Return the counts of a whole pipeline, of the first `COUNTS_BYTES` bytes of a packed roll-up, or of more of
        them. Raises as `unpack`."""
        return msgspec.json.decode(unpack_text(decode_bytes(beginning)[0]), type=Rollup)


COUNTS: Final = ("messages", "delivered", "pending", "lost_min", "lost_max", "on_time", "on_time_of")
"""Counts by which objectives are judged, besides the windows by verdict; columns of tables `window` and `rollup`."""
VERDICT_COLUMNS: Final = {verdict: f"{verdict}_windows" for verdict in ("idle", "loss", "ok", "unknown")}
"""Columns of the table `rollup`: windows by verdict."""
COUNTS_BYTES: Final = 1_024
"""Length of the packed prefix that holds all counts, however large: they come first, in some 400 bytes of text."""
_FATES: Final = ("messages", "delivered", "filtered", "dead", "pending")
_CHECKPOINT_COUNTS: Final = ("beacons", "distinct", "duplicates", "replayed", "counted")


def _unpack(packed: bytes, unpack_lags: Callable[[bytes], Sequence[Sketch] | Mapping[int, Sketch]]) -> Rollup:
    text, rest = unpack_document(decode_bytes(packed)[1])
    sketches = unpack_lags(rest)
    places = msgspec.json.decode(text, type=Rollup, dec_hook=lambda _, number: sketches[number])
    counts = Rollup.unpack_beginning(packed)
    return structs.replace(places, **{name: getattr(counts, name) for name in RollupCounts.__struct_fields__})


def _sums_of(part: Window | DestinationCounts | SourceCounts | SideCounts) -> dict[str, Any]:
    """Return the fields of `Sums` of what one closed window has of all or some of its messages."""
    on_time, on_time_of = (0, 0) if isinstance(part, SideCounts) else on_time_counts(part)
    counts = {name: getattr(part, name) or 0 for name in _FATES}
    return {**counts, "lost": part.lost or NONE_LOST, "on_time": on_time, "on_time_of": on_time_of}


def _parts(
    parts: Sequence[DestinationCounts | SourceCounts | SideCounts], arrivals: Sequence[Sketch] = ()
) -> dict[str, PartSums]:
    """Return the sums of each part, of which each has its arrivals, or none has."""
    lags = arrivals or repeat(Sketch())
    return {part.name: PartSums.of(part, arrived) for part, arrived in zip(parts, lags, strict=False)}


def _side(name: str, sums: PartSums) -> dict[str, Any]:
    return {"name": name, **{fate: getattr(sums, fate) for fate in _FATES}, "lost": sums.lost}


def _merged(values: Sequence[Any]) -> Any:
    """Return values of one type together: counts add up, sketches merge, structures do so field by field and mappings
    key by key, in the order in which the keys come."""
    first = values[0]
    if isinstance(first, int):
        return sum(values)
    if isinstance(first, Sketch):
        return Sketch.merged(values)
    if isinstance(first, Struct):
        fields = ([getattr(value, name) for value in values] for name in first.__struct_fields__)
        return type(first)(*map(_merged, fields))
    return {key: _merged(parts) for key, parts in _by_key(values).items()}


def _by_key(values: Iterable[Mapping[str, T]]) -> dict[str, list[T]]:
    parts: dict[str, list[T]] = {}
    for value in values:
        for key, part in value.items():
            parts.setdefault(key, []).append(part)
    return parts


def _merged_by_name(values: Sequence[Any]) -> Any:
    """Return values of one type together, those of mappings in the order of their keys."""
    total = _merged(values)
    return dict(sorted(total.items())) if isinstance(total, dict) else total


def _largest(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: max(parts) for name, parts in sorted(_by_key(values).items())}


def _worst(values: Sequence[Mapping[str, tuple[float, int]]]) -> dict[str, tuple[float, int]]:
    """Return the largest value of each name, the first of equal ones."""
    entries = sorted(_by_key(values).items())
    return {
        name: max(worst, key=lambda value_and_start: (value_and_start[0], -value_and_start[1]))
        for name, worst in entries
    }


def _merged_reasons(values: Sequence[ReasonCounts]) -> ReasonCounts:
    total: ReasonCounts = _merged_by_name(values)
    return {
        node: {exit_: bounded_reasons(counts) for exit_, counts in sorted(exits.items())}
        for node, exits in total.items()
    }


_MERGES: Final[Mapping[str, Callable[[Sequence[Any]], Any]]] = {
    **dict.fromkeys(("checkpoints", "destinations", "sources", "sides"), _merged),
    "reasons": _merged_reasons,
    "staleness_ms": _largest,
    "worst": _worst,
}
"""How fields of a roll-up merge that do not do so by name."""
