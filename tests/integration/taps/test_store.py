"""Ownership of a tap: one process has it, and one that lost it stores no plan."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from sqlalchemy import Engine, text

from lagloss_server.model.taps import Tap
from taps import store as tap_store
from taps.plan import TapPlan
from taps.records import TapCounts
from taps.store import NextPlan, NotOwned, TapStore
from taps.wanted import RunningTap
from tests.support.closers import wait_until
from tests.unit.taps.test_wanted import version

TAP: Tap = version(1, "x").definition.taps[0]
FIRST = TapPlan(0, 0, 1, 1)


@pytest.fixture
def emitter(stores: list[TapStore]) -> bytes:
    running = RunningTap(TAP, uuid.uuid4().bytes, 0)
    stores[0].add(running, FIRST)
    return running.emitter


@pytest.fixture
def stores(tap_engine: Engine, tap_database: str) -> Iterator[list[TapStore]]:
    """Two processes."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(TapStore(tap_engine, tap_database))) for _ in range(2)]


def advance(store: TapStore, emitter: bytes, number: int) -> None:
    store.advance(emitter, replace(FIRST, number=number), (), TapCounts(), "")


def test_a_tap_has_one_owner_until_that_releases_it_or_its_process_ends(stores: list[TapStore], emitter: bytes) -> None:
    mine, other = stores
    assert mine.claim(emitter, TapPlan.of)
    assert mine.claim(emitter, TapPlan.of)
    assert other.claim(emitter, TapPlan.of) is None
    mine.release(emitter)
    assert other.claim(emitter, TapPlan.of)
    assert mine.claim(emitter, TapPlan.of) is None
    other.close()
    wait_until(lambda: mine.claim(emitter, TapPlan.of) is not None, 5, "for the tap to be free")


def test_who_was_cut_off_stores_no_plan_and_owns_the_tap_again_if_nobody_took_it(
    tap_engine: Engine, stores: list[TapStore], emitter: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap_store, "LOST_AFTER_S", 3.0)  # who is held up for longer, by a busy machine, is cut off, too
    mine, other = stores
    assert mine.claim(emitter, TapPlan.of)
    advance(mine, emitter, 1)
    assert mine._session
    backend = mine._session.connection.info.backend_pid
    with tap_engine.begin() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 20000)"), {"pid": backend})
    assert other.claim(emitter, TapPlan.of)
    with pytest.raises(NotOwned):
        advance(mine, emitter, 2)
    with pytest.raises(NotOwned):
        mine.note_trouble(emitter, "no answer")
    advance(other, emitter, 2)
    other.close()
    wait_until(lambda: mine.claim(emitter, TapPlan.of) is not None, 15, "for the tap to be free")
    advance(mine, emitter, 3)


def test_plans_of_many_taps_are_stored_together_save_those_that_another_owns(stores: list[TapStore]) -> None:
    mine, other = stores
    emitters = [uuid.uuid4().bytes for _ in range(3)]
    for emitter, owner in zip(emitters, (mine, mine, other), strict=True):
        mine.add(RunningTap(TAP, emitter, 0), FIRST)
        assert owner.claim(emitter, TapPlan.of)
    plan, counts = replace(FIRST, number=1, positions={0: 7}, through_ms=9), TapCounts(seen=5)
    assert mine.advance_all([NextPlan(emitter, plan, counts, "log") for emitter in emitters]) == {*emitters[:2]}
    assert mine.advance_all([NextPlan(emitters[0], plan, counts, "log")]) == set()
    owned = mine.claim(emitters[0], TapPlan.of)
    assert owned is not None
    assert (owned.plan, owned.counts) == (plan, counts)
