"""The panel of consumer lag: how many offsets each node's consumer group has still to take in."""

from __future__ import annotations

from collections import defaultdict

from dashboard.design import hues
from dashboard.figures.drawing import Drawing
from dashboard.figures.frame import FigureFrame, carrier, line
from dashboard.figures.look import safe
from dashboard.queries.consumer_lag import LagBucket, Of
from lagloss_server.base import format as fmt


def is_shown(frame: FigureFrame) -> bool:
    """Return whether any node names a group now, or did in the span."""
    return bool(frame.definition.groups or frame.consumer_lag)


def add_consumer_lag(drawing: Drawing, frame: FigureFrame, yaxis: str) -> None:
    """Return a line a node, the highest of each bucket; under the mouse for how long the first that waits was under
    way."""
    hue = hues(frame.definition.graph.nodes)
    summary: dict[int, list[str]] = defaultdict(list)
    shown: dict[int, LagBucket] = {}
    for group, buckets in frame.consumer_lag.items():
        look = {"color": hue.get(group.node, frame.colours.dim), "width": 1.5}
        values: list[float | None] = [bucket.offsets_max for bucket in buckets]
        name, uid = safe(f"consumer lag {group.node}"), f"consumer-lag {group.node} {group.group}"
        drawing.add_trace(line(frame, values, buckets, name=name, uid=uid, showlegend=False, line=look, yaxis=yaxis))
        for bucket in buckets:
            shown[bucket.start_s] = bucket
            summary[bucket.start_s].append(_describe(group, bucket))
    texts = [(shown[moment], 0.0, "<br>".join(["<b>consumer lag</b>", *summary[moment]])) for moment in sorted(shown)]
    drawing.add_trace(carrier(frame, texts, yaxis))
    if not shown:
        drawing.add_annotation(
            x=0.5, xref="paper", y=0.5, yref=f"{yaxis} domain", showarrow=False, font={"color": frame.colours.dim},
            text="no data: have the groups committed offsets? do the queues exist?",
        )  # fmt: skip


def _describe(group: Of, bucket: LagBucket) -> str:
    if bucket.offsets_max == 0 and not bucket.in_flight_max:
        return f"{safe(group.node)} 0"
    in_flight = "" if bucket.in_flight_max is None else f", {fmt.count(bucket.in_flight_max)} in flight"
    behind = f"{fmt.duration(bucket.behind_max_ms)} behind"
    return f"{safe(group.node)} {fmt.count(bucket.offsets_max)}{in_flight}, {behind}"
