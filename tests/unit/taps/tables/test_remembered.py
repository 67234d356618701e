"""What is remembered of a table's rows, when it is compared, and what a look at the table makes of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lagloss.wire.format import SAMPLE_ALL, hash_id
from taps.tables import remembered
from taps.tables.reading import MissingRows, SeenRow, TableVersion
from taps.tables.remembered import (
    CONFIRM_MS,
    NotComparable,
    RememberedMinute,
    RememberedRow,
    by_minute,
    compared,
    due_ms,
    merged,
    next_look_ms,
    rows_of,
)

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
START_S = 1_795_000_020
END_MS = (START_S + 60) * 1_000
VERSION = TableVersion("server", "text", (1, 100), "orders", "file")


def minute(*ids: str, seen_ms: int = END_MS, version: TableVersion = VERSION) -> RememberedMinute:
    rows = [SeenRow(place, id_, START_S * 1_000 + place) for place, id_ in enumerate(ids)]
    (made,) = by_minute(rows, version, seen_ms)
    return made


def look(before: RememberedMinute, at_ms: int, *missing: str, version: TableVersion = VERSION) -> RememberedMinute:
    return compared(before, MissingRows(frozenset(missing), version), at_ms)


def test_a_row_is_lost_once_two_looks_ten_minutes_apart_miss_it() -> None:
    first = look(minute("a", "b"), END_MS + 1, "a")
    assert (first.rows["a"].missed_ms, first.rows["b"].missed_ms, first.lost) == (END_MS + 1, 0, {})
    early = look(first, END_MS + CONFIRM_MS, "a")
    assert early.lost == {}
    late = look(early, END_MS + CONFIRM_MS + 1, "a")
    assert [*late.lost] == ["a"]
    assert (late.rows["a"].seen_ms, late.rows["a"].missed_ms) == (END_MS, END_MS + 1)
    assert late.rows["b"].seen_ms == late.compared_ms == END_MS + CONFIRM_MS + 1


def test_a_row_that_is_seen_in_between_is_missed_anew() -> None:
    back = look(look(minute("a"), END_MS + 1, "a"), END_MS + HOUR_MS)
    assert back.rows["a"] == RememberedRow(0, "a", START_S * 1_000, END_MS + HOUR_MS, "orders", "file")
    assert look(back, END_MS + 2 * HOUR_MS, "a").lost == {}


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (TableVersion("other", "text", (9, 9), "orders", "file"), "on another server"),
        (TableVersion("server", "uuid", (1, 100), "orders", "file"), "its id was read as text, and is uuid now"),
        (TableVersion("server", "text", (1, 99), "orders", "file"), "is behind what was read before"),
        (TableVersion("server", "text", (0, 999), "orders", "file"), "is behind what was read before"),
    ],
)
def test_a_look_that_could_miss_what_is_there_says_nothing(now: TableVersion, why: str) -> None:
    with pytest.raises(NotComparable, match=why):
        look(minute("a"), END_MS, "a", version=now)


def test_what_became_of_a_row_is_by_the_table_that_it_was_seen_in() -> None:
    rewritten = TableVersion("server", "text", (1, 200), "orders", "file 2")
    recreated = TableVersion("server", "text", (2, 50), "orders 2", "file 3")  # after a failover
    old, new = minute("a", "b"), minute("c", version=rewritten)
    missed = look(merged([old, new]), END_MS, "a", "c", version=rewritten)
    assert [missed.rows[id_].cause for id_ in "abc"] == ["rewritten", "", "deleted"]
    assert look(missed, END_MS + 1, "a", "b", version=recreated).rows["b"].cause == "recreated"
    assert look(missed, END_MS + 1, "a", "b", version=recreated).rows["a"].cause == "rewritten"


def test_a_row_that_a_later_part_has_was_seen_again() -> None:
    lost = look(look(minute("a", "b"), END_MS, "a", "b"), END_MS + CONFIRM_MS, "a", "b")
    back = merged([lost, minute("a", seen_ms=END_MS + HOUR_MS)])
    assert [*back.lost] == ["b"]
    assert (back.rows["a"].missed_ms, back.compared_ms) == (0, END_MS + CONFIRM_MS)


def test_rows_of_another_server_are_forgotten_and_what_is_lost_stays_lost() -> None:
    lost = look(look(minute("a", "b"), END_MS, "a"), END_MS + CONFIRM_MS, "a")
    elsewhere = TableVersion("other", "text", (1, 5), "orders", "file")
    together = merged([lost, minute("c", version=elsewhere)])
    assert ([*together.rows], together.version) == (["a", "c"], elsewhere)


def test_the_newest_version_counts_of_hosts_of_which_one_is_behind() -> None:
    behind = TableVersion("server", "text", (1, 60), "orders", "file")
    assert merged([minute("a"), minute("b", version=behind)]).version == VERSION


def test_ages_grow_and_the_last_is_recheck() -> None:
    def dues(recheck_ms: int) -> list[int]:
        ages, now_ms = [], END_MS
        while (due := due_ms(START_S, now_ms, recheck_ms)) is not None:
            ages.append((due - END_MS) // MINUTE_MS)
            now_ms = due
        return ages

    assert dues(7 * DAY_MS) == [10, 60, 360, 1_440, 3 * 1_440, 7 * 1_440]
    assert dues(2 * HOUR_MS) == [10, 60, 120]
    assert dues(HOUR_MS) == [10, 60]
    assert dues(5 * MINUTE_MS) == [5]


def test_what_is_missed_is_looked_for_ten_minutes_later_and_what_is_lost_at_growing_intervals() -> None:
    recheck_ms, at_ms = 7 * DAY_MS, END_MS + DAY_MS
    missed = look(minute("a"), at_ms, "a")
    assert next_look_ms(missed, at_ms, recheck_ms) == at_ms + CONFIRM_MS
    lost, waits = look(missed, at_ms + CONFIRM_MS, "a"), []
    now_ms = at_ms + CONFIRM_MS
    for _ in range(5):
        following = next_look_ms(lost, now_ms, recheck_ms)
        assert following is not None
        waits.append((following - now_ms) // MINUTE_MS)
        now_ms = following
    assert waits == [10, 20, 40, 60, 60]
    assert next_look_ms(lost, END_MS + recheck_ms, recheck_ms) is None
    assert next_look_ms(missed, END_MS + recheck_ms, recheck_ms) == END_MS + recheck_ms + CONFIRM_MS
    assert next_look_ms(minute("a"), END_MS + recheck_ms, recheck_ms) is None


def test_a_sample_is_the_same_however_its_rows_came_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MAX_ROWS", 50)
    ids = [f"id-{number}" for number in range(500)]
    whole = minute(*ids)
    shuffled = random.Random(7).sample(ids, len(ids))
    parts = [minute(*shuffled[first : first + 100]) for first in range(0, 500, 100)]
    together = merged(parts)
    assert together.rows.keys() == whole.rows.keys()
    assert together.sample == whole.sample
    assert len(whole.rows) == 50
    assert {id_ for id_ in ids if hash_id(id_) % SAMPLE_ALL < whole.sample} == whole.rows.keys()
    assert 0.05 < whole.sample / SAMPLE_ALL < 0.2


def test_what_is_lost_stays_when_a_sample_becomes_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MAX_ROWS", 5)
    ids = [f"id-{number}" for number in range(5)]
    lost = look(look(minute(*ids), END_MS, *ids), END_MS + CONFIRM_MS, *ids)
    together = merged([lost, minute(*(f"more-{number}" for number in range(100)))])
    assert together.lost.keys() == set(ids)
    assert len(together.rows) == 10
    assert minute("a").sample == SAMPLE_ALL


def test_packed_rows_are_read_back() -> None:
    missed = look(minute("a", "é\n"), END_MS, "a")
    assert rows_of(missed.packed_rows()) == missed.rows
    assert replace(missed, rows={}).lost == {}
