"""What importers write to: tables of PostgreSQL, by id, so that a file that comes twice leaves the rows as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import Engine, TextClause, text

from pipeline_under_test.batch.events import ScoreEvent
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import DB_IMPORT, hour_of

_EVENTS: Final = text(
    """
    INSERT INTO event (id, event_ms, hour, campaign, user_id, kind, value, referrer, replay)
    SELECT DISTINCT ON (id) id, event_ms, hour, campaign, user_id, kind, value, referrer, CAST(:replay AS text)
    FROM unnest(CAST(:id AS text[]), CAST(:event_ms AS bigint[]), CAST(:hour AS bigint[]), CAST(:campaign AS text[]),
                CAST(:user_id AS text[]), CAST(:kind AS text[]), CAST(:value AS double precision[]),
                CAST(:referrer AS text[])) AS fresh(id, event_ms, hour, campaign, user_id, kind, value, referrer)
    ON CONFLICT (id) DO UPDATE
    SET event_ms = excluded.event_ms, hour = excluded.hour, campaign = excluded.campaign, user_id = excluded.user_id,
        kind = excluded.kind, value = excluded.value, referrer = excluded.referrer, imported_at = now(),
        replay = CASE WHEN event.replay IS NOT NULL THEN excluded.replay END
    """
)
_ENTRIES: Final = text(
    """
    INSERT INTO search_entry (id, event_ms, text)
    SELECT DISTINCT ON (id) id, event_ms, text
    FROM unnest(CAST(:id AS text[]), CAST(:event_ms AS bigint[]), CAST(:text AS text[])) AS fresh(id, event_ms, text)
    ON CONFLICT (id) DO UPDATE SET text = excluded.text, imported_at = now()
    """
)


class Sink(Protocol):
    """A destination of events; returns once they are durable there, and raises if they are not."""

    def write(self, events: Sequence[ScoreEvent], replay: str | None = None) -> None:
        """Write events; `replay`: the one that brings them, handed on where others read them."""


class EventTable:
    """The table `event`."""

    def __init__(self, engine: Engine, span_s: int) -> None:
        self._engine = engine
        self._span_s = span_s

    def write(self, events: Sequence[ScoreEvent], replay: str | None = None) -> None:
        names = ("id", "event_ms", "campaign", "user_id", "kind", "value", "referrer")
        columns: dict[str, list[Any]] = {name: [getattr(event, name) for event in events] for name in names}
        columns["hour"] = [hour_of(event_ms, self._span_s) for event_ms in columns["event_ms"]]
        _write(self._engine, _EVENTS, {**columns, "replay": replay})


class SearchIndex:
    """The table `search_entry`, in the place of a search index."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def write(self, events: Sequence[ScoreEvent], replay: str | None = None) -> None:
        texts = [f"{event.kind} {event.campaign} {event.user_id} {event.referrer or ''}".strip() for event in events]
        columns = {"id": [event.id for event in events], "event_ms": [event.event_ms for event in events]}
        _write(self._engine, _ENTRIES, {**columns, "text": texts})


def sink_of(importer: str, engine: Engine, settings: BatchSettings) -> Sink:
    """Return the sink of an importer."""
    return EventTable(engine, settings.span_s) if importer == DB_IMPORT else SearchIndex(engine)


def _write(engine: Engine, statement: TextClause, columns: Mapping[str, Any]) -> None:
    with engine.begin() as connection:
        connection.execute(statement, columns)
