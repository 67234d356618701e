"""The queue of a node: receives notifications of files, and deletes those whose files are accounted for."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy.typing as npt

from lagloss.files.notifications import BadNotification, StoredObject, objects_in, replay_in_envelope
from lagloss.files.progress import Held, QueueLanes, QueueProgress, slack_ms, steady_ms
from lagloss.identity import REPLAY_HEADER, replay_in
from lagloss.sdk.buffer import Count
from lagloss.sdk.emitter import Emitter
from lagloss.sdk.packing import EventTime, epoch_ms_column, list_of

if TYPE_CHECKING:
    from lagloss.files.node import FileNode

log = logging.getLogger("lagloss")

TURN_S: Final = 0.5
"""Interval at which finished messages are deleted, and those in flight looked after."""
NOTIFIED_WITHIN_S: Final = 900.0
"""S3 says that it may take longer than a minute to notify; SNS repeats what a queue did not take."""
DELETED_AT_ONCE: Final = 10
"""As SQS allows."""
LAST_TRY_FLUSH_S: Final = 5.0
"""Longest wait of a host for Kafka, in the last try that a message has."""
DEAD: Final = "maxReceiveCount"
"""The reason of a file that is found in a dead-letter queue."""
REDRIVE: Final = "redrive"
"""The name of the replay that a message from the dead-letter queue is part of, if none is named."""
_ATTRIBUTES: Final = [
    "VisibilityTimeout",
    "DelaySeconds",
    "ReceiveMessageWaitTimeSeconds",
    "RedrivePolicy",
    "QueueArn",
]
_DEAD_FROM: Final = "DeadLetterQueueSourceArn"
"""Of a message that was in a dead-letter queue: the queue that it came from. Senders cannot set it."""

_OF_QUEUE: Final = {"VisibilityTimeout": "visibility_s", "QueueUrl": "url"}
"""Arguments of `receive_message` that hold for all of a queue's messages, by the parameter that sets them."""


_Marks = list[tuple[Emitter, int]]
"""What has to be acknowledged before a message goes on."""


@dataclass(slots=True, eq=False)
class _Message:
    """A message of the queue, in flight until all of its files are over: `unfinished` are left, and one `failed`."""

    id: str
    receipt: str
    held: Held
    sent_at_ms: int
    receive_count: int
    replay: str | None
    files: list[QueuedFile] = field(default_factory=list)
    unfinished: int = 0
    failed: bool = False


@dataclass(slots=True, eq=False)
class QueuedFile:
    """A file that a message of the queue names.

    `stored`: the object. `identity`: its id and event time in the pipeline of files; None if it is not measured there.
    """

    stored: StoredObject
    message: _Message
    identity: tuple[str, float] | None
    _node: FileNode
    _records: list[tuple[list[str], npt.NDArray[Any]]] = field(default_factory=list)
    _rejected: set[str] = field(default_factory=set)

    @property
    def receive_count(self) -> int:
        """How often the message was received, as the queue says: 1 at the first try."""
        return self.message.receive_count

    @property
    def replay(self) -> str | None:
        """The name of the replay that the message is part of; None for live traffic. Hand it on."""
        return self.message.replay

    def received(self, message_ids: Iterable[str], event_times: Iterable[EventTime] | npt.NDArray[Any]) -> None:
        """Report that these records were read; see `Emitter.observe_all`. They are out when the file is imported."""
        ids, times = list_of(message_ids), epoch_ms_column(event_times)
        self._node.records.observe_all("received", ids, times, replay=self.replay)
        self._records.append((ids, times))

    def filtered(
        self, message_ids: Iterable[str], event_times: Iterable[EventTime] | npt.NDArray[Any], reason: str
    ) -> None:
        """Report that these records of the file are dropped on purpose."""
        self._reject("filtered", message_ids, event_times, reason)

    def dead_lettered(
        self, message_ids: Iterable[str], event_times: Iterable[EventTime] | npt.NDArray[Any], reason: str
    ) -> None:
        """Report that these records of the file were put in a dead-letter queue."""
        self._reject("dead_lettered", message_ids, event_times, reason)

    def _reject(
        self,
        kind: Literal["filtered", "dead_lettered"],
        message_ids: Iterable[str],
        event_times: Iterable[EventTime] | npt.NDArray[Any],
        reason: str,
    ) -> None:
        ids = list_of(message_ids)
        self._node.records.observe_all(kind, ids, event_times, reason=reason, replay=self.replay)
        self._rejected.update(ids)

    def exit(
        self,
        kind: Literal["sent", "dead_lettered"],
        to: str | None = None,
        reason: str | None = None,
        *,
        records: bool = True,
    ) -> None:
        """Report where the file's records have gone, but those that were rejected; and the file itself. `records`:
        False if a tap reports where they have gone."""
        node = self._node
        for ids, times in self._records if records else ():
            if self._rejected:
                rows = [row for row, message_id in enumerate(ids) if message_id not in self._rejected]
                ids, times = [ids[row] for row in rows], times[rows]
            node.records.observe_all(kind, ids, times, to=to, reason=reason, replay=self.replay)
        self._records.clear()  # the message may wait for long until it can be deleted
        if node.files is None or self.identity is None:
            return
        if kind == "dead_lettered":
            node.files.dead_lettered(*self.identity, reason or DEAD, replay=self.replay)
        else:
            node.files.sent(*self.identity, replay=self.replay)


class NodeQueue:
    """A client of SQS that sends the beacons of the files it receives; made by `FileNode.queue`.

    A message is deleted once all of its files are imported and their beacons are acknowledged, those of the node
    `deleted` included, by a thread of the queue's own, which also keeps messages invisible while they are worked on. So
    a crash makes duplicates, never holes.

    Args:
        notified_within_s: longest time from an object's landing until its notification is in the queue. Until then a
            file that is missing is late; after it, once the queue has been found empty, lost.
        reports_out: False if a tap reports the records that are out, such as that of the table that they are written
            to; else they would count twice. Files are reported all the same.
    """

    def __init__(
        self,
        node: FileNode,
        sqs: Any,
        url: str,
        *,
        to: str | None = None,
        visibility_s: int | None = None,
        notified_within_s: float = NOTIFIED_WITHIN_S,
        reports_out: bool = True,
    ) -> None:
        self._node = node
        self._sqs = sqs
        self._url = url
        self._to = to
        self._reports_out = reports_out
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=_ATTRIBUTES).get("Attributes", {})
        self._visibility_s = visibility_s or int(attributes.get("VisibilityTimeout", 30))
        self._wait_s = int(attributes.get("ReceiveMessageWaitTimeSeconds", 0))
        self._arn = attributes.get("QueueArn")
        redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
        self._max_receives = int(redrive["maxReceiveCount"]) if "maxReceiveCount" in redrive else None
        on_its_way_s = notified_within_s + int(attributes.get("DelaySeconds", 0))
        slack = slack_ms(on_its_way_s, self._visibility_s, self._max_receives)
        self.progress = QueueProgress(url.rpartition("/")[2], slack, self._visibility_s * 1000)
        for emitter in (node.records, node.files, node.notified):
            if emitter is not None:
                emitter.follow(QueueLanes(self.progress, f"{emitter.node}.in"))
        if node.deleted is not None:
            node.deleted.follow(QueueLanes(self.progress, f"{node.deleted.node}.in", until_deleted=True))
        self._unreadable = Count()
        self._in_flight: dict[Held, _Message] = {}
        self._imported: deque[tuple[_Marks, _Message]] = deque()
        self._deletable: deque[tuple[_Marks, _Message]] = deque()
        self._deleting = threading.Lock()
        self._dead: set[str] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_error: str | None = None

    @property
    def unreadable(self) -> int:
        """Messages so far that are no notification of S3. They are left in the queue, whose redrive policy takes them
        away."""
        return self._unreadable.read()

    # -- receiving ------------------------------------------------------------------------------------------------

    def receive(self, **request: Any) -> list[QueuedFile]:
        """Receive messages as boto3's `receive_message` does, and return the files that they name.

        Ask with WaitTimeSeconds: only an empty answer to a long poll proves that nothing waits. Messages that name no
        file (`s3:TestEvent`) are deleted.

        Raises:
            ValueError: the request names its own VisibilityTimeout or QueueUrl, with which the proofs would not hold.
        """
        for name, parameter in _OF_QUEUE.items():
            if name in request:
                raise ValueError(
                    f"receive() got {name}={request[name]!r}, expected none: "
                    f"all messages of a queue have the same; pass {parameter} to FileNode.queue"
                )
        self._start()
        asked_ms = steady_ms()
        answer = self._receive(self._url, {"VisibilityTimeout": self._visibility_s, **request})
        if not answer and request.get("WaitTimeSeconds", self._wait_s) > 0:
            self.progress.emptied(asked_ms)
        return [file for message in answer for file in self._taken(message)]

    def _receive(self, url: str, request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        names = {
            "MessageSystemAttributeNames": {"SentTimestamp", "ApproximateReceiveCount", _DEAD_FROM},
            "MessageAttributeNames": {REPLAY_HEADER},
        }
        merged = {name: sorted(own.union(request.get(name, ()))) for name, own in names.items()}
        answer = self._sqs.receive_message(**{"QueueUrl": url, **request, **merged})
        messages: list[Mapping[str, Any]] = answer.get("Messages", [])
        return messages

    def _taken(self, raw: Mapping[str, Any]) -> list[QueuedFile]:
        """Hold a message, and report its files as notified and received."""
        received_ms = time.time_ns() // 1_000_000
        try:
            stored = objects_in(raw["Body"])
        except BadNotification as error:
            self._unreadable.add()
            self._note(error)
            return []
        attributes = raw.get("Attributes", {})
        queue_message = Held(
            min((stored_file.stored_at_ms or 0 for stored_file in stored), default=received_ms),
            steady_ms() + self._visibility_s * 1000,
            self._node.begin_work(),
        )
        message = _Message(
            raw["MessageId"],
            raw["ReceiptHandle"],
            queue_message,
            int(attributes.get("SentTimestamp", received_ms)),
            int(attributes.get("ApproximateReceiveCount", 1)),
            self._replay_of(raw),
            unfinished=len(stored),
        )
        self.progress.hold(message.id, queue_message)
        self._in_flight[queue_message] = message
        message.files = [
            QueuedFile(stored_file, message, self._node.file_identity(stored_file), self._node)
            for stored_file in stored
        ]
        for file in message.files:
            self._report_received(file)
        if not stored:
            self._finish(message)
        return message.files

    def _replay_of(self, raw: Mapping[str, Any]) -> str | None:
        """Return the replay that a message of the queue is part of: the one that it names, or a redrive if it has been
        in the queue's dead-letter queue, which nothing but a redrive brings back."""
        named = _named_replay(raw)
        is_back = self._arn is not None and raw.get("Attributes", {}).get(_DEAD_FROM) == self._arn
        return REDRIVE if named is None and is_back else named

    def _report_received(self, file: QueuedFile) -> None:
        notified, identity, replay = self._node.notified, file.identity, file.replay
        if identity is None or self._node.files is None:
            return
        if notified is not None:
            with notified.processing():
                notified.received(*identity, observed_at=file.message.sent_at_ms, replay=replay)
                notified.sent(*identity, replay=replay)
        self._node.files.received(*identity, replay=replay)

    # -- importing ------------------------------------------------------------------------------------------------

    @contextmanager
    def importing(self, file: QueuedFile) -> Iterator[QueuedFile]:
        """Import a file: at the end of the block its records are in the sink, and its message may be deleted.

        If the block raises, nothing is out, and the queue delivers the message again once it is visible: the file is
        late, not lost. At the last try that the queue's redrive policy allows, the file is dead, with the exception's
        name as the reason; and so are those of its records that were taken in.
        """
        try:
            yield file
        except BaseException as error:
            self.fail(file, type(error).__name__)
            raise
        self.delete(file)

    def delete(self, file: QueuedFile) -> None:
        """Report the file and its records as imported, and delete its message once this is acknowledged: what the end
        of `importing` does."""
        if self._is_last_try(file.message):
            # A kill from here on takes the message to the dead-letter queue: it will not come again for its last stage.
            for emitter, _ in self._report_deleted(file):
                emitter.flush(LAST_TRY_FLUSH_S)
        file.exit("sent", self._to, records=self._reports_out)
        self._over(file.message)

    def fail(self, file: QueuedFile, reason: str) -> None:
        """Leave the file to the message's next delivery, or report it as dead: what `importing` does when its block
        raises."""
        message = file.message
        message.failed = True
        if self._is_last_try(message):
            file.exit("dead_lettered", reason=reason)
        self._over(message)

    def _is_last_try(self, message: _Message) -> bool:
        return self._max_receives is not None and message.receive_count >= self._max_receives

    def _over(self, message: _Message) -> None:
        """Count one of the message's files as over, and end the message with the last of them."""
        message.unfinished -= 1
        if message.unfinished > 0:
            return
        if not message.failed:
            self._finish(message)
            return
        self._in_flight.pop(message.held, None)
        if self._is_last_try(message):
            self.progress.drop(message.id, message.held)
        else:
            self.progress.give_up(message.held)

    def dead_letters(self, url: str, **request: Any) -> int:
        """Report the files in a dead-letter queue as dead, each once per process, and leave them there.

        Finds those whose last importer was killed: it had no time to say so. Records are not known here. Each look
        makes what it finds invisible for a moment (5 s unless VisibilityTimeout is given), and ends with the first
        answer that holds nothing new.

        Returns:
            The number of files reported.
        """
        reported = 0
        request = {"MaxNumberOfMessages": 10, "VisibilityTimeout": 5, **request}
        while fresh := sum(map(self._report_dead, self._receive(url, request))):
            reported += fresh
        return reported

    def _report_dead(self, raw: Mapping[str, Any]) -> int:
        """Report the files that a message in the dead-letter queue names; return how many were not reported yet."""
        try:
            identities = [self._node.file_identity(stored_file) for stored_file in objects_in(raw["Body"])]
        except BadNotification as error:
            self._note(error)
            return 0
        fresh = [identity for identity in identities if identity is not None and identity[0] not in self._dead]
        for message_id, event_ms in fresh:
            self._dead.add(message_id)
            if self._node.files is not None:
                self._node.files.dead_lettered(message_id, event_ms, DEAD, replay=_named_replay(raw))
        return len(fresh)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _finish(self, message: _Message) -> None:
        message.held.is_imported = True
        message.held.release()
        confirming = (self._node.records, self._node.files, self._node.notified)
        self._imported.append(
            ([(queued_file, queued_file.mark()) for queued_file in confirming if queued_file is not None], message)
        )

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lagloss-queue", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(TURN_S):
            self.settle()
            self._extend()

    def settle(self) -> None:
        """Report the messages whose imports are acknowledged as deleted, and delete them once this is, too. Raises
        nothing."""
        with self._deleting:
            for message in _acknowledged(self._imported):
                is_reported = self._is_last_try(message)
                marks = [] if is_reported else [mark for file in message.files for mark in self._report_deleted(file)]
                self._deletable.append((marks, message))
            ready = list(_acknowledged(self._deletable))
            for index in range(0, len(ready), DELETED_AT_ONCE):
                self._delete(ready[index : index + DELETED_AT_ONCE])

    def _report_deleted(self, file: QueuedFile) -> _Marks:
        """Report the last stage of a file, before it is so: a process that dies in between is no hole then."""
        deleted = self._node.deleted
        if deleted is None or file.identity is None:
            return []
        with deleted.processing():
            deleted.received(*file.identity, replay=file.replay)
            deleted.sent(*file.identity, replay=file.replay)
        deleted.request_flush()
        return [(deleted, deleted.mark())]

    def _delete(self, ready: list[_Message]) -> None:
        entries = [{"Id": str(index), "ReceiptHandle": message.receipt} for index, message in enumerate(ready)]
        try:
            answer = self._sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)
            deleted = {int(entry["Id"]) for entry in answer.get("Successful", [])}
        except Exception as error:
            self._note(error)
            deleted = set()
        for index, message in enumerate(ready):
            self._in_flight.pop(message.held, None)
            if index not in deleted:  # it comes again, and is imported again
                self.progress.give_up(message.held)
                continue
            self.progress.drop(message.id, message.held)

    def _extend(self) -> None:
        """Keep the messages that are worked on invisible: from two thirds of the time on, for the whole time again."""
        now_ms = steady_ms()
        for _, queue_message in self.progress.working():
            message = self._in_flight.get(queue_message)
            if message is None or queue_message.visible_at_ms - now_ms > self._visibility_s * 1000 / 3:
                continue
            try:
                self._sqs.change_message_visibility(
                    QueueUrl=self._url, ReceiptHandle=message.receipt, VisibilityTimeout=self._visibility_s
                )
                queue_message.visible_at_ms = steady_ms() + self._visibility_s * 1000
            except Exception as error:
                self._note(error)

    def _note(self, error: Exception) -> None:
        """Keep the error for `last_error`, and log it if it differs from the last one."""
        text = f"{type(error).__name__}: {error}"
        if text != self.last_error:
            log.warning("lagloss: %s: %s", self.progress.queue, text)
        self.last_error = text

    def close(self, timeout_s: float) -> None:
        """Stop the thread, and delete what is finished, waiting so long for beacons. The host's client stays open."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(TURN_S + 1)
        self.settle()
        if self._deletable and self._node.deleted is not None:
            self._node.deleted.flush(timeout_s)
            self.settle()


def _named_replay(raw: Mapping[str, Any]) -> str | None:
    """Return the replay that a message names, by its own attribute or by SNS's; None if it names none."""
    attribute = raw.get("MessageAttributes", {}).get(REPLAY_HEADER)
    if attribute is None:
        return replay_in_envelope(raw["Body"])
    value = attribute.get("BinaryValue") or attribute.get("StringValue") or b""
    return replay_in(value.encode(errors="replace") if isinstance(value, str) else value)


def _acknowledged(waiting: deque[tuple[_Marks, _Message]]) -> Iterator[_Message]:
    """Take the messages off the head of `waiting` whose beacons are acknowledged."""
    while waiting and all(emitter.acknowledged(mark) for emitter, mark in waiting[0][0]):
        yield waiting.popleft()[1]
