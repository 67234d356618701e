"""Importing files with `FileNode` beside the same import by boto3 alone: 1 M records in 3,000 files, each file by both
ways in turns, by one process, from LocalStack into PostgreSQL."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text

from benchmarks.database import fresh_servers
from benchmarks.figures import Figure
from benchmarks.timing import Stopwatch
from lagloss.files import StoredObject, objects_in
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from pipeline_under_test.batch.avro_files import decode, encode
from pipeline_under_test.batch.aws import EMULATED, Aws, Infrastructure, create
from pipeline_under_test.batch.events import ScoreMaker
from pipeline_under_test.batch.importer import importer_node
from pipeline_under_test.batch.landing import notification
from pipeline_under_test.batch.schema import create_tables, open_database
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.sinks import EventTable
from pipeline_under_test.batch.topology import DB_IMPORT

FILES: Final = 3_000
RECORDS: Final = 334
TURNS: Final = 3
"""How often each way imports its share of the files."""
AT_ONCE: Final = 10
ASKED: Final = 0.8


@dataclass
class Bench:
    """Servers, and the files in S3."""

    settings: BatchSettings
    aws: Aws
    infrastructure: Infrastructure
    sink: EventTable
    bootstrap: str
    stored: Sequence[StoredObject]

    @property
    def url(self) -> str:
        return self.infrastructure.queues[DB_IMPORT]

    def fill(self, share: slice) -> int:
        """Put the notifications of some files into the queue; return their number."""
        bodies = [json.dumps(notification(stored)) for stored in self.stored[share]]
        for index in range(0, len(bodies), AT_ONCE):
            entries = [
                {"Id": str(id_), "MessageBody": body} for id_, body in enumerate(bodies[index : index + AT_ONCE])
            ]
            self.aws.sqs.send_message_batch(QueueUrl=self.url, Entries=entries)
        return len(bodies)


def run() -> list[Figure]:
    """Print and return records per second of both ways."""
    ways: Mapping[str, Callable[[Bench, int], None]] = {"boto3 alone": import_bare, "FileNode": import_measured}
    spent = {name: list[Stopwatch]() for name in ways}
    with _servers() as bench:
        size = FILES // TURNS
        for turn in range(TURNS):
            for name, way in ways.items():
                spent[name].append(_timed(bench, slice(turn * size, (turn + 1) * size), way))
    print(f"{FILES:,} files of {RECORDS} records, each way in {TURNS} turns; records/s, and µs of CPU a record")
    rates = {}
    records = size * RECORDS
    for name, turns in spent.items():
        rates[name] = TURNS * records / sum(turn.wall_s for turn in turns)
        by_turn = " ".join(f"{records / turn.wall_s:,.0f}" for turn in turns)
        cpu_us = 1e6 * sum(turn.own_s for turn in turns) / (TURNS * records)
        print(f"{name:14}{rates[name]:10,.0f}   ({by_turn}){cpu_us:8.1f}")
    print(f"with beacons: {rates['FileNode'] / rates['boto3 alone']:.0%} of the bare rate; asked for: {ASKED:.0%}")
    bare = rates["boto3 alone"]
    return [
        Figure("files imported", rates["FileNode"], "records/s", ASKED * bare, bare, "boto3 alone", more_is_better=True)
    ]


def import_bare(bench: Bench, files: int) -> None:
    """Import so many files without lagloss."""
    while files:
        request = {"WaitTimeSeconds": 1, "MaxNumberOfMessages": AT_ONCE}
        messages = bench.aws.sqs.receive_message(QueueUrl=bench.url, **request).get("Messages", [])
        for message in messages:
            for stored in objects_in(message["Body"]):
                body = bench.aws.s3.get_object(Bucket=stored.bucket, Key=stored.key)["Body"].read()
                bench.sink.write(decode(body))
        if messages:
            entries: list[dict[str, Any]] = [
                {"Id": str(index), "ReceiptHandle": message["ReceiptHandle"]} for index, message in enumerate(messages)
            ]
            bench.aws.sqs.delete_message_batch(QueueUrl=bench.url, Entries=entries)
        files -= len(messages)


def import_measured(bench: Bench, files: int) -> None:
    """Import so many files with a beacon for each record and file; all of them acknowledged at the end."""
    with importer_node(bench.settings, DB_IMPORT, bootstrap=bench.bootstrap) as node:
        bucket, queue = node.bucket(bench.aws.s3), node.queue(bench.aws.sqs, bench.url)
        while files:
            for file in queue.receive(WaitTimeSeconds=1, MaxNumberOfMessages=AT_ONCE):
                with queue.importing(file):
                    events = decode(bucket.read(file.stored)["Body"].read())
                    file.received([event.id for event in events], [event.event_ms for event in events])
                    bench.sink.write(events)
                files -= 1
        for emitter in node.emitters:
            emitter.flush(60)


def _timed(bench: Bench, share: slice, way: Callable[[Bench, int], None]) -> Stopwatch:
    files = bench.fill(share)
    with Stopwatch() as spent:
        way(bench, files)
    engine = open_database(bench.settings.database_url)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE event"))
    engine.dispose()
    return spent


@contextmanager
def _servers() -> Iterator[Bench]:
    with fresh_servers() as servers, EmbeddedLocalStack(servers.folder / "localstack") as localstack:
        settings = BatchSettings(
            data_dir=servers.folder,
            s3_endpoint=localstack.url,
            database_url=servers.postgres.create_database("scores"),
        )
        aws = Aws.connect(settings, **EMULATED)
        infrastructure = create(aws, settings)
        engine = open_database(settings.database_url)
        create_tables(engine)
        stored = [_stored(aws, infrastructure.bucket, number) for number in range(FILES)]
        yield Bench(settings, aws, infrastructure, EventTable(engine, 3600), servers.kafka.bootstrap, stored)
        engine.dispose()


def _stored(aws: Aws, bucket: str, number: int) -> StoredObject:
    """Store a file under a name that S3 sends no notification of: `fill` does."""
    maker, now_ms = ScoreMaker(number), time.time_ns() // 1_000_000
    body, key = encode(maker.make(now_ms) for _ in range(RECORDS)), f"bench/{now_ms}-{number}"
    answer = aws.s3.put_object(Bucket=bucket, Key=key, Body=body)
    return StoredObject.of(bucket, key, answer["ETag"], None, size=len(body))
