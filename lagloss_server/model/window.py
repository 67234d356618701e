"""Windows: the result of each minute of a pipeline, as it is judged, stored, printed by `windows --json` and drawn.

The structures have the names and the order of the fields that are printed, so that what is encoded is what is printed.
Fields with a default are left out of JSON where they have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from lagloss.wire.sketch import Sketch
from lagloss_server.format import datetime_of

State = Literal["open", "closed", "sealed"]
Verdict = Literal["ok", "loss", "unknown", "idle"]
Proof = Literal["beacons", "tallies"]
HeldPercentile = Literal["p50", "p95", "p99"]
ReasonCounts = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Live beacons by node, exit (`filtered` or `dead`) and reason."""
EXITS_WITH_REASON: Final = ("filtered", "dead")
MAX_REASONS: Final = 20
"""Reasons that are counted by themselves at one exit; the least frequent of more are counted as `OTHER_REASONS`."""
OTHER_REASONS: Final = "(other reasons)"


class Interval(Struct, frozen=True, gc=False):
    """Bounds in messages: those that are certain, and those that cannot be ruled out."""

    min: int
    max: int


class LossRatio(Struct, frozen=True, gc=False):
    """Bounds of a share; None of no messages."""

    min: float | None
    max: float | None


class Percentiles(Struct, frozen=True, gc=False):
    """Percentiles of lags in ms, read from merged bins; None of no lags."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, sketch: Sketch) -> Percentiles:
        return cls(*sketch.quantiles_ms((0.5, 0.95, 0.99)))


class Lags(Struct, frozen=True, gc=False):
    """Percentiles of lags in ms, and the largest lag, to the resolution of bins; None of no lags."""

    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, sketch: Sketch) -> Lags:
        return cls(*sketch.quantiles_ms((0.5, 0.95, 0.99, 1.0)))


class OnTimeShare(Protocol):
    """The share of some messages that arrived on time, and the number of these messages."""

    @property
    def on_time_share(self) -> float | None: ...
    @property
    def on_time_of(self) -> int | None: ...


def loss_ratio(lost: Interval, messages: int) -> LossRatio:
    """Return the share of the messages that were lost."""
    return LossRatio(lost.min / messages, lost.max / messages) if messages else LossRatio(None, None)


def on_time_counts(part: OnTimeShare) -> tuple[int, int]:
    """Return how many messages were on time, and of how many (rule 12); 0 of 0 if no share is known."""
    share, total = part.on_time_share, part.on_time_of
    return (0, 0) if share is None or total is None else (round(share * total), total)


class CheckpointCounts(Struct, frozen=True, omit_defaults=True):
    """`distinct` and `duplicates` are None where only tallies are known."""

    name: str
    beacons: int
    distinct: int | None
    duplicates: int | None
    replayed: int
    lag_ms: Percentiles
    out_of_order: int = 0


class NodeCounts(Struct, frozen=True):
    """`process_duration_p95_ms` is the difference of two percentiles; `process_duration_ms` the true distribution, of
    messages that were seen on both sides, over one id in 16."""

    name: str
    lag_in_p95_ms: float | None
    lag_out_p95_ms: float | None
    process_duration_p95_ms: float | None
    process_duration_ms: Percentiles
    lost: Interval | None
    complete: bool


class LinkCounts(Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """`queue_time_p95_ms` and `queue_time_ms`: as in `NodeCounts`. `corrupted` of the messages that were `checked`:
    those that carried checksums on both sides."""

    source: str
    target: str
    queue_time_p95_ms: float | None
    queue_time_ms: Percentiles
    lost: Interval | None
    corrupted: int | None
    checked: int | None

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"


class DestinationCounts(Struct, frozen=True):
    """What became of the messages due at a delivery checkpoint (rule 15). None where only a closing can tell."""

    name: str
    due: int | None
    delivered: int
    filtered: int
    dead: int
    pending: int | None
    lost: Interval | None
    on_time_share: float | None
    e2e_lag_ms: Lags

    @property
    def loss_ratio(self) -> LossRatio | None:
        """The share of these messages that was lost."""
        return None if self.lost is None else loss_ratio(self.lost, self.due or 0)

    @property
    def on_time_of(self) -> int | None:
        """The messages that the on-time share is of."""
        return None if self.due is None else self.due - self.filtered - self.dead


class SourceCounts(Struct, frozen=True, omit_defaults=True):
    """What became of the messages of a source (rule 17). None where only a closing can tell. `parents_not_whole`: of a
    source whose ids carry those of their parents (rule 19)."""

    name: str
    messages: int
    delivered: int | None
    filtered: int | None
    dead: int | None
    pending: int | None
    lost: Interval | None
    on_time_share: float | None
    on_time_of: int | None
    e2e_lag_ms: Lags
    parents_not_whole: Interval | UnsetType | None = UNSET


class SideCounts(Struct, frozen=True):
    """What became of the messages of a side of the graph, which is judged by itself (rule 18). None where only a
    closing can tell."""

    name: str
    nodes: tuple[str, ...]
    verdict: Verdict | None
    messages: int
    delivered: int | None
    filtered: int | None
    dead: int | None
    pending: int | None
    unexplained: int | None
    lost: Interval | None
    loss_ratio: LossRatio | None


class Crash(Struct, frozen=True, gc=False):
    """An emitter that fell silent and leaves its node incomplete for good (rule 16)."""

    node: str
    emitter: str


class UndeclaredCheckpoint(Struct, frozen=True, gc=False):
    """Beacons of a checkpoint that the version in force does not have."""

    name: str
    beacons: int


class Window(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one window of one pipeline. `verdict`, `lost` and what depends on them are None while it is open.

    `sources`, `sides`: where there are several. `unknown_checkpoints`: 20 of them at most. `sample`: the share of its
    messages that it was judged by (rule 14). `clock_skew_ms`: how far apart the hosts' clocks are, whole seconds (rule
    4). `on_time_of`: how many messages the on-time share is of, one each for every destination it is due at.
    `reasons_by_node`: why messages were filtered or dead; None where no beacon was read. `staleness_ms`: by checkpoint,
    as of the window's end; without those whose staleness is unknown.
    """

    pipeline: str
    window_start: str
    verdict: Verdict | None
    reasons: tuple[str, ...]
    proof: Proof
    sample: float
    messages: int
    delivered: int | None
    filtered: int
    dead: int
    pending: int | None
    unexplained: int | None
    clock_skew_ms: int | None
    lost: Interval | None
    loss_ratio: LossRatio | None
    on_time_share: float | None
    on_time_of: int | None
    e2e_lag_ms: Lags
    checkpoints: tuple[CheckpointCounts, ...]
    nodes: tuple[NodeCounts, ...]
    links: tuple[LinkCounts, ...]
    destinations: tuple[DestinationCounts, ...]
    sources: tuple[SourceCounts, ...] = ()
    sides: tuple[SideCounts, ...] = ()
    reasons_by_node: dict[str, dict[str, dict[str, int]]] | None
    staleness_ms: dict[str, float]
    crashes: tuple[Crash, ...]
    unknown_checkpoints: tuple[UndeclaredCheckpoint, ...]

    @property
    def start_s(self) -> int:
        """The window's start, in epoch seconds."""
        return int(datetime.fromisoformat(self.window_start).timestamp())

    def document(self) -> dict[str, Any]:
        """Return the fields as a JSON object's."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return found


def loss_ratio_of(part: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the share of the messages due at a destination, or of a source, a row of a document, that were lost; None
    of none."""
    lost, due = part["lost"], part["due"] if "due" in part else part["messages"]
    return {name: lost[name] / due if due else None for name in ("min", "max")}


def bounded_reasons(counts: Mapping[str, int], room: int = MAX_REASONS) -> dict[str, int]:
    """Return the counts of the most frequent reasons, of the others together."""
    ranked = sorted(counts.items(), key=lambda each: (each[0] == OTHER_REASONS, -each[1], each[0]))
    kept, rest = ranked[:room], sum(count for _, count in ranked[room:])
    return dict(Counter(dict(kept)) + Counter({OTHER_REASONS: rest}))


def rfc3339(epoch_s: float) -> str:
    """UTC, with Z; whole seconds without a fraction."""
    return datetime_of(epoch_s).isoformat(timespec="auto").replace("+00:00", "Z")


# -- documents, as `windows --json` prints them ----------------------------------------------------------------------

WindowDocument = Mapping[str, Any]


def start_of(window: WindowDocument) -> int:
    """Return the window's start, in epoch seconds."""
    return int(datetime.fromisoformat(window["window_start"]).timestamp())


def is_settled(window: WindowDocument) -> bool:
    """Return whether its result is final: closed, with nothing pending and nothing unknown."""
    return window["state"] != "open" and not window["pending"] and bool(window["verdict"] != "unknown")


def losses_by_place(window: WindowDocument) -> dict[str, tuple[int, int]]:
    """Return the losses at nodes and links, named `node N` and `link A->B`: least and most."""
    found = {f"node {node['name']}": node["lost"] for node in window["nodes"]}
    found |= {f"link {link['from']}->{link['to']}": link["lost"] for link in window["links"]}
    return {place: (lost["min"], lost["max"]) for place, lost in found.items() if lost and lost["max"]}


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """Number of live beacons of one exit that give one reason; None: those that give none, or were not
    read."""

    node: str
    exit: str
    reason: str | None
    count: int


def reason_rows(document: WindowDocument) -> list[ReasonRow]:
    """Return why messages were filtered or dead, most frequent first, the unknown reasons of each exit included; of a
    window's document or of a roll-up's."""
    known: ReasonCounts = document["reasons_by_node"] or {}
    rows = []
    for checkpoint in document["checkpoints"]:
        node, _, exit_ = checkpoint["name"].partition(".")
        if exit_ not in EXITS_WITH_REASON:
            continue
        reasons = known.get(node, {}).get(exit_, {})
        rows += [ReasonRow(node, exit_, reason, count) for reason, count in reasons.items()]
        rest = checkpoint["beacons"] - sum(reasons.values())
        rows += [ReasonRow(node, exit_, None, rest)] if rest > 0 else []
    return sorted(rows, key=lambda row: (-row.count, row.node, row.exit, row.reason or ""))


def contract_document(window: dict[str, Any]) -> dict[str, Any]:
    """Return a window's fields in the order and number that the command line promises."""
    promised = {
        "pipeline": window["pipeline"],
        "window_start": window["window_start"],
        "state": window["state"],
        "revision": window["revision"],
    }
    rest = {name: value for name, value in window.items() if name not in (*promised, "history", "closed_at")}
    head: dict[str, Any] = {name: rest.pop(name) for name in ("verdict", "reasons", "proof", "sample")}
    return {**promised, **head, "closed_at": window["closed_at"], **rest}
