"""Tables of the batch pipeline: a file that comes twice, and the replay that brings it."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import select

from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from pipeline_under_test.batch.events import ScoreEvent
from pipeline_under_test.batch.schema import EVENT, create_tables, open_database
from pipeline_under_test.batch.sinks import EventTable


@pytest.mark.parametrize(
    ("writes", "replay"),
    [
        ([None], None),
        (["june"], "june"),
        (["june", "july"], "july"),
        ([None, "june"], None),
        (["june", None], None),
        (["june", None, "july"], None),
    ],
)
def test_a_row_is_of_a_replay_while_nothing_else_has_brought_it(
    postgres: EmbeddedPostgres, writes: list[str | None], replay: str | None
) -> None:
    engine = open_database(postgres.create_database(f"sinks_{uuid.uuid4().hex[:8]}"))
    try:
        create_tables(engine)
        for name in writes:
            EventTable(engine, 60).write([ScoreEvent("a", 1_000, "autumn", "u", "view", 1.0)] * 2, name)
        with engine.connect() as connection:
            assert connection.execute(select(EVENT.c.id, EVENT.c.replay)).all() == [("a", replay)]
    finally:
        engine.dispose()
