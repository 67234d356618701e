"""Tables that are tapped: a message is at a checkpoint once its row is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import Field

from lagloss_server.base.fields import DurationMs, Name, Strict, like
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Tap

TableName = Annotated[
    str,
    like(
        r"^[^.\x00-\x1f\x7f]{1,63}\.[^.\x00-\x1f\x7f]{1,63}$",
        "a table as SCHEMA.TABLE, each of 1 to 63 characters without a dot",
    ),
]
ColumnName = Annotated[str, like(r"^[^\x00-\x1f\x7f]{1,63}$", "a column name of 1 to 63 characters in one line")]

ROW: Final = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.eventTime"), format="json")
"""How rows are read: as JSON of two columns, whatever their names are in the table."""


class TableSpec(Strict):
    """The source of a checkpoint's beacons: the rows of a table.

    `database` names one of the environment. `id`, `event_time` and `cursor` are columns; `cursor` grows with each row.
    `flush`: for how long after its commit a sink can still begin to write; 0: it commits what it has written.
    """

    database: Name
    table: TableName
    id: ColumnName
    event_time: ColumnName = Field(alias="eventTime")
    cursor: ColumnName | None = None
    flush: DurationMs = 0

    @property
    def parts(self) -> tuple[str, str]:
        """Return the names of schema and table."""
        schema, _, table = self.table.partition(".")
        return schema, table


@dataclass(frozen=True, slots=True)
class TableTap:
    """A table from which the beacons of checkpoints of a node are made: what `Tap` is for topics.

    `places`: checkpoints without their node. `first`: the node has no incoming link.
    """

    pipeline: str
    node: str
    table: TableSpec
    places: tuple[str, ...]
    first: bool

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the tap in a `document`."""
        table = TableSpec.model_validate(document["table"])
        return cls(**{**document, "table": table, "places": tuple(document["places"])})

    def document(self) -> dict[str, Any]:
        """Return the tap as JSON."""
        table = self.table.model_dump(mode="json", by_alias=True)
        own = {"pipeline": self.pipeline, "node": self.node, "first": self.first}
        return {**own, "table": table, "places": list(self.places)}

    @property
    def source(self) -> str:
        """The source as people read it: `table public.orders of shop`."""
        return f"table {self.table.table} of {self.table.database}"

    @property
    def extraction(self) -> Extraction:
        return ROW

    @property
    def group(self) -> None:
        """No reader of it is followed."""

    @property
    def order(self) -> None:
        """Rows have none."""


AnyTap = Tap | TableTap


def tap_of(document: Mapping[str, Any]) -> AnyTap:
    """Return the tap in a `document`."""
    return TableTap.of(document) if "table" in document else Tap.of(document)
