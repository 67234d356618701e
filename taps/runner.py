"""A tap of Kafka at work: its plans by looks at the brokers, and when it rests."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, Literal, NamedTuple, Protocol

import structlog

from lagloss.sdk.outlets.kafka import Outlet
from lagloss.wire.format import Progress
from lagloss_server.model.taps import Tap
from taps.cluster_topics import TURN_S, SharedLook, TopicEnds
from taps.commit_log import CommitReader
from taps.kernel import Blocks
from taps.metrics import TapMetrics
from taps.plan import Look, TapPlan
from taps.plan_runner import IDLE_REPORT_S, NOT_AT_ALL, PlanRunner
from taps.planner import (
    ANEW,
    QUIET,
    Beginning,
    GroupPlanner,
    Planner,
    TopicPlanner,
    beginning,
    lost_tails,
    newest_epochs,
    newly_led,
)
from taps.records import TapCounts
from taps.store import NextPlan, NotOwned, TapStore
from taps.topic_reader import TopicReader
from taps.wanted import RunningTap

log = structlog.get_logger()

BEFORE_MS: Final = 120_000
"""How long before its first window a tap begins to read: clocks of producers may be ahead."""
RESTS_AFTER: Final = 3
"""Turns in sequence without news, after which only a topic that grows, a commit or the time can bring any: the second
looks for markers of transactions at the end, the third knows of them."""
LATE_S: Final = 5.0
"""How much later than a round would have it a tap that rests reports by itself."""


class Engine(Protocol):
    """Carries out plans: reads their records, and makes the blocks."""

    @property
    def limit(self) -> int:
        """Return how many offsets a plan can hold."""

    @property
    def is_spread(self) -> bool:
        """Return what plans that are made for it say by that name."""

    def blocks(self, plan: TapPlan) -> Blocks:
        """Return the blocks of a plan. Raises KafkaException."""


class Still(NamedTuple):
    """The look of a turn, and the newest ends of the topic, which are those of the look."""

    of: Look
    ends: TopicEnds


class TapRunner(PlanRunner[TapPlan]):
    """Runs a tap of Kafka.

    Args:
        commits: of the tap's reader, if it is a reader's.
    """

    plan_type = TapPlan

    _still: Still | None
    """Written by the thread that asks `reason`."""
    _begin_failed: float | None

    def __init__(
        self,
        running: RunningTap,
        store: TapStore,
        outlet: Outlet,
        reader: TopicReader,
        engine: Engine,
        commits: CommitReader | None,
        metrics: TapMetrics,
        idle_report_s: float = IDLE_REPORT_S,
    ) -> None:
        assert isinstance(running.tap, Tap)
        self._tap, self._reader, self._engine, self._commits = running.tap, reader, engine, commits
        super().__init__(running, store, outlet, metrics, idle_report_s)

    @property
    def positions(self) -> Mapping[int, int]:
        """Next offsets to plan, by partition; none while the tap is not owned."""
        return self._plan.positions if self._plan is not None and self._is_done else {}

    @property
    def topic(self) -> str:
        return self._reader.topic

    @property
    def log_partition(self) -> int | None:
        """The partition of the log that has the commits of its group, if it reads them there."""
        return None if self._commits is None else self._commits.partition

    @property
    def resting(self) -> Look | None:
        """The look at the topic by which the tap rests: nothing is new but the time, until the topic ends elsewhere or
        the group commits. None if it does not."""
        return self._look if self._quiet >= RESTS_AFTER else None

    def reason(self, look: Look, ends: TopicEnds) -> Literal["", "news", "report"]:
        """Return why a tap that rests by this look has to take a turn, by what the ends show now; empty if it does not
        have to. May be called by another thread."""
        self._look_after = ends.asked_at
        if not ends.show(self.topic, look) or not (self._commits is None or self._commits.is_level):
            return "news"
        self._still = Still(look, ends)
        is_minute_over = ends.at_ms // 60_000 != look.at_ms // 60_000
        is_report_due = time.monotonic() - self._reported_at >= self._idle_report_s
        return "report" if is_minute_over or is_report_due else ""

    # -- turns of many at once ------------------------------------------------------------------------------------

    def prepare(self) -> NextPlan | float:
        """Return the next plan of a tap that rests, to be stored with those of others before `begin_report`. If there
        is more to do than to report, return for how long (s) to wait before the tap's own turn, which does it."""
        if self._stop.is_set() or self._plan is None or not self._is_done or self._unsaved or self._counts.unreadable:
            return 0.0
        if self._plan.ends_ms != self._running.until_ms:  # which its own turns are to say
            return 0.0
        try:
            following = self._without_look(self._plan) or self._next(self._plan)
        except Exception as error:
            return self._failed(error)
        self._prepared = following
        if following.spans or following.gone or not self._is_news(following, self._plan):
            return 0.0
        return NextPlan(self._running.emitter, following, self._counts, self._kind_of_commits)

    def begin_report(self, step: NextPlan, stored: Collection[bytes] | Exception) -> None:
        """Send the report of a plan, if it is among those that were stored."""
        self._waits_until = NOT_AT_ALL
        if isinstance(stored, Exception):
            self._begin_failed = self._failed(stored)
            return
        if step.emitter not in stored:
            self._begin_failed = self._failed(NotOwned())
            return
        self._has_stored(step.plan)
        try:
            self._carry_out(step.plan)
        except Exception as error:
            self._begin_failed = self._failed(error)

    def finish_report(self, until: float) -> float:
        """Wait for a report that was begun until monotonic s; return for how long (s) to wait before the next turn."""
        pause_s, self._begin_failed = self._begin_failed, None
        if pause_s is not None:
            return pause_s
        assert self._plan is not None
        self._waits_until = until
        try:
            pause_s = self._pause() if self._carry_out(self._plan) else TURN_S
        except Exception as error:
            return self._failed(error)
        self.is_troubled, self._pause_s = False, TURN_S
        return pause_s

    def _forget(self) -> None:
        super()._forget()
        self._planner = self._new_planner()
        self._begin_failed = None
        """Pause (s) after a report that could not be begun."""
        self._look: Look | None = None
        self._look_after = 0.0
        """When the brokers were asked last for the topic's ends: the next look has to show what these have shown."""
        self._still = None
        self._quiet = 0
        """Turns in sequence that had no news."""

    # -- turns --------------------------------------------------------------------------------------------------------

    def _pause(self) -> float:
        if self.resting is None:
            return super()._pause()
        self._reader.rest()
        return max(TURN_S, self._reported_at + self._idle_report_s + LATE_S - time.monotonic())

    def _next(self, last: TapPlan) -> TapPlan:
        last = self._made_for(last)
        commits = None
        if self._commits is not None:
            commits = self._commits.read(last.commits_at, self._running.since_ms - BEFORE_MS)
            # stored with the plan that goes on after them; if there is none, whoever reads them again counts them
            self._counts.add(TapCounts(unreadable=dict(commits.unreadable)))
            self._metrics.count_unreadable(self._tap, commits.unreadable)
        topic = self._reader.newest(max(self._owned_from, self._look_after, commits.topic_after if commits else 0.0))
        self._looked_at = topic.asked_at
        timely = last.as_of(topic.look.at_ms)
        if timely is not last:
            self._planner = self._new_planner()
        last, gone = self._resumed(self._rested(timely, topic), topic)
        self._look = topic.look
        last = replace(last, is_spread=self._engine.is_spread)
        following = self._planner.plan(last, topic.look, commits, self._engine.limit)
        following = replace(
            following,
            gone={**gone, **following.gone},
            begins_ms=following.begins_ms - self._late_ms,
            epochs=newest_epochs(last, topic.look),
        )
        self._quiet = 0 if following.spans or following.gone else self._quiet + 1
        self._metrics.looked(self._tap, topic.look, following)
        return following

    def _without_look(self, last: TapPlan) -> TapPlan | None:
        """Return a plan that only says that the tap lives; None beyond the minute of the look by which it rests."""
        look = self.resting
        if look is None or time.time_ns() // 60_000_000_000 != look.at_ms // 60_000:
            return None
        return self._without_news(last)

    def _rested(self, last: TapPlan, topic: SharedLook) -> TapPlan:
        """Return the last plan with what the tap would have learned had it looked until just before this look."""
        still, self._still = self._still, None
        if still is None or still.of is not self._look or still.ends.at_ms >= topic.look.at_ms:
            return last
        if topic.topic_id != last.topic_id or topic.look.logs.keys() != still.of.logs.keys():
            return last  # then there may have been records that the ends did not show
        newest = replace(still.of, at_ms=still.ends.at_ms, by_ms=still.ends.by_ms)
        commits = replace(QUIET, next=last.commits_at) if self._commits else None
        rested = self._planner.plan(last, newest, commits, self._engine.limit)
        return replace(rested, number=last.number, epochs=last.epochs) if not rested.spans and not rested.gone else last

    def _resumed(self, last: TapPlan, topic: SharedLook) -> tuple[TapPlan, Mapping[int, int]]:
        """Return the last plan with positions in the topic as it is now, and what counts as gone by that."""
        if topic.topic_id != last.topic_id:
            begun = Beginning(ANEW, {}) if last.topic_id else self._begin(topic.look.logs)
            if last.topic_id:
                log.warning("topic recreated", tap=self._tap.source)
            last = replace(last, topic_id=topic.topic_id, until_ms={}, commits={}, void={}, epochs={})
        else:
            shown = self._look.ends if self._look is not None else {}
            tails = lost_tails(last, topic.look, shown, self._reader.whole_until)
            unseen = self._perhaps_lost_unseen(newly_led(last, topic.look) - tails.keys())
            if not tails:
                return last, unseen
            before = {partition: min(end, last.positions.get(partition, 0)) for partition, end in tails.items()}
            begun = Beginning({**last.positions, **before}, unseen | dict.fromkeys(tails, 1))
            log.warning("topic truncated", tap=self._tap.source, ends=tails)
            commits = {
                partition: tuple(mark for mark in marks if mark.offset <= tails.get(partition, mark.offset))
                for partition, marks in last.commits.items()
            }
            epochs = {partition: epoch for partition, epoch in last.epochs.items() if partition not in tails}
            last = replace(last, commits=commits, epochs=epochs)
        self._planner = self._new_planner()
        return replace(last, positions=begun.positions), begun.gone

    def _perhaps_lost_unseen(self, led_anew: Collection[int]) -> dict[int, int]:
        """Return what counts as gone of partitions with a new leader, which may lack what the one before had
        acknowledged since the last look."""
        if not led_anew or not self._reader.allows_unclean_election():
            return {}
        log.warning("new leader may lack records", tap=self._tap.source, partitions=sorted(led_anew))
        return dict.fromkeys(led_anew, 1)

    def _begin(self, partitions: Iterable[int]) -> Beginning:
        """Return where to begin in a topic that was never read."""
        moment_ms = self._running.since_ms - BEFORE_MS
        starts = self._reader.starts_at(moment_ms, partitions)
        look = self._reader.look(starts)
        return beginning(look, starts, self._reader.appended_before(moment_ms, starts, look))

    def _is_behind(self, plan: TapPlan) -> bool:
        return plan.records >= self._engine.limit // 2

    def _blocks(self, plan: TapPlan) -> Blocks:
        return self._engine.blocks(plan)

    @property
    def _kind_of_commits(self) -> str:
        return self._commits.kind if self._commits else ""

    def _close_source(self) -> None:
        self._reader.close()

    def _new_planner(self) -> Planner:
        tap = self._tap
        if tap.group is not None:
            return GroupPlanner(self._reader.has_none)
        return TopicPlanner()

    def _is_news(self, following: TapPlan, last: TapPlan) -> bool:
        # to whoever takes over, a commit beyond the end may look like one of records that have come since
        return following.void != last.void or super()._is_news(following, last)

    def _progress(self, plan: TapPlan) -> tuple[Progress, ...]:
        tap = self._tap
        lanes = [
            Progress(f"{tap.node}.in", f"{tap.topic}/{partition}", until)
            for partition, until in sorted(plan.until_ms.items())
        ]
        if tap.group is None or "out" in tap.places:
            lanes.append(Progress(f"{tap.node}.out", self._lane, plan.through_ms))
        return tuple(lanes)
