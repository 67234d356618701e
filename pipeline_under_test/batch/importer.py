"""An importer: one process of a node that receives notifications of files, and writes their records to its sink."""

from __future__ import annotations

import logging
import os
import signal
import time
import zlib
from collections.abc import Sequence
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from lagloss.files import FileNode, QueuedFile, StoredObject
from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.processes import start
from pipeline_under_test.batch.avro_files import OverwrittenFile, check, decode
from pipeline_under_test.batch.aws import Aws, Infrastructure
from pipeline_under_test.batch.events import ScoreEvent
from pipeline_under_test.batch.faults import NodeFaults, injections
from pipeline_under_test.batch.ledger import FactLedger
from pipeline_under_test.batch.schema import open_database
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.sinks import Sink, sink_of
from pipeline_under_test.batch.topology import DONE_NODES, QUEUE_NODES, files_pipeline
from pipeline_under_test.harness.beat import Beat
from pipeline_under_test.harness.commands import StopFlag

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""Pause after a poll that failed."""
SLACK_S: Final = 3.0
"""How much longer than the visibility timeout a process stands still for a double write."""
SETTLE_S: Final = 60.0
"""Wait for a busy broker before a kill: beacons that it takes along would be losses that no fault has injected."""


class SinkRefused(RuntimeError):
    """The sink rejects the file (fault `fail`)."""


def importer_node(settings: BatchSettings, importer: str, **options: Any) -> FileNode:
    """Return the node, in both pipelines."""
    return FileNode(
        settings.pipeline,
        importer,
        files=files_pipeline(settings.pipeline),
        queue=QUEUE_NODES[importer],
        deleted=DONE_NODES[importer],
        **options,
    )


class Importer:
    """Receives files and imports them, one after the other.

    A file that cannot be imported is left to the queue, whose redrive policy takes it away; it stops no other. A record
    that cannot be imported is dead, and the rest of its file is imported.
    """

    def __init__(
        self,
        settings: BatchSettings,
        importer: str,
        node: FileNode,
        aws: Aws,
        infrastructure: Infrastructure,
        sink: Sink,
        ledger: FactLedger,
    ) -> None:
        self._settings = settings
        self._name = importer
        self._node = node
        self._bucket = node.bucket(aws.s3)
        self.queue = node.queue(
            aws.sqs,
            infrastructure.queues[importer],
            visibility_s=settings.visibility_s,
            notified_within_s=settings.notified_within_s,
            reports_out=not settings.tables,
        )
        self._sink = sink
        self._ledger = ledger
        self._faults = NodeFaults(importer, injections(settings), settings.seed)
        self._beat = Beat(settings.beats_dir)
        aws.sqs.meta.events.register("before-send.sqs", self._reach)

    def step(self) -> int:
        """Poll the queue once, and import what came; return the number of files. Raises what boto3 raises."""
        self._beat.step()
        files = self.queue.receive(WaitTimeSeconds=self._settings.poll_s, MaxNumberOfMessages=self._settings.batch)
        for file in files:
            tries = file.receive_count
            self._ledger.write("received", node=self._name, file=file.stored.message_id, tries=tries)
        fresh = all(file.receive_count == 1 for file in files)
        for file in files:
            self._beat.step()
            try:
                with self.queue.importing(file):
                    self._import(file, fresh=fresh)
            except Exception as error:
                log.warning("cannot import %s: %s", file.stored.key, error)
        return len(files)

    def close(self) -> None:
        self._beat.close()

    def _import(self, file: QueuedFile, *, fresh: bool) -> None:
        """Import a file; `fresh`: no message in hand was received before, so one more delivery is left to each."""
        name, is_taken_in, is_writing = file.stored.message_id, False, False
        try:
            events = self._read(file)
            file.received([event.id for event in events], [event.event_ms for event in events])
            is_taken_in = True
            bad = _reject(file, events)
            if fresh:
                self._meet(file, "kill-before")
                self._meet(file, "double-write")
            self._resist(file)
            good = [event for event in events if event.problem is None]
            dropped = {event.id for event in good if self._faults.hit(event.id, "drop", at_ms=event.event_ms)}
            self._ledger.write("writing", node=self._name, file=name, rejected=bad, dropped=sorted(dropped))
            is_writing = True
            self._sink.write([event for event in good if event.id not in dropped], file.replay)
        except Exception as error:
            self._ledger.write(
                "failed",
                node=self._name,
                file=name,
                reason=type(error).__name__,
                taken_in=is_taken_in,
                wrote=is_writing,
                last=file.receive_count >= self._settings.max_receives,
            )
            raise
        if fresh:
            self._meet(file, "kill-after")

    def _read(self, file: QueuedFile) -> list[ScoreEvent]:
        answer = self._bucket.read(file.stored)
        body = answer["Body"].read()
        # LocalStack compares the version before it opens the object, which may be overwritten in between.
        if StoredObject.of("", "", answer.get("ETag"), answer.get("VersionId")).version != file.stored.version:
            raise OverwrittenFile(answer.get("ETag"))
        check(body, answer.get("Metadata", {}))
        return decode(body, self._settings.reader_version)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _meet(self, file: QueuedFile, kind: Any) -> None:
        """Kill or stop this process if a fault says so."""
        fault = self._faults.hit(file.stored.message_id, kind)
        if fault is None:
            return
        self._ledger.write("fault", fault=fault.text, node=self._name, file=file.stored.message_id)
        self._settle()
        if kind == "double-write":
            stand_still(self._settings.visibility_s + SLACK_S)
        else:
            self._ledger.write(
                "failed",
                node=self._name,
                file=file.stored.message_id,
                reason=kind,
                taken_in=True,
                wrote=False,
                last=False,
            )
            os.kill(os.getpid(), signal.SIGKILL)

    def _settle(self) -> None:
        """Have the beacons so far acknowledged, and what is imported deleted: what of it a kill takes along, the ledger
        could not say."""
        for _ in range(2):
            for emitter in self._node.emitters:
                emitter.flush(SETTLE_S)
            self.queue.settle()

    def _resist(self, file: QueuedFile) -> None:
        """Let the sink be slow, or refuse, if a fault says so."""
        name = file.stored.message_id
        if slow := self._faults.hit(name, "wait"):
            time.sleep(slow.seconds)
        if refusal := self._faults.hit(name, "fail"):
            self._ledger.write("fault", fault=refusal.text, node=self._name, file=name)
            raise SinkRefused(refusal.text)

    def _reach(self, request: Any, **_: Any) -> None:
        """Refuse a request to the queue while a fault says so; called by boto3 before it sends one."""
        if self._faults.hit(self._name, "queue-away"):
            raise EndpointConnectionError(endpoint_url=request.url)


def _reject(file: QueuedFile, events: Sequence[ScoreEvent]) -> list[str]:
    """Report the records that cannot be imported as dead; return their ids."""
    rejected = []
    for problem in sorted({event.problem for event in events if event.problem is not None}):
        bad = [event for event in events if event.problem == problem]
        file.dead_lettered([event.id for event in bad], [event.event_ms for event in bad], f"bad {problem}")
        rejected += [event.id for event in bad]
    return rejected


def stand_still(seconds: float) -> None:
    """Stop this process with all of its threads, as where its machine hangs; it goes on after so long."""
    with start(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"], environment=foreign_environment):
        os.kill(os.getpid(), signal.SIGSTOP)


class DeadLetterWatch:
    """Reports the files in the dead-letter queue, from one process of the node: that which has the advisory lock."""

    def __init__(self, settings: BatchSettings, importer: str, engine: Engine) -> None:
        self._every_s = settings.dead_letters_s
        self._key = zlib.crc32(f"{settings.pipeline}/{importer}".encode())
        self._engine = engine
        self._connection: Connection | None = None
        self._next = 0.0

    def is_due(self) -> bool:
        """Return True if it is time to look, and this process is the one."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._every_s
        try:
            if self._connection is None:
                self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            query = text("SELECT pg_try_advisory_lock(:key)")
            return bool(self._connection.execute(query, {"key": self._key}).scalar())
        except SQLAlchemyError as error:
            log.warning("no advisory lock: %s", error)
            self.close()
            return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None


def run(settings: BatchSettings, importer: str, stop: StopFlag) -> None:
    """Be a process of an importer until `stop` is set; what is in hand then is finished."""
    aws, engine = Aws.connect(settings), open_database(settings.database_url)
    infrastructure = Infrastructure.find(aws, settings)
    watch = DeadLetterWatch(settings, importer, engine)
    with importer_node(settings, importer) as node, settings.ledger_of(importer) as ledger:
        importer_ = Importer(settings, importer, node, aws, infrastructure, sink_of(importer, engine, settings), ledger)
        while not stop.is_set():
            try:
                importer_.step()
                if watch.is_due():
                    importer_.queue.dead_letters(infrastructure.dead[importer])
            except (BotoCoreError, ClientError) as error:
                log.warning("cannot read the queue of %s: %s", importer, error)
                stop.wait(AGAIN_S)
        importer_.close()
    watch.close()
    engine.dispose()
