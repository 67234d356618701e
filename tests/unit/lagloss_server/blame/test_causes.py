"""One injected cause is what is named first, and where there is none, none is made up."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from benchmarks.blame import is_named
from lagloss_server.blame.causes import LEAST_BAD, _tail, _upper, blame
from lagloss_server.blame.traits import Population
from tests.support.faulty_worlds import Cause, Harm, faulty_world

WORLDS = int(os.environ.get("LAGLOSS_BLAME_WORLDS", "1"))
CAUSES: tuple[Cause, ...] = ("process", "partition", "version", "vendor", "time", "host", "start", "prefix", "none")


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_of_a_loss_is_named_first(cause: Cause) -> None:
    assert [seed for seed in range(3) if not faulty_world(cause, "lost", seed).is_named] == []


@pytest.mark.parametrize("harm", ["late", "dead", "corrupted"])
@pytest.mark.parametrize("cause", CAUSES)
def test_so_is_that_of_lateness_death_and_corruption(cause: Cause, harm: Harm) -> None:
    assert faulty_world(cause, harm, 50).is_named


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_of_a_loss_is_named_first_in_at_least_19_of_20_worlds_and_none_is_made_up(cause: Cause) -> None:
    """In the first by default; `make histories` takes 20. Of all kinds of harm 20 each, which takes a
    quarter of an hour: `python -m benchmarks blame`."""
    missed = [seed for seed in range(100, 100 + WORLDS) if not is_named(cause, "lost", seed)]
    assert len(missed) <= (0 if cause == "none" else WORLDS // 20), missed


def test_a_process_is_named_with_its_start_and_what_else_it_alone_has() -> None:
    world = faulty_world("start", "lost", 0)
    (found, *_) = world.blame.findings
    assert found.support > 0.8 > 0.3 > found.base
    assert world.fault.process is not None
    processes = [each for each in (found, *found.same) if each.kind == "process"]
    assert [each.emitter for each in processes] == [world.fault.process.facts]


def test_taps_are_no_cause() -> None:
    world = faulty_world("process", "lost", 0)
    taps = [replace(process, is_tap=True) for process in world.processes]
    kinds = {each.kind for each in replace(world, processes=taps).blame.findings}
    assert not kinds & {"process", "host", "label", "input", "age"}


def test_too_few_bad_messages_have_nothing_in_common() -> None:
    world = faulty_world("none", "lost", 1, messages=60)
    assert world.blame.bad < LEAST_BAD
    assert not world.blame.is_enough
    assert world.blame.findings == ()


def test_no_message_at_all_is_no_fault() -> None:
    found = blame(Population.of_windows("loss", [], {}))
    assert (found.bad, found.others, found.places, found.findings) == (0, 0, (), ())


def test_a_tail_is_the_probability_of_so_many_or_more() -> None:
    assert _tail(1, 2, 0.5) == pytest.approx(0.75)
    assert _tail(10, 10, 0.5) == pytest.approx(0.5**10)
    assert _tail(0, 5, 0.1) == 1.0
    assert _tail(3, 5, 1.0) == 1.0
    assert _tail(900, 1_000, 0.5) < 1e-100
    assert _tail(5, 5, 0.0) == 0.0


def test_the_base_is_taken_as_high_as_a_sample_of_its_size_leaves_open() -> None:
    assert 0 < _upper(0.0, 100) < 0.07
    assert _upper(0.1, 100) > _upper(0.1, 1_000) > 0.1
    assert _upper(1.0, 10) == 1.0
