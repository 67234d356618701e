"""The emitter: the calls that a service makes when a message comes in and when it goes out.

    emitter = Emitter("clicks", "event-norm")
    emitter.received(message_id, event_time_ms)
    emitter.sent(message_id, event_time_ms)

A call costs one clock read and one append; a daemon thread does the rest, every one to 2.5 s.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import time_ns
from types import TracebackType
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from lagloss.broker.connection import BOOTSTRAP_VARIABLE, Cluster
from lagloss.sdk.account import Account
from lagloss.sdk.backlog import Backlog
from lagloss.sdk.buffer import BeaconBuffer, Processing
from lagloss.sdk.flusher import Flusher, MakeBacklog, ProgressSource
from lagloss.sdk.key_order import KeyOrder
from lagloss.sdk.outlets.choice import COLLECTOR_VARIABLE, outlet_maker
from lagloss.sdk.outlets.kafka import Outlet
from lagloss.sdk.packing import (
    KEPT_S,
    NO_EXTRAS,
    STRIDE,
    WINDOW_MS,
    Columns,
    EventTime,
    RawExtras,
    TallyKey,
    are_placeable,
    epoch_ms,
    epoch_ms_column,
    is_placeable,
    list_of,
    replay_label,
)
from lagloss.sdk.process_hooks import CLOSE_S, register, unregister
from lagloss.sdk.shipper import EmitterIdentity, now_ms
from lagloss.sdk.spool.directory import SpoolDirectory
from lagloss.sdk.spool.journal import Head
from lagloss.sdk.spool.recovery import RecoveryThread
from lagloss.sdk.spool.spool import MAX_BYTES, Spool
from lagloss.sdk.stats import EmitterStats
from lagloss.wire.checks import are_labels
from lagloss.wire.format import MAX_LABEL_CHARS, MAX_LABELS, WINDOW_S, window_start_of
from lagloss.wire.traces import cut_traceparent

__all__ = ["Emitter", "EmitterStats", "Processing", "event_time_fits"]

log = logging.getLogger("lagloss")

MAX_BUFFERED: Final = 1_000_000
"""Beacons that wait in memory while the broker is away: some 200 MB with ids of 36 bytes."""
FIRST_AHEAD_MS: Final = 60_000
"""Largest event time that the first node accepts, in ms ahead of its clock."""
FIRST_AHEAD_NS: Final = FIRST_AHEAD_MS * 1_000_000
FIRST_BEHIND_NS: Final = KEPT_S * 1_000_000_000
MAX_PLACES: Final = 200
"""Next nodes an emitter may name; a definition has no more checkpoints than that."""
SPOOL_VARIABLE: Final = "LAGLOSS_SPOOL_DIR"
LABELS_VARIABLE: Final = "LAGLOSS_LABELS"
TRACES_VARIABLE: Final = "LAGLOSS_TRACES"
BeaconKind = Literal["received", "sent", "filtered", "dead_lettered"]
_PLACES: Final[Mapping[str, str]] = {"received": "in", "sent": "out", "filtered": "filtered", "dead_lettered": "dead"}
_STATE: Final = (
    "id",
    "_beacons",
    "_buffer",
    "_append",
    "_room",
    "_is_open",
    "_flusher",
    "_recovery",
    "_lock",
    "_out_places",
    "_order",
)
"""What `_reset` sets."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def event_time_fits(event_ms: float, now_ms: float) -> bool:
    """Return True if a pipeline's first node accepts this event time. Both in epoch ms."""
    return now_ms - KEPT_S * 1000 <= event_ms <= now_ms + FIRST_AHEAD_MS


def labels_of_environment() -> dict[str, str]:
    """Return the labels that LAGLOSS_LABELS names; a part without `=` is left out, and so are labels past the limits: a
    deployment's mistake does not end its service."""
    parts = [part.partition("=") for part in os.environ.get(LABELS_VARIABLE, "").split(",")]
    labels = {name.strip(): value.strip() for name, separator, value in parts if separator and name.strip()}
    if are_labels(labels):
        return labels
    log.warning("lagloss: not sending labels: expected up to %d labels in %s", MAX_LABELS, LABELS_VARIABLE)
    return {}


def traces_are_on() -> bool:
    """Return whether first nodes send the traces of messages, unless they are made otherwise: LAGLOSS_TRACES is not
    `off`."""
    return os.environ.get(TRACES_VARIABLE, "").strip().lower() not in ("off", "false", "no", "0")


_living: Final[weakref.WeakSet[Emitter]] = weakref.WeakSet()
_redirections: Final[list[Callable[[Emitter], Outlet]]] = []


@contextmanager
def redirected(make_outlet: Callable[[Emitter], Outlet]) -> Iterator[None]:
    """Send what all emitters of this process observe to outlets made here, for the duration of the block: for tests of
    services. Ids are sent by name at every node, and no spool is used.

    Each emitter begins anew, also one that has no address or is closed, and afterwards is what it was before; one made
    within the block does nothing then. Emitters that were given an outlet keep it.
    """
    before = {emitter: emitter.begin_redirection() for emitter in list(_living) if emitter.is_redirectable}
    _redirections.append(make_outlet)
    try:
        yield
    finally:
        _redirections.pop()
        for emitter in list(_living):
            if emitter.is_redirectable:
                emitter.end_redirection(before.get(emitter))


class Emitter:
    """One process of a node. Once built, it raises nothing and never waits; `stats()` counts the errors it swallowed.

    Thread-safe, and safe to call from signal handlers. In a forked child it is a new emitter that starts with its first
    beacon. Without an address of Kafka or of a collector it warns once and does nothing. While the broker is away it
    keeps `max_buffered` beacons in memory, and more in a spool; the excess is counted as dropped, by window and
    checkpoint. Its other state is bounded by `lagloss.sdk.account.Account`.

    Args:
        pipeline: the pipeline's name.
        node: this node's name.
        bootstrap: Kafka's HOST:PORT,...; by default LAGLOSS_KAFKA_BOOTSTRAP. Other variables LAGLOSS_KAFKA_… say how to
            be let in there: docs/kafka.md.
        collector: http://HOST:PORT of a collector, which then takes the records instead of Kafka; by default, if no
            Kafka is named, LAGLOSS_COLLECTOR_URL.
        token: for the collector; by default LAGLOSS_COLLECTOR_TOKEN.
        first: True at the pipeline's first node, which sends message ids by name, and refuses event times more than
            60 s ahead or 7 days old.
        ids: "hash" keeps message ids private: the first node sends their hashes only, as every other node does anyway.
        traces: whether the first node sends the trace of a message whose `traceparent` is known. By default it does
            unless LAGLOSS_TRACES is `off`, or ids are private: a trace may name what the hash hides.
        final: report how far back the account is final. False for a collector's clients that send no counts: a
            message missing at their node is perhaps lost, never for certain, and `observed_at` is of their clocks.
        max_buffered: maximum number of beacons that wait in memory.
        spool: a directory for flushes that the broker has not acknowledged; several processes and nodes may share it.
            By default LAGLOSS_SPOOL_DIR, else none. Each flush is written there before it is sent, so that it outlives
            this process; the next process of the node sends the unsent rest and closes the account. While the broker
            is away, the host goes on; what it may commit waits for the broker all the same.
        spool_bytes: maximum size of the spool; past that, beacons wait in memory.
        resumes: messages that this process observed and that were not `acknowledged` when it died are observed again,
            by its successor (a consumer that commits only after the acknowledgement). Its account is then complete in
            spite of its death.
        labels: what sets this deployment apart (version, zone, team), up to 20 of 100 characters, sent with reports. By
            default LAGLOSS_LABELS, as `version=1.4.2,zone=eu-1a`.
        close_on_sigterm: on SIGTERM, close and then end the process, unless the host has a handler of its own.
        kafka_config: further librdkafka properties, for security mostly.
        outlet: makes a destination of records other than Kafka, for tests: see `MemoryOutlet`.

    Raises:
        ValueError: for a pipeline's or node's name with other characters than letters, digits, `-` and `_`, and for
            `ids` that are neither; for labels that are too many, too long or hold a NUL.
    """

    def __init__(
        self,
        pipeline: str,
        node: str,
        bootstrap: Cluster | None = None,
        *,
        collector: str | None = None,
        token: str | None = None,
        first: bool = False,
        ids: Literal["names", "hash"] = "names",
        traces: bool | None = None,
        final: bool = True,
        max_buffered: int = MAX_BUFFERED,
        spool: str | os.PathLike[str] | None = None,
        spool_bytes: int = MAX_BYTES,
        resumes: bool = False,
        labels: Mapping[str, str] | None = None,
        close_on_sigterm: bool = True,
        kafka_config: Mapping[str, Any] | None = None,
        outlet: Callable[[], Outlet] | None = None,
    ) -> None:
        for name in (pipeline, node):
            if not _NAME.fullmatch(name):
                raise ValueError(f"expected a name of up to 100 letters, digits, - and _, found {name!r}")
        self.pipeline = pipeline
        self.node = node
        if ids not in ("names", "hash"):
            raise ValueError(f"expected ids to be 'names' or 'hash', found {ids!r}")
        self.first = first
        self._names_ids = ids == "names"
        self.keeps_traces = first and (self._names_ids and traces_are_on() if traces is None else traces)
        """Whether `received` has a use for a `traceparent`."""
        self._final = final
        self._max_items = max_buffered * STRIDE
        spool = spool or os.environ.get(SPOOL_VARIABLE)
        self._spool = Path(spool) if spool else None
        self._spool_bytes = spool_bytes
        self._resumes = resumes
        self._labels = labels_of_environment() if labels is None else dict(labels)
        if not are_labels(self._labels):
            raise ValueError(
                f"expected up to {MAX_LABELS} labels of up to {MAX_LABEL_CHARS} characters each, found {labels!r}"
            )
        self._is_redirectable = outlet is None
        self._make_outlet = outlet or (
            None if _redirections else outlet_maker(pipeline, bootstrap, kafka_config, collector, token)
        )
        self._close_on_sigterm = close_on_sigterm
        self._have_unfinished: list[Callable[[], bool]] = []
        self._reset()
        _living.add(self)
        if self._make_outlet is None and not _redirections:
            log.warning(
                "lagloss: not sending beacons: set %s to the address of Kafka, or %s to the URL of a collector",
                BOOTSTRAP_VARIABLE,
                COLLECTOR_VARIABLE,
            )
            self._is_open = False
            return
        self._begin()

    def _reset(self) -> None:
        """Reset the state that belongs to this process."""
        self.id = uuid.uuid4().bytes
        self._beacons = BeaconBuffer(self._max_items // STRIDE)
        self._buffer = self._beacons.values
        self._append = self._buffer.extend
        self._room = 0
        """Maximum length of the buffer for the fast path; 0 sends all beacons down the slow path."""
        self._is_open = True
        self._flusher: Flusher | None = None
        self._recovery: RecoveryThread | None = None
        self._lock = threading.Lock()  # for rare operations: starting and reading counts
        self._out_places: dict[str, str] = {}
        self._order = KeyOrder()

    def _begin(self) -> None:
        """Start to observe, and start the flushing thread."""
        redirect = _redirections[-1] if _redirections and self._is_redirectable else None
        make_outlet = partial(redirect, self) if redirect is not None else self._make_outlet
        assert make_outlet is not None
        register(self, close_on_sigterm=self._close_on_sigterm and redirect is None)
        host = f"{socket.gethostname()}:{os.getpid()}"
        identity = EmitterIdentity(
            self.pipeline, self.node, self.id, host, started_at=now_ms(), resumes=self._resumes, labels=self._labels
        )
        outlet = make_outlet()
        spool = self._spool if redirect is None else None
        self._flusher = Flusher(
            identity,
            self._beacons,
            outlet,
            first=self.first or redirect is not None,  # a test names messages wherever they come in
            names_ids=self._names_ids or redirect is not None,
            keep_traces=self.keeps_traces,
            final=self._final,
            make_backlog=self._backlog_maker(identity, spool),
        )
        self._room = self._max_items
        self._flusher.start()
        if spool is not None:
            self._recovery = RecoveryThread(spool, make_outlet, self.pipeline, self.node)
            self._recovery.start()

    def _backlog_maker(self, identity: EmitterIdentity, below: Path | None) -> MakeBacklog | None:
        if below is None:
            return None

        def make(account: Account, note: Callable[[Exception], None]) -> Backlog:
            directory = SpoolDirectory.made(below, identity.pipeline, identity.node, identity.emitter)
            return Spool(directory, Head(identity, self._final), account, note, max_bytes=self._spool_bytes)

        return make

    # -- for each message -----------------------------------------------------------------------------------------

    def received(
        self,
        message_id: str,
        event_time: EventTime,
        *,
        observed_at: EventTime | None = None,
        replay: str | None = None,
        payload_crc: int | None = None,
        payload_bytes: int = 0,
        traceparent: str | None = None,
        key: str | bytes | None = None,
    ) -> bool:
        """Record that a message has come in.

        Args:
            message_id: as set at the source, 1 to 255 bytes of UTF-8.
            event_time: as set at the source, epoch ms or a datetime with a zone.
            observed_at: instead of the clock, in back-fills; epoch ms.
            replay: the replay's name, if the message is taken in as part of one.
            payload_crc: CRC-32C of the payload as received.
            payload_bytes: the payload's size.
            traceparent: the trace that it belongs to, as W3C's header of that name; kept at the first node, so that a
                lost message links to its trace. Anything else, and one that is not sampled, is as none.
            key: within which its order is judged: the message is out of order if one of this key with a later event
                time was observed here before, by this process. The latest event times of 65,536 keys are remembered.
                Without a key, and in replays, order is not judged, which costs nothing.

        Returns:
            False if the beacon was refused or dropped, and counted so. A beacon found bad later counts, too.
        """
        plain = observed_at is None and replay is None and payload_crc is None and not payload_bytes
        if traceparent is not None:
            plain, traceparent = False, cut_traceparent(traceparent)
        extras = None if plain else (observed_at, replay, None, payload_crc, payload_bytes, traceparent, False)
        clock_ns = time_ns()  # inlined as in `sent`: a function call would cost a third more
        if (
            len(self._buffer) < self._room
            and key is None
            and (
                not self.first
                or (type(event_time) is int and -FIRST_BEHIND_NS <= event_time * 1_000_000 - clock_ns <= FIRST_AHEAD_NS)
            )
        ):
            self._append(("in", message_id, event_time, clock_ns, extras))
            return True
        return self._observe("in", message_id, event_time, extras, key)

    def sent(
        self,
        message_id: str,
        event_time: EventTime,
        *,
        to: str | None = None,
        observed_at: EventTime | None = None,
        replay: str | None = None,
        payload_crc: int | None = None,
        payload_bytes: int = 0,
        key: str | bytes | None = None,
    ) -> bool:
        """Record that the sink or the next topic has acknowledged a message; see `received`.

        `to` names the next node if there are several.
        """
        plain = observed_at is None and replay is None and payload_crc is None and not payload_bytes
        extras = None if plain else (observed_at, replay, None, payload_crc, payload_bytes, None, False)
        place = "out" if to is None else self._out_place(to)
        if place is None:
            return False
        clock_ns = time_ns()
        if (
            len(self._buffer) < self._room
            and key is None
            and (
                not self.first
                or (type(event_time) is int and -FIRST_BEHIND_NS <= event_time * 1_000_000 - clock_ns <= FIRST_AHEAD_NS)
            )
        ):
            self._append((place, message_id, event_time, clock_ns, extras))
            return True
        return self._observe(place, message_id, event_time, extras, key)

    def filtered(
        self,
        message_id: str,
        event_time: EventTime,
        reason: str,
        *,
        observed_at: EventTime | None = None,
        replay: str | None = None,
    ) -> bool:
        """Record that a message was dropped on purpose, or handed back to its sender with an error; see `received`."""
        return self._observe("filtered", message_id, event_time, (observed_at, replay, reason, None, 0, None, False))

    def dead_lettered(
        self,
        message_id: str,
        event_time: EventTime,
        reason: str,
        *,
        observed_at: EventTime | None = None,
        replay: str | None = None,
    ) -> bool:
        """Record that a message was put in a dead-letter queue; see `received`."""
        return self._observe("dead", message_id, event_time, (observed_at, replay, reason, None, 0, None, False))

    def observe_all(
        self,
        kind: BeaconKind,
        message_ids: Iterable[str],
        event_times: Iterable[EventTime] | npt.NDArray[Any],
        *,
        to: str | None = None,
        reason: str | None = None,
        observed_at: EventTime | None = None,
        replay: str | None = None,
    ) -> int:
        """Record many messages at once, from columns: for files, where it costs a tenth of a call for each; see
        `received`. Not for signal handlers.

        Args:
            kind: "received", "sent", "filtered" or "dead_lettered", as the methods for one message.
            message_ids: a list, or an array of numpy, pandas or Arrow.
            event_times: as many, epoch ms or datetimes with a zone; an array may hold datetime64 in UTC.
            to: the next node, with "sent", if there are several.
            reason: with "filtered" and "dead_lettered".
            observed_at: of all of them, instead of the clock; epoch ms.
            replay: the replay's name, if they are part of one.

        Returns:
            The number of beacons that were neither refused nor dropped. Bad ones found later count, too.
        """
        beacons = self._beacons
        try:
            clock_ns = time_ns()
            place = _PLACES[kind] if to is None else self._out_place(to)
            ids = list_of(message_ids)
            event_ms = epoch_ms_column(event_times)
            if place is None or len(ids) != len(event_ms):
                beacons.errors.add()
                return 0
            plain = observed_at is None and replay is None and reason is None
            extras = None if plain else (observed_at, replay, reason, None, 0, None, False)
            return self._buffer_columns(Columns(place, ids, event_ms, clock_ns, extras))
        except Exception:
            beacons.errors.add()
            return 0

    def _buffer_columns(self, columns: Columns) -> int:
        """Buffer, refuse or drop these beacons; return how many are buffered."""
        beacons, now_ms = self._beacons, columns.clock_ns / 1e6
        fits = np.full(len(columns), self._is_open)
        if self.first:
            event_ms = columns.event_ms
            fits &= (event_ms >= now_ms - KEPT_S * 1000) & (event_ms <= now_ms + FIRST_AHEAD_MS)
        if not fits.all():
            beacons.refused.add_many(len(columns) - int(fits.sum()))
            columns = columns.at(fits)
        if not len(columns):
            return 0
        if self._flusher is None:
            self._begin_in_child()
        if len(beacons) + len(columns) <= beacons.max_beacons:
            beacons.columns.append(columns)
            return len(columns)
        is_placed = are_placeable(columns.event_ms, now_ms)
        beacons.unplaced.add_many(len(columns) - int(is_placed.sum()))
        windows = np.unique(np.floor(columns.event_ms[is_placed] / WINDOW_MS).astype(np.int64), return_counts=True)
        replay = replay_label(columns.extras[1]) if columns.extras else None
        for minute, dropped in zip(*(column.tolist() for column in windows), strict=True):
            beacons.overflow(TallyKey(columns.place, replay, minute * WINDOW_S), dropped)
        return 0

    def _observe(
        self,
        place: str,
        message_id: str,
        event_time: EventTime,
        extras: RawExtras | None,
        key: str | bytes | None = None,
    ) -> bool:
        """Buffer, refuse or drop a beacon: the slow path, with all checks.

        Beacons that are plainly valid take the fast path, which costs one or two comparisons.
        """
        beacons = self._beacons
        try:
            clock_ns = time_ns()
            event_ms = event_time if type(event_time) is int else epoch_ms(event_time)
            if not self._is_open or (self.first and not event_time_fits(event_ms, clock_ns / 1e6)):
                beacons.refused.add()
                return False
            if self._flusher is None:
                self._begin_in_child()
            if (
                key is not None
                and (extras is None or extras[1] is None)
                and self._order.is_overtaken(place, key, event_ms)
            ):
                extras = (*(extras or NO_EXTRAS)[:-1], True)
            if len(self._buffer) < self._max_items:
                self._append((place, message_id, event_time, clock_ns, extras))
                return True
            if not is_placeable(event_ms, clock_ns / 1e6):
                beacons.unplaced.add()
                return False
            beacons.overflow(TallyKey(place, replay_label(extras[1]) if extras else None, window_start_of(event_ms)))
        except (ValueError, OverflowError):
            beacons.unplaced.add()
        except Exception:
            beacons.errors.add()
        return False

    def _out_place(self, to: str) -> str | None:
        """Return the checkpoint towards `to`, None if it cannot be a node's name."""
        try:
            place = self._out_places.get(to)
            if place is None and len(self._out_places) < MAX_PLACES and _NAME.fullmatch(to):
                place = self._out_places.setdefault(to, f"out:{to}")
        except TypeError:
            place = None
        if place is None:
            self._beacons.unplaced.add()
        return place

    # -- progress -------------------------------------------------------------------------------------------------

    def processing(self) -> Processing:
        """Return work in flight: until it is `done`, progress of NODE.out stands where it began, so that it is late and
        not lost.

        Use it in a `with`, or call `done` from a callback. Begin it before the `received` of its messages, end it after
        their `sent`, `filtered` or `dead_lettered`.
        """
        work = Processing(self._beacons.hand)
        self._beacons.has_hand = True
        return work

    def follow(self, lanes: ProgressSource) -> None:
        """Report the progress of these input lanes, too. In a forked child, the emitter begins."""
        try:
            if self._is_open and self._flusher is None:
                self._begin_in_child()
        except Exception:
            self._beacons.errors.add()
        if self._flusher is not None:
            self._flusher.sources.append(lanes)

    # -- acknowledgement ------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """Return a mark for all beacons observed so far, by any thread: see `acknowledged`."""
        return self._flusher.mark() if self._flusher is not None else 0

    def acknowledged(self, mark: int) -> bool:
        """Return True if the broker has all beacons observed before `mark` was drawn, or counts them as dropped; or the
        spool, for an emitter that follows no lanes and does not `resume`.

        Turns true within two seconds while these work; after a `request_flush`, within milliseconds.
        """
        return self._flusher is None or self._flusher.safe >= mark

    def request_flush(self) -> None:
        """Send the buffered beacons now rather than at the next flush; returns at once."""
        if self._flusher is not None:
            self._flusher.wake.set()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send all beacons observed so far, and a report, and wait until the broker has both.

        Returns:
            False if that took longer than `timeout_s`.
        """
        flusher = self._flusher
        if flusher is None or flusher.ended:
            return True
        with flusher.turned:
            mark = self.mark()
            flusher.report_wanted = max(flusher.report_wanted, mark)
            flusher.wake.set()
            return flusher.turned.wait_for(lambda: flusher.reported >= mark, timeout_s)

    def close(self, timeout_s: float = CLOSE_S, *, finished: bool = True) -> bool:
        """Send the rest, report the emitter as closed, and stop; takes at most `timeout_s`, broker or not. Idempotent.

        Beacons that the broker has not acknowledged after three quarters of that time are left in the spool; without
        one they are dropped, and counted so. Also called at exit, and on SIGTERM unless the host handles it.

        Args:
            timeout_s: longest wait.
            finished: False for a host that ends with work in flight. Messages in flight are then late and not lost: if
                the emitter `resumes`, until another process has taken in again what it left; otherwise for good.

        Returns:
            False if the broker did not acknowledge the last report.
        """
        flusher = self._flusher
        if flusher is None:
            self._is_open = False
            return True
        if self._is_open:
            if self._recovery is not None:
                self._recovery.stop()
            is_finished = finished and not any(has_unfinished() for has_unfinished in self._have_unfinished)
            flusher.close(timeout_s, self._shut, is_finished=is_finished)
            self._shut()
        return flusher.ended

    def close_unfinished_if(self, has_unfinished: Callable[[], bool]) -> None:
        """Close as with `finished=False` if this returns True then, whatever calls `close`: the host, its exit, a
        signal, or a middleware that shares this emitter."""
        self._have_unfinished.append(has_unfinished)

    def _shut(self) -> None:
        self._is_open = False
        self._room = 0
        unregister(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def tallies(self) -> int:
        """Number of tallies that the account keeps, in memory, of 2 KB each at most."""
        return len(self._flusher.account) if self._flusher is not None else 0

    def stats(self) -> EmitterStats:
        """Return the counts so far."""
        beacons, flusher = self._beacons, self._flusher
        with self._lock:
            return EmitterStats(
                buffered=len(beacons),
                spooled_bytes=flusher.spooled_bytes if flusher else 0,
                sent=flusher.sent if flusher else 0,
                sampled_out=flusher.sampled_out if flusher else 0,
                dropped=flusher.dropped if flusher else 0,
                refused=beacons.refused.read(),
                unplaced=beacons.unplaced.read() + (flusher.unplaced if flusher else 0),
                errors=beacons.errors.read() + (flusher.errors if flusher else 0),
                last_error=(flusher.last_error or flusher.outlet.last_error) if flusher else None,
            )

    @property
    def in_flight(self) -> int:
        """Number of works in flight."""
        return len(self._beacons.hand)

    # -- redirections, for tests ----------------------------------------------------------------------------------

    @property
    def is_redirectable(self) -> bool:
        """Whether `redirected` concerns this emitter: it was not given an outlet."""
        return self._is_redirectable

    def begin_redirection(self) -> dict[str, Any]:
        """Begin anew with the next beacon; return the state to continue with afterwards."""
        before = {name: getattr(self, name) for name in _STATE}
        self._reset()
        return before

    def end_redirection(self, before: Mapping[str, Any] | None) -> None:
        """End, and continue with this state; None: do nothing from now on."""
        self.close()
        if before is None:
            self._reset()
            self._shut()
            return
        vars(self).update(before)
        if self._is_open and self._flusher is not None:
            register(self, close_on_sigterm=self._close_on_sigterm)

    # -- forks ----------------------------------------------------------------------------------------------------

    def forked(self) -> None:
        """Become another emitter in a forked child, which has observed nothing yet.

        The parent's beacons are the parent's to send.
        """
        if self._flusher is not None:
            self._flusher.detach_after_fork()
        if self._recovery is not None:
            self._recovery.detach_after_fork()
        was_open = self._is_open
        self._reset()
        self._is_open = was_open

    def _begin_in_child(self) -> None:
        with self._lock:
            if self._flusher is not None:
                return
            self._begin()
            if "multiprocessing.util" in sys.modules and not _redirections:  # whose children exit without atexit
                from multiprocessing.util import Finalize

                Finalize(self, self.close, exitpriority=100)
