"""A tap whose database has lost its last commits, as a failover to a stand-by that was behind leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sqlalchemy import Engine, delete, insert, select, update

from lagloss.wire.format import BeaconBlock, hash_id
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.taps import TapRow, TapTallyRow
from tests.support.tap_histories import History

TAP, TALLY = table_of(TapRow), table_of(TapTallyRow)


def kept(engine: Engine, emitter: bytes) -> Callable[[], None]:
    """Return what brings the rows of a tap back to what they are now."""
    with engine.connect() as connection:
        row: dict[str, Any] = dict(connection.execute(select(TAP).where(TAP.c.emitter == emitter)).mappings().one())
        tallies = [
            dict(tally) for tally in connection.execute(select(TALLY).where(TALLY.c.emitter == emitter)).mappings()
        ]

    def restore() -> None:
        with engine.begin() as connection:
            connection.execute(update(TAP).where(TAP.c.emitter == emitter).values({**row, "owner": ""}))
            connection.execute(delete(TALLY).where(TALLY.c.emitter == emitter))
            if tallies:
                connection.execute(insert(TALLY), tallies)

    return restore


def test_what_a_tap_reads_after_commits_were_lost_is_in_blocks_of_other_numbers(
    kafka_bootstrap: str, tap_database: str, tap_engine: Engine
) -> None:
    """A reader of the log drops a block whose number it knows: with the numbers of plans that the database has
    forgotten, records would be in no block that counts, and be lost to it."""
    history = History(kafka_bootstrap, tap_engine, tap_database, seed=1)
    turns = 5

    def go_on() -> None:
        history.produce()
        for _ in range(turns):
            history.turn("topic")

    go_on()
    restore = kept(tap_engine, history.taps["topic"].emitter)
    for _ in range(3):
        go_on()
    restore()
    for runner in history.runners["topic"]:
        runner.runner._forget()  # as after each failure of the database
    for _ in range(3):
        go_on()
    for _ in range(4 * turns):
        history.turn("topic")
    by_seq: dict[int, BeaconBlock] = {}
    for block in history.blocks("topic"):
        first = by_seq.setdefault(block.seq, block)
        assert np.array_equal(first.id_hash, block.id_hash)
        assert first.checkpoint == block.checkpoint
    for checkpoint in ("a.in", "a.out"):
        seen = {
            id_hash for block in by_seq.values() if block.checkpoint == checkpoint for id_hash in block.id_hash.tolist()
        }
        produced = {
            hash_id(record.message_id)
            for record in history.records
            if record.message_id and record.event_ms >= history.since_ms
        }
        assert produced <= seen
