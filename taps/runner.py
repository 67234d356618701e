"""One tap at work: plan, store the plan, carry it out, report; and repeat what its last owner may not have finished."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

import structlog
from confluent_kafka import KafkaException
from sqlalchemy.exc import DBAPIError

from lagloss.sdk.account import FORGET_S, Account
from lagloss.sdk.flush import Flush
from lagloss.sdk.outlets.kafka import Outlet
from lagloss.sdk.shipper import IDLE_REPORT_S, NEVER, EmitterIdentity, Shipper
from lagloss.wire.format import MAX_LABEL_CHARS, MAX_NAME_BYTES, Progress, Tally
from lagloss_server.base.errors import RegistryUnreachable
from lagloss_server.model.taps import TAP_LABEL
from taps.cluster_topics import TURN_S, SharedLook
from taps.commit_log import CommitReader
from taps.kernel import Blocks
from taps.metrics import TapMetrics
from taps.plan import TapPlan
from taps.planner import ANEW, Beginning, GroupPlanner, Planner, TopicPlanner, beginning, lost_tails
from taps.records import TapCounts
from taps.store import NotOwned, TapStore
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


class TapRunner:
    """Runs one tap in the thread that calls `run`, until it is stopped.

    Args:
        commits: of the tap's reader, if it is a reader's.
        idle_report_s: between two reports of a tap without news.
    """

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
        self._forget()

    def stop(self, *, close: bool = False) -> None:
        """Ask `run` to return; `close`: no definition wants this tap any more, so that its account is closed first."""
        self._closing = close
        self._stop.set()

    @property
    def positions(self) -> Mapping[int, int]:
        """Next offsets to plan, by partition; none while the tap is not owned."""
        return self._plan.positions if self._plan is not None and self._is_done else {}

    def run(self) -> None:
        """Own the tap as soon as no other process does, and work until `stop`. Outages are waited for."""
        pause_s = TURN_S
        try:
            while not self._stop.is_set():
                try:
                    self._stop.wait(self.turn())
                    pause_s = TURN_S
                except NotOwned:
                    self._metrics.left(self._running.tap)
                    self._forget()
                    self._stop.wait(CLAIM_S)
                except (KafkaException, DBAPIError, OSError, RegistryUnreachable) as error:
                    self._wait_for(error, pause_s)
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
                except Exception as error:  # our bug: of this tap alone, and never worth a wrong number
                    log.exception("tap failed", tap=self._running.tap.source)
                    self._wait_for(error, MAX_PAUSE_S)
            if self._closing:
                self._close()
        except (NotOwned, KafkaException, DBAPIError):
            log.info("tap released", tap=self._running.tap.source)
        finally:
            self._end()

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
        self._reported_at = float("-inf")
        self._looked_at = 0.0
        """When the brokers were asked for the newest look."""
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
        if not self._is_done:
            self._carry_out(self._plan)
            return 0
        following = self._next(self._plan)
        if self._is_news(following, self._plan):
            self._advance(following)
            self._carry_out(following)
        else:
            self._plan = replace(following, number=self._plan.number)
        is_behind = following.records >= self._engine.limit // 2
        return 0 if is_behind else max(0.0, self._looked_at + TURN_S - time.monotonic())

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
        topic = self._reader.newest(max(self._owned_from, commits.topic_after if commits else 0.0))
        self._looked_at = topic.asked_at
        last, gone = self._resumed(last, topic)
        last = replace(
            last,
            partitions=partitions,
            sample=self._outlet.sample(self._running.tap.pipeline),
            is_spread=self._engine.is_spread,
        )
        following = self._planner.plan(last, topic.look, commits, self._engine.limit)
        following = replace(following, gone={**gone, **following.gone})
        self._metrics.looked(self._running.tap, topic.look, following)
        return following

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
        self._unsaved = []
        # by that, too: else an idle tap, which stores a plan each 10 s, would seem to wait for Kafka
        self._noted_at = time.monotonic()
        self._plan, self._is_done = plan, False

    def _carry_out(self, plan: TapPlan) -> None:
        """Send the blocks of a plan, and report it. A plan that was carried out before makes the same blocks again."""
        blocks = self._engine.blocks(plan)
        flush = Flush(
            plan.number,
            plan.through_ms,
            tuple(blocks.blocks),
            blocks.dropped,
            thinned=blocks.thinned,
            progress=self._progress(plan),
        )
        if blocks.positions is not None:
            self._shipper.account_for(flush, blocks.positions)
        elif self._shipper.ship(flush, until=self._until, meanwhile=self._note_wait) is None:
            return
        self._unsaved = self._account.changed()
        self._shipper.report_seq = plan.number << REPORT_BITS
        if not self._shipper.report(until=self._until, meanwhile=self._note_wait):
            return
        self._reported_at = time.monotonic()
        self._is_done = True
        self._counts.add(blocks.counts)
        self._metrics.count(self._running.tap, blocks, plan)
        self._tidy()

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
        return float("-inf") if self._stop.is_set() and not self._closing else NEVER

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
        if time.monotonic() - self._pruned_at >= PRUNE_S:
            self._pruned_at = time.monotonic()
            self._store.prune(self._running.emitter, int(time.time()) - FORGET_S)

    # -- outages and the end ------------------------------------------------------------------------------------------

    def _wait_for(self, error: Exception, pause_s: float) -> None:
        """Wait after an outage. The next turn begins with what is stored, whatever was carried out by halves."""
        trouble = str(error) or type(error).__name__
        log.warning("tap waiting", tap=self._running.tap.source, trouble=trouble, pause_s=pause_s)
        self._metrics.waits(self._running.tap)
        with suppress(DBAPIError, NotOwned):  # which the next turn meets
            self._store.note_trouble(self._running.emitter, trouble)
        self._forget()
        self._stop.wait(pause_s)

    def _close(self) -> None:
        """Report that the account of this tap is closed, and forget it."""
        if self._plan is None and not self._own():
            return
        assert self._plan is not None
        if not self._is_done:
            self._carry_out(self._plan)
        following = replace(self._plan, number=self._plan.number + 1, spans=(), gone={})
        self._advance(following)
        self._shipper.report_seq = following.number << REPORT_BITS
        closed_at_ms = max(following.through_ms, self._running.since_ms)
        if self._shipper.report(closed_at_ms=closed_at_ms, until=self._until, meanwhile=self._note_wait):
            self._store.forget(self._running.emitter)

    def _end(self) -> None:
        self._metrics.left(self._running.tap)
        try:
            if self._plan is not None:
                self._store.release(self._running.emitter)
        except DBAPIError:
            log.warning("tap release failed", tap=self._running.tap.source)
        self._outlet.close()
        self._reader.close()
        if self._commits is not None:
            self._commits.close()
