"""One tap at work, whatever it reads: own it, store its next plan, carry it out, report; and repeat what its last owner
may not have finished."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, Generic, TypeVar

import structlog
from confluent_kafka import KafkaException
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lagloss.sdk.account import FORGET_S, Account
from lagloss.sdk.flush import Flush
from lagloss.sdk.outlets.kafka import Outlet
from lagloss.sdk.shipper import EmitterIdentity, PendingReport, Shipper
from lagloss.wire.format import MAX_LABEL_CHARS, MAX_NAME_BYTES, Progress, Tally
from lagloss.wire.sketch import GAMMA, bin_value_ms
from lagloss_server.base.errors import RegistryUnreachable, TableUnreadable
from lagloss_server.model.taps import TAP_LABEL
from taps.cluster_topics import TURN_S
from taps.kernel import Blocks
from taps.metrics import TapMetrics
from taps.plan import TapPlan, skip_after
from taps.records import TapCounts
from taps.store import NotOwned, TapStore
from taps.wanted import LINGER_MS, WINDOW_MS, RunningTap

log = structlog.get_logger()
P = TypeVar("P", bound=TapPlan)

CLAIM_S: Final = 3.0
"""Between two tries to own a tap that another process owns."""
MAX_PAUSE_S: Final = 10.0
NOTE_S: Final = 5.0
"""Between two notes that a tap waits for Kafka, and looks whether it is still owned."""
IDLE_REPORT_S: Final = 30.0
"""Between reports of a tap without news within a minute; it counts as silent after 60 s. Other emitters report each
10 s, since their blocks are looked for up to 10 s after their last report; what a tap sends later than that is in a
stored plan, which its next owner carries out again."""
NOT_AT_ALL: Final = float("-inf")
RELEASED_MS: Final = 253_402_300_799_999
"""Progress of a lane that holds nothing back any more: the end of the year 9999."""
ACKNOWLEDGED_S: Final = 2.0
"""How long a turn waits for acknowledgements; after that it is for later turns to look for them."""
TIDY_S: Final = 60.0
PRUNE_S: Final = 3_600.0
LATE_MS: Final = 3_600_000
"""How late a record can be that is deleted unread, where no record shows how late they are."""
LATELY_S: Final = 900.0
"""Of how much time, up to the newest records, it is known how late they were."""
REPORT_BITS: Final = 20
"""Of a report's number, for its place among those of a plan."""
OUTAGES: Final = (KafkaException, DBAPIError, OSError, RegistryUnreachable, TableUnreadable)
"""What a tap waits for."""


def claims(lanes: tuple[Progress, ...], running: RunningTap, own_lane: str) -> tuple[Progress, ...]:
    """Return what a report of a tap says of lanes that have come so far. Those of one that was replaced hold back what
    it alone has to see, as work in flight of a process that has ended: messages from before it was replaced."""
    if running.until_ms is None:
        return lanes
    into = Progress(f"{running.tap.node}.in", "", 0)  # of which no lane may be known
    takes_in = "in" in running.tap.places and not running.tap.first and not running.is_deleted
    slowest_last = sorted(lanes, key=lambda lane: lane.until, reverse=True)
    in_flight = {into.checkpoint: into} if takes_in else {}
    in_flight |= {lane.checkpoint: replace(lane, lane="") for lane in slowest_last if not running.is_deleted}
    left = lanes if running.is_moved else [lane for lane in lanes if lane.lane == own_lane]
    return (*in_flight.values(), *(replace(lane, until=RELEASED_MS) for lane in left))


def _with_gone(plan: P, until_ms: int, begins_ms: int) -> P:
    """Return a plan by which windows before `until_ms` may lack records of events since `begins_ms`."""
    return replace(plan, gone={0: 1}, planned_at_ms=until_ms - 1, begins_ms=begins_ms)


class PlanRunner(ABC, Generic[P]):
    """Runs one tap, a turn at a time, until it is stopped. Used by one thread at a time, save for `stop`.

    Args:
        idle_report_s: between two reports of a tap without news.
    """

    plan_type: type[P]

    def __init__(
        self, running: RunningTap, store: TapStore, outlet: Outlet, metrics: TapMetrics, idle_report_s: float
    ) -> None:
        self._running = running
        self._store = store
        self._outlet = outlet
        self._metrics = metrics
        self._idle_report_s = idle_report_s
        self._stop = threading.Event()
        self._closing = False
        self.is_troubled = False
        """The last turn failed."""
        self._pause_s = TURN_S
        self._late: deque[tuple[float, int]] = deque()
        """Largest lags of plans (monotonic s, ms), without those that a later plan's exceeds."""
        self._forget()

    # -- of each kind of source ---------------------------------------------------------------------------------------

    @abstractmethod
    def _next(self, last: P) -> P:
        """Return the next plan. Raises what is in `OUTAGES`."""

    def _is_news(self, following: P, last: P) -> bool:
        """Return whether this plan is worth to be stored and reported."""
        return bool(
            following.spans
            or following.gone
            or following.through_ms // 60_000 != self._account.final_through // 60
            or time.monotonic() - self._reported_at >= self._idle_report_s
        )

    @abstractmethod
    def _blocks(self, plan: P) -> Blocks:
        """Return the blocks of a plan, the same ones each time."""

    @abstractmethod
    def _progress(self, plan: P) -> tuple[Progress, ...]:
        """Return what a plan, once it is carried out, says of lanes."""

    @property
    def _lane(self) -> str:
        """The lane of what the tap sees leave its node. It has a name, unlike work in flight, which holds back nothing
        a minute after its emitter fell silent: this one stands still while the source is away, however long."""
        return f"{self._running.tap.source} {self._running.emitter.hex()[:8]}"

    @abstractmethod
    def _is_behind(self, plan: P) -> bool:
        """Return whether there is probably more to read than this plan holds."""

    def _pause(self) -> float:
        """Return for how long (s) to wait before the next turn, if nothing is known to be left to do."""
        return max(0.0, self._looked_at + TURN_S - time.monotonic())

    def _made_for(self, last: P) -> P:
        """Return the last plan made for the beacons topic and the sample as they are now."""
        partitions = self._outlet.partitions()
        if partitions is None:
            raise ConnectionError(self._outlet.last_error or "the broker for beacons does not respond")
        sample = self._outlet.sample(self._running.tap.pipeline)
        return replace(last, partitions=partitions, sample=sample, replays=self._replays)

    def _without_news(self, last: P) -> P:
        """Return a plan that reads nothing."""
        return replace(last, number=last.number + 1, spans=(), gone={})

    def _last_plan(self, plan: P) -> P:
        """Return the plan with which a tap is closed that no definition wants any more. What one that was replaced has
        not read of its windows by now is gone."""
        last, until_ms = self._without_news(plan), self._running.until_ms
        if until_ms is None or self._running.is_deleted or plan.through_ms >= until_ms + LINGER_MS - WINDOW_MS:
            return last
        return _with_gone(last, until_ms, plan.through_ms - self._late_ms)

    def _abandoned(self, plan: P, until_ms: int) -> P:
        """Return a plan instead of one whose records cannot be read any more."""
        until = dict.fromkeys(plan.until_ms, 0)
        given_up = replace(self._without_news(plan), through_ms=max(0, plan.begins_ms), until_ms=until)
        return _with_gone(given_up, until_ms, plan.begins_ms)

    @property
    def _late_ms(self) -> int:
        """How late a record can be that is deleted unread: as late as those that were read."""
        return self._late[0][1] if self._late else LATE_MS

    def _note_late(self, blocks: Blocks) -> None:
        live = [block.increment.lag_keys for block in blocks.blocks if block.increment.key.replay is None]
        if not live:
            return
        late_ms = max(0, math.ceil(GAMMA * bin_value_ms(max(int(keys.max()) for keys in live))))
        now = time.monotonic()
        while self._late and self._late[-1][1] <= late_ms:
            self._late.pop()
        self._late.append((now, late_ms))
        while self._late[0][0] < now - LATELY_S:
            self._late.popleft()

    @property
    def _kind_of_commits(self) -> str:
        """Where commits of the tap's reader are read; empty: it has none."""
        return ""

    def _also_stored(self, plan: P) -> Callable[[Connection], None]:
        """Return what writes more of a plan, in the transaction that stores it."""
        return lambda _connection: None

    def _close_source(self) -> None:
        """Close what the tap reads from."""

    # -- turns --------------------------------------------------------------------------------------------------------

    def go_on_as(self, running: RunningTap) -> None:
        """Go on as this tap, which a later version of the definition may have replaced."""
        self._running = running

    def stop(self, *, close: bool = False) -> None:
        """Have the next `step` be the last; `close`: no definition wants this tap any more: close its account first."""
        self._closing = close
        self._stop.set()

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
            self._show_no_longer()
            self._forget()
            return CLAIM_S
        if not isinstance(error, OUTAGES):
            # our bug: of this tap alone, and never worth a wrong number
            log.error("tap failed", tap=self._running.tap.source, exc_info=error)
            self._pause_s = MAX_PAUSE_S
        return self._wait_for(error)

    def _leave(self) -> float | None:
        """Close the account if it is to be closed, and let another process take the tap."""
        try:
            if self._closing and not self._close():
                return TURN_S
        except NotOwned:
            log.info("tap released", tap=self._running.tap.source)
        except OUTAGES as error:
            return self._failed(error)
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
        self._plan: P | None = None
        self._is_done = False
        """The plan was carried out, and reported."""
        self._skip = 0
        """Numbers to leave out before the next plan."""
        self._counts = TapCounts()
        self._unsaved: list[Tally] = []
        self._replays: tuple[str, ...] = ()
        """Names of those that the account has tallies of."""
        self._prepared: P | None = None
        """The next plan, where it was made before its turn."""
        self._shipping: tuple[Flush, Blocks, RunningTap] | None = None
        self._reporting: PendingReport | None = None
        """Of a plan that is being carried out, what waits to be acknowledged."""
        self._is_last = False
        """The plan is the last one."""
        self._has_ended = False
        """It has reported that it was replaced."""
        self._reported_at = float("-inf")
        self._looked_at = 0.0
        """When the newest look at the source began (monotonic s)."""
        self._owned_from = 0.0
        """Since when this process owns the tap: an earlier look may be older than one that it was planned by."""
        self._tidied_at = self._pruned_at = self._noted_at = time.monotonic()

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
        until_ms = self._running.until_ms
        if not self._is_done and until_ms is not None and not self._has_ended and self._pause_s >= MAX_PAUSE_S:
            self._advance(self._abandoned(self._plan, until_ms))
        if not self._is_done:
            return self._pause() if self._carry_out(self._plan) else TURN_S
        must_tell = self._plan.ends_ms != until_ms or (until_ms is not None and not self._has_ended)
        if must_tell:  # first: its source may be away by now, for good, and the taps that replace it wait
            following = self._without_news(self._plan)
            if self._has_ended or until_ms is None:
                self._show_no_longer()
                following = replace(following, ends_ms=until_ms)
        else:
            following = self._next(self._plan) if self._prepared is None else self._prepared
        self._prepared = None
        if must_tell or self._is_news(following, self._plan):
            self._advance(following)
            if not self._carry_out(following):
                return TURN_S
            if must_tell:
                return 0
        else:
            self._plan = replace(following, number=self._plan.number)
        return 0 if self._is_behind(following) else self._pause()

    def _own(self) -> bool:
        """Own the tap, and learn where it was left; False while another process owns it."""
        emitter = self._running.emitter
        if not self._store.is_stored(emitter):
            may_wait = self._running.may_wait(time.time_ns() // 1_000_000)
            if self._running.until_ms is not None or (may_wait and not self._store.have_ended(self._running.after)):
                return False
            self._store.add(self._running, self.plan_type(0, self._running.since_ms, 1, 1))
        owned = self._store.claim(emitter, self.plan_type.of)
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
        self._skip = skip_after(owned.plan, time.time_ns() // 1_000_000)
        return True

    def _advance(self, plan: P) -> None:
        emitter, also = self._running.emitter, self._also_stored(plan)
        self._store.advance(emitter, plan, self._unsaved, self._counts, self._kind_of_commits, also)
        self._has_stored(plan)

    def _has_stored(self, plan: P) -> None:
        self._unsaved, self._prepared = [], None
        # by that, too: else an idle tap, which stores a plan now and then, would seem to wait for Kafka
        self._noted_at = time.monotonic()
        self._plan, self._is_done = plan, False

    def _begin_turn(self) -> None:
        """Set the time up to which this turn waits for acknowledgements: not at all for those that the last turn did
        not get."""
        is_waiting = self._shipping is not None
        if is_waiting:
            self._outlet.poll(0)
            self._note_wait()
        self._waits_until = time.monotonic() + (0.0 if is_waiting else ACKNOWLEDGED_S)

    def _carry_out(self, plan: P) -> bool:
        """Send the blocks of a plan, and report it. A plan that was carried out before makes the same blocks again.

        Returns:
            False if the time of the turn was up before all was acknowledged: another call goes on.
        """
        if self._shipping is None:
            running, blocks = self._running, self._blocks(plan)
            flush = Flush(
                plan.number,
                plan.through_ms,
                tuple(blocks.blocks),
                blocks.dropped,
                thinned=blocks.thinned,
                progress=claims(self._progress(plan), running, self._lane),
            )
            self._shipping = flush, blocks, running
        flush, blocks, running = self._shipping
        if self._reporting is None:
            if blocks.positions is not None:
                self._shipper.account_for(flush, blocks.positions)
            elif self._shipper.ship(flush, until=self._until, meanwhile=self._note_wait) is None:
                return False
            self._unsaved = self._account.changed()
            self._shipper.report_seq = plan.sequence << REPORT_BITS
            # of one that was replaced, that it has ended: other windows do not wait for it
            self._has_ended = running.until_ms is not None
            is_replaced = self._has_ended and not running.is_deleted
            self._reporting = self._shipper.start_report(running.until_ms, unfinished=is_replaced)
        if not self._is_reported(self._reporting):
            return False
        self._shipping = self._reporting = None
        self._reported_at = time.monotonic()
        self._is_done = True
        self._plan, self._skip = replace(plan, skipped=plan.skipped + self._skip), 0
        self._counts.add(blocks.counts)
        self._note_late(blocks)
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
        until_ms = self._running.until_ms
        if until_ms is None:  # no version that is known wanted it
            until_ms = max(self._plan.through_ms, self._running.since_ms)
            self.go_on_as(replace(self._running, until_ms=until_ms, is_deleted=True))
        elif self._plan.through_ms < until_ms and self._reads_on(until_ms):
            self.turn()
            return False
        self._begin_turn()
        if not self._is_done and self._pause_s >= MAX_PAUSE_S:
            self._advance(self._abandoned(self._plan, until_ms))
        if not self._is_done and not self._carry_out(self._plan):
            return False
        if not self._is_last:
            self._advance(self._last_plan(self._plan))
            self._is_last = True
            if not self._carry_out(self._plan):
                return False
        self._store.forget(self._running.emitter)
        return True

    def _reads_on(self, until_ms: int) -> bool:
        """Return whether a tap that is to be closed still reads what it has to, since it was away: if it can, and for
        an hour at most."""
        return self._pause_s < MAX_PAUSE_S and time.time_ns() // 1_000_000 < until_ms + 2 * LINGER_MS

    def _show_no_longer(self) -> None:
        if self._plan is None or self._plan.ends_ms is None:  # else another one may be shown in its place
            self._metrics.left(self._running.tap)

    def _end(self) -> None:
        self._show_no_longer()
        try:
            if self._plan is not None:
                self._store.release(self._running.emitter)
        except DBAPIError:
            log.warning("tap release failed", tap=self._running.tap.source)
        self._outlet.close()
        self._close_source()
