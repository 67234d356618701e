"""Tables that are tapped: a message is at a checkpoint once its row is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field

from lagloss_server.base.fields import DurationMs, Name, Strict, like, write_duration
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Tap

TableName = Annotated[
    str,
    like(
        r"^[^.\x00-\x1f\x7f]{1,63}(\.[^.\x00-\x1f\x7f]{1,63}){1,2}$",
        "a table as SCHEMA.TABLE, two or three names, each of 1 to 63 characters without a dot",
    ),
]
ColumnName = Annotated[str, like(r"^[^\x00-\x1f\x7f]{1,63}$", "a column name of 1 to 63 characters in one line")]
MAX_RECHECK_MS: Final = 31 * 86_400_000


def _bounded(recheck_ms: int) -> int:
    if recheck_ms > MAX_RECHECK_MS:
        raise ValueError(
            f"expected a duration of up to {write_duration(MAX_RECHECK_MS)}, found {write_duration(recheck_ms)}"
        )
    return recheck_ms


RecheckMs = Annotated[DurationMs, AfterValidator(_bounded)]
"""For how long after a minute its rows are compared again; 0: they are not."""

ROW: Final = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.eventTime"), format="json")
"""How rows are read: as JSON of two columns, whatever their names are in the table."""


class TableSpec(Strict):
    """The source of a checkpoint's beacons: the rows of a table.

    `database` names one of the environment. `id`, `event_time` and `cursor` are columns; `cursor` grows with each row,
    and only tables of PostgreSQL have one.
    `flush`: for how long after its commit a sink can still begin to write; 0: it commits what it has written.
    `recheck`: None: that of the pipeline.
    """

    database: Name
    table: TableName
    id: ColumnName
    event_time: ColumnName = Field(alias="eventTime")
    cursor: ColumnName | None = None
    flush: DurationMs = 0
    recheck: RecheckMs | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the table's schemas or folders, and its own."""
        return tuple(self.table.split("."))


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
    def recheck_ms(self) -> int:
        """For how long after a minute its rows are compared again; 0: they are not."""
        return self.table.recheck or 0

    @property
    def checkpoint(self) -> str:
        """The last checkpoint that a row is a beacon at."""
        return f"{self.node}.{self.places[-1]}"

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
