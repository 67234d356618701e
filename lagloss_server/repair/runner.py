"""The run of a repair: send, watch, prove. It can be killed at any point; the next run goes on from there."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import func

from lagloss.broker.topics import BEACONS
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.repair import plan as plans
from lagloss_server.repair.arrivals import Arrivals, came_meanwhile, count_lost_again, count_lost_since
from lagloss_server.repair.ledger import RepairLedger, RepairState, StoredRepair, TakenOver, TransactionLost
from lagloss_server.repair.lost import WindowLoss
from lagloss_server.repair.plan import PERHAPS_SENT, MessageState, PlannedMessage
from lagloss_server.repair.preparation import Prepared, open_transport
from lagloss_server.repair.statement import StatementDocument, nothing_sent, plan_document, statement, without_names
from lagloss_server.repair.transport import NothingSent, RecordsRefused, RepairTransport, Say
from lagloss_server.store.schema.repair import RepairRow
from lagloss_server.store.store import Store

LOOK_S: Final = 1.0
"""Interval of looks for arrivals, and for losses."""
RECHECK_S: Final = 30.0
"""Interval of reads of the windows for messages that came meanwhile."""
SETTLE_S: Final = 3.0
"""Nothing new for so long, and all nodes have reported: a destination's word that a message came can be there before an
earlier node's that it went to another one, too."""


class _Stopped(Exception):
    """The repair stops, for this reason."""


@dataclass(frozen=True)
class RunOptions:
    """How a repair runs. `timeout_s`: longest wait for arrivals, once all is sent, and while too much is on its way;
    `stopping` is set when it is to stop."""

    rate: float
    timeout_s: float
    stopping: threading.Event
    say: Say = lambda _: None
    not_idempotent: Sequence[str] = ()


class RepairRun:
    """One run of a stored repair.

    Raises, as `run`:
        TakenOver: another process runs the same repair now.
        TransactionLost, KafkaException, AwsUnreachable, OperationalError: a server does not answer; the repair can be
            gone on with.
    """

    def __init__(self, store: Store, bootstrap: str, repair: StoredRepair, options: RunOptions) -> None:
        self._store, self._bootstrap, self._repair, self._options = store, bootstrap, repair, options
        self._ledger = RepairLedger(store.engine)
        self._messages = self._read_messages()
        self._runner: str | None = None
        self._looked_at = self._rechecked_at = 0.0
        self._lost_before = 0
        self._arrived_now: set[int] = set()
        """Positions of the messages that this run saw arrive."""
        self._began_ms = time.time() * 1_000

    def run(self) -> StatementDocument:
        """Send what is not sent yet, wait for arrivals, and return the statement, which is stored without names."""
        request = self._repair.request
        windows = {planned.message.window_start_s for planned in self._messages.values()}
        with ExitStack() as stack:
            self._log = stack.enter_context(closing(BeaconLog(self._bootstrap, BEACONS)))
            planned_ms = self._repair.created_at.timestamp() * 1_000
            self._arrivals = Arrivals(
                self._store, self._log, request.pipeline, request.place, self._repair.name, windows, planned_ms
            )
            reason: str | None = None
            if self._repair.state != "finished":
                self._runner = self._ledger.take_over(self._repair, self._options.rate)
                try:
                    self._send(stack)
                except _Stopped as stop:
                    reason = str(stop)
                except TakenOver as error:
                    if self._ledger.is_runner(self._repair.id, self._runner):
                        raise TransactionLost(id=self._repair.id) from error
                    raise
            if reason is None:
                self._await_arrivals()
            return self._state("finished" if reason is None else "stopped", reason)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, stack: ExitStack) -> None:
        repair, options = self._repair, self._options
        if not any(planned.state in ("planned", "sending") for planned in self._messages.values()):
            return
        transport = stack.enter_context(closing(open_transport(repair.plan, self._bootstrap)))
        transport.begin(repair)
        # only now: until then another process could go on with it
        self._repair, self._messages = self._ledger.get(repair.id), self._read_messages()
        position = self._resume(transport)
        since_s = (int(time.time()) // WINDOW_S + 1) * WINDOW_S  # losses of this minute can be older than this run
        self._lost_before = self._count_lost_again()
        size = plans.batch_size(options.rate, transport.most)
        due = time.monotonic()
        while batch := next(plans.batches(self._ordered(), position, size), ()):
            self._pause(due, since_s)
            self._recheck(position)
            sent, position = self._send_batch(transport, batch)
            due = max(due, time.monotonic() - 1.0) + sent / options.rate

    def _resume(self, transport: RepairTransport) -> int:
        """Settle what the last run left open; return the position to go on from."""
        position, resumed = transport.resume(self._repair, self._ordered())
        self._mark(
            {
                state: [new.position for new in resumed if new.state == state != self._messages[new.position].state]
                for state in ("sent", "planned")
            },
            position=position,
            started_at=func.coalesce(RepairRow.started_at, func.clock_timestamp()),
        )
        return position

    def _send_batch(self, transport: RepairTransport, batch: Sequence[PlannedMessage]) -> tuple[int, int]:
        """Send what of a batch is still to be sent; return how many messages that were, and the position to go on from:
        that of the first one that was not sent."""
        end = batch[-1].position + 1
        planned = [self._messages[message.position] for message in batch]
        waiting = [message for message in planned if message.state == "planned"]
        contents = transport.read(waiting)
        gone = [message.position for message in waiting if message.position not in contents]
        self._mark({"gone": gone, "sending": contents.keys()})
        unsent: Collection[int] = ()
        try:
            unsent = transport.send(contents, end) if contents else ()
        except NothingSent:
            self._mark({"planned": contents.keys()})
            raise
        except RecordsRefused as refused:
            self._mark({"refused": refused.positions, "planned": contents.keys() - set(refused.positions)})
            return 0, batch[0].position
        sent = contents.keys() - set(unsent)
        position = min([end, *unsent])
        self._mark({"sent": sent, "planned": unsent}, position=position)
        self._options.say(f"sent {self._count('sent')} of {sum(m.record is not None for m in self._messages.values())}")
        return len(sent), position

    def _pause(self, due: float, since_s: float) -> None:
        """Wait until the next transaction is due, and for what is on its way if that is too much.

        Raises:
            _Stopped: a user says so, the place or what lies behind it loses again, or nothing arrives any more.
        """
        fewest, moved_at = self._in_flight(), time.monotonic()
        while True:
            if self._options.stopping.is_set():
                raise _Stopped("interrupted")
            if time.monotonic() - self._looked_at >= LOOK_S:
                self._look(since_s)
            in_flight = self._in_flight()
            if in_flight < fewest:
                fewest, moved_at = in_flight, time.monotonic()
            is_too_much = in_flight > plans.most_in_flight(self._options.rate)
            if is_too_much and time.monotonic() - moved_at > self._options.timeout_s:
                raise _Stopped(f"pending grows: {in_flight} messages that were sent again have not arrived")
            if not is_too_much and time.monotonic() >= due:
                return
            wait_s = LOOK_S if is_too_much else min(LOOK_S, due - time.monotonic())
            self._options.stopping.wait(max(0.01, wait_s))

    def _look(self, since_s: float) -> None:
        request, engine = self._repair.request, self._store.engine
        if self._runner is not None and (reason := self._ledger.write(self._repair.id, self._runner)) is not None:
            raise _Stopped(reason)
        self._arrivals.look()
        self._looked_at = time.monotonic()
        if again := count_lost_since(engine, request.pipeline, request.place, since_s):
            raise _Stopped(f"{request.place} loses again: {again} messages since the repair began")
        if (lost := self._count_lost_again() - self._lost_before) > 0:
            raise _Stopped(f"{fmt.counted(lost, 'message')} that were sent again are lost again")

    def _count_lost_again(self) -> int:
        place, behind = self._repair.request.place, self._arrivals.behind
        return count_lost_again(self._store.engine, self._repair.id, place, behind, self._began_ms)

    def _recheck(self, position: int) -> None:
        """Leave out what came meanwhile, of all that is to be sent from a position on."""
        if time.monotonic() - self._rechecked_at < RECHECK_S and self._rechecked_at:
            return
        rest = [planned for planned in self._ordered() if planned.position >= position and planned.state == "planned"]
        request = self._repair.request
        self._mark(came_meanwhile(self._store, self._log, request.pipeline, request.place, rest))
        self._rechecked_at = time.monotonic()

    def _in_flight(self) -> int:
        sent = (planned.message.key for planned in self._messages.values() if planned.state in PERHAPS_SENT)
        return sum(not self._arrivals.has_ended(key) for key in sent)

    # -- proof --------------------------------------------------------------------------------------------------------

    def _await_arrivals(self) -> None:
        """Wait until all that was sent has arrived, or the time is up."""
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            self._arrivals.look()
            left = self._note_arrivals()
            is_settled = not self._arrived_now or time.monotonic() - self._arrivals.changed_at >= SETTLE_S
            if (not left and is_settled) or time.monotonic() > deadline or self._options.stopping.wait(LOOK_S):
                return
            self._options.say(f"waiting for {left} of {self._count('sent')} to arrive")

    def _note_arrivals(self) -> int:
        """Store what has arrived; return how many of those that were sent have not. What a node reports later can take
        an arrival back."""
        perhaps = [planned for planned in self._messages.values() if planned.state in PERHAPS_SENT]
        seen = [it for it in perhaps if it.state == "sending" and self._arrivals.is_seen(it.message.key)]
        arrived = {it.position for it in perhaps if self._arrivals.has_arrived(it.message.key)}
        delivered = {it.position for it in perhaps if it.is_delivered}
        self._note([planned.position for planned in seen], "sent", is_delivered=False)
        self._note((self._arrived_now & delivered) - arrived, "sent", is_delivered=False)
        self._note(arrived - delivered, "sent", is_delivered=True)
        self._arrived_now = (self._arrived_now & arrived) | (arrived - delivered)
        return sum(not self._messages[planned.position].is_delivered for planned in perhaps)

    def _note(self, positions: Collection[int], state: MessageState, *, is_delivered: bool) -> None:
        for position in positions:
            self._messages[position] = replace(self._messages[position], state=state, is_delivered=is_delivered)
        if positions:
            self._ledger.mark_seen(self._repair.id, positions, state, is_delivered=is_delivered)

    def _state(self, state: RepairState, reason: str | None) -> StatementDocument:
        """Store how the run ended, and return the statement."""
        self._arrivals.look()
        self._note_arrivals()
        request = self._repair.request
        passed = [planned for planned in self._ordered() if planned.state == "elsewhere"]
        came = came_meanwhile(self._store, self._log, request.pipeline, request.place, passed)
        self._note(came["arrived"], "arrived", is_delivered=False)
        listed = self._store.windows(request.pipeline, request.from_s, request.to_s)
        starts = {window.start_s for window in self._repair.plan.windows}
        after = [
            WindowLoss(window.start_s, window.messages, window.lost.min, window.lost.max)
            for window in listed
            if window.lost is not None and window.start_s in starts
        ]
        ended = replace(self._repair, state=state, stop_reason=reason, rate=self._options.rate)
        document = statement(ended, self._ordered(), self._options.not_idempotent, after)
        stored = without_names(document, self._ordered())
        self._ledger.end(self._repair.id, self._runner, state, reason, stored)
        return document

    # -- messages -----------------------------------------------------------------------------------------------------

    def _read_messages(self) -> dict[int, PlannedMessage]:
        """Return the messages by position, in the order of the plan."""
        return {planned.position: planned for planned in self._ledger.messages(self._repair.id)}

    def _ordered(self) -> list[PlannedMessage]:
        return list(self._messages.values())

    def _count(self, state: MessageState) -> int:
        return sum(planned.state == state for planned in self._messages.values())

    def _mark(self, states: Mapping[MessageState, Collection[int]], **values: object) -> None:
        """Store the states of messages by position, with columns of the repair, as its runner."""
        if self._runner is None:
            return
        self._ledger.write(self._repair.id, self._runner, states, **values)
        for state, positions in states.items():
            for position in positions:
                self._messages[position] = replace(self._messages[position], state=state)


def carry_out(
    store: Store, bootstrap: str, prepared: Prepared, timeout_s: float, stopping: threading.Event, say: Say
) -> StatementDocument:
    """Store a plan that is new, run the repair, and return its statement. A plan without a record to send is not
    stored: there is nothing to go on with.

    Raises:
        as `RepairRun`
    """
    stored = prepared.stored
    if stored is None and prepared.has_records:
        ledger = RepairLedger(store.engine)
        stored = ledger.create(prepared.request, prepared.plan, prepared.messages) or ledger.find(prepared.request)
    if stored is None:
        return nothing_sent(plan_document(prepared))
    options = RunOptions(prepared.rate, timeout_s, stopping, say, prepared.not_idempotent)
    return RepairRun(store, bootstrap, stored, options).run()
