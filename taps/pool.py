"""A few threads that give many taps their turns.

A turn that hangs holds one thread. Taps whose last turn failed or was slow share half of the threads, so that the
others go on whatever these wait for; each cluster has a pool of its own.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import structlog

from lagloss_server.base.turns import WatchedLoop

log = structlog.get_logger()

THREADS: Final = 12
"""At most, in one pool: turns mostly wait for servers."""
SLOW_S: Final = 2.0
"""A turn that takes longer is slow."""
FAILED_S: Final = 10.0
"""Pause after a turn that raised."""
TURN_LIMIT_S: Final = 300.0
"""Longest normal turn: a plan of Spark's over a backlog takes minutes."""


class Turning(Protocol):
    """What takes turns."""

    is_troubled: bool
    """Whether the last turn failed."""

    def step(self) -> float | None:
        """Take a turn; return for how long (s) to wait before the next one, None at the end."""


T = TypeVar("T", bound=Turning)


class TurnsInHand(WatchedLoop):
    """The turns that a pool carries out; its age is that of the oldest one."""

    def __init__(self, name: str) -> None:
        super().__init__(name, TURN_LIMIT_S)
        self.began: dict[object, float] = {}

    @property
    def age_s(self) -> float:
        return time.monotonic() - min(list(self.began.values()), default=time.monotonic())


@dataclass(slots=True, eq=False)
class _Place(Generic[T]):
    """One that takes turns, and when the next is due (monotonic s)."""

    turning: T
    due_at: float
    is_slow: bool = False
    is_running: bool = False
    is_woken: bool = False


class TurnPool(Generic[T]):
    """Carries out turns of each in sequence, and of many at the same time."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self.turns = TurnsInHand(f"a turn of {name}")
        self.name = name
        self._threads = threads
        lock = threading.Lock()
        self._changed, self._ended = threading.Condition(lock), threading.Condition(lock)
        self._places: dict[T, _Place[T]] = {}
        self._due: dict[bool, list[tuple[float, int, _Place[T]]]] = {False: [], True: []}
        """Heaps of those that wait for a turn, by whether they are slow; an entry holds while its time is that of its
        place."""
        self._numbers = itertools.count()
        self._workers: set[threading.Thread] = set()
        self._idle = self._slow_running = 0
        self._leader: threading.Thread | None = None
        """The idle worker that waits until the next turn is due; the others wait for it to take that."""
        self._is_closing = False

    def __contains__(self, turning: T) -> bool:
        return turning in self._places

    def __len__(self) -> int:
        return len(self._places)

    def waiting(self) -> list[T]:
        """Return those whose next turn is not due yet."""
        with self._changed:
            now = time.monotonic()
            return [place.turning for place in self._places.values() if not place.is_running and place.due_at > now]

    def add(self, turning: T) -> None:
        """Give it turns from now on, until its end."""
        with self._changed:
            place = self._places[turning] = _Place(turning, time.monotonic())
            self._push(place)

    def wake(self, turnings: Iterable[T]) -> None:
        """Let their next turns be due now."""
        with self._changed:
            now = time.monotonic()
            for turning in turnings:
                place = self._places.get(turning)
                if place is None:
                    continue
                place.is_woken = True
                if not place.is_running and place.due_at > now:
                    place.due_at = now
                    self._push(place)

    def claim(self, turnings: Iterable[T]) -> list[T]:
        """Keep those of these that wait from taking turns until `release`; return them."""
        with self._changed:
            claimed = [
                place
                for turning in turnings
                if (place := self._places.get(turning)) is not None and not place.is_running
            ]
            for place in claimed:
                place.is_running, place.is_woken = True, False
            return [place.turning for place in claimed]

    def release(self, pauses: Mapping[T, float | None]) -> None:
        """Let those that were claimed take turns again, after these pauses (s); None: they have ended."""
        with self._changed:
            for turning, pause_s in pauses.items():
                self._end_turn(self._places[turning], pause_s, is_slow=turning.is_troubled)

    def close(self, timeout_s: float) -> bool:
        """Begin no more turns; return whether all that were under way have ended within this time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            workers = list(self._workers)
        deadline = time.monotonic() + timeout_s
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        return not any(worker.is_alive() for worker in workers)

    def await_ends(self, turnings: Collection[T], timeout_s: float) -> None:
        """Wait until all of these have ended, for at most this long."""
        with self._ended:
            self._ended.wait_for(lambda: not any(turning in self._places for turning in turnings), timeout_s)

    # -- with the lock ------------------------------------------------------------------------------------------------

    def _push(self, place: _Place[T]) -> None:
        heapq.heappush(self._due[place.is_slow], (place.due_at, next(self._numbers), place))
        if self._idle:
            self._leader = None  # which may wait for a later one
            self._changed.notify()
        elif len(self._workers) < self._threads:
            worker = threading.Thread(target=self._work, name=f"turns-{self.name}", daemon=True)
            self._workers.add(worker)
            worker.start()

    def _end_turn(self, place: _Place[T], pause_s: float | None, *, is_slow: bool) -> None:
        place.is_running, place.is_slow = False, is_slow
        if pause_s is None:
            del self._places[place.turning]
            place.due_at = math.inf
            self._ended.notify_all()
            return
        now = time.monotonic()
        place.due_at = now if place.is_woken else now + pause_s
        self._push(place)

    def _first(self) -> _Place[T] | None:
        """Return the one whose turn is due first, of those that may begin."""
        heads = []
        for is_slow, heap in self._due.items():
            while heap and (heap[0][2].is_running or heap[0][0] != heap[0][2].due_at or heap[0][2].is_slow != is_slow):
                heapq.heappop(heap)
            if heap and not (is_slow and self._slow_running >= self._threads // 2):
                heads.append(heap[0])
        return min(heads)[2] if heads else None

    def _take(self) -> _Place[T] | None:
        """Wait for a turn that is due; None at the end."""
        me = threading.current_thread()
        while not self._is_closing:
            place = self._first()
            wait_s = None if place is None else place.due_at - time.monotonic()
            if place is not None and wait_s is not None and wait_s <= 0:
                heapq.heappop(self._due[place.is_slow])
                place.is_running, place.is_woken = True, False
                self._slow_running += place.is_slow
                if self._leader is None and self._idle:
                    self._changed.notify()
                return place
            is_leader = self._leader is None
            if is_leader:
                self._leader = me
            self._idle += 1
            self._changed.wait(wait_s if is_leader else None)
            self._idle -= 1
            if self._leader is me:
                self._leader = None
        return None

    # -- the threads --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                place = self._take()
            if place is None:
                return
            began = self.turns.began[place] = time.monotonic()
            pause_s = self._step(place.turning)
            del self.turns.began[place]
            ended = time.monotonic()
            with self._changed:
                self._slow_running -= place.is_slow
                self._end_turn(place, pause_s, is_slow=place.turning.is_troubled or ended - began > SLOW_S)

    def _step(self, turning: T) -> float | None:
        try:
            return turning.step()
        except Exception:  # our bug: it keeps no thread
            log.exception("turn failed", pool=self.name)
            return FAILED_S
