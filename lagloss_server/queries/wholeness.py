"""Whether a span of event time is whole, by the windows in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select

from lagloss_server.base.errors import UnknownNode
from lagloss_server.model.definition import in_force
from lagloss_server.model.graph import Graph
from lagloss_server.rules.facts import WindowFacts
from lagloss_server.rules.wholeness import Wholeness, WindowState, wholeness
from lagloss_server.store.schema.core import WindowRow, table_of
from lagloss_server.store.store import Store


def read_wholeness(store: Store, pipeline: str, from_s: int, to_s: int, node: str | None = None) -> Wholeness:
    """Return whether the windows with from <= start < to are whole, up to a node or altogether.

    Raises:
        UnknownPipeline, UnknownNode: there is none of this name.
    """
    versions = store.versions_of(pipeline)
    newest = versions[-1].definition
    steps = newest.graph.steps
    if node is not None and node not in steps:
        raise UnknownNode(pipeline=pipeline, node=node, known=", ".join(steps))

    def windows() -> Iterator[tuple[Graph, WindowState]]:
        window = table_of(WindowRow)
        asked = select(window).where(
            window.c.pipeline == pipeline, window.c.window_start >= from_s, window.c.window_start < to_s
        )
        with store.engine.connect() as connection:
            for row in connection.execute(asked.order_by(window.c.window_start)):
                of = versions[in_force(versions, row.window_start)].definition.graph
                if node is None or node in of.steps:
                    yield of, WindowState(row.document, WindowFacts.unpack(row.facts))

    return wholeness(pipeline, from_s, to_s, node, windows(), newest.spec.sla.loss.max)
