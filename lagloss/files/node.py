"""A step of a batch pipeline as a node: it stores files of records, or receives them from a queue and imports them.

    with FileNode("scores", "db-import", files="scores-files", queue="db-queue") as node:
        bucket, queue = node.bucket(s3), node.queue(sqs, queue_url)
        for file in queue.receive(WaitTimeSeconds=20):
            with queue.importing(file):
                rows = parse(bucket.read(file.stored)["Body"].read())
                file.received(rows.ids, rows.event_times)
                write(rows)

The clients are boto3's, made by the host, and their answers are passed on as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import numpy.typing as npt

from lagloss.broker.connection import Cluster
from lagloss.files.notifications import FileTime, StoredObject, time_in_name
from lagloss.files.queue import NodeQueue
from lagloss.sdk.buffer import Count, Processing
from lagloss.sdk.emitter import Emitter
from lagloss.sdk.packing import EventTime, epoch_ms, epoch_ms_column, list_of

MULTIPART_BYTES: Final = 8 * 1024 * 1024
"""Size above which a body is stored in parts of this size."""
FLUSH_S: Final = 5.0
Times = Iterable[EventTime] | npt.NDArray[Any]


class FileNode:
    """One process of a node that stores files, imports them, or both. It owns the emitters.

    It is the node `node` in two pipelines: of records, whose ids and event times the host reads out of its files, and
    of `files`, whose messages are versions of objects. In the latter, what can be named besides is a node of its own.

    Args:
        pipeline: the pipeline of records.
        node: this node's name, in both pipelines.
        bootstrap: Kafka's HOST:PORT,... for beacons; by default LAGLOSS_KAFKA_BOOTSTRAP.
        files: the pipeline of files; by default none is measured.
        queue: the node of that pipeline which stands for the queue before this one: its `in` is when the notification
            got into the queue, its `out` when a process of this node received it.
        deleted: the node of that pipeline behind this one, which a file reaches when all that it takes to delete its
            message is acknowledged.
        first: True at the node that stores the files: the first of the pipeline of files and, unless `emitter` says
            otherwise, of that of records.
        event_time: finds a file's event time in its key, so that all nodes take the same one; a file without is not
            measured, and counted in `skipped`.
        emitter: an existing emitter of this node in the pipeline of records, a `KafkaNode`'s for example.
        options: more options of the emitters that are made.

    Raises:
        ValueError: for malformed names, and for `queue` or `deleted` without `files` or at the first node.
    """

    def __init__(
        self,
        pipeline: str,
        node: str,
        bootstrap: Cluster | None = None,
        *,
        files: str | None = None,
        queue: str | None = None,
        deleted: str | None = None,
        first: bool = False,
        event_time: FileTime = time_in_name,
        emitter: Emitter | None = None,
        **options: Any,
    ) -> None:
        if (queue or deleted) and (files is None or first):
            raise ValueError("expected queue and deleted only together with files, and not at the first node")
        # What a queue delivered and nobody deleted is received again; what a first node was to store is not.
        options = {"resumes": not first, **options}

        def made(node: str, name: str) -> Emitter:
            return Emitter(node, name, bootstrap, first=first, **options)

        self.records = emitter or made(pipeline, node)
        self.files = made(files, node) if files else None
        self.notified = made(files, queue) if files and queue else None
        self.deleted = made(files, deleted) if files and deleted else None
        self._is_own = emitter is None
        self._event_time = event_time
        self._skipped = Count()
        self._storing: dict[tuple[str, str], list[Processing]] = {}
        self._queues: list[NodeQueue] = []

    @property
    def skipped(self) -> int:
        """Files without a usable event time so far; no beacon is sent for them, only for their records."""
        return self._skipped.read()

    @property
    def emitters(self) -> list[Emitter]:
        """The emitters of all pipelines and nodes that this process reports for."""
        return [emitter for emitter in (self.records, self.files, self.notified, self.deleted) if emitter is not None]

    def bucket(self, s3: Any, *, to: Sequence[str] = (), files_to: Sequence[str] = ()) -> NodeBucket:
        """Wrap a boto3 client of S3.

        Args:
            s3: the client.
            to: the next nodes in the pipeline of records, if there are several; each gets all that is stored.
            files_to: likewise in the pipeline of files.
        """
        return NodeBucket(self, s3, to, files_to)

    def queue(
        self, sqs: Any, url: str, *, to: str | None = None, visibility_s: int | None = None, **options: Any
    ) -> NodeQueue:
        """Wrap a boto3 client of SQS and the queue of S3's notifications at `url`; asks for the queue's attributes.

        Args:
            sqs: the client, which several threads may use.
            url: as boto3's QueueUrl.
            to: the next node, if there are several.
            visibility_s: for how long a message that was received, and is not worked on any more, is invisible; the
                same for all processes of the node. By default the queue's own.
            options: see `NodeQueue`.
        """
        queue_ = NodeQueue(self, sqs, url, to=to, visibility_s=visibility_s, **options)
        self._queues.append(queue_)
        return queue_

    # -- for buckets and queues -----------------------------------------------------------------------------------

    def file_identity(self, stored: StoredObject) -> tuple[str, float] | None:
        """Return the file's id and event time (epoch ms); None, and count it, if files are not measured or it has no
        event time. Raises nothing."""
        if self.files is None:
            return None
        try:
            event_time = self._event_time(stored.key)
            if event_time is not None:
                return stored.message_id, epoch_ms(event_time)
        except Exception:
            event_time = None
        self._skipped.add()
        return None

    def begin_work(self) -> list[Processing]:
        """Begin work in flight in both pipelines."""
        return [emitter.processing() for emitter in (self.records, self.files) if emitter is not None]

    def begin_storing(self, place: tuple[str, str]) -> bool:
        """Put an object that is to be stored in flight; False if an earlier try has."""
        if place in self._storing:
            return False
        self._storing[place] = self.begin_work()
        return True

    def end_storing(self, place: tuple[str, str]) -> None:
        """End the work in flight of an object."""
        for work in self._storing.pop(place, ()):
            work.done()

    # -- closing --------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = FLUSH_S) -> bool:
        """Stop the queues' threads, wait for the beacons of finished files, delete their messages, and close the
        emitters. Idempotent.

        While something is in flight, or a queue was never found empty, the emitters end as unfinished (see
        `Emitter.close`): what waits there is then late and not lost.

        Returns:
            False if the broker did not acknowledge a last report.
        """
        deadline = time.monotonic() + timeout_s
        finished = not self._storing
        if self._queues:
            flushed = [emitter.flush(max(0.0, deadline - time.monotonic())) for emitter in self.emitters]
            finished &= all(flushed)
        for queue in self._queues:
            queue.close(max(0.0, deadline - time.monotonic()))
            finished &= queue.progress.is_settled
        own = self.emitters if self._is_own else self.emitters[1:]
        closed = [emitter.close(finished=finished) for emitter in own]
        return all(closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NodeBucket:
    """A client of S3 that sends the beacons of what it stores; made by `FileNode.bucket`."""

    def __init__(self, node: FileNode, s3: Any, to: Sequence[str], files_to: Sequence[str]) -> None:
        self._node = node
        self._s3 = s3
        self._to: tuple[str | None, ...] = tuple(to) or (None,)
        self._files_to: tuple[str | None, ...] = tuple(files_to) or (None,)

    def put(self, message_ids: Iterable[str], event_times: Times, **request: Any) -> Mapping[str, Any]:
        """Store an object as boto3's `put_object` does, and send the beacons of its records once S3 has it.

        At the first node of the pipeline of records they come in here; at another one, the host has reported them. An
        exception of boto3's is passed on: the records stay in flight, and are late and not lost, until the same key is
        stored.

        Args:
            message_ids: of the records in the file; see `Emitter.observe_all`.
            event_times: theirs.
            request: the arguments of `put_object`. A Body of bytes above 8 MiB is stored in parts.
        """
        node, place = self._node, (request["Bucket"], request["Key"])
        ids, times, began_ms = list_of(message_ids), epoch_ms_column(event_times), time.time_ns() / 1e6
        if node.begin_storing(place) and node.records.first:
            node.records.observe_all("received", ids, times)
        answer = self._store(request)
        for to in self._to:
            node.records.observe_all("sent", ids, times, to=to)
        stored = StoredObject.of(*place, answer.get("ETag"), answer.get("VersionId"))
        file = node.file_identity(stored)
        if node.files is not None and file is not None:
            node.files.received(*file, observed_at=began_ms)
            for to in self._files_to:
                node.files.sent(*file, to=to)
        node.end_storing(place)
        return answer

    def read(self, stored: StoredObject, **request: Any) -> Mapping[str, Any]:
        """Get this version of the object, as boto3's `get_object` does.

        In a bucket without versions, one that was overwritten since is an error of boto3's (412), not another file's
        records.
        """
        version = {"VersionId": stored.version_id} if stored.version_id else {"IfMatch": f'"{stored.version}"'}
        answer: Mapping[str, Any] = self._s3.get_object(Bucket=stored.bucket, Key=stored.key, **version, **request)
        return answer

    def _store(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        body = request.get("Body", b"")
        if not isinstance(body, (bytes, bytearray, memoryview)) or len(body) <= MULTIPART_BYTES:
            answer: Mapping[str, Any] = self._s3.put_object(**request)
            return answer
        options = {name: value for name, value in request.items() if name != "Body"}
        place = {"Bucket": request["Bucket"], "Key": request["Key"]}
        upload = {**place, "UploadId": self._s3.create_multipart_upload(**options)["UploadId"]}
        try:
            parts = [
                {"PartNumber": number, "ETag": self._s3.upload_part(PartNumber=number, Body=part, **upload)["ETag"]}
                for number, part in enumerate(_parts(body), start=1)
            ]
            answer = self._s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
        except BaseException:
            self._s3.abort_multipart_upload(**upload)
            raise
        return answer


def _parts(body: bytes | bytearray | memoryview) -> list[bytes]:
    return [bytes(body[index : index + MULTIPART_BYTES]) for index in range(0, len(body), MULTIPART_BYTES)]
