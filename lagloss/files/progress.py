"""Progress of a queue: what has been received of it for certain, never overstated.

A standard queue of SQS has no order, so no message that is received says anything about another. What bounds those
that can still come is a long poll that comes back empty: it asked all of the queue's servers, so whatever was visible
when it began had been received by some consumer. What was not visible then is

- in flight at a consumer that lives: that one holds its own lane back until the message is finished, or has come back
  and been received again;
- in flight at one that died: visible again after at most the visibility timeout; and as long once more for each that
  then receives it and dies, as one does that a file kills;
- delayed, by at most the delay of the queue;
- on its way through S3 and SNS: for at most `notified_within_s`, as its host assumes.

So everything put into the queue before the poll began, less the longest of these (`slack`), has been taken in. See
decision 32.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lagloss.sdk.buffer import Processing
from lagloss.wire.format import Progress

CLOCKS_MS: Final = 60_000
"""Allowance for S3's clock, by which a notification says when the object was stored."""
DEAD_IN_A_ROW: Final = 5
"""Consumers that may receive a message one after the other, and die without deleting it, before one lives; fewer, if
the queue's redrive policy takes it away before."""
CLOCK_S: Final = 5
SETTLED_MS: Final = 30_000
"""Time after which what another consumer received is in its reports, which are 10 s apart at most."""


@dataclass(slots=True, eq=False)
class Held:
    """A message of the queue that this process received.

    `stored_at_ms`: when the oldest of its objects was stored (epoch ms), 0 if that is not known. `visible_at_ms`: when
    others can receive it again, by `steady_ms`. `is_given_up`: this process is not working on it any more.
    `is_imported`: it only remains to be deleted. `proofs`: empty polls since it was given up that prove what became of
    it; `next_proof_ms`: when the next of them can begin, at the earliest.
    """

    stored_at_ms: int
    visible_at_ms: int
    work: list[Processing] = field(default_factory=list)
    is_given_up: bool = False
    is_imported: bool = False
    proofs: int = 0
    next_proof_ms: int = 0

    @property
    def floor_ms(self) -> int:
        """Its records were last seen after this."""
        return max(0, self.stored_at_ms - CLOCKS_MS)

    def release(self) -> None:
        """End the work in flight."""
        for work in self.work:
            work.done()


def steady_ms() -> int:
    """Return the time by a clock that is never set, in ms; on Linux one that goes on while the machine sleeps."""
    is_linux = sys.platform == "linux"
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) if is_linux else time.monotonic_ns()) // 1_000_000


def slack_ms(on_its_way_s: float, visibility_s: float, max_receives: int | None = None) -> int:
    """Return the longest time from an object's landing until its notification is visible, or in flight at a live
    consumer, in ms.

    Args:
        on_its_way_s: longest time until the notification is in the queue and no longer delayed.
        visibility_s: visibility timeout of all that is received from the queue.
        max_receives: of the redrive policy, None without one.
    """
    dead = min(max_receives or DEAD_IN_A_ROW, DEAD_IN_A_ROW)
    return int((max(on_its_way_s, dead * visibility_s) + CLOCK_S) * 1000)


class QueueProgress:
    """What one process knows of one queue. Thread-safe.

    Args:
        queue: the name of the lane that all of the queue's consumers share.
        slack_ms: as the function of that name returns it.
        visibility_ms: visibility timeout of all that is received from the queue.
        now_ms: the host's clock, in epoch ms.
        clock_ms: the clock of `emptied` and of messages held.
    """

    def __init__(
        self,
        queue: str,
        slack_ms: int,
        visibility_ms: int,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock_ms: Callable[[], int] = steady_ms,
    ) -> None:
        self.queue = queue
        self._slack_ms = slack_ms
        self._pauses_ms = (visibility_ms, SETTLED_MS)
        self._now_ms = now_ms
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._emptied: tuple[int, int] | None = None
        """When the last poll began that came back empty, by both clocks."""
        self._held: dict[str, Held] = {}

    def hold(self, message: str, queue_message: Held) -> None:
        """Hold a message that was received. One that this process gave up earlier is in flight anew."""
        with self._lock:
            before = self._held.get(message)
            self._held[message] = queue_message
        if before is not None:
            before.release()

    def drop(self, message: str, queue_message: Held) -> None:
        """Release a message: all that became of it is with the emitters."""
        with self._lock:
            if self._held.get(message) is queue_message:
                del self._held[message]
        queue_message.release()

    def give_up(self, queue_message: Held) -> None:
        """Keep holding a message that another consumer, or this one, will receive again."""
        queue_message.is_given_up = True

    def emptied(self, asked_ms: int) -> None:
        """Note that a long poll that began at `asked_ms`, by `steady_ms`, found nothing visible."""
        ended_ms = max(asked_ms, self._clock_ms())
        with self._lock:
            if self._emptied is None or asked_ms >= self._emptied[0]:
                self._emptied = asked_ms, self._by_host(asked_ms)
            gone = [
                message
                for message, held in self._held.items()
                if held.is_given_up and self._is_gone(held, asked_ms, ended_ms)
            ]
            released = [self._held.pop(message) for message in gone]
        for queue_message in released:
            queue_message.release()

    def _is_gone(self, held: Held, asked_ms: int, ended_ms: int) -> bool:
        """Return True if an empty poll proves that others have reported a message that was given up, or that it is in
        the dead-letter queue.

        It takes three. The first that began once the message was visible proves that another consumer had received it.
        That consumer can have died before it reported this: the second, a visibility timeout later, proves that the
        message was received again. Whichever consumer has it then, has reported so by the third.
        """
        if asked_ms < max(held.visible_at_ms, held.next_proof_ms):
            return False
        if held.proofs == len(self._pauses_ms):
            return True
        held.next_proof_ms = ended_ms + self._pauses_ms[held.proofs]
        held.proofs += 1
        return False

    def working(self) -> list[tuple[str, Held]]:
        """Return the messages that this process works on."""
        with self._lock:
            return [
                (message, queue_message)
                for message, queue_message in self._held.items()
                if not queue_message.is_given_up
            ]

    @property
    def is_settled(self) -> bool:
        """True if nothing is held, and the shared lane says how far the queue has been received."""
        with self._lock:
            return not self._held and self._proven_ms > 0

    @property
    def _proven_ms(self) -> int:
        """By the host's clock as it was at the poll or as it is now, whichever says less: it may have been set back
        since, or have gone on while the machine slept, when the other clock stands still."""
        if self._emptied is None:
            return 0
        asked_ms, by_host_ms = self._emptied
        return max(0, min(by_host_ms, self._by_host(asked_ms)) - self._slack_ms)

    def _by_host(self, moment_ms: int) -> int:
        """Return a moment of `steady_ms` by the host's clock as it is now (epoch ms)."""
        return self._now_ms() - (self._clock_ms() - moment_ms)

    def lanes(self, checkpoint: str, *, until_deleted: bool = False) -> list[Progress]:
        """Return the lanes of a checkpoint: this process's own, and the shared one once it is known.

        The own one (without a name, so that it leaves with its emitter) stands at 0 until a poll came back empty: a
        process that starts on a busy queue knows nothing of what waits there.
        """
        with self._lock:
            proven_ms = self._proven_ms
            floors = [
                queue_message.floor_ms
                for queue_message in self._held.values()
                if until_deleted or not queue_message.is_imported
            ]
        own = Progress(checkpoint, "", min([proven_ms, *floors]))
        return [own, Progress(checkpoint, self.queue, proven_ms)] if proven_ms else [own]


@dataclass(frozen=True, slots=True)
class QueueLanes:
    """The lanes of a checkpoint, for `Emitter.follow`."""

    progress: QueueProgress
    checkpoint: str
    until_deleted: bool = False

    def snapshot(self) -> Sequence[Progress]:
        return self.progress.lanes(self.checkpoint, until_deleted=self.until_deleted)
