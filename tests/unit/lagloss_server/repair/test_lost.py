"""The set of a repair: whose fate follows from the messages that a closing named, and whose does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lagloss.wire.format import SAMPLE_ALL, BeaconBlock, hash_id, pack_ids
from lagloss_server.judging.facts import Pattern
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.graph import Graph
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.window_blocks import WindowBlocks
from lagloss_server.repair.lost import NamedFate, judge_patterns, last_seen_between, lost_in_log

START_S = 1_795_250_400
START_MS = START_S * 1_000.0
LABEL = "link a->b"
AT_A = 0b11
"""a.in and a.out."""


def graph() -> Graph:
    text = (
        "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: shop}\nspec: {nodes: [{name: a, to: [b]}, {name: b}]}"
    )
    return parse_definition(text).graph


def block(
    checkpoint: str, ids: list[str], lag_ms: float, replay: str | None = None, supplied_at: int | None = None
) -> BeaconBlock:
    hashes = np.array([hash_id(name) for name in ids], np.uint64)
    made = BeaconBlock(
        "shop",
        checkpoint,
        bytes(16),
        0,
        START_S,
        1,
        hashes,
        np.full(len(ids), lag_ms, np.float32),
        replay=replay,
        supplied_at=supplied_at,
    )
    if checkpoint == "a.in":
        made.message_ids = pack_ids(name.encode() for name in ids)
        made.event_offset_ms = np.arange(len(ids)).astype(np.uint16) * np.uint16(100)
    return made


def presence(*blocks: BeaconBlock) -> Presence:
    by_checkpoint: dict[str, list[BeaconBlock]] = {}
    for made in blocks:
        by_checkpoint.setdefault(made.checkpoint, []).append(made)
    return Presence(WindowBlocks(graph(), START_S, by_checkpoint, SAMPLE_ALL))


NAMES = [f"m{number}" for number in range(10)]
"""Their events are 100 ms apart, from the start of the window."""
SEEN_MS = {name: START_MS + 100 * number + 5 for number, name in enumerate(NAMES)}


def lost_ones() -> Presence:
    whole = (block(name, NAMES[8:], 9) for name in ("b.in", "b.out"))
    return presence(block("a.in", NAMES, 1), block("a.out", NAMES, 5), *whole)


def pattern(first: int, last: int) -> Pattern:
    return Pattern(AT_A, last - first + 1, (), SEEN_MS[NAMES[first]], SEEN_MS[NAMES[last]])


def fate(number: int, kind: str, *places: str) -> NamedFate:
    return NamedFate(AT_A, SEEN_MS[NAMES[number]], SEEN_MS[NAMES[number]], kind, places)


def test_a_message_was_last_seen_by_its_newest_beacon_live_or_replayed() -> None:
    seen = presence(block("a.in", NAMES[:2], 1), block("a.in", NAMES[:1], 700, "again"), block("b.in", ["other"], 3))
    between = zip(*(moments.tolist() for moments in last_seen_between(seen)), strict=True)
    by_id = dict(zip(seen.ids.tolist(), between, strict=True))
    assert by_id[hash_id("m0")] == (START_MS + 700, START_MS + 700)
    assert by_id[hash_id("m1")] == (START_MS + 101, START_MS + 101)
    assert by_id[hash_id("other")] == (START_MS + 3, START_MS + 60_003)  # no source has its event time


@pytest.mark.parametrize("apart_ms", [-90_000, 90_000])
def test_a_message_whose_time_was_supplied_was_last_seen_between_that_and_then(apart_ms: int) -> None:
    seen = presence(block("a.in", NAMES[:1], 1), block("a.out", NAMES[:1], 5, None, int(START_MS) + 5 + apart_ms))
    first_ms, last_ms = (moments.tolist() for moments in last_seen_between(seen))
    assert first_ms == [START_MS + max(1, min(5, 5 + apart_ms))]
    assert last_ms == [START_MS + max(1, 5 + apart_ms)]


def test_messages_of_a_pattern_share_the_fate_of_those_that_were_named() -> None:
    patterns = [pattern(0, 4), pattern(5, 7)]
    fates = [fate(1, "lost", LABEL), fate(6, "pending", LABEL)]
    messages, unknown = lost_in_log(lost_ones(), {hash_id("m1")}, patterns, fates, LABEL, ("lost",))
    assert sorted(message.message_id or "" for message in messages) == ["m0", "m2", "m3", "m4"]
    assert {message.kind for message in messages} == {"lost"}
    assert unknown == 0


def test_messages_whose_times_were_supplied_have_the_fate_of_those_alone() -> None:
    by_ms = int(START_MS) + 90_000
    whole = (block(name, NAMES[8:], 9) for name in ("b.in", "b.out"))
    seen = presence(
        block("a.in", NAMES, 1), block("a.out", NAMES[:4], 5), block("a.out", NAMES[4:], 5, None, by_ms), *whole
    )
    plain, supplied = pattern(0, 7), replace(pattern(0, 7), by_first_ms=by_ms, by_last_ms=by_ms)
    fates = [fate(0, "lost", LABEL), replace(fate(5, "pending", LABEL), seen_by_ms=by_ms)]
    messages, unknown = lost_in_log(seen, (), [plain, supplied], fates, LABEL, ("lost",))
    assert sorted(message.message_id or "" for message in messages) == NAMES[:4]
    assert unknown == 0


def test_without_a_named_one_between_the_same_cuts_nothing_is_said_to_be_lost() -> None:
    messages, unknown = lost_in_log(
        lost_ones(), (), [pattern(0, 4), pattern(5, 7)], [fate(6, "lost", LABEL)], LABEL, ("lost",)
    )
    assert {message.message_id for message in messages} == {"m5", "m6", "m7"}
    assert unknown == 5


@pytest.mark.parametrize(
    "fates",
    [
        [fate(1, "lost", LABEL), fate(2, "pending", LABEL)],
        [fate(1, "lost", LABEL), fate(2, "lost", "node a")],
        [NamedFate(0b1, SEEN_MS["m1"], SEEN_MS["m1"], "lost", (LABEL,))],
        [],
    ],
)
def test_fates_that_differ_or_are_of_other_patterns_say_nothing(fates: list[NamedFate]) -> None:
    assert judge_patterns([pattern(0, 7)], fates) == [(pattern(0, 7), None)]
    assert lost_in_log(lost_ones(), (), [pattern(0, 7)], fates, LABEL, ("lost",)) == ([], 8)


def test_what_is_lost_elsewhere_or_perhaps_is_in_the_set_only_if_asked_for() -> None:
    patterns, fates = [pattern(0, 7)], [fate(0, "perhaps", LABEL)]
    assert lost_in_log(lost_ones(), (), patterns, fates, LABEL, ("lost",)) == ([], 0)
    assert len(lost_in_log(lost_ones(), (), patterns, fates, LABEL, ("lost", "perhaps"))[0]) == 8
    assert lost_in_log(lost_ones(), (), patterns, fates, "node a", ("lost", "perhaps")) == ([], 0)


def test_what_arrived_since_is_not_lost() -> None:
    late = presence(
        block("a.in", NAMES, 1), block("a.out", NAMES, 5), block("b.in", NAMES, 9), block("b.out", NAMES, 9)
    )
    assert lost_in_log(late, (), [pattern(0, 7)], [fate(0, "lost", LABEL)], LABEL, ("lost",)) == ([], 0)
