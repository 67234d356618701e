"""Drawing: traces and layout of a figure, collected before it is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import plotly.graph_objects as go

Trace: TypeAlias = dict[str, Any]
"""As plotly.js takes it."""


def scatter(**options: Any) -> Trace:
    return {"type": "scatter", **options}


def bar(**options: Any) -> Trace:
    return {"type": "bar", **options}


class Drawing:
    """Traces, shapes and annotations, in the order in which they are drawn.

    plotly's own figures check and copy themselves with each thing that is added: made at once, from plain dicts, the
    panels of an hour take a sixth of the time.
    """

    def __init__(self, traces: Iterable[Trace] = ()) -> None:
        self._traces = list(traces)
        self._shapes: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def add_trace(self, trace: Trace) -> None:
        self._traces.append(trace)

    def add_traces(self, traces: Iterable[Trace]) -> None:
        self._traces.extend(traces)

    def add_shape(self, **shape: Any) -> None:
        self._shapes.append(shape)

    def add_annotation(self, **annotation: Any) -> None:
        self._annotations.append(annotation)

    def figure(self, **layout: Any) -> go.Figure:
        """Return the figure, checked by plotly (ValueError)."""
        drawn = {"shapes": self._shapes, "annotations": self._annotations}
        return go.Figure({"data": self._traces, "layout": {**layout, **drawn}})
