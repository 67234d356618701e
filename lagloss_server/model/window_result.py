"""Window results, as they are stored, printed by `windows --json` and drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from lagloss.wire.sketch import Sketch
from lagloss_server.format import datetime_of
from lagloss_server.model.place import link_label, node_label

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


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds in messages: those that are certain, and those that cannot be ruled out."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Lags:
    """Percentiles of lags in ms, read from merged bins; None of no lags."""

    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, sketch: Sketch) -> Lags:
        return cls(*sketch.quantiles_ms((0.5, 0.95, 0.99, 1.0)))


def fields_of(part: Any) -> dict[str, Any]:
    """Return the fields of a part of a result, intervals and lags as objects; in a third of the time of `asdict`."""
    return {
        name: fields_of(value) if (value := getattr(part, name)).__class__ in (Interval, Lags) else value
        for name in part.__slots__
    }


def percentiles(lags: Lags) -> dict[str, float | None]:
    return {"p50": lags.p50, "p95": lags.p95, "p99": lags.p99}


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """`distinct` and `duplicates` are None where only tallies are known. `out_of_order` is in documents where there
    are any."""

    name: str
    beacons: int
    distinct: int | None
    duplicates: int | None
    replayed: int
    lag_ms: Lags
    out_of_order: int = 0

    def document(self) -> dict[str, Any]:
        found = {**fields_of(self), "lag_ms": percentiles(self.lag_ms)}
        if not self.out_of_order:
            del found["out_of_order"]
        return found


@dataclass(frozen=True, slots=True)
class NodeResult:
    """`process_duration_p95_ms` is the difference of two percentiles; `process_duration_ms` the true distribution, of
    messages that were seen on both sides, over one id in 16."""

    name: str
    lag_in_p95_ms: float | None
    lag_out_p95_ms: float | None
    process_duration_p95_ms: float | None
    process_duration_ms: Lags
    lost: Interval | None
    complete: bool

    def document(self) -> dict[str, Any]:
        return {**fields_of(self), "process_duration_ms": percentiles(self.process_duration_ms)}


@dataclass(frozen=True, slots=True)
class LinkResult:
    """`queue_time_p95_ms` and `queue_time_ms`: as in `NodeResult`. `corrupted` of the messages that were `checked`:
    those that carried checksums on both sides."""

    source: str
    target: str
    queue_time_p95_ms: float | None
    queue_time_ms: Lags
    lost: Interval | None
    corrupted: int | None
    checked: int | None

    def document(self) -> dict[str, Any]:
        return {
            "from": self.source,
            "to": self.target,
            "queue_time_p95_ms": self.queue_time_p95_ms,
            "queue_time_ms": percentiles(self.queue_time_ms),
            "lost": None if self.lost is None else fields_of(self.lost),
            "corrupted": self.corrupted,
            "checked": self.checked,
        }


@dataclass(frozen=True, slots=True)
class DestinationResult:
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

    def document(self) -> dict[str, Any]:
        return fields_of(self)


@dataclass(frozen=True, slots=True)
class SourceResult:
    """What became of the messages of a source (rule 17). None where only a closing can tell."""

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
    splits: bool = False
    """Whether its ids carry those of their parents (rule 19)."""
    parents_not_whole: Interval | None = None

    def document(self) -> dict[str, Any]:
        found = fields_of(self)
        if not found.pop("splits"):
            del found["parents_not_whole"]
        return found


@dataclass(frozen=True, slots=True)
class SideResult:
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

    def document(self) -> dict[str, Any]:
        return {
            **fields_of(self),
            "nodes": list(self.nodes),
            "loss_ratio": None if self.lost is None else loss_ratio_of(fields_of(self)),
        }


@dataclass(frozen=True, slots=True)
class Crash:
    """An emitter that fell silent and leaves its node incomplete for good (rule 16)."""

    node: str
    emitter: str


@dataclass(frozen=True, slots=True)
class WindowResult:
    """One window of one pipeline. `verdict`, `lost` and what depends on them are None while it is open.

    `sources`, `sides`: where there are several. `unknown_checkpoints`: beacons of checkpoints that the version in force
    does not have (20 of them at most). `sample`: the share of its messages that it was judged by (rule 14).
    `clock_skew_ms`: how far apart the hosts' clocks are, whole seconds (rule 4). `on_time_of`: how many messages the
    on-time share is of, one each for every destination it is due at. `reasons_by_node`: why messages were filtered or
    dead; None where no beacon was read. `staleness_ms`: by checkpoint, as of the window's end; none of those whose
    staleness is not known. `pending_since_ms`: when the first of the pending or overdue messages was last seen (epoch
    ms); not printed.
    """

    pipeline: str
    window_start_s: int
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
    on_time_share: float | None
    on_time_of: int | None
    e2e_lag_ms: Lags
    checkpoints: tuple[CheckpointResult, ...]
    nodes: tuple[NodeResult, ...]
    links: tuple[LinkResult, ...]
    destinations: tuple[DestinationResult, ...]
    sources: tuple[SourceResult, ...] = ()
    sides: tuple[SideResult, ...] = ()
    crashes: tuple[Crash, ...] = ()
    unknown_checkpoints: Mapping[str, int] = field(default_factory=dict)
    reasons_by_node: ReasonCounts | None = None
    staleness_ms: Mapping[str, float] = field(default_factory=dict)
    pending_since_ms: float | None = None

    @property
    def loss_ratio(self) -> dict[str, float | None] | None:
        if self.lost is None:
            return None
        if not self.messages:
            return {"min": None, "max": None}
        return {"min": self.lost.min / self.messages, "max": self.lost.max / self.messages}

    def document(self) -> dict[str, Any]:
        """Return the window as the command line prints it, without state, revision and closing time."""
        return {
            "pipeline": self.pipeline,
            "window_start": rfc3339(self.window_start_s),
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "proof": self.proof,
            "sample": self.sample,
            "messages": self.messages,
            "delivered": self.delivered,
            "filtered": self.filtered,
            "dead": self.dead,
            "pending": self.pending,
            "unexplained": self.unexplained,
            "clock_skew_ms": self.clock_skew_ms,
            "lost": None if self.lost is None else fields_of(self.lost),
            "loss_ratio": self.loss_ratio,
            "on_time_share": self.on_time_share,
            "on_time_of": self.on_time_of,
            "e2e_lag_ms": fields_of(self.e2e_lag_ms),
            "checkpoints": [checkpoint.document() for checkpoint in self.checkpoints],
            "nodes": [node.document() for node in self.nodes],
            "links": [link.document() for link in self.links],
            "destinations": [destination.document() for destination in self.destinations],
            **({"sources": [source.document() for source in self.sources]} if self.sources else {}),
            **({"sides": [side.document() for side in self.sides]} if self.sides else {}),
            "reasons_by_node": self.reasons_by_node,
            "staleness_ms": dict(self.staleness_ms),
            "crashes": [fields_of(crash) for crash in self.crashes],
            "unknown_checkpoints": [
                {"name": name, "beacons": beacons} for name, beacons in self.unknown_checkpoints.items()
            ],
        }


def bounded_reasons(counts: Mapping[str, int], room: int = MAX_REASONS) -> dict[str, int]:
    """Return the counts of the most frequent reasons, of the others together."""
    ranked = sorted(counts.items(), key=lambda each: (each[0] == OTHER_REASONS, -each[1], each[0]))
    kept, rest = ranked[:room], sum(count for _, count in ranked[room:])
    return dict(Counter(dict(kept)) + Counter({OTHER_REASONS: rest}))


def loss_ratio_of(part: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the share of the messages due at a destination, or of a source, a row of a document, that were lost; None
    of none."""
    lost, due = part["lost"], part["due"] if "due" in part else part["messages"]
    return {name: lost[name] / due if due else None for name in ("min", "max")}


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
    found = {node_label(node["name"]): node["lost"] for node in window["nodes"]}
    found |= {link_label(link["from"], link["to"]): link["lost"] for link in window["links"]}
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
