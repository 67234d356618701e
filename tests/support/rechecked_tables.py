"""A tap of a table whose rows are compared again, on a clock that tests set forward."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import Engine, select

from lagloss.sdk.outlets.kafka import MemoryOutlet
from lagloss_server.base.fields import parse_duration_ms
from lagloss_server.extraction import Extractor
from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.taps import LostAfterwardsMessageRow, LostAfterwardsRow, TapRow
from taps.kernel import BlockMaker
from taps.metrics import TapMetrics
from taps.store import TapStore
from taps.tables.readers import TableOfUrl
from taps.tables.recheck import RecheckRunner
from taps.tables.recheck_store import RecheckStore
from taps.tables.runner import TableRunner
from taps.wanted import RunningTap


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class RecheckedTable:
    """One process that runs the tap of a table, and compares its rows again."""

    def __init__(self, spec: TableSpec, store: TapStore, engine: Engine, recheck: str = "7d") -> None:
        self.engine, self.store = engine, store
        spec = spec.model_copy(update={"recheck": parse_duration_ms(recheck)})
        tap = TableTap(f"p{uuid.uuid4().hex[:8]}", "sink", spec, ("out",), first=False)
        since_ms = now_ms() // 60_000 * 60_000 - 600_000
        self.running = RunningTap(tap, uuid.uuid4().bytes, since_ms)
        self.ahead_ms = 0
        self.reader, self.compared = TableOfUrl(spec), TableOfUrl(spec)
        maker = BlockMaker(tap, self.running.emitter, since_ms, Extractor(tap.extraction))
        self.metrics = TapMetrics()
        self.tap = TableRunner(self.running, store, MemoryOutlet(), self.reader, maker, self.metrics, 0)
        self.recheck = RecheckRunner(RecheckStore(self.running, store), self.compared, self.metrics, self.clock_ms)

    def clock_ms(self) -> int:
        return now_ms() + self.ahead_ms

    def close(self) -> None:
        self.reader.close()
        self.compared.close()

    def read(self) -> None:
        """Have the tap read what is there, and remember it."""
        for _ in range(3):
            self.tap.turn()

    def look(self, after: str = "0s") -> int:
        """Compare whatever is due after a time; return how many comparisons that were."""
        self.ahead_ms += parse_duration_ms(after)
        comparisons = 0
        while self.recheck.turn():
            comparisons += 1
        return comparisons

    def look_twice(self, after: str = "12m") -> None:
        """Compare what is due after a time, and once more 10 minutes later."""
        self.look(after)
        self.look("10m")

    def lost(self) -> dict[str, str]:
        """Return the ids that are lost afterwards, each with what became of its row."""
        row = LostAfterwardsMessageRow
        names = select(row.message_id, row.cause).where(row.emitter == self.running.emitter)
        counts = select(LostAfterwardsRow.lost).where(LostAfterwardsRow.emitter == self.running.emitter)
        with self.engine.connect() as connection:
            lost = {row.message_id: row.cause for row in connection.execute(names)}
            assert sum(connection.execute(counts).scalars()) == len(lost)
        return lost

    @property
    def trouble(self) -> str:
        row = table_of(TapRow)
        with self.engine.connect() as connection:
            query = select(row.c.recheck_trouble).where(row.c.emitter == self.running.emitter)
            return str(connection.execute(query).scalar_one())


@contextmanager
def rechecked(spec: TableSpec, engine: Engine, database_url: str, recheck: str = "7d") -> Iterator[RecheckedTable]:
    with (
        closing(TapStore(engine, database_url)) as store,
        closing(RecheckedTable(spec, store, engine, recheck)) as table,
    ):
        yield table
