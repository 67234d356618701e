"""Work set aside: what fails for a reason that waiting does not mend is put away alone, and everything else goes on.

A window, an hour to roll up, or a consumer group that is set aside is named in the table `set_aside`, in /healthz, by
`lagloss doctor` and on the health page, counted in a metric, and tried again at the next start, after an hour, and by
`lagloss recompute`. So is a definition that this version cannot read, until it can.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar, get_args

import structlog
from sqlalchemy import Connection, Engine, delete, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from aggregator.outage import is_outage
from lagloss_server.store.schema import core as tables
from lagloss_server.store.unreadable import RESULTS, UnreadableRow

log = structlog.get_logger()

RETRY_MS = 3_600_000
ERROR_CHARS = 500
AT_ONCE = 1_000
"""Items that one statement deletes."""

Kind = Literal["window", "rollup", "group", "definition"]
T = TypeVar("T")


class Item(NamedTuple):
    """What was set aside: the window's start or the period's (`hour/1795250400`), the name of the group, or the number
    of the definition's version."""

    kind: Kind
    pipeline: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.pipeline}/{self.name}"


def isolate(
    items: Sequence[T],
    work: Callable[[Sequence[T]], int],
    set_aside: Callable[[T, Exception], None],
    ends_at: float = math.inf,
) -> int:
    """Do `work` on all items together; return the sum of what it returns.

    Where that fails, but not for an outage, do it on each half, and so on until the item that fails is alone: it is
    passed to `set_aside`, and the others are done. n items of which one fails take 2 log2(n) calls more.

    Args:
        ends_at: when (monotonic s) to leave the rest for later; what failed together is halved once at least.

    Raises:
        Exception: an outage, or whatever `set_aside` raises.
    """
    try:
        return work(items)
    except Exception as error:
        if is_outage(error):
            raise
        if len(items) == 1:
            set_aside(items[0], error)
            return 0
    middle = len(items) // 2
    done = isolate(items[:middle], work, set_aside, ends_at)
    if time.monotonic() >= ends_at:
        return done
    return done + isolate(items[middle:], work, set_aside, ends_at)


class SetAside:
    """The items that are set aside now, in memory and in their table, of which this is the only writer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        table = tables.table_of(tables.SetAsideRow)
        with engine.connect() as connection:
            rows = connection.execute(select(table.c.kind, table.c.pipeline, table.c.item)).all()
        self.retry_at: dict[Item, int] = {Item(row.kind, row.pipeline, row.item): 0 for row in rows}
        """When each is tried again (epoch ms); those of an earlier start at once."""
        self._whys: dict[Item, str] = {}
        """Of definitions."""

    def __contains__(self, item: Item) -> bool:
        return item in self.retry_at

    def names(self) -> list[str]:
        """Return the items, and of definitions the reasons; and the stored results that cannot be read."""
        items = (f"{item} ({why})" if (why := self._whys.get(item)) else str(item) for item in list(self.retry_at))
        return sorted([*items, *map(str, RESULTS)])

    def due(self, kind: Kind, now_ms: int) -> list[Item]:
        """Return the items to be tried again now."""
        return sorted(item for item, at_ms in self._listed(kind) if at_ms <= now_ms)

    def waiting(self, kind: Kind, now_ms: int) -> list[Item]:
        """Return the items that are not to be tried again yet."""
        return sorted(item for item, at_ms in self._listed(kind) if at_ms > now_ms)

    def retry_now(self, kind: Kind, pipeline: str) -> None:
        """Let the items of a pipeline be tried again at the next look."""
        for item, _ in self._listed(kind):
            if item.pipeline == pipeline:
                self.retry_at[item] = 0

    def forget(self, items: Iterable[Item]) -> None:
        """Forget items that need no other try: their pipeline was deleted, say, or their window is sealed."""
        gone = [item for item in items if item in self]
        for index in range(0, len(gone), AT_ONCE):
            with self._engine.begin() as connection:
                self.done(connection, gone[index : index + AT_ONCE])

    def replace_definitions(self, rows: Iterable[UnreadableRow], now_ms: int) -> None:
        """Set aside the definitions that are unreadable now, and forget those that are not any more."""
        whys = {Item("definition", row.pipeline, row.name): row.why for row in rows}
        self.forget(item for item, _ in self._listed("definition") if item not in whys)
        self._whys = whys
        for item, why in whys.items():
            if self.retry_at.get(item, 0) <= now_ms:
                self.put(item, why)

    def put(self, item: Item, error: BaseException | str) -> None:
        """Set an item aside, with the first line of what went wrong."""
        now_ms = int(time.time() * 1000)
        facts = {"exc_info": error} if isinstance(error, BaseException) else {"why": error}
        log.error("work failed", kind=item.kind, pipeline=item.pipeline, item=item.name, **facts)
        row = {"kind": item.kind, "pipeline": item.pipeline, "item": item.name, "failed_at": now_ms, "tries": 1}
        row["error"] = _first_line(error) if isinstance(error, BaseException) else error
        table = tables.table_of(tables.SetAsideRow)
        upsert = insert(table).values(row)
        changed = {"failed_at": now_ms, "error": row["error"], "tries": table.c.tries + 1}
        with self._engine.begin() as connection:
            connection.execute(upsert.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed))
        self.retry_at[item] = now_ms + RETRY_MS

    def done(self, connection: Connection, items: Collection[Item]) -> None:
        """Forget those of these items that were set aside, in the transaction that did them."""
        done_items = [item for item in items if item in self.retry_at]
        if done_items:
            table = tables.table_of(tables.SetAsideRow)
            connection.execute(
                delete(table).where(tuple_(table.c.kind, table.c.pipeline, table.c.item).in_(done_items))
            )
            for item in done_items:
                self.retry_at.pop(item, None)
                log.info("work recovered", kind=item.kind, pipeline=item.pipeline, item=item.name)

    def counts(self) -> dict[str, int]:
        unreadable = Counter(row.kind for row in RESULTS)
        return {kind: len(self._listed(kind)) + unreadable[kind] for kind in get_args(Kind)}

    def _listed(self, kind: Kind) -> list[tuple[Item, int]]:
        """Return the items of a kind, with when each is tried again. Two threads set aside."""
        return [(item, at_ms) for item, at_ms in list(self.retry_at.items()) if item.kind == kind]


def _first_line(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".replace("\0", r"\x00")
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0][:ERROR_CHARS]
