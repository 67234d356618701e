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
from lagloss_server.model.window import Window, rfc3339

if TYPE_CHECKING:
    from lagloss_server.rules.rollup import Rollup

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
    found = []
    for node in nodes:
        own = tuple(outs[node].values()) or ((f"{node}.out",) if node in destinations else ())
        first = (f"{node}.in",) if own and node not in fed else ()
        found.append(Stage("node", node, (f"{node}.in",), tuple(dict.fromkeys((*first, *own)))))
        for target, out in outs[node].items():
            name = link_name(node, target)
            found.append(Stage("link", name, (out,), (f"{target}.in",), (name,)))
    for name in destinations:
        found.append(Stage("destination", name, (), (f"{name}.out",), _leading_to(name, links)))
    return found


def _leading_to(node: str, links: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    nodes, found = {node}, list[str]()
    for source, target in reversed(links):  # in the order of the flow
        if target in nodes:
            nodes.add(source)
            found.append(link_name(source, target))
    return tuple(reversed(found))


def stages_of(graph: Graph) -> list[Stage]:
    links = [(link.source, link.target) for link in graph.links]
    return stages(graph.nodes, links, [there.name for there in graph.destinations])


def stages_of_window(window: Window) -> list[Stage]:
    """Return the stages of the version that a window was judged by."""
    links = [(link.source, link.target) for link in window.links]
    destinations = [there.name for there in window.destinations]
    return stages([node.name for node in window.nodes], links, destinations)


@dataclass(frozen=True, slots=True)
class StageSums:
    """What the windows of a range come to at a stage. `counted`: beacons whose duplicates are known; `checked`:
    messages that carried checksums on both sides of a link; `staleness_ms`: the largest."""

    messages: int
    lost_min: int
    lost_max: int
    duplicates: int
    counted: int
    corrupted: int
    checked: int
    staleness_ms: float | None

    @classmethod
    def of(cls, stage: Stage, total: Rollup) -> StageSums:
        if stage.kind == "destination":
            there = total.destinations.get(stage.name)
            lost = (there.lost_min, there.lost_max) if there else (0, 0)
            messages = max(there.messages, lost[1]) if there else 0
        else:
            at = total.lost_at.get(stage.label)
            lost = (at.min, at.max) if at else (0, 0)
            arrived = [total.checkpoints[name].distinct for name in stage.arrivals if name in total.checkpoints]
            messages = max(sum(arrived), lost[1]) if arrived else 0
        seen = [total.checkpoints[name] for name in stage.checkpoints if name in total.checkpoints]
        worst = max(((each.duplicates, each.counted) for each in seen if each.counted), key=_share, default=(0, 0))
        checks = [total.checksums[name] for name in stage.links if name in total.checksums]
        stale = [total.staleness_ms[name] for name in stage.checkpoints if name in total.staleness_ms]
        return cls(
            messages,
            *lost,
            *worst,
            corrupted=sum(check.corrupted for check in checks),
            checked=max((check.checked for check in checks), default=0),
            staleness_ms=max(stale, default=None),
        )

    def value(self, quality: Quality) -> float | None:
        """Return loss and duplicates as shares, corrupted messages as a number, staleness in ms; None if not known."""
        match quality:
            case "loss":
                return self.lost_min / self.messages if self.messages else None
            case "corruption":
                return self.corrupted if self.checked else None
            case "duplication":
                return self.duplicates / self.counted if self.counted else None
            case "staleness":
                return self.staleness_ms


def _share(counts: tuple[int, int]) -> float:
    return counts[0] / counts[1]


def worst_of(found: Iterable[Stage], window: Rollup, start_s: int) -> dict[str, tuple[float, int]]:
    """Return the values of one window by quality and stage (`loss node mid`), those that are 0 or unknown left out,
    each with the window's start: `Rollup.worst`."""
    worst = {}
    for stage in found:
        sums = StageSums.of(stage, window)
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

    stage: Stage
    sums: StageSums
    cells: tuple[QualityCell | None, ...]

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
        sums = StageSums.of(stage, total)
        cells = (
            None if quality == "corruption" and not stage.links else _cell(quality, stage, sums, targets, total)
            for quality in QUALITIES
        )
        rows.append(QualityRow(stage, sums, tuple(cells)))
    return tuple(rows)


def _cell(quality: Quality, stage: Stage, sums: StageSums, targets: _Targets, total: Rollup) -> QualityCell:
    value, target = sums.value(quality), targets.of(quality, stage)
    worst, worst_s = total.worst.get(f"{quality} {stage.label}", (0.0, None))
    most = sums.lost_max / sums.messages if quality == "loss" and sums.messages else value
    judged = worst if quality == "corruption" and value is not None else value  # its target is of one minute
    of = {"loss": sums.messages, "corruption": sums.checked, "duplication": sums.counted, "staleness": 0}[quality]
    return QualityCell(quality, value, most, of, target, _verdict(judged, most, target, quality), worst_s)


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
        here = Place(stage.kind, stage.name)  # of the same class as the keys, since equality asks for it
        match quality:
            case "loss":
                entry = self._loss.get(here)
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
                given = [self._staleness_ms(name) for name in stage.checkpoints]
                return min((target for target in given if target is not None), default=None)

    def _staleness_ms(self, checkpoint: str) -> int | None:
        has_one = checkpoint in self._delivery or checkpoint in self._sla.staleness.checkpoints
        return self._stale.get(checkpoint, self._sla.staleness.at(checkpoint) if has_one else None)


def _least(settings: Iterable[Any]) -> float | None:
    return min((each.max for each in settings if each is not None), default=None)
