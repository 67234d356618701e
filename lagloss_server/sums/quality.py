"""Quality of data by stage and destination: loss, corruption, duplication and staleness, each against its target.

A stage is a node or a link of the flow. What is not known of the windows of a range is left out, and where nothing is
known there is no value: windows that tallies prove have no duplicates and no checksums, and where no payload carries
one, nothing is known of corruption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import Graph, node_of
from lagloss_server.model.place import Place, link_name
from lagloss_server.model.rule_places import spread
from lagloss_server.model.window import NONE_LOST, Interval, Window, rfc3339

if TYPE_CHECKING:
    from lagloss_server.sums.rollup import CheckpointSums, Rollup

Quality = Literal["loss", "corruption", "duplication", "staleness"]
QUALITIES: Final[tuple[Quality, ...]] = ("loss", "corruption", "duplication", "staleness")
QualityVerdict = Literal["ok", "bad", "unknown", "none"]
"""`none`: there is no target to judge by."""


@dataclass(frozen=True, slots=True)
class Stage(Place):
    """A node, a link or a destination. `arrivals`: checkpoints of the messages that its loss is of; `checkpoints`:
    those that show its duplicates and staleness, `links` its corruption; none of a node."""

    arrivals: tuple[str, ...]
    checkpoints: tuple[str, ...]
    links: tuple[str, ...] = ()


def stages(nodes: Sequence[str], links: Sequence[tuple[str, str]], destinations: Sequence[str]) -> list[Stage]:
    """Return the stages in the order of the flow, and the destinations behind them."""
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in links:
        after[source].append(target)
    outs = {
        node: {to: f"{node}.out:{to}" if len(tos) > 1 else f"{node}.out" for to in tos} for node, tos in after.items()
    }
    fed = {target for _, target in links}
    stages_ = []
    for node in nodes:
        own = tuple(outs[node].values()) or ((f"{node}.out",) if node in destinations else ())
        first = (f"{node}.in",) if own and node not in fed else ()
        stages_.append(Stage("node", node, (f"{node}.in",), tuple(dict.fromkeys((*first, *own)))))
        for target, out in outs[node].items():
            name = link_name(node, target)
            stages_.append(Stage("link", name, (out,), (f"{target}.in",), (name,)))
    for name in destinations:
        stages_.append(Stage("destination", name, (), (f"{name}.out",), _leading_to(name, links)))
    return stages_


def _leading_to(node: str, links: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    nodes, names = {node}, list[str]()
    for source, target in reversed(links):  # in the order of the flow
        if target in nodes:
            nodes.add(source)
            names.append(link_name(source, target))
    return tuple(reversed(names))


def stages_of(graph: Graph) -> list[Stage]:
    links = [(link.source, link.target) for link in graph.links]
    return stages(graph.nodes, links, [destination.name for destination in graph.destinations])


def stages_of_window(window: Window) -> list[Stage]:
    """Return the stages of the version that a window was judged by."""
    links = [(link.source, link.target) for link in window.links]
    destinations = [destination.name for destination in window.destinations]
    return stages([node.name for node in window.nodes], links, destinations)


@dataclass(frozen=True, slots=True)
class StageSums:
    """A stage over the windows of a roll-up."""

    stage: Stage
    total: Rollup

    @property
    def lost(self) -> Interval:
        if self.stage.kind == "destination":
            due = self.total.destinations.get(self.stage.name)
            return NONE_LOST if due is None else due.lost
        return self.total.lost_at.get(self.stage.label, NONE_LOST)

    @property
    def messages(self) -> int:
        """The messages that its loss is of."""
        if self.stage.kind == "destination":
            due = self.total.destinations.get(self.stage.name)
            return 0 if due is None else max(due.messages, due.lost.max)
        arrived = [sums.distinct for sums in self._checkpoints(self.stage.arrivals)]
        return max(sum(arrived), self.lost.max) if arrived else 0

    @property
    def duplicates(self) -> tuple[int, int]:
        """Duplicates, and the beacons that they are of, at the checkpoint with the largest share of them; 0 of 0 if no
        duplicates are known."""
        counts = [(sums.duplicates, sums.counted) for sums in self._checkpoints(self.stage.checkpoints) if sums.counted]
        return max(counts, key=_share, default=(0, 0))

    @property
    def checksums(self) -> tuple[int, int]:
        """Corrupted messages of all links, and the largest number that a link's are of."""
        links = [self.total.checksums[name] for name in self.stage.links if name in self.total.checksums]
        return sum(link.corrupted for link in links), max((link.checked for link in links), default=0)

    @property
    def staleness_ms(self) -> float | None:
        """The largest."""
        staleness = self.total.staleness_ms
        return max((staleness[name] for name in self.stage.checkpoints if name in staleness), default=None)

    def _checkpoints(self, names: Iterable[str]) -> list[CheckpointSums]:
        return [self.total.checkpoints[name] for name in names if name in self.total.checkpoints]

    def value(self, quality: Quality) -> float | None:
        """Return loss and duplicates as shares, corrupted messages as a number, staleness in ms; None if not known."""
        match quality:
            case "loss":
                return self.lost.min / self.messages if self.messages else None
            case "corruption":
                corrupted, checked = self.checksums
                return corrupted if checked else None
            case "duplication":
                return _share(self.duplicates) if self.duplicates[1] else None
            case "staleness":
                return self.staleness_ms

    def known_of(self, quality: Quality) -> int:
        """Return the messages or beacons that it is known of; 0 of staleness."""
        match quality:
            case "loss":
                return self.messages
            case "corruption":
                return self.checksums[1]
            case "duplication":
                return self.duplicates[1]
            case "staleness":
                return 0


def _share(counts: tuple[int, int]) -> float:
    return counts[0] / counts[1]


def worst_of(stages_: Iterable[Stage], window: Rollup, start_s: int) -> dict[str, tuple[float, int]]:
    """Return the values of one window by quality and stage (`loss node mid`), those that are 0 or unknown left out,
    each with the window's start: `Rollup.worst`."""
    worst = {}
    for stage in stages_:
        sums = StageSums(stage, window)
        for quality in QUALITIES:
            value = sums.value(quality) if quality != "corruption" or stage.links else None
            if value:
                worst[f"{quality} {stage.label}"] = (float(value), start_s)
    return worst


@dataclass(frozen=True, slots=True)
class QualityCell:
    """One quality of one stage over a range: see `StageSums.value`. `most`: what cannot be ruled out, of a loss. `of`:
    the messages or beacons that it is known of. `worst_s`: start of the window where it was worst (epoch s)."""

    quality: Quality
    value: float | None
    most: float | None
    of: int
    target: float | None
    verdict: QualityVerdict
    worst_s: int | None

    def document(self) -> dict[str, Any]:
        return {
            "value": self.value,
            **({"most": self.most} if self.quality == "loss" else {}),
            **({} if self.quality == "staleness" else {"of": self.of}),
            "target": self.target,
            "verdict": self.verdict,
            "worst_window": None if self.worst_s is None else rfc3339(self.worst_s),
        }


@dataclass(frozen=True, slots=True)
class QualityRow:
    """`cells`: one a quality, in their order; None where a stage has none (only links corrupt payloads)."""

    sums: StageSums
    cells: tuple[QualityCell | None, ...]

    @property
    def stage(self) -> Stage:
        return self.sums.stage

    def document(self) -> dict[str, Any]:
        cells = zip(QUALITIES, self.cells, strict=True)
        return {
            "kind": self.stage.kind,
            "name": self.stage.name,
            **{quality: cell and cell.document() for quality, cell in cells},
        }


def quality_rows(total: Rollup, definition: Definition) -> tuple[QualityRow, ...]:
    """Return the quality of each stage and destination over a range, by the targets of this definition."""
    graph = definition.graph
    targets = _Targets(definition, graph)
    rows = []
    for stage in stages_of(graph):
        sums = StageSums(stage, total)
        cells = (
            None if quality == "corruption" and not stage.links else _cell(quality, stage, sums, targets, total)
            for quality in QUALITIES
        )
        rows.append(QualityRow(sums, tuple(cells)))
    return tuple(rows)


def _cell(quality: Quality, stage: Stage, sums: StageSums, targets: _Targets, total: Rollup) -> QualityCell:
    value, target = sums.value(quality), targets.of(quality, stage)
    worst, worst_s = total.worst.get(f"{quality} {stage.label}", (0.0, None))
    most = sums.lost.max / sums.messages if quality == "loss" and sums.messages else value
    judged = worst if quality == "corruption" and value is not None else value  # its target is of one minute
    verdict = _verdict(judged, most, target, quality)
    return QualityCell(quality, value, most, sums.known_of(quality), target, verdict, worst_s)


def _verdict(value: float | None, most: float | None, target: float | None, quality: Quality) -> QualityVerdict:
    if target is None:
        return "none"
    if value is None:
        return "unknown"
    if value > target:
        return "bad"
    return "unknown" if quality == "loss" and most is not None and most > target else "ok"


class _Targets:
    """Targets of a definition: of its SLA, or of the alert about a quality where it has none."""

    def __init__(self, definition: Definition, graph: Graph) -> None:
        alerts = definition.spec.alerts
        self._sla = definition.spec.sla
        self._delivery = graph.delivery
        self._loss = dict(spread(alerts.loss, graph))
        self._corruption = dict(spread(alerts.corruption, graph))
        self._duplicates = dict(spread(alerts.duplicates, graph))
        self._stale = {
            place.name: entry.max for place, entry in spread(alerts.staleness, graph) if place is not None and entry.max
        }

    def of(self, quality: Quality, stage: Stage) -> float | None:
        """Return a stage's target, in the unit of its value; of corruption, in messages a minute."""
        stage_place = Place(stage.kind, stage.name)  # of the same class as the keys, since equality asks for it
        match quality:
            case "loss":
                entry = self._loss.get(stage_place)
                whole = self._sla.loss_at(stage.name) if stage.kind == "destination" else self._sla.loss
                return whole.max if entry is None or entry.max is None else entry.max
            case "corruption":
                links = [Place("link", name) for name in stage.links]
                return _least(self._corruption.get(place, self._corruption.get(None)) for place in links)
            case "duplication":
                points = [Place("checkpoint", name) for name in stage.checkpoints]
                nodes = [Place("node", node_of(name)) for name in stage.checkpoints]
                own = [self._duplicates[place] for place in (*points, *nodes) if place in self._duplicates]
                return _least(own or [self._duplicates.get(None)])
            case "staleness":
                staleness = [self._staleness_ms(name) for name in stage.checkpoints]
                return min((target for target in staleness if target is not None), default=None)

    def _staleness_ms(self, checkpoint: str) -> int | None:
        has_one = checkpoint in self._delivery or checkpoint in self._sla.staleness.checkpoints
        return self._stale.get(checkpoint, self._sla.staleness.at(checkpoint) if has_one else None)


def _least(settings: Iterable[Any]) -> float | None:
    return min((setting.max for setting in settings if setting is not None), default=None)
