"""The observer goes on while the broker does not answer, and tells nodes and processes apart."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline_under_test.harness.group import CpuMeter
from pipeline_under_test.stream.processes import observed
from pipeline_under_test.stream.processes.observed import Observer, ProcessGroup
from pipeline_under_test.stream.topology import COL_SERVICE, EVENT_NORM
from tests.fakes.queues import Queues

TIMEOUT_S = 20


@contextmanager
def observing(broker: Queues) -> Iterator[Observer]:
    made = Observer(broker)
    made.set_groups({EVENT_NORM: ProcessGroup(2, [os.getpid()]), COL_SERVICE: ProcessGroup(1, [])})
    made.start()
    try:
        yield made
    finally:
        made.stop()


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {TIMEOUT_S} s"
        time.sleep(0.02)


def test_nodes_are_seen_with_their_processes_queue_lag_and_cpu() -> None:
    with observing(Queues(arrived=100)) as observer:
        wait_for(lambda: len(observer.seen(EVENT_NORM)) >= 3, "three looks")
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            sum(range(10_000))
        wait_for(lambda: len(observer.seen(EVENT_NORM)) >= 4, "another look")
        last = observer.seen(EVENT_NORM)[-1]
        before_it = observer.seen(COL_SERVICE)[-1]
    assert last.processes == 2
    assert last.backlog == last.appended >= 300
    assert last.lag_s >= 2 * observed.EVERY_S  # the first record has been there since the first look
    assert 0 < last.cpu < 2
    assert (before_it.processes, before_it.backlog, before_it.lag_s) == (1, 0, 0)
    assert before_it.appended > 0  # what it has sent on


def test_while_the_broker_does_not_answer_there_is_nothing_new_and_then_there_is() -> None:
    broker = Queues(arrived=1)
    with observing(broker) as observer:
        wait_for(lambda: observer.seen(EVENT_NORM), "a look")
        broker.is_down = True
        looks = broker.looks
        wait_for(lambda: broker.looks >= looks + 2, "looks that fail")
        before = observer.seen(EVENT_NORM)
        broker.is_down = False
        wait_for(lambda: observer.seen(EVENT_NORM)[-1] is not before[-1], "a look")
    assert not [thread for thread in threading.enumerate() if thread.name == "observer"]


def test_an_observer_that_never_began_can_be_stopped() -> None:
    Observer(Queues(0)).stop()


def test_cpu_is_told_from_the_second_look_on_and_not_for_those_that_are_gone() -> None:
    meter = CpuMeter()
    nobody = 2**22 + 1  # above the highest pid there may be
    assert meter.shares([os.getpid(), nobody]) == {}
    assert set(meter.shares([os.getpid(), nobody])) == {os.getpid()}
