"""How many processes an importer should have: by its queue, or by their CPU, as pure functions of what was observed.

=========  ===========================================================================================================
``queue``  one more while messages are visible; as few as are allowed once none is visible and none is in flight
``cpu``    one more when the processes are above 80 % of a core on average; one less when below 30 % for a while
=========  ===========================================================================================================

A process that waits for its sink uses no CPU: by CPU it looks idle, and is taken away while messages still wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final, Literal

from botocore.exceptions import BotoCoreError, ClientError

from pipeline_under_test.batch.aws import Aws, Infrastructure
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.harness.group import HUNG_S, STOP_TIMEOUT_S, CpuMeter, Group
from pipeline_under_test.harness.policies import GroupObservation, Rules, Wish, cpu

QueuePolicy = Literal["queue", "cpu"]
EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class QueueSample:
    """An importer's queue and processes at `at_s` (monotonic clock); `cpu` is a share of a core, by process."""

    at_s: float
    processes: int
    visible: int
    in_flight: int
    dead: int
    cpu: float


def wanted(policy: QueuePolicy, samples: Sequence[QueueSample], changed_at_s: float, rules: Rules) -> Wish:
    """Return how many processes an importer should have now, within the bounds.

    Args:
        policy: which one decides.
        samples: samples, oldest first, at least one.
        changed_at_s: when the processes last became more or less; until the cool-down is over they stay as they are.
        rules: bounds and times.
    """
    now = samples[-1]
    if now.at_s - changed_at_s < rules.cool_down_s:
        return Wish(now.processes)
    since = [observation for observation in samples if observation.at_s >= changed_at_s]
    wish = by_queue(since, rules) if policy == "queue" else by_cpu(since, rules)
    return Wish(min(rules.most, max(rules.least, wish.processes)), wish.reason)


def by_queue(since: Sequence[QueueSample], rules: Rules) -> Wish:
    """Add one while messages wait; keep only the fewest once nothing waits and nothing is in flight."""
    now = since[-1]
    if now.visible > 0:
        return Wish(now.processes + 1, f"{now.visible} messages are waiting")
    if now.in_flight == 0:
        return Wish(rules.least, "no messages are waiting or in flight")
    return Wish(now.processes)


def by_cpu(since: Sequence[QueueSample], rules: Rules) -> Wish:
    """Decide by CPU alone, as for the nodes of the stream."""
    observations = [
        GroupObservation(observation.at_s, observation.processes, 0, 0, cpu=observation.cpu) for observation in since
    ]
    return cpu(observations, observations, rules)


def importer_group(
    settings: BatchSettings,
    importer: str,
    *,
    least: int = 1,
    most: int = 1,
    env: Mapping[str, str] | None = None,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> Group:
    """Return an importer's processes, none of them started yet.

    Args:
        settings: of all of them.
        importer: which one.
        least: as many processes at least.
        most: as many at most.
        env: variables that they need besides the settings: of AWS, and of Kafka.
        stop_timeout_s: time to finish what is in hand; killed then.
    """
    return Group(
        importer,
        ("importer", importer),
        settings.log_dir,
        settings.beats_dir,
        least,
        most,
        module=__name__.rpartition(".")[0],
        hung_s=HUNG_S + settings.poll_s,  # a poll shows no beat
        stop_timeout_s=stop_timeout_s,
        env={**settings.variables, **(env or {})},
    )


@dataclass(slots=True)
class QueueScaler:
    """Scales a group of importers once per second; `step` is called often and waits for the queue's answer only."""

    group: Group
    aws: Aws
    infrastructure: Infrastructure
    policy: QueuePolicy
    rules: Rules
    samples: list[QueueSample] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    _cpu: CpuMeter = field(default_factory=CpuMeter)
    _changed_at_s: float = 0.0
    _next_s: float = 0.0

    def step(self) -> None:
        """Tend the group and, if it is time, look at the queue and decide."""
        self.group.tend()
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        try:
            self.samples.append(self._sample(now))
        except (BotoCoreError, ClientError):  # a queue that does not answer says nothing about the load
            return
        self._changed_at_s = self._changed_at_s or now
        wish = wanted(self.policy, self.samples, self._changed_at_s, self.rules)
        if wish.processes != self.group.wanted:
            self._changed_at_s = now
            self.reasons.append(f"{self.group.wanted} -> {wish.processes}: {wish.reason}")
            self.group.scale(wish.processes)

    def _sample(self, now: float) -> QueueSample:
        importer = self.group.node
        visible, in_flight = self.aws.counts(self.infrastructure.queues[importer])
        dead, _ = self.aws.counts(self.infrastructure.dead[importer])
        shares = self._cpu.shares(self.group.pids)
        mean = fmean(shares.values()) if shares else 0.0
        return QueueSample(now, self.group.wanted, visible, in_flight, dead, mean)
