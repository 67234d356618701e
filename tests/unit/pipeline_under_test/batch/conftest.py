"""Landing and one importer of the batch pipeline, with S3, SNS, SQS and the sink in memory."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from lagloss import MemoryOutlet
from lagloss.broker.topics import BEACONS
from lagloss.wire.format import decode_block
from pipeline_under_test.batch.aws import Aws, Infrastructure
from pipeline_under_test.batch.events import ScoreEvent, ScoreMaker
from pipeline_under_test.batch.faults import injections, parse
from pipeline_under_test.batch.importer import Importer, importer_node
from pipeline_under_test.batch.landing import FileStore, landing_node
from pipeline_under_test.batch.ledger import Fact, read_ledger
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import BUCKET, DB_IMPORT, INDEX_IMPORT, NOTIFIED_SUFFIX
from pipeline_under_test.batch.truth import BatchTruth, FileFlow
from tests.fakes.aws import FakeBucket, FakeQueue, notification

URLS = {name: f"http://queues/1/scores-{name}" for name in (DB_IMPORT, INDEX_IMPORT)}
INFRASTRUCTURE = Infrastructure(BUCKET, "topic", URLS, {name: f"{url}-dlq" for name, url in URLS.items()})


class ListSink:
    """Rows by id; refuses while `failing`."""

    def __init__(self) -> None:
        self.rows: dict[str, ScoreEvent] = {}
        self.failing = False

    def write(self, events: Sequence[ScoreEvent], replay: str | None = None) -> None:
        if self.failing:
            raise ConnectionError("the database is away")
        self.rows |= {event.id: event for event in events}


class ImporterInMemory:
    """An importer, its queue and its sink."""

    def __init__(self, name: str, world: World) -> None:
        self.queue = FakeQueue(time.time_ns() // 1_000_000)
        self.queue.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))  # type: ignore[attr-defined]
        self.aws = Aws(world.bucket, None, self.queue)
        self.sink = ListSink()
        self.node = importer_node(world.settings, name, outlet=lambda: world.log)
        self.importer = Importer(world.settings, name, self.node, self.aws, INFRASTRUCTURE, self.sink, world.ledger)

    def import_all(self) -> None:
        """Import until nothing is visible any more, whatever is in hand having become visible again."""
        while self.queue.messages:
            self.importer.step()
            for _ in range(2):  # what is imported, then that it may be deleted
                for emitter in self.node.emitters:
                    emitter.flush()
                self.importer.queue.settle()
            self.queue.now_ms += 61_000

    def redrive(self) -> None:
        letters = list(self.queue.dead)
        self.queue.dead.clear()
        for letter in letters:
            self.queue.send(letter.body)
        self.import_all()


class World:
    """All parts, with these importers; `queue`, `sink`, `node` and `importer` are those of the first."""

    def __init__(
        self, folder: Path, importers: Sequence[str] = (DB_IMPORT,), log: MemoryOutlet | None = None, **options: object
    ) -> None:
        self.settings = BatchSettings.model_validate({"data_dir": folder, **options})
        self.log = log or MemoryOutlet()
        self.bucket = FakeBucket(notify=self._notify)
        self.published: list[str] = []
        self.maker = ScoreMaker(1)
        self.landing = landing_node(self.settings, outlet=lambda: self.log)
        self.ledger = self.settings.ledger_of("test")
        aws = Aws(self.bucket, SimpleNamespace(publish=self._publish), None)
        self.store = FileStore(self.settings, self.landing, aws, INFRASTRUCTURE, self.ledger, self.maker)
        self.importers = [ImporterInMemory(name, self) for name in importers]
        first = self.importers[0]
        self.aws, self.queue, self.sink, self.node = first.aws, first.queue, first.sink, first.node
        self.importer = first.importer

    def _notify(self, key: str, tag: str) -> None:
        """Send what the pipeline's filter lets through to the importers' queues."""
        if key.endswith(NOTIFIED_SUFFIX):
            message = notification(key, tag=tag)
            message["Records"][0]["s3"]["bucket"]["name"] = BUCKET
            self._send(json.dumps(message))

    def _publish(self, *, TopicArn: str, Message: str) -> None:  # noqa: N803 (boto3's names)
        self.published.append(Message)
        self._send(Message)

    def _send(self, message: str) -> None:
        for importer in self.importers:
            importer.queue.send(message)

    def events(self, number: int = 5) -> list[ScoreEvent]:
        now_ms = time.time_ns() // 1_000_000
        return [self.maker.make(now_ms) for _ in range(number)]

    def inject(self, *faults: str) -> None:
        injections(self.settings).begin_anew(map(parse, faults))

    def import_all(self) -> None:
        for importer in self.importers:
            importer.import_all()

    def facts(self, *kinds: str) -> list[Fact]:
        return [fact for fact in read_ledger(self.settings.ledger_dir) if fact["kind"] in kinds]

    def truth(self) -> BatchTruth:
        return BatchTruth.of_records(FileFlow.of(read_ledger(self.settings.ledger_dir)))

    def outcomes(self) -> Counter[str]:
        """Records by what the ledger says became of them, over all windows."""
        found: Counter[str] = Counter()
        for window in self.truth().windows.values():
            found.update({outcome: len(ids) for outcome, ids in window.outcomes().items() if ids})
            found.update({place: len(ids) for place, ids in window.lost_at.items()})
        return found

    def beacons(self) -> Counter[str]:
        for emitter in (*self.landing.emitters, *self.node.emitters):
            emitter.flush()
        found: Counter[str] = Counter()
        for block in map(decode_block, self.log.values(BEACONS)):
            found[f"{block.pipeline} {block.checkpoint}"] += block.count
        return found

    def close(self) -> None:
        self.landing.close()
        for importer in self.importers:
            importer.node.close()
        self.ledger.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("pipeline_under_test.harness.faults.LOOK_EVERY_S", 0.0)
    made = World(tmp_path)
    yield made
    made.close()
