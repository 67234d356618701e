"""Windows: the result of each minute of a pipeline, as it is judged, stored, printed by `windows --json` and drawn.

The structures have the names and the order of the fields that are printed, so that what is encoded is what is printed.
Fields with a default are left out of JSON where they have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from lagloss.wire.sketch import Sketch
from lagloss_server.base.format import datetime_of
from lagloss_server.model.place import link_label, link_name, node_label
from lagloss_server.packing.packed_json import pack_text, unpack_text

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


NONE_LOST: Final = Interval(0, 0)


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


NO_LAGS: Final = Lags(None, None, None, None)
NO_PERCENTILES: Final = Percentiles(None, None, None)


class _Losing(Protocol):
    @property
    def lost(self) -> Interval | None: ...


class Part(Struct, frozen=True):
    """Messages of a window, all or some of them."""

    @property
    def lost_min(self: _Losing) -> int:
        """Messages that are lost for certain; 0 while that is unknown."""
        return 0 if self.lost is None else self.lost.min

    @property
    def lost_max(self: _Losing) -> int:
        """Messages whose loss cannot be ruled out; 0 while that is unknown."""
        return 0 if self.lost is None else self.lost.max


class CheckpointCounts(Struct, frozen=True, omit_defaults=True):
    """`distinct` and `duplicates` are None where only tallies are known."""

    name: str
    beacons: int
    distinct: int | None
    duplicates: int | None
    replayed: int
    lag_ms: Percentiles
    out_of_order: int = 0


class NodeCounts(Part, frozen=True):
    """`process_duration_p95_ms` is the difference of two percentiles; `process_duration_ms` the true distribution, of
    messages that were seen on both sides, over one id in 16."""

    name: str
    lag_in_p95_ms: float | None
    lag_out_p95_ms: float | None
    process_duration_p95_ms: float | None
    process_duration_ms: Percentiles
    lost: Interval | None
    complete: bool

    @property
    def label(self) -> str:
        return node_label(self.name)


class LinkCounts(Part, frozen=True, rename={"source": "from", "target": "to"}):
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
        return link_name(self.source, self.target)

    @property
    def label(self) -> str:
        return link_label(self.source, self.target)


class DestinationCounts(Part, frozen=True, rename={"messages": "due"}):
    """What became of the messages due at a delivery checkpoint (rule 15). None where only a closing can tell."""

    name: str
    messages: int | None
    delivered: int
    filtered: int
    dead: int
    pending: int | None
    lost: Interval | None
    on_time_share: float | None
    e2e_lag_ms: Lags

    @property
    def on_time_of(self) -> int | None:
        """The messages that the on-time share is of."""
        return None if self.messages is None else self.messages - self.filtered - self.dead

    @property
    def loss_ratio(self) -> LossRatio | None:
        """The share of these messages that was lost."""
        return None if self.lost is None else loss_ratio(self.lost, self.messages or 0)


class SourceCounts(Part, frozen=True, omit_defaults=True):
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

    @property
    def loss_ratio(self) -> LossRatio | None:
        """The share of these messages that was lost."""
        return None if self.lost is None else loss_ratio(self.lost, self.messages)


class SideCounts(Part, frozen=True):
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


class Window(Part, frozen=True, kw_only=True, omit_defaults=True):
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

    @property
    def losses(self) -> list[tuple[str, Interval]]:
        """The losses at nodes and links that lost something or may have, named `node N` and `link A->B`."""
        places = [(node.label, node.lost) for node in self.nodes]
        places += [(link.label, link.lost) for link in self.links]
        return [(place, lost) for place, lost in places if lost is not None and lost.max]

    @property
    def reason_rows(self) -> list[ReasonRow]:
        """Why messages were filtered or dead-lettered, most frequent first."""
        return reason_rows(
            self.reasons_by_node, ((checkpoint.name, checkpoint.beacons) for checkpoint in self.checkpoints)
        )

    def pack(self) -> bytes:
        """Return the window packed; equal ones give equal bytes."""
        return pack_text(msgspec.json.encode(self))

    @staticmethod
    def unpack(packed: bytes) -> Window:
        """Return the window that `pack` packed.

        Raises:
            ValueError, zstandard.ZstdError: it is something else.
        """
        return _DECODER.decode(unpack_text(packed))

    def document(self) -> dict[str, Any]:
        """Return the fields as a JSON object's."""
        document_: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return document_


_DECODER: Final = msgspec.json.Decoder(Window)


class ListedWindow(Window, frozen=True, kw_only=True):
    """A window as it is listed: `state`, how often it was closed with another result, and when (RFC 3339; None while
    it is open); `history`: whether it was filled in after it was over."""

    state: State
    revision: int
    closed_at: str | None
    history: bool

    @classmethod
    def of(
        cls, window: Window, state: State, revision: int, closed_at: str | None, *, history: bool = False
    ) -> ListedWindow:
        fields = structs.asdict(window)
        return cls(**fields, state=state, revision=revision, closed_at=closed_at, history=history)

    @property
    def is_settled(self) -> bool:
        """Whether its result is final: closed, with nothing pending and nothing unknown."""
        return self.state != "open" and not self.pending and self.verdict != "unknown"

    def contract(self) -> PrintedWindow:
        """Return it as the command line and the API print it."""
        return PrintedWindow(**{name: getattr(self, name) for name in PrintedWindow.__struct_fields__})


class PrintedWindow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A window in the order and number of fields that the command line promises: see `Window` and `ListedWindow`."""

    pipeline: str
    window_start: str
    state: State
    revision: int
    verdict: Verdict | None
    reasons: tuple[str, ...]
    proof: Proof
    sample: float
    closed_at: str | None
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


def bounded_reasons(counts: Mapping[str, int], room: int = MAX_REASONS) -> dict[str, int]:
    """Return the counts of the most frequent reasons, of the others together."""
    ranked = sorted(counts.items(), key=lambda item: (item[0] == OTHER_REASONS, -item[1], item[0]))
    ranked_first, rest = ranked[:room], sum(count for _, count in ranked[room:])
    return dict(Counter(dict(ranked_first)) + Counter({OTHER_REASONS: rest}))


def rfc3339(epoch_s: float) -> str:
    """UTC, with Z; whole seconds without a fraction."""
    return datetime_of(epoch_s).isoformat(timespec="auto").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """Number of live beacons of one exit that give one reason; None: those that give none, or were not
    read."""

    node: str
    exit: str
    reason: str | None
    count: int


def reason_rows(reasons_by_node: ReasonCounts | None, beacons: Iterable[tuple[str, int]]) -> list[ReasonRow]:
    """Return why messages were filtered or dead, most frequent first, the unknown reasons of each exit included, of
    the reasons and of the live beacons by checkpoint."""
    rows = []
    for checkpoint, number in beacons:
        node, _, exit_ = checkpoint.partition(".")
        if exit_ not in EXITS_WITH_REASON:
            continue
        reasons = (reasons_by_node or {}).get(node, {}).get(exit_, {})
        rows += [ReasonRow(node, exit_, reason, count) for reason, count in reasons.items()]
        rest = number - sum(reasons.values())
        rows += [ReasonRow(node, exit_, None, rest)] if rest > 0 else []
    return sorted(rows, key=lambda row: (-row.count, row.node, row.exit, row.reason or ""))
