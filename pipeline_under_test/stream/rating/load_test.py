"""The load test of one node: one process of it in a pipeline of its own, and trials at rates that a search chooses."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lagloss.wire.sketch import rank
from lagloss_server.ops.processes import LOOPBACK, choose_port, log_tail
from pipeline_under_test.harness.faults import Fault
from pipeline_under_test.harness.group import Group
from pipeline_under_test.stream.events.routes import seed_routes
from pipeline_under_test.stream.kafka.positions import GroupWatcher
from pipeline_under_test.stream.kafka.topics import create_topics, delete_topics
from pipeline_under_test.stream.nodes.receiver import RECEIVER
from pipeline_under_test.stream.processes.scaling import Rating
from pipeline_under_test.stream.rating.search import RateTrial, highest_sustained
from pipeline_under_test.stream.rating.traffic import Done, HttpTraffic, TopicTraffic, Traffic
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import COL_SERVICE, CONNECTORS

START_TIMEOUT_S: Final = 60.0
SEND_EVERY_S: Final = 0.02
WARM_UP_S: Final = 3.0
HOPELESS: Final = 3.0
"""A trial ends early once an event has waited for this many lag targets."""
DRAIN_TIMEOUT_S: Final = 120.0
"""How long a node may take to get through what a trial that was too much has left."""
QUANTILE: Final = 0.95


class NodeFailed(RuntimeError):
    """The node did not become ready, or died; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One process of a node, and what it needs to do its work."""

    node: str
    groups: tuple[Group, ...]

    def tend(self) -> None:
        """Look after the processes.

        Raises:
            NodeFailed: if one has died: what it sustains dead or alive is no rating.
        """
        for group in self.groups:
            group.tend()
            for member in group.members:
                if member.deaths:
                    raise NodeFailed(f"{member.name} died: {log_tail(member.log_path)}")


def rate(
    settings: ReferenceSettings,
    node: str,
    lag_target_s: float,
    *,
    seconds: float,
    faults: Iterable[Fault] = (),
    say: Callable[[RateTrial], None] = lambda trial: None,
) -> Rating:
    """Find what one process of `node` sustains with 95 % of its events done within `lag_target_s`.

    Args:
        settings: those of the pipeline whose node is rated; it runs in another pipeline on the same broker.
        node: which one.
        lag_target_s: from an event's append, or its sending to col-service, to its committed offset, or its answer.
        seconds: how long each trial measures, after some seconds of warm-up.
        faults: that are on.
        say: called with each trial.

    Raises:
        NodeFailed: if the node does not start, or dies.
        NothingSustained: if it does not even take the lowest rate.
        KafkaException: if the broker cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="pipeline-rating-") as folder:
        private = apart(settings, Path(folder), f"{settings.pipeline}-rating")
        private.injections().begin_anew(faults)
        with ready_bench(private, node) as bench:
            traffic: Traffic = HttpTraffic(private) if node == COL_SERVICE else TopicTraffic(private, node)

            def tried(per_s: float) -> RateTrial:
                trial = attempt(bench, traffic, per_s, seconds, lag_target_s)
                say(trial)
                return trial

            try:
                best = highest_sustained(tried, lag_target_s)
            finally:
                traffic.close()
    return Rating(events_per_s=round(best.sent_per_s, 1), lag_target_s=lag_target_s, at=datetime.now(UTC))


def apart(settings: ReferenceSettings, folder: Path, pipeline: str) -> ReferenceSettings:
    """Return the settings, saved in `folder`, of another pipeline on the same broker, with addresses of its own."""
    receiver_port, collector_port = choose_port(RECEIVER), choose_port(COL_SERVICE)
    settings_ = settings.model_copy(
        update={
            "data_dir": folder,
            "pipeline": pipeline,
            "receiver_url": f"http://{LOOPBACK}:{receiver_port}",
            "collector_url": f"http://{LOOPBACK}:{collector_port}",
        }
    )
    settings_.save()
    return settings_


@contextmanager
def ready_bench(settings: ReferenceSettings, node: str) -> Iterator[Bench]:
    """Start the node and what it needs, and yield when it is ready; end it and delete its topics afterwards.

    Raises:
        NodeFailed: if it does not get ready.
    """
    create_topics(settings.bootstrap, settings.pipeline, settings.tiers_s)
    seed_routes(settings.bootstrap, settings.pipeline)
    words: dict[str, tuple[str, ...]] = {node: ("node", node)}
    if node == COL_SERVICE:
        words = {node: (node, "--port", settings.collector_url.rpartition(":")[2])}
    if node in CONNECTORS:
        words[RECEIVER] = (RECEIVER, "--port", settings.receiver_url.rpartition(":")[2])
    common = ("--data-dir", str(settings.data_dir))
    groups = [Group(name, (*args, *common), settings.log_dir, settings.beats_dir) for name, args in words.items()]
    bench = Bench(node, tuple(groups))
    try:
        with closing(GroupWatcher(settings.bootstrap, settings.pipeline)) as watcher:
            _get_ready(bench, watcher)
        yield bench
    finally:
        for group in groups:
            group.end()
        delete_topics(settings.bootstrap, settings.pipeline, settings.tiers_s)


def _get_ready(bench: Bench, watcher: GroupWatcher) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    bench.tend()
    while not (all(group.is_ready for group in bench.groups) and _is_idle(bench.node, watcher)):
        if time.monotonic() > deadline:
            raise NodeFailed(f"{bench.node} is not ready after {START_TIMEOUT_S:.0f} s")
        time.sleep(SEND_EVERY_S)
        bench.tend()


def _is_idle(node: str, watcher: GroupWatcher) -> bool:
    """Return whether the node reads all of its topic, and nothing waits there: a rating that was killed may have left
    some."""
    return node == COL_SERVICE or (watcher.all_assigned([node]) and not watcher.positions([node])[node].backlog)


def attempt(bench: Bench, traffic: Traffic, per_s: float, seconds: float, lag_target_s: float) -> RateTrial:
    """Run one trial: warm-up and `seconds` at this rate; return when all that was sent is done."""
    began, done, sent = time.monotonic(), list[Done](), 0
    measured_from_s, hopeless_s = time.time() + WARM_UP_S, HOPELESS * lag_target_s
    while (elapsed := time.monotonic() - began) < WARM_UP_S + seconds and _oldest(traffic) < hopeless_s:
        due = int(elapsed * per_s) - sent
        if due:
            traffic.send(due)
            sent += due
        done += traffic.look()
        bench.tend()
        time.sleep(SEND_EVERY_S)
    until_s = time.time()
    done += _drained(bench, traffic)
    lags = sorted(sample.lag_s for sample in done if measured_from_s <= sample.sent_s <= until_s)
    p95 = lags[rank(QUANTILE, len(lags)) - 1] if lags else math.inf
    return RateTrial(per_s, sent / max(elapsed, SEND_EVERY_S), p95)


def _oldest(traffic: Traffic) -> float:
    """Return how long the oldest event that is not done has waited."""
    sent_s = traffic.oldest_s()
    return 0.0 if sent_s is None else time.time() - sent_s


def _drained(bench: Bench, traffic: Traffic) -> list[Done]:
    done, deadline = [], time.monotonic() + DRAIN_TIMEOUT_S
    while traffic.oldest_s() is not None:
        if time.monotonic() > deadline:
            raise NodeFailed(
                f"{bench.node} still has unprocessed events {DRAIN_TIMEOUT_S:.0f} s after the last one was sent"
            )
        done += traffic.look()
        bench.tend()
        time.sleep(SEND_EVERY_S)
    return done
