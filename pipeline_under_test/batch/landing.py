"""The node `landing`: collects events into files, and stores each in S3, which notifies the importers' queues."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote_plus

from botocore.exceptions import BotoCoreError, ClientError

from lagloss.files import FileNode, StoredObject, time_in_name
from pipeline_under_test.batch.avro_files import encode, encode_receipts, metadata_of
from pipeline_under_test.batch.aws import Aws, Infrastructure
from pipeline_under_test.batch.events import ScoreEvent, ScoreMaker
from pipeline_under_test.batch.faults import NodeFaults, injections
from pipeline_under_test.batch.ledger import FactLedger
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.sources import EventSource, Position, source_of
from pipeline_under_test.batch.topology import (
    IMPORTERS,
    LANDING,
    NOTIFIED_SUFFIX,
    QUEUE_NODES,
    files_pipeline,
    hour_of,
)
from pipeline_under_test.harness.commands import StopFlag
from pipeline_under_test.harness.faults import Fault

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
AGAIN_S: Final = 1.0
"""Pause before a file that S3 did not take is stored again."""
FAULTS: Final = (
    "lose-notification",
    "duplicate-notification",
    "truncate",
    "corrupt-file",
    "unknown-schema",
    "empty",
    "enlarge",
    "overwrite",
    "late",
)
"""Faults of one file as it is stored, in the order in which they are tried."""


def landing_node(settings: BatchSettings, **options: Any) -> FileNode:
    """Return the node, in both pipelines."""
    return FileNode(settings.pipeline, LANDING, files=files_pipeline(settings.pipeline), first=True, **options)


@dataclass(slots=True)
class OpenFile:
    """Events that are not stored yet, those of one hour; `end` is how far the source was read for them."""

    hour: int
    events: list[ScoreEvent] = field(default_factory=list)
    end: Position = field(default_factory=dict)

    def is_full(self, now_ms: float, settings: BatchSettings) -> bool:
        """Return True if it is to be stored now."""
        aged = now_ms - self.events[0].event_ms >= settings.file_s * 1000
        return len(self.events) >= settings.file_records or aged or hour_of(now_ms, settings.span_s) != self.hour


class FileStore:
    """Stores files of events, with the faults that hit them."""

    def __init__(
        self,
        settings: BatchSettings,
        node: FileNode,
        aws: Aws,
        infrastructure: Infrastructure,
        ledger: FactLedger,
        maker: ScoreMaker,
        stop: StopFlag | None = None,
    ) -> None:
        self._settings = settings
        self._bucket = node.bucket(aws.s3, to=IMPORTERS, files_to=[QUEUE_NODES[importer] for importer in IMPORTERS])
        self._aws = aws
        self._infrastructure = infrastructure
        self._ledger = ledger
        self._maker = maker
        self._stop = stop or StopFlag()
        self._faults = NodeFaults(LANDING, injections(settings), settings.seed)

    def store(self, events: Sequence[ScoreEvent]) -> StoredObject | None:
        """Store a file of these events, not empty, under a fresh name; None if S3 does not take it before the end."""
        word, newest_ms = uuid.uuid4().hex[:12], max(event.event_ms for event in events)
        fault = self._faults.hit(word, *FAULTS, at_ms=newest_ms)
        events = self._changed(fault, events)
        key = _key(max(event.event_ms for event in events), word)
        if fault is not None:
            key += ".part" if fault.kind == "lose-notification" else ""
            self._ledger.write("fault", fault=fault.text, node=LANDING, key=key)
        stored = self._put(key, events, fault)
        if fault is not None and stored is not None:
            if fault.kind == "duplicate-notification":
                message = json.dumps(notification(stored))
                self._aws.sns.publish(TopicArn=self._infrastructure.topic, Message=message)
            elif fault.kind == "overwrite":
                fresh = [self._maker.make(event.event_ms) for event in events]
                return self._put(key, fresh, None)
        return stored

    def _changed(self, fault: Fault | None, events: Sequence[ScoreEvent]) -> list[ScoreEvent]:
        """Return the events as the file's fault, and those of single records, have them."""
        changed = [self._spoiled(event) for event in events]
        if fault is not None and fault.kind == "late":
            return [replace(event, event_ms=event.event_ms - int(fault.seconds * 1000)) for event in changed]
        if fault is not None and fault.kind == "enlarge":
            changed += [self._maker.make(event.event_ms) for event in events for _ in range(int(fault.number) - 1)]
        return changed

    def _spoiled(self, event: ScoreEvent) -> ScoreEvent:
        fault = self._faults.hit(event.id, "bad-record", at_ms=event.event_ms)
        return event if fault is None else replace(event, value=float("nan"))

    def _put(self, key: str, events: Sequence[ScoreEvent], fault: Fault | None) -> StoredObject | None:
        bucket, attempt = self._infrastructure.bucket, uuid.uuid4().hex
        ids, times = [event.id for event in events], [event.event_ms for event in events]
        body = encode(events, self._settings.writer_version)
        stored_body = _spoiled(body, events, fault)
        meant = stored_body if fault is not None and fault.kind == "unknown-schema" else body
        request = {"Bucket": bucket, "Key": key, "Body": stored_body, "Metadata": metadata_of(meant)}
        notified = key.endswith(NOTIFIED_SUFFIX)
        self._ledger.write("landing", attempt=attempt, key=key, ids=ids, times=times, notified=notified)
        while True:
            try:
                answer = self._bucket.put(ids, times, **request)
                break
            except (BotoCoreError, ClientError) as error:
                log.warning("cannot store %s: %s", key, error)
                if self._stop.wait(AGAIN_S):
                    return None
        stored = StoredObject.of(bucket, key, answer.get("ETag"), answer.get("VersionId"), size=len(stored_body))
        self._ledger.write("landed", attempt=attempt, file=stored.message_id, file_ms=time_in_name(key))
        return stored


class Landing:
    """Stores the events of a source, until it is stopped."""

    def __init__(self, settings: BatchSettings, store: FileStore, source: EventSource, stop: StopFlag) -> None:
        self._settings = settings
        self._store = store
        self._source = source
        self._stop = stop
        self._open: OpenFile | None = None

    def run(self) -> None:
        """Take and store events until stopped; what is left is stored then."""
        while not self._stop.wait(TICK_S):
            for event in self._source.take():
                self._take(event)
            if self._open is not None and self._open.is_full(time.time() * 1000, self._settings):
                self._close()
        if self._open is not None:
            self._close()

    def _take(self, event: ScoreEvent) -> None:
        if self._open is not None and self._open.is_full(event.event_ms, self._settings):
            self._close()
        if self._open is None:
            self._open = OpenFile(hour_of(event.event_ms, self._settings.span_s))
        self._open.events.append(event)
        self._open.end = self._source.position()

    def _close(self) -> None:
        done, self._open = self._open, None
        if done is not None and self._store.store(done.events) is not None:
            self._source.stored(done.end)


def run(settings: BatchSettings, stop: StopFlag) -> None:
    """Be the process of the node until `stop` is set."""
    aws, maker = Aws.connect(settings), ScoreMaker(settings.seed)
    with landing_node(settings) as node, settings.ledger_of(LANDING) as ledger:
        store = FileStore(settings, node, aws, Infrastructure.find(aws, settings), ledger, maker, stop)
        source = source_of(settings, maker)
        Landing(settings, store, source, stop).run()
        source.close()


def _key(newest_ms: int, word: str) -> str:
    day = datetime.fromtimestamp(newest_ms / 1000, UTC)
    return f"dt={day:%Y-%m-%d}/hour={day:%H}/{newest_ms}-{word}{NOTIFIED_SUFFIX}"


def _spoiled(body: bytes, events: Sequence[ScoreEvent], fault: Fault | None) -> bytes:
    """Return the body as a fault has it stored."""
    match fault.kind if fault is not None else None:
        case "truncate":
            return body[: len(body) * 2 // 3]
        case "corrupt-file":
            middle = len(body) // 2
            return body[:middle] + bytes([body[middle] ^ 0xFF]) + body[middle + 1 :]
        case "unknown-schema":
            return encode_receipts(event.id for event in events)
        case "empty":
            return b""
    return body


def notification(stored: StoredObject) -> dict[str, Any]:
    """Return what S3 writes when it has stored an object."""
    version = {"versionId": stored.version_id} if stored.version_id else {}
    described = {"key": quote_plus(stored.key), "size": stored.size, "eTag": stored.version, **version}
    return {
        "Records": [
            {
                "eventVersion": "2.1",
                "eventSource": "aws:s3",
                "eventTime": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": stored.bucket}, "object": described},
            }
        ]
    }
