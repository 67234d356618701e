"""The way into the dead-letter queue, which never blocks the pipeline, whatever the queue does.

A letter is safe once the queue has acknowledged it or the disk has it (see dlq_spool.py). Its producer is its own, so
that a queue that takes nothing holds up nothing else. From the first letter that the queue does not take in time, all
go to the disk at once, so that no event waits for each of them anew; what is there is offered to the queue each 30 s,
and by the node's next process, until the queue takes it. A letter that is too large for the queue is kept by itself.
After a crash in between a letter may be in the queue twice, which does no harm.

If the disk takes nothing either, letters wait in memory and are not safe: their offsets are not committed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.kafka.clients import NEVER_TAKEN, producer_config
from pipeline_under_test.stream.nodes.dlq_spool import KeptLetters, LetterFile, event_of

log = logging.getLogger(__name__)

GIVE_UP_S: Final = 10.0
AGAIN_S: Final = 30.0
DISK_AGAIN_S: Final = 1.0
CLOSE_S: Final = 5.0
MAX_IN_FLIGHT: Final = 10_000
"""Letters on their way to the queue; those on top go to the disk."""
WINDOW: Final = 100
"""Letters from the disk that are on their way at a time."""

Safe = Callable[[], None]
Report = Callable[[KafkaError | None, Message], None]


@dataclass(slots=True)
class Sending:
    """A file of letters on its way to the queue."""

    file: LetterFile
    begun: int = 0
    in_flight: int = 0
    left: list[bytes] = field(default_factory=list)
    """The lines that stay."""


class DeadLetters:
    """One process's way into the queue. Used by one thread, which calls `step` often.

    Args:
        bootstrap: Kafka's.
        topic: the queue.
        directory: of letters on disk, for all nodes.
        node: whose process this is.
        give_up_s: how long the queue may take for a letter.
        again_s: how often it is offered what is on disk.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        directory: Path,
        node: str,
        *,
        give_up_s: float = GIVE_UP_S,
        again_s: float = AGAIN_S,
    ) -> None:
        self._topic = topic
        self._again_s = again_s
        self._producer = Producer(_config(bootstrap, node, give_up_s))
        self._kept = KeptLetters(directory, node)
        self._to_keep: list[tuple[Event, Safe]] = []
        self._next_write = 0.0
        self._is_refusing = False
        self._round: Iterator[LetterFile] | None = None
        self._round_failed = False
        self._next_round = 0.0
        self._sending: Sending | None = None
        self._complained: set[str] = set()

    def send(self, event: Event, safe: Safe) -> None:
        """Put `event` into the queue; `safe` is called from `step`, once the queue or the disk has it."""
        if self._is_refusing:
            self._to_keep.append((event, safe))
        else:
            self._offer(event, safe)

    def step(self) -> None:
        """Handle the queue's answers, write down what it did not take, and offer it again; never wait for the
        queue."""
        self._producer.poll(0)
        self._write_down()
        try:
            self._send_kept()
        except OSError as error:
            self._complain(str(error))
            self._end_round()

    def close(self) -> None:
        """Wait some seconds for what is on its way, and keep the rest on disk."""
        if self._producer.flush(CLOSE_S):
            self._producer.purge()
            self._producer.flush(CLOSE_S)
        self._next_write, self._next_round, self._round_failed = 0.0, math.inf, True
        self.step()
        self._kept.let_go()

    # -- to the queue ---------------------------------------------------------------------------------------------

    def _offer(self, event: Event, safe: Safe) -> None:
        def report(error: KafkaError | None, _record: Message) -> None:
            if error is None:
                safe()
            else:
                self._refused(error)
                self._to_keep.append((event, safe))

        if not self._produce(event, report):
            self._to_keep.append((event, safe))

    def _produce(self, event: Event, report: Report) -> bool:
        try:
            self._producer.produce(
                self._topic, event.body, event.id.encode(), headers=event.headers(), on_delivery=report
            )
        except BufferError:
            return False
        except KafkaException as error:
            reason = error.args[0]
            self._refused(reason if isinstance(reason, KafkaError) else KafkaError(KafkaError._FAIL))
            return False
        return True

    def _refused(self, error: KafkaError) -> None:
        if error.code() not in NEVER_TAKEN:
            self._is_refusing = True
            self._round_failed = True
        self._complain(error.str())

    def _complain(self, problem: str) -> None:
        """Log a problem once per round: a flood of letters must not flood the log."""
        if problem not in self._complained:
            self._complained.add(problem)
            log.warning("storing dead letters in %s: %s", self._kept.directory, problem)

    # -- to the disk ----------------------------------------------------------------------------------------------

    def _write_down(self) -> None:
        if not self._to_keep or time.monotonic() < self._next_write:
            return
        try:
            self._kept.keep(event for event, _ in self._to_keep)
        except OSError as error:
            self._next_write = time.monotonic() + DISK_AGAIN_S
            self._complain(str(error))
            return
        letters, self._to_keep = self._to_keep, []
        for _, safe in letters:
            safe()

    # -- from the disk to the queue -------------------------------------------------------------------------------

    def _send_kept(self) -> None:
        """Send kept letters in rounds: each offers the queue every file that is not being appended to, until the queue
        is full."""
        if self._sending is None:
            self._sending = self._next_file()
        sending = self._sending
        if sending is None:
            return
        lines = sending.file.lines
        while sending.begun < len(lines) and sending.in_flight < WINDOW and not self._round_failed:
            self._send_line(sending, lines[sending.begun])
            sending.begun += 1
        if not sending.in_flight and (self._round_failed or sending.begun == len(lines)):
            self._sending = None
            sending.file.settle([*sending.left, *lines[sending.begun :]])

    def _next_file(self) -> Sending | None:
        if time.monotonic() < self._next_round:
            return None
        if self._round is None:
            self._begin_round()
        file = next(self._round, None) if self._round is not None and not self._round_failed else None
        if file is None:
            self._end_round()
            return None
        return Sending(file)

    def _begin_round(self) -> None:
        self._round = self._kept.unsent()
        self._round_failed = False
        self._complained.clear()
        waiting, self._to_keep = self._to_keep, []  # the disk does not take these
        for event, safe in waiting:
            self._offer(event, safe)

    def _end_round(self) -> None:
        self._round = None
        self._next_round = time.monotonic() + self._again_s
        self._is_refusing = self._round_failed

    def _send_line(self, sending: Sending, line: bytes) -> None:
        def report(error: KafkaError | None, _record: Message) -> None:
            sending.in_flight -= 1
            if error is None:
                self._is_refusing = False
            else:
                self._refused(error)
                sending.left.append(line)

        try:
            event = event_of(line)
        except ValueError as error:
            self._complain(str(error))
            sending.left.append(line)
            return
        if self._produce(event, report):
            sending.in_flight += 1
        else:
            sending.left.append(line)


def _config(bootstrap: str, node: str, give_up_s: float) -> dict[str, Any]:
    """Return the producer's configuration: each letter is a batch, since the queue refuses batches as a whole. Without
    idempotence, which letters do not need, no error is the producer's last."""
    return {
        **producer_config(bootstrap, f"{node}-dead"),
        "enable.idempotence": False,
        "batch.num.messages": 1,
        "queue.buffering.max.messages": MAX_IN_FLIGHT,
        "delivery.timeout.ms": int(give_up_s * 1000),
        "topic.metadata.refresh.interval.ms": 10_000,  # a queue that was deleted and is back is seen by then
    }
