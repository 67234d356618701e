"""Windows that are due, of all pipelines and for any reason, in the order in which a turn takes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice, zip_longest
from typing import Final, Literal, NamedTuple

from sqlalchemy import Connection, Engine, func, select

from aggregator.closing.definitions import DefinitionRegistry
from aggregator.closing.report_state import WindowKey
from aggregator.set_aside import Item, SetAside
from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.freshness import EXPECTED_FOR_MS
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.emitters import DISTURBED_MS, crowded, is_silent
from lagloss_server.store.schema import core as tables

WINDOWS_AT_ONCE = 4_000
"""Maximum number of windows that are judged and committed together."""
MANY_EMITTERS = 500
"""A pipeline with more is closed after the others: to load and judge 3,000 takes about a second."""

Why = Literal["due", "changed", "early", "retry", "deadline", "silent", "requested", "verify", "names"]
"""Why a window is closed.

`due`: for the first time. `changed`: its tallies did, after the last closing. `early`: it is over, and complete perhaps
before its grace has passed. `retry`: it was set aside. `deadline`: time alone may have changed its result. `silent`: an
emitter fell silent in it, or reports again. `requested`: by `lagloss recompute`.

Of a window that its tallies prove, why it is read all the same: to `verify` the proof, or for the `names` of messages.
"""
FROM_STORE: Final = frozenset({"deadline", "silent"})
"""Reasons to judge a closed window again by the facts of its last closing."""
ONLY_CLOSED: Final = FROM_STORE | {"retry"}
"""Reasons that do not hold of a window that was never closed."""


class Due(NamedTuple):
    """A window to close."""

    pipeline: str
    start_s: int
    why: Why

    @property
    def window(self) -> WindowKey:
        return self.pipeline, self.start_s

    @property
    def item(self) -> Item:
        return item_of(self.window)


def item_of(window: WindowKey) -> Item:
    """Return the name of a window where it is set aside."""
    return Item("window", window[0], rfc3339(window[1]))


class DueWindows:
    """The windows that are due, from three sources: the schedules, emitters that fell silent, and what was set aside.

    `waits`: whether a window cannot be closed yet, since it is wide and still read.
    """

    def __init__(
        self, engine: Engine, watch: DefinitionRegistry, failures: SetAside, waits: Callable[[WindowKey], bool]
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._failures = failures
        self._waits = waits
        self._silence = SilenceWatch(engine)
        self._touched: set[WindowKey] = set()
        """Windows that silence has touched and that are not judged since."""

    def by_urgency(self, caught_up_ms: int, now_ms: int) -> Iterator[Sequence[Due]]:
        """Yield the windows of one turn, most urgent kind first; some batches are empty.

        A kind is looked up only once those before it are closed, since a closing can make other windows due.
        """
        yield from self._lightest_first(self._fair(self._to_close(caught_up_ms, now_ms)))
        yield self._fair(self._maybe_early(caught_up_ms, now_ms))
        yield self._fair(self._to_retry(caught_up_ms))
        yield self._to_judge(caught_up_ms)

    def put_back(self, due: Iterable[Due]) -> None:
        """Have windows that a turn took and did not get to be due again: silence is noticed only once."""
        self._touched.update(item.window for item in due if item.why == "silent")

    def _fair(self, due: Iterable[Due]) -> list[Due]:
        """Return the first window of each pipeline, then the second of each, and so on, so that none waits for
        another's backlog, and no more than one batch may have."""
        by_pipeline: defaultdict[str, list[Due]] = defaultdict(list)
        for item in due:
            if not self._waits(item.window):
                by_pipeline[item.pipeline].append(item)
        rounds = zip_longest(*by_pipeline.values())
        return list(islice((item for round_ in rounds for item in round_ if item is not None), WINDOWS_AT_ONCE))

    def _lightest_first(self, due: Sequence[Due]) -> Iterator[Sequence[Due]]:
        """Yield the windows of pipelines with few emitters, then the others: thousands take seconds to load."""
        if not due:
            return
        with self._engine.connect() as connection:
            heavy = crowded(connection, {item.pipeline for item in due}, MANY_EMITTERS)
        for is_heavy in (False, True):
            yield [item for item in due if (item.pipeline in heavy) == is_heavy]

    def _to_close(self, caught_up_ms: int, now_ms: int) -> Iterator[Due]:
        for name, schedule in self._watch.schedules.items():
            for start in schedule.to_close(caught_up_ms, now_ms):
                yield Due(name, start, "changed" if schedule.entry(start).basis else "due")

    def _maybe_early(self, caught_up_ms: int, now_ms: int) -> Iterator[Due]:
        for name, schedule in self._watch.schedules.items():
            for start in schedule.maybe_early(caught_up_ms, now_ms):
                yield Due(name, start, "early")

    def _to_retry(self, caught_up_ms: int) -> Iterator[Due]:
        for item in self._failures.due("window", caught_up_ms):
            if item.pipeline not in self._watch.deferred:
                yield Due(item.pipeline, int(datetime.fromisoformat(item.name).timestamp()), "retry")

    def _to_judge(self, caught_up_ms: int) -> list[Due]:
        schedules = self._watch.schedules
        known = {*schedules, *self._watch.deferred}
        touched = self._touched | self._silence.touched(caught_up_ms)
        self._touched = {window for window in touched if window[0] in known}
        due = {Due(*window, "silent") for window in self._touched if window[0] in schedules}
        for name, schedule in schedules.items():
            # of a window that is due for both reasons, one is enough
            starts = (start for start in schedule.to_judge(caught_up_ms) if (name, start) not in self._touched)
            due |= {Due(name, start, "deadline") for start in starts}
        batch = self._fair(sorted(item for item in due if item.item not in self._failures))
        self._touched.difference_update(item.window for item in batch)
        return batch


class SilenceWatch:
    """Set of emitters that were silent at the last look. Losing it (a restart) only has a few windows judged again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._silent: dict[tuple[str, bytes], int] = {}

    def touched(self, caught_up_ms: int) -> set[WindowKey]:
        """Return the windows in which an emitter has fallen silent, or reports again, since the last call."""
        emitter = tables.EmitterRow
        with self._engine.connect() as connection:
            rows = connection.execute(
                select(emitter.pipeline, emitter.emitter, emitter.appended_at).where(is_silent(caught_up_ms))
            )
            silent: dict[tuple[str, bytes], int] = {(row.pipeline, row.emitter): row.appended_at for row in rows}
            moved = silent.items() ^ self._silent.items()  # by two times if one came back, and fell silent again
            touched = [_windows_around(connection, *account, last_ms) for account, last_ms in moved]
        self._silent = silent
        return set().union(*touched)


def _windows_around(connection: Connection, pipeline: str, emitter: bytes, last_ms: int) -> set[WindowKey]:
    """Return the windows from the oldest that it changed shortly before its last report to the last in which it is
    still expected."""
    tally = tables.TallyRow
    disturbed = connection.execute(
        select(func.min(tally.window_start)).where(
            tally.pipeline == pipeline, tally.emitter == emitter, tally.changed_at >= last_ms - DISTURBED_MS
        )
    ).scalar_one_or_none()
    window = last_ms // 1000 // WINDOW_S * WINDOW_S
    first = window if disturbed is None else min(window, disturbed)
    stop = (last_ms + EXPECTED_FOR_MS) // 1000 + WINDOW_S
    return {(pipeline, start) for start in range(first, stop, WINDOW_S)}
