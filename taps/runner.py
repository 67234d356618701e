"""One tap at work: plan, store the plan, carry it out, report; and repeat what its last owner may not have finished."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Literal, NamedTuple, Protocol

import structlog
from confluent_kafka import KafkaException
from sqlalchemy.exc import DBAPIError

from lagloss.sdk.account import FORGET_S, Account
from lagloss.sdk.flush import Flush
from lagloss.sdk.outlets.kafka import Outlet
from lagloss.sdk.shipper import EmitterIdentity, PendingReport, Shipper
from lagloss.wire.format import MAX_LABEL_CHARS, MAX_NAME_BYTES, Progress, Tally
from lagloss_server.base.errors import RegistryUnreachable
from lagloss_server.model.taps import TAP_LABEL
from taps.cluster_topics import TURN_S, SharedLook, TopicEnds
from taps.commit_log import CommitReader
from taps.kernel import Blocks
from taps.metrics import TapMetrics
from taps.plan import Look, TapPlan
from taps.planner import ANEW, QUIET, Beginning, GroupPlanner, Planner, TopicPlanner, beginning, lost_tails
from taps.records import TapCounts
from taps.store import NextPlan, NotOwned, TapStore
from taps.topic_reader import TopicReader
from taps.wanted import RunningTap

log = structlog.get_logger()

BEFORE_MS: Final = 120_000
"""How long before its first window a tap begins to read: clocks of producers may be ahead."""
CLAIM_S: Final = 3.0
"""Between two tries to own a tap that another process owns."""
MAX_PAUSE_S: Final = 10.0
NOTE_S: Final = 5.0
"""Between two notes that a tap waits for Kafka, and looks whether it is still owned."""
RESTS_AFTER: Final = 3
"""Turns in sequence without news, after which only a topic that grows, a commit or the time can bring any: the second
looks for markers of transactions at the end, the third knows of them."""
IDLE_REPORT_S: Final = 30.0
"""Between reports of a tap without news within a minute; it counts as silent after 60 s. Other emitters report each
10 s, since their blocks are looked for up to 10 s after their last report; what a tap sends later than that is in a
stored plan, which its next owner carries out again."""
LATE_S: Final = 5.0
"""How much later than a round would have it a tap that rests reports by itself."""
NOT_AT_ALL: Final = float("-inf")
ACKNOWLEDGED_S: Final = 2.0
"""How long a turn waits for acknowledgements; after that it is for later turns to look for them."""
TIDY_S: Final = 60.0
PRUNE_S: Final = 3_600.0
REPORT_BITS: Final = 20
"""Of a report's number, for its place among those of a plan."""


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


class TapRunner:
    """Runs one tap, a turn at a time, until it is stopped. Used by one thread at a time, save for `stop`.

    Args:
        commits: of the tap's reader, if it is a reader's.
        idle_report_s: between two reports of a tap without news.
    """

    _still: Still | None
    """Written by the thread that asks `reason`."""
    _prepared: TapPlan | None
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
        self._running = running
        self._store = store
        self._outlet = outlet
        self._reader = reader
        self._engine = engine
        self._commits = commits
        self._metrics = metrics
        self._idle_report_s = idle_report_s
        self._stop = threading.Event()
        self._closing = False
        self.is_troubled = False
        """The last turn failed."""
        self._pause_s = TURN_S
        self._forget()

    def stop(self, *, close: bool = False) -> None:
        """Have the next `step` be the last; `close`: no definition wants this tap any more: close its account first."""
        self._closing = close
        self._stop.set()

    @property
    def positions(self) -> Mapping[int, int]:
        """Next offsets to plan, by partition; none while the tap is not owned."""
        return self._plan.positions if self._plan is not None and self._is_done else {}

    def step(self) -> float | None:
        """Own the tap if no other process does, and take a turn; return for how long (s) to wait before the next step,
        None once the tap is left after `stop`. Outages are waited for."""
        if self._stop.is_set():
            return self._leave()
        try:
            wait_s = self.turn()
        except Exception as error:
            return self._failed(error)
        self.is_troubled, self._pause_s = False, TURN_S
        return wait_s

    def _failed(self, error: Exception) -> float:
        """Forget what was under way; return for how long (s) to wait before the next turn."""
        if isinstance(error, NotOwned):
            self._metrics.left(self._running.tap)
            self._forget()
            return CLAIM_S
        if not isinstance(error, (KafkaException, DBAPIError, OSError, RegistryUnreachable)):
            # our bug: of this tap alone, and never worth a wrong number
            log.error("tap failed", tap=self._running.tap.source, exc_info=error)
            self._pause_s = MAX_PAUSE_S
        return self._wait_for(error)

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
        try:
            following = self._without_look(self._plan) or self._next(self._plan)
        except Exception as error:
            return self._failed(error)
        self._prepared = following
        if following.spans or following.gone or not self._is_news(following, self._plan):
            return 0.0
        return NextPlan(self._running.emitter, following, self._counts, self._commits.kind if self._commits else "")

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

    def _leave(self) -> float | None:
        """Close the account if it is to be closed, and let another process take the tap."""
        try:
            if self._closing and not self._close():
                return TURN_S
        except (NotOwned, KafkaException, DBAPIError, OSError, RegistryUnreachable):
            log.info("tap released", tap=self._running.tap.source)
        except Exception:
            log.exception("tap failed", tap=self._running.tap.source)
        self._end()
        return None

    def _forget(self) -> None:
        """Forget what was known of the tap: another process may have gone on with it."""
        tap = self._running.tap
        identity = EmitterIdentity(
            tap.pipeline,
            tap.node,
            self._running.emitter,
            f"tap of {tap.source}"[: MAX_NAME_BYTES // 4],
            self._running.since_ms,
            labels={TAP_LABEL: tap.source[:MAX_LABEL_CHARS]},
        )
        self._account = Account(tap.node)
        self._shipper = Shipper(identity, self._outlet, self._account)
        self._planner = self._new_planner()
        self._plan: TapPlan | None = None
        self._is_done = False
        """The plan was carried out, and reported."""
        self._counts = TapCounts()
        self._unsaved: list[Tally] = []
        self._replays: tuple[str, ...] = ()
        """Names of those that the account has tallies of."""
        self._prepared = None
        """The next plan, where it was made before its turn."""
        self._begin_failed = None
        """Pause (s) after a report that could not be begun."""
        self._shipping: tuple[Flush, Blocks] | None = None
        self._reporting: PendingReport | None = None
        """Of a plan that is being carried out, what waits to be acknowledged."""
        self._closing_report: PendingReport | None = None
        self._reported_at = float("-inf")
        self._looked_at = 0.0
        """When the brokers were asked for the newest look."""
        self._look: Look | None = None
        self._look_after = 0.0
        """When the brokers were asked last for the topic's ends: the next look has to show what these have shown."""
        self._still = None
        self._quiet = 0
        """Turns in sequence that had no news."""
        self._owned_from = 0.0
        """Since when this process owns the tap: an earlier look may be older than one that it was planned by."""
        self._tidied_at = self._pruned_at = self._noted_at = time.monotonic()

    # -- turns --------------------------------------------------------------------------------------------------------

    def turn(self) -> float:
        """Carry out one plan, if there is anything new; return for how long to wait before the next turn, in s.

        Raises:
            NotOwned: another process has taken the tap over.
            KafkaException, DBAPIError: servers do not answer.
        """
        if self._plan is None and not self._own():
            return CLAIM_S
        assert self._plan is not None
        self._begin_turn()
        if not self._is_done:
            return self._pause() if self._carry_out(self._plan) else TURN_S
        following = self._next(self._plan) if self._prepared is None else self._prepared
        self._prepared = None
        if self._is_news(following, self._plan):
            self._advance(following)
            if not self._carry_out(following):
                return TURN_S
        else:
            self._plan = replace(following, number=self._plan.number)
        return 0 if following.records >= self._engine.limit // 2 else self._pause()

    def _pause(self) -> float:
        """Return for how long (s) to wait before the next turn, if nothing is known to be left to do."""
        if self.resting is None:
            return max(0.0, self._looked_at + TURN_S - time.monotonic())
        self._reader.rest()
        return max(TURN_S, self._reported_at + self._idle_report_s + LATE_S - time.monotonic())

    def _own(self) -> bool:
        """Own the tap, and learn where it was left; False while another process owns it."""
        emitter = self._running.emitter
        if not self._store.is_stored(emitter):
            self._store.add(self._running, TapPlan(0, self._running.since_ms, 1, 1))
        owned = self._store.claim(emitter)
        if owned is None:
            return False
        self._forget()
        self._owned_from = time.monotonic()
        now_s = time.time()
        for tally in owned.tallies:
            self._account.restore(tally, 0)
        self._account.reported(owned.tallies)  # a plan is stored only once the one before it was reported
        self._account.tidy(now_s)
        self._replays = tuple(sorted(self._account.replays))
        self._plan, self._counts = owned.plan, owned.counts
        return True

    def _next(self, last: TapPlan) -> TapPlan:
        partitions = self._outlet.partitions()
        if partitions is None:
            raise ConnectionError(self._outlet.last_error or "the broker for beacons does not respond")
        commits = None
        if self._commits is not None:
            commits = self._commits.read(last.commits_at, self._running.since_ms - BEFORE_MS)
            # stored with the plan that goes on after them; if there is none, whoever reads them again counts them
            self._counts.add(TapCounts(unreadable=dict(commits.unreadable)))
            self._metrics.count_unreadable(self._running.tap, commits.unreadable)
        topic = self._reader.newest(max(self._owned_from, self._look_after, commits.topic_after if commits else 0.0))
        self._looked_at = topic.asked_at
        last, gone = self._resumed(self._rested(last, topic), topic)
        self._look = topic.look
        last = replace(
            last,
            partitions=partitions,
            sample=self._outlet.sample(self._running.tap.pipeline),
            is_spread=self._engine.is_spread,
            replays=self._replays,
        )
        following = self._planner.plan(last, topic.look, commits, self._engine.limit)
        following = replace(following, gone={**gone, **following.gone})
        self._quiet = 0 if following.spans or following.gone else self._quiet + 1
        self._metrics.looked(self._running.tap, topic.look, following)
        return following

    def _without_look(self, last: TapPlan) -> TapPlan | None:
        """Return a plan that only says that the tap lives; None beyond the minute of the look by which it rests."""
        look = self.resting
        if look is None or time.time_ns() // 60_000_000_000 != look.at_ms // 60_000:
            return None
        return replace(last, number=last.number + 1, spans=(), gone={})

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
        return replace(rested, number=last.number) if not rested.spans and not rested.gone else last

    def _resumed(self, last: TapPlan, topic: SharedLook) -> tuple[TapPlan, Mapping[int, int]]:
        """Return the last plan with positions in the topic as it is now, and what counts as gone by that."""
        begun = None
        tails = lost_tails(last, topic.look)
        if topic.topic_id != last.topic_id:
            begun = Beginning(ANEW, {}) if last.topic_id else self._begin(topic.look.logs)
            if last.topic_id:
                log.warning("topic recreated", tap=self._running.tap.source)
            last = replace(last, topic_id=topic.topic_id, until_ms={}, commits={}, void={})
        elif tails:
            begun = Beginning({**last.positions, **tails}, dict.fromkeys(tails, 1))
            log.warning("topic truncated", tap=self._running.tap.source, ends=tails)
            last = replace(
                last, commits={partition: marks for partition, marks in last.commits.items() if partition not in tails}
            )
        if begun is None:
            return last, {}
        self._planner = self._new_planner()
        return replace(last, positions=begun.positions), begun.gone

    def _begin(self, partitions: Iterable[int]) -> Beginning:
        """Return where to begin in a topic that was never read."""
        moment_ms = self._running.since_ms - BEFORE_MS
        starts = self._reader.starts_at(moment_ms, partitions)
        look = self._reader.look(starts)
        return beginning(look, starts, self._reader.appended_before(moment_ms, starts, look))

    def _new_planner(self) -> Planner:
        tap = self._running.tap
        if tap.group is not None:
            return GroupPlanner(self._reader.has_none)
        return TopicPlanner(lambda: self._store.is_read(tap.pipeline, tap.topic))

    def _is_news(self, following: TapPlan, last: TapPlan) -> bool:
        return bool(
            following.spans
            or following.gone
            # to whoever takes over, a commit beyond the end may look like one of records that have come since
            or following.void != last.void
            or following.through_ms // 60_000 != self._account.final_through // 60
            or time.monotonic() - self._reported_at >= self._idle_report_s
        )

    def _advance(self, plan: TapPlan) -> None:
        kind = self._commits.kind if self._commits else ""
        self._store.advance(self._running.emitter, plan, self._unsaved, self._counts, kind)
        self._has_stored(plan)

    def _has_stored(self, plan: TapPlan) -> None:
        self._unsaved, self._prepared = [], None
        # by that, too: else an idle tap, which stores a plan now and then, would seem to wait for Kafka
        self._noted_at = time.monotonic()
        self._plan, self._is_done = plan, False

    def _begin_turn(self) -> None:
        """Set the time up to which this turn waits for acknowledgements: not at all for those that the last turn did
        not get."""
        is_waiting = self._shipping is not None or self._closing_report is not None
        if is_waiting:
            self._outlet.poll(0)
            self._note_wait()
        self._waits_until = time.monotonic() + (0.0 if is_waiting else ACKNOWLEDGED_S)

    def _carry_out(self, plan: TapPlan) -> bool:
        """Send the blocks of a plan, and report it. A plan that was carried out before makes the same blocks again.

        Returns:
            False if the time of the turn was up before all was acknowledged: another call goes on.
        """
        if self._shipping is None:
            blocks = self._engine.blocks(plan)
            flush = Flush(
                plan.number,
                plan.through_ms,
                tuple(blocks.blocks),
                blocks.dropped,
                thinned=blocks.thinned,
                progress=self._progress(plan),
            )
            self._shipping = flush, blocks
        flush, blocks = self._shipping
        if self._reporting is None:
            if blocks.positions is not None:
                self._shipper.account_for(flush, blocks.positions)
            elif self._shipper.ship(flush, until=self._until, meanwhile=self._note_wait) is None:
                return False
            self._unsaved = self._account.changed()
            self._shipper.report_seq = plan.number << REPORT_BITS
            self._reporting = self._shipper.start_report()
        if not self._is_reported(self._reporting):
            return False
        self._shipping = self._reporting = None
        self._reported_at = time.monotonic()
        self._is_done = True
        self._counts.add(blocks.counts)
        if not {block.increment.key.replay for block in blocks.blocks} <= {None, *self._replays}:
            self._replays = tuple(sorted(self._account.replays))
        self._metrics.count(self._running.tap, blocks, plan)
        self._tidy()
        return True

    def _is_reported(self, reporting: PendingReport) -> bool:
        """Return whether the broker has a report, as far as the time of the turn allows to wait. Raise ConnectionError
        if it refuses the report."""
        is_taken = self._shipper.finish_report(reporting, until=self._until, meanwhile=self._note_wait)
        if is_taken is False:
            raise ConnectionError(self._outlet.last_error or "the broker refuses the report")
        return bool(is_taken)

    def _progress(self, plan: TapPlan) -> tuple[Progress, ...]:
        tap = self._running.tap
        lanes = [
            Progress(f"{tap.node}.in", f"{tap.topic}/{partition}", until)
            for partition, until in sorted(plan.until_ms.items())
        ]
        if tap.group is None or "out" in tap.places:
            lanes.append(Progress(f"{tap.node}.out", "", plan.through_ms))
        return tuple(lanes)

    def _until(self) -> float:
        return NOT_AT_ALL if self._stop.is_set() and not self._closing else self._waits_until

    def _note_wait(self) -> None:
        """Say that the broker does not answer. Raises NotOwned."""
        if time.monotonic() - self._noted_at > NOTE_S:
            self._noted_at = time.monotonic()
            self._store.note_trouble(
                self._running.emitter, f"waiting for Kafka: {self._outlet.last_error or 'no response'}"
            )

    def _tidy(self) -> None:
        self._noted_at = time.monotonic()
        if time.monotonic() - self._tidied_at >= TIDY_S:
            self._tidied_at = time.monotonic()
            self._account.tidy(time.time())
            self._replays = tuple(sorted(self._account.replays))
        if time.monotonic() - self._pruned_at >= PRUNE_S:
            self._pruned_at = time.monotonic()
            self._store.prune(self._running.emitter, int(time.time()) - FORGET_S)

    # -- outages and the end ------------------------------------------------------------------------------------------

    def _wait_for(self, error: Exception) -> float:
        """Note an outage; return for how long to wait. The next turn begins with what is stored, whatever was carried
        out by halves."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
        trouble = str(error) or type(error).__name__
        log.warning("tap waiting", tap=self._running.tap.source, trouble=trouble, pause_s=pause_s)
        self.is_troubled = True
        self._metrics.waits(self._running.tap)
        with suppress(DBAPIError, NotOwned):  # which the next turn meets
            self._store.note_trouble(self._running.emitter, trouble)
        self._forget()
        return pause_s

    def _close(self) -> bool:
        """Report that the account of this tap is closed, and forget it; False if another call has to go on."""
        if self._plan is None and not self._own():
            return True
        assert self._plan is not None
        self._begin_turn()
        if self._closing_report is None:
            if not self._is_done and not self._carry_out(self._plan):
                return False
            following = replace(self._plan, number=self._plan.number + 1, spans=(), gone={})
            self._advance(following)
            self._shipper.report_seq = following.number << REPORT_BITS
            self._closing_report = self._shipper.start_report(max(following.through_ms, self._running.since_ms))
        if not self._is_reported(self._closing_report):
            return False
        self._store.forget(self._running.emitter)
        return True

    def _end(self) -> None:
        self._metrics.left(self._running.tap)
        try:
            if self._plan is not None:
                self._store.release(self._running.emitter)
        except DBAPIError:
            log.warning("tap release failed", tap=self._running.tap.source)
        self._outlet.close()
        self._reader.close()
