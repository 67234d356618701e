"""Runs scenarios: load and faults at their times, all windows watched, and the verdict at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

import psycopg
from confluent_kafka import KafkaException
from sqlalchemy.exc import OperationalError

from lagloss.errors import LaglossError
from lagloss.wire.format import WINDOW_S
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.store.store import Store
from pipeline_under_test.harness.brokers import BrokerFaults
from pipeline_under_test.harness.loss_watch import LossWatch
from pipeline_under_test.harness.stack import ScenarioStack
from pipeline_under_test.harness.verdict import LATEST_S, Verdict
from pipeline_under_test.stream.outcome import ScenarioOutcome, problems_of
from pipeline_under_test.stream.processes.runner import NotStarted, Runner
from pipeline_under_test.stream.scenario import Scenario
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.truth import StreamTruth
from pipeline_under_test.stream.verdict import followed_truth, verdict_of

LOOK_EVERY_S: Final = 1.0
COMPARE_EVERY_S: Final = 5.0
"""Between comparisons of windows that are settled and differ: late beacons may still settle them anew."""
PROBLEMS: Final = (NotStarted, LaglossError, KafkaException, OperationalError, psycopg.Error)
"""Message for a scenario that they end, instead of an outcome."""
Say = Callable[[str], None]
Observe = Callable[[Scenario, Mapping[str, Any]], None]


def _unobserved(_scenario: Scenario, _progress: Mapping[str, Any]) -> None:
    """Do nothing."""


def run_all(scenarios: Iterable[Scenario], say: Say, observe: Observe = _unobserved) -> Iterator[ScenarioOutcome]:
    """Run them all: those with equally many brokers on one stack, one after the other, save that the next one begins
    while lagloss settles the windows of the one before.

    Args:
        scenarios: which.
        say: called with each line of progress.
        observe: given each scenario's progress about once a second, as `Runner.steps` gives it.

    Raises:
        LaglossError: if a stack does not start.
    """
    by_brokers: dict[int, list[Scenario]] = {}
    for scenario in scenarios:
        by_brokers.setdefault(scenario.run.brokers, []).append(scenario)
    for brokers, chosen in sorted(by_brokers.items()):
        say(f"starting lagloss on {brokers} broker{'s' if brokers > 1 else ''}")
        # The stack ends first: a thread that still waits for windows then finds no database, and ends, too.
        with ThreadPoolExecutor(len(chosen)) as settling, ScenarioStack(brokers) as stack:
            outcomes = []
            for scenario in chosen:
                say(f"{scenario.name}: {scenario.description}")
                running = ScenarioRun(scenario, stack, say, observe)
                running.load()
                outcomes.append(settling.submit(running.outcome))
            for outcome in outcomes:
                yield outcome.result()


class ScenarioRun:
    """The pipeline of one scenario: `load` runs it, `outcome` waits for lagloss's last word; both watch the windows.

    What keeps either from getting to its end is a problem of the scenario's.
    """

    def __init__(self, scenario: Scenario, stack: ScenarioStack, say: Say, observe: Observe = _unobserved) -> None:
        options = scenario.run
        self._scenario = scenario
        self._lagloss = stack.settings
        self._say = say
        self._observe = observe
        self._began = time.monotonic()
        self._restarts = 0
        self._problem: Exception | None = None
        self._store = Store(stack.settings.require_database())
        self._settings = ReferenceSettings(
            data_dir=stack.directory / "pipelines" / scenario.name,
            bootstrap=stack.settings.require_kafka(),
            pipeline=scenario.name,
            exactly_once=options.exactly_once,
            at_most_once=options.at_most_once,
            taps=options.taps,
            database_url=stack.settings.require_database() if options.warehouse else "",
            commit_first=options.commit_first,
            retry=options.retry,
            batch=options.batch,
            parallel=options.parallel,
            tiers_s=tuple(tier / 1000 for tier in options.tiers),
        )
        self._injections = self._settings.injections()
        self._broker_faults = None if stack.kafka is None else BrokerFaults(self._injections, stack.kafka)
        self._truths = followed_truth(self._settings)
        self._watch = LossWatch(self._store, [scenario.name], self._truths)

    def load(self) -> None:
        """Run the pipeline under load and break it, from the main thread: processes end with the thread that starts
        them."""
        try:
            self._run()
        except PROBLEMS as problem:
            self._problem = problem

    def outcome(self) -> ScenarioOutcome:
        """Return the outcome, once every window is settled."""
        with closing(self._store):
            document = self._document()
        wrong = tuple(self._watch.found)
        if document is None:
            problems: tuple[str, ...] = (str(self._problem),)
        else:
            problems = problems_of(self._scenario, document, wrong, self._restarts)
        name = self._scenario.name
        self._say(f"{name}: {problems[0] if problems else 'as expected'}")
        return ScenarioOutcome(name, document, wrong, self._restarts, time.monotonic() - self._began, problems)

    def _document(self) -> dict[str, Any] | None:
        """Return the verdict; None if there is a problem."""
        if self._problem is not None:
            return None
        try:
            return self._last_word().document()
        except PROBLEMS as problem:
            self._problem = problem
            return None

    def _run(self) -> None:
        self._store.apply(self._scenario.definition())
        self._injections.begin_anew(())
        runner = Runner(self._settings, self._scenario.load.rate, self._scenario.load.minutes)
        phase = ""
        for progress in runner.steps():
            if progress["phase"] != phase:
                phase = progress["phase"]
                self._say(f"{self._scenario.name}: {phase}")
                if phase == "load":
                    self._scenario.inject(self._injections)
            self._restarts = progress["restarts"]
            self._observe(self._scenario, progress)
            self._look()

    def _look(self) -> None:
        if self._broker_faults is not None:
            self._broker_faults.step()
        self._watch.look()

    def _last_word(self) -> Verdict:
        """Wait until lagloss has settled every window, or its time is over; return how they compare then."""
        options = self._scenario.run
        patience_s = WINDOW_S + (options.grace + options.max_wait) / 1000 + LATEST_S
        deadline = max(self._truth.windows, default=0) + patience_s
        next_comparison = 0.0
        while True:
            self._watch.look()
            is_late = time.time() > deadline
            if is_late or (self._is_settled() and time.monotonic() >= next_comparison):
                next_comparison = time.monotonic() + COMPARE_EVERY_S
                try:
                    verdict = verdict_of(self._settings, self._lagloss)
                except NotEnoughData:
                    if is_late:
                        raise
                    continue
                if is_late or (verdict.agrees and not verdict.waiting):
                    return verdict
            time.sleep(LOOK_EVERY_S)

    @property
    def _truth(self) -> StreamTruth:
        return self._truths()[self._scenario.name]

    def _is_settled(self) -> bool:
        windows = self._watch.windows[self._scenario.name]
        return all(start in windows and windows[start].is_settled for start in self._truth.windows)
