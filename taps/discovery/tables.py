"""Tables whose rows have the ids of a topic: guessed by samples, and by the flow of the topics. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import networkx as nx
import numpy as np

from taps.discovery.guessing import LEAST_SHARED, IdTimes, TopicGuess, TopicHop

AS_MANY: Final = 0.95
"""Share of the ids common with the topic that has most of them, from which another topic has as many: losses on the way
between topics, and within a table's sink, are few."""
ALL_HELD: Final = 0.95
"""Share of a topic's ids below which it is worth a doubt that a table is to hold all of them."""
NO_IDS: Final = "no ids of a topic"
CURSOR: Final = "lagloss_xid"
"""Name of the column that is proposed where no column can be a cursor."""


class Misfit(Exception):
    """A table cannot be tapped at the end of a flow. The message completes "it has ids of the topic, …"; `reason`: in a
    few words."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TableOutput:
    """A table that a node fills, by the keys of its tap. `lacks`: what the cursor lacks; empty: nothing."""

    database: str
    table: str
    id: str
    event_time: str
    cursor: str
    lacks: str

    def document(self) -> dict[str, str]:
        own = {"id": self.id, "eventTime": self.event_time, "cursor": self.cursor}
        return {"database": self.database, "table": self.table, **own}


@dataclass(frozen=True, slots=True)
class TableGuess:
    """A table, and what ids and event times its columns could be.

    Attributes:
        database, table: as a tap names them.
        columns: by expression in the rows of the sample, `$.order_id`, the name of the column.
        rows: guesses by the newest rows as records of JSON, whose timestamps are those of the column `dated`.
        dated: set by the database's clock, if nothing else does; empty: there is no such column.
        cursors: columns that can be cursors, the best first, each with what it lacks, empty: nothing.
        problem: why another column cannot be one; empty: none is near to it.
    """

    database: str
    table: str
    columns: Mapping[str, str]
    rows: TopicGuess
    dated: str
    cursors: Mapping[str, str]
    problem: str

    @property
    def source(self) -> str:
        return f"{self.table} of {self.database}"

    @property
    def quoted(self) -> str:
        """The table as SQL has it."""
        return ".".join(f'"{part}"' for part in self.table.split(".", 1))


@dataclass(frozen=True, slots=True)
class TableMatch:
    """A table has ids of a topic.

    Attributes:
        topic_id, column_id: expressions of the ids.
        count: of ids in both samples.
        shared: of the ids in the sample with fewer, the share that the other has.
        held: of the topic's ids from the first to the last that both have, the share that the table has.
        later_ms: by how much rows come after records, in the median, by the column `dated`.
    """

    table: TableGuess
    topic: str
    topic_id: str
    column_id: str
    count: int
    shared: float
    held: float
    later_ms: float

    def output(self, identity: str, expected: IdTimes) -> TableOutput:
        """Return how the table is tapped. `identity`: expression of the flow's ids; `expected`: the topic's ids and
        event times.

        Raises:
            Misfit: it has other ids, or rows older than their records; no column has these times, or can be a cursor.
        """
        table, rows = self.table, self.table.rows
        if identity != self.topic_id:
            raise Misfit("other ids", f"but those of {self.topic_id}, not of {identity}")
        times = (guess.expression for guess in rows.guesses.times if guess.expression in table.columns)
        agreeing = next((time for time in times if expected.agrees(rows.times(self.column_id, time))), None)
        if agreeing is None:
            raise Misfit("no event time", "but no column with their event times")
        event_time = table.columns[agreeing]
        if table.dated not in ("", event_time) and self.later_ms < 0:
            problem = f"but by {table.dated} its rows are older: is the topic made from it, by an outbox or Debezium?"
            raise Misfit("older than its topic", problem)
        cursors = {name: lacks for name, lacks in table.cursors.items() if name != event_time}
        if not cursors:
            add = f"ALTER TABLE {table.quoted} ADD {CURSOR} xid8 NOT NULL DEFAULT pg_current_xact_id(); "
            index = f"CREATE INDEX CONCURRENTLY ON {table.quoted} ({CURSOR})"
            why = f" ({table.problem})" if table.problem else ""
            raise Misfit("no cursor", f"but no column that can be the cursor{why}; add one: {add}{index}")
        cursor, lacks = next(iter(cursors.items()))
        return TableOutput(table.database, table.table, table.columns[self.column_id], event_time, cursor, lacks)

    def doubts(self, output: TableOutput) -> Iterator[str]:
        """Yield how sure the match is, for people."""
        yield f"{self.shared:.0%} of the newest ids in {self.table.source} also occur in {self.topic}"
        if self.held < ALL_HELD:
            yield f"it holds {self.held:.0%} of the ids of {self.topic} in that time: the others would count as lost"
        if output.lacks:
            yield f'{output.lacks}: CREATE INDEX CONCURRENTLY ON {self.table.quoted} ("{output.cursor}")'


def find_matches(
    topics: Sequence[TopicGuess], hops: Sequence[TopicHop], tables: Sequence[TableGuess]
) -> Iterator[TableMatch]:
    """Yield each table that has ids of topics, with the topic that it is filled from: the last of the flow among those
    that have most of its ids."""
    flow: nx.DiGraph[str] = nx.DiGraph((hop.before, hop.after) for hop in hops)
    flow.add_nodes_from(topic.topic for topic in topics)
    for table in tables:
        matches = [match for topic in topics if (match := _compare(topic, table)) is not None]
        most = max((match.count for match in matches), default=0)
        full = {match.topic: match for match in matches if match.count >= AS_MANY * most}
        last = [match for topic, match in full.items() if not full.keys() & nx.descendants(flow, topic)]
        if last:
            yield max(last, key=lambda match: (match.count, match.shared, match.topic))


def _compare(topic: TopicGuess, table: TableGuess) -> TableMatch | None:
    best: TableMatch | None = None
    best_score = 0.0
    for topic_id, column_id in itertools.product(topic.candidates, table.rows.candidates):
        own, others = topic.times(topic_id), table.rows.times(column_id)
        topic_ms, row_ms = own.common(others)
        shared = topic_ms.size / max(1, min(len(own), len(others)))
        score = shared * topic.distinct(topic_id) * table.rows.distinct(column_id)
        if shared < LEAST_SHARED or score <= best_score:
            continue
        best_score = score
        within = np.count_nonzero((own.times >= topic_ms.min()) & (own.times <= topic_ms.max()))
        later_ms = float(np.median(row_ms - topic_ms))
        held = topic_ms.size / within
        best = TableMatch(table, topic.topic, topic_id, column_id, topic_ms.size, shared, held, later_ms)
    return best
