"""Runs scenarios: load and faults at their times, all windows watched, and the verdict at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Final, Protocol

from confluent_kafka import KafkaException

from lagloss.embedded.kafka import EmbeddedKafka
from lagloss.errors import LaglossError, NotEnoughData
from lagloss.store import Store
from lagloss.window_document import is_settled
from lagloss.wire import WINDOW_S
from pipeline_under_test.faults import Injections
from pipeline_under_test.faults.injections import LEAD_S
from pipeline_under_test.running.runner import NotStarted, Runner
from pipeline_under_test.scenarios.loss_watch import LossWatch
from pipeline_under_test.scenarios.outcome import Outcome, problems_of
from pipeline_under_test.scenarios.scenario import Scenario
from pipeline_under_test.scenarios.stack import Stack
from pipeline_under_test.settings import Settings
from pipeline_under_test.verdict import LATEST_S, Verdict, verdict_of

LOOK_EVERY_S: Final = 1.0
COMPARE_EVERY_S: Final = 5.0
"""Between comparisons of windows that are settled and differ: late beacons may still settle them anew."""
Say = Callable[[str], None]


class Steps(Protocol):
    """Something that is moved on now and then, and never waits."""

    def step(self) -> None: ...


BrokerFaults = Callable[[Injections, EmbeddedKafka], Steps]
"""Makes what carries out the faults of a cluster's brokers."""


def run_all(scenarios: Iterable[Scenario], say: Say, broker_faults: BrokerFaults | None = None) -> Iterator[Outcome]:
    """Runs them all, those with equally many brokers one after the other on one stack; gives each outcome at once.

    Args:
        scenarios: which.
        say: told, in a line each, what is going on.
        broker_faults: needed by scenarios with several brokers.

    Raises:
        LaglossError: if a stack does not start.
    """
    by_brokers: dict[int, list[Scenario]] = {}
    for scenario in scenarios:
        by_brokers.setdefault(scenario.run.brokers, []).append(scenario)
    for brokers, chosen in sorted(by_brokers.items()):
        say(f"starting lagloss on {brokers} broker{'s' if brokers > 1 else ''}")
        with Stack(brokers) as stack:
            for scenario in chosen:
                yield run_one(scenario, stack, say, broker_faults)


def run_one(scenario: Scenario, stack: Stack, say: Say, broker_faults: BrokerFaults | None = None) -> Outcome:
    """Runs one scenario to its end; what keeps it from getting there is a problem of its."""
    say(f"{scenario.name}: {scenario.description}")
    began = time.monotonic()
    with closing(Store(stack.settings.require_database())) as store:
        running = ScenarioRun(scenario, stack, store, say, broker_faults)
        try:
            verdict = running.go()
        except (NotStarted, LaglossError, KafkaException) as problem:
            return Outcome(scenario.name, took_s=time.monotonic() - began, problems=(str(problem),))
    document, wrong = verdict.document(), tuple(running.watch.found)
    problems = problems_of(scenario, document, wrong, running.restarts)
    return Outcome(scenario.name, document, wrong, running.restarts, time.monotonic() - began, problems)


class ScenarioRun:
    """The pipeline of one scenario under load, watched; `go` runs it and waits for lagloss's last word."""

    def __init__(
        self, scenario: Scenario, stack: Stack, store: Store, say: Say, broker_faults: BrokerFaults | None = None
    ) -> None:
        options = scenario.run
        self.restarts = 0
        self._scenario = scenario
        self._stack = stack
        self._store = store
        self._say = say
        self._settings = Settings(
            data_dir=stack.directory / "pipelines" / scenario.name,
            bootstrap=stack.settings.require_kafka(),
            pipeline=scenario.name,
            exactly_once=options.exactly_once,
            retry=options.retry,
            batch=options.batch,
            parallel=options.parallel,
            tiers_s=tuple(tier / 1000 for tier in options.tiers),
        )
        self._injections = self._settings.injections()
        self._broker_faults = (
            broker_faults(self._injections, stack.kafka)
            if broker_faults is not None and stack.kafka is not None
            else None
        )
        self.watch = LossWatch(store, scenario.name, self._settings.ledger_dir)

    def go(self) -> Verdict:
        """Runs the load and its faults, and compares once everything is settled.

        Raises:
            NotStarted: a process of the pipeline did not get ready.
            LaglossError, KafkaException: a server cannot be reached.
        """
        self._store.apply(self._scenario.definition())
        self._injections.begin_anew(())
        runner = Runner(self._settings, self._scenario.load.rate, self._scenario.load.minutes)
        phase = ""
        for progress in runner.steps():
            if progress["phase"] != phase:
                phase = progress["phase"]
                self._say(f"{self._scenario.name}: {phase}")
                if phase == "load":
                    self._inject()
            self.restarts = progress["restarts"]
            self._look()
        return self._last_word()

    def _inject(self) -> None:
        """Asks for all faults; each process takes up its own when their time has come."""
        for injected in self._scenario.faults:
            for_s = None if injected.for_ is None else injected.for_ / 1000
            self._injections.add(injected.fault, for_s, max(LEAD_S, injected.at / 1000))

    def _look(self) -> None:
        if self._broker_faults is not None:
            self._broker_faults.step()
        self.watch.look()

    def _last_word(self) -> Verdict:
        """Waits until lagloss has settled every window, or had all the time it may take; how they compare then."""
        options = self._scenario.run
        patience_s = WINDOW_S + (options.grace + options.max_wait) / 1000 + LATEST_S
        deadline = max(self.watch.truth.windows, default=0) + patience_s
        next_comparison = 0.0
        self._say(f"{self._scenario.name}: waiting until all windows are settled")
        while True:
            self._look()
            is_late = time.time() > deadline
            if is_late or (self._is_settled() and time.monotonic() >= next_comparison):
                next_comparison = time.monotonic() + COMPARE_EVERY_S
                try:
                    verdict = verdict_of(self._settings, self._stack.settings)
                except NotEnoughData:
                    if is_late:
                        raise
                    continue
                if is_late or (verdict.agrees and not verdict.waiting):
                    return verdict
            time.sleep(LOOK_EVERY_S)

    def _is_settled(self) -> bool:
        windows = self.watch.windows
        return all(start in windows and is_settled(windows[start]) for start in self.watch.truth.windows)
