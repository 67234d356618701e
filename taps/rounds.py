"""Rounds over the taps of a cluster that rest: those for which nothing is new but the time.

A tap rests after turns without news. Each round asks for the ends of all their topics at once, and wakes those whose
topic has grown or whose group has committed, and those whose next report is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import structlog
from confluent_kafka import KafkaException
from sqlalchemy.exc import DBAPIError

from lagloss_server.base.turns import WatchedLoop
from taps.cluster_topics import TURN_S
from taps.commit_log import OFFSETS_TOPIC
from taps.plan_runner import ACKNOWLEDGED_S
from taps.runner import TapRunner
from taps.store import NextPlan, TapStore

if TYPE_CHECKING:
    from taps.clusters import TapCluster

log = structlog.get_logger()

REPORTS: Final = 250
"""At most, of one round: more would hold up the next."""
PREPARE_S: Final = 5.0
"""Time to plan for them: with servers that answer, a fraction of a second."""
LIMIT_S: Final = 120.0
"""Longest normal round: one whose requests are not answered."""


class TapRounds:
    """Goes round in a thread of its own from `start` until `close`: turns that hang cannot hold it up."""

    def __init__(self, name: str, cluster: TapCluster, store: TapStore) -> None:
        self.loop = WatchedLoop(f"the round of {name}", LIMIT_S)
        self._cluster, self._store = cluster, store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rounds-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Return whether the round has ended within this time."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(max(0.0, began + TURN_S - time.monotonic())):
            began = time.monotonic()
            try:
                self._go_round()
            except Exception:  # our bug: taps that rest report all the same, each by itself
                log.exception("round failed")
            self.loop.finished()

    def _go_round(self) -> None:
        cluster = self._cluster
        for consumers in (cluster.consumers, cluster.peeks):
            consumers.tidy()
        resting = [(runner, look) for runner in cluster.pool.waiting() if (look := runner.resting) is not None]
        places = {(runner.topic, partition) for runner, look in resting for partition in look.logs}
        log_partitions = {partition for runner, _ in resting if (partition := runner.log_partition) is not None}
        places |= {(OFFSETS_TOPIC, partition) for partition in log_partitions}
        try:
            ends = cluster.topics.ends(places)
        except KafkaException:  # which their turns meet, and report
            cluster.pool.wake(runner for runner, _ in resting)
            return
        try:
            cluster.commits.read_on(log_partitions, ends)
        except KafkaException:
            cluster.pool.wake(runner for runner, _ in resting if runner.log_partition is not None)
        due = {runner: reason for runner, look in resting if (reason := runner.reason(look, ends))}
        cluster.topics.want({runner.topic for runner, reason in due.items() if reason == "news"})
        cluster.pool.wake(runner for runner, reason in due.items() if reason == "news")
        self._report([runner for runner, reason in due.items() if reason == "report"])

    def _report(self, runners: Sequence[TapRunner]) -> None:
        """Have these taps report, up to `REPORTS` of them."""
        some = sorted(runners, key=lambda runner: runner.topic)[:REPORTS]  # taps of a topic plan by the same look
        self._cluster.topics.want({runner.topic for runner in some})
        claimed = self._cluster.pool.claim(some)
        pauses: dict[TapRunner, float | None] = dict.fromkeys(claimed, 0.0)
        try:
            pauses |= report_together(claimed, self._store)
        finally:
            self._cluster.pool.release(pauses)


def report_together(runners: Iterable[TapRunner], store: TapStore) -> dict[TapRunner, float]:
    """Have taps that rest report; return for how long (s) each waits before its next turn.

    Their plans are stored by one statement, and all reports are sent before the first one is waited for.
    """
    pauses: dict[TapRunner, float] = {}
    plans: dict[TapRunner, NextPlan] = {}
    ends = time.monotonic() + PREPARE_S
    for runner in runners:
        # where servers are slow, the rest take turns of their own
        plan = runner.prepare() if time.monotonic() < ends else 0.0
        if isinstance(plan, NextPlan):
            plans[runner] = plan
        else:
            pauses[runner] = plan
    if not plans:
        return pauses
    try:
        stored: set[bytes] | DBAPIError = store.advance_all([*plans.values()])
    except DBAPIError as error:
        stored = error
    for runner, plan in plans.items():
        runner.begin_report(plan, stored)
    ends = time.monotonic() + ACKNOWLEDGED_S
    return pauses | {runner: runner.finish_report(ends) for runner in plans}
