"""FileNode against LocalStack: S3 to SNS to SQS, visibility timeouts, dead-letter queues and the way back."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import pytest

from lagloss import MemoryOutlet
from lagloss.broker.topics import BEACONS
from lagloss.files import FileNode, NodeQueue
from lagloss.wire.format import decode_block
from tests.integration.lagloss.files.conftest import VISIBILITY_S, Landing, arn
from tests.support.kafka_log import wait_for

IDS = [f"id-{at}" for at in range(300)]


def times() -> Any:
    return np.full(len(IDS), time.time_ns() // 1_000_000)


class Nodes:
    """A landing node and importers, and all of their beacons in one log."""

    def __init__(self, landing: Landing) -> None:
        self.log = MemoryOutlet()
        self.world = landing
        self.opened: list[FileNode] = []
        self.landing = self.open(FileNode("scores", "landing", files="scores-files", first=True, outlet=self.outlet))

    def outlet(self) -> MemoryOutlet:
        return self.log

    def open(self, node: FileNode) -> FileNode:
        self.opened.append(node)
        return node

    def put(self, body: bytes = b"rows", key: str | None = None) -> str:
        bucket = self.landing.bucket(self.world.s3, to=["db", "index"], files_to=["db-queue", "index-queue"])
        key = key or self.world.key()
        bucket.put(IDS, times(), Bucket=self.world.bucket, Key=key, Body=body)
        return key

    def importer(self) -> tuple[FileNode, NodeQueue]:
        node = FileNode("scores", "db", files="scores-files", queue="db-queue", deleted="db-done", outlet=self.outlet)
        return self.open(node), node.queue(self.world.sqs, self.world.queues["db"], notified_within_s=5)

    def beacons(self, replay: str | None = None) -> Counter[str]:
        """All beacons by checkpoint, or those of a replay."""
        found: Counter[str] = Counter()
        for block in map(decode_block, self.log.values(BEACONS)):
            if replay is None or block.replay == replay:
                found[f"{block.pipeline} {block.checkpoint}"] += block.count
        return found

    def close(self) -> None:
        for node in self.opened:
            node.close()


@pytest.fixture
def nodes(landing: Landing) -> Iterator[Nodes]:
    made = Nodes(landing)
    yield made
    made.close()


def work_until(nodes: Nodes, queue: NodeQueue, is_over: Callable[[], bool], *, fails: bool = False) -> list[str]:
    """Import what comes until it is over; return the bodies that were read."""
    bodies: list[str] = []

    def turn() -> bool:
        for file in queue.receive(WaitTimeSeconds=1, MaxNumberOfMessages=10):
            with suppress(OSError), queue.importing(file):
                body = nodes.landing.bucket(nodes.world.s3).read(file.stored)["Body"].read()
                file.received(IDS, times())
                bodies.append(body.decode())
                if fails:
                    raise OSError("the database is away")
        return is_over()

    wait_for(turn, timeout_s=60, what="the importer")
    return bodies


def test_a_file_goes_from_s3_to_rows_and_its_message_is_deleted(nodes: Nodes) -> None:
    key = nodes.put()
    node, queue = nodes.importer()
    url = nodes.world.queues["db"]
    bodies = work_until(nodes, queue, lambda: bool(bodies_read(nodes)) and nodes.world.counts(url) == (0, 0))
    assert bodies == ["rows"]
    assert node.skipped == 0, key
    nodes.close()
    assert nodes.beacons() == {
        "scores landing.in": 300,
        "scores landing.out:db": 300,
        "scores landing.out:index": 300,
        "scores db.in": 300,
        "scores db.out": 300,
        "scores-files landing.in": 1,
        "scores-files landing.out:db-queue": 1,
        "scores-files landing.out:index-queue": 1,
        **{f"scores-files {at}": 1 for at in ("db-queue.in", "db-queue.out", "db.in", "db.out")},
        **{f"scores-files {at}": 1 for at in ("db-done.in", "db-done.out")},
    }
    ids = {
        int(each)
        for block in map(decode_block, nodes.log.values(BEACONS))
        if block.pipeline == "scores-files"
        for each in block.id_hash
    }
    assert len(ids) == 1  # key and version are the same wherever they come from


def bodies_read(nodes: Nodes) -> int:
    return nodes.beacons()["scores-files db.out"]


def test_a_large_file_is_one_message_with_the_version_of_its_parts(nodes: Nodes) -> None:
    nodes.put(bytes(9 * 1024 * 1024))
    _, queue = nodes.importer()
    work_until(nodes, queue, lambda: bodies_read(nodes) > 0)
    nodes.close()
    ids = {
        int(each)
        for block in map(decode_block, nodes.log.values(BEACONS))
        if block.pipeline == "scores-files"
        for each in block.id_hash
    }
    assert len(ids) == 1


def test_a_visibility_timeout_that_runs_out_gives_the_file_to_another_and_both_say_so(nodes: Nodes) -> None:
    nodes.put()
    _, slow = nodes.importer()
    received: list[Any] = []
    wait_for(lambda: received.extend(slow.receive(WaitTimeSeconds=1)) or bool(received), what="the file")  # type: ignore[func-returns-value]
    slow._ended.set()  # it hangs: nobody keeps the message invisible
    time.sleep(VISIBILITY_S + 1.5)
    _, other = nodes.importer()
    work_until(nodes, other, lambda: bodies_read(nodes) > 0)
    with slow.importing(received[0]) as file:
        file.received(IDS, times())
    nodes.close()
    assert nodes.beacons()["scores db.out"] == 600
    assert nodes.beacons()["scores-files db.in"] == 2


def test_a_message_in_hand_is_kept_invisible_for_longer_than_its_timeout(nodes: Nodes) -> None:
    nodes.put()
    _, queue = nodes.importer()
    received: list[Any] = []
    wait_for(lambda: received.extend(queue.receive(WaitTimeSeconds=1)) or bool(received), what="the file")  # type: ignore[func-returns-value]
    _, other = nodes.importer()
    deadline = time.monotonic() + 3 * VISIBILITY_S
    while time.monotonic() < deadline:
        assert other.receive(WaitTimeSeconds=1) == []
    with queue.importing(received[0]):
        pass
    assert received[0].receive_count == 1


def test_a_poison_file_is_dead_after_two_tries_blocks_no_other_and_comes_back_by_the_move_task(nodes: Nodes) -> None:
    poison = nodes.put(b"poison")
    _, queue = nodes.importer()
    work_until(nodes, queue, lambda: nodes.world.counts(nodes.world.dead["db"])[0] == 1, fails=True)
    nodes.put(b"good")
    assert "good" in work_until(nodes, queue, lambda: bodies_read(nodes) == 1)
    assert queue.dead_letters(nodes.world.dead["db"]) == 1, poison
    time.sleep(6)  # the look made it invisible
    sqs = nodes.world.sqs
    sqs.start_message_move_task(SourceArn=arn(sqs, nodes.world.dead["db"]))
    assert "poison" in work_until(nodes, queue, lambda: bodies_read(nodes) == 2)
    nodes.close()
    assert nodes.beacons()["scores db.dead"] == 300
    assert nodes.beacons()["scores-files db.dead"] == 2  # the importer's, and of who looked into the queue
    assert nodes.beacons()["scores-files db.out"] == 2
    assert nodes.beacons("redrive") == {
        **{f"scores db.{place}": 300 for place in ("in", "out")},
        **{f"scores-files {at}": 1 for at in ("db-queue.in", "db-queue.out", "db.in", "db.out")},
        **{f"scores-files {at}": 1 for at in ("db-done.in", "db-done.out")},
    }


def test_a_notification_that_is_sent_again_names_its_replay(nodes: Nodes) -> None:
    nodes.put()
    _, queue = nodes.importer()
    url, sqs = nodes.world.queues["db"], nodes.world.sqs
    received: list[Any] = []
    wait_for(lambda: received.extend(queue.receive(WaitTimeSeconds=1)) or bool(received), what="the file")  # type: ignore[func-returns-value]
    with queue.importing(received[0]) as file:
        file.received(IDS, times())
    stored = file.stored
    record = {
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": stored.bucket}, "object": {"key": quote_plus(stored.key), "eTag": stored.version}},
    }
    attribute = {"DataType": "String", "StringValue": "june"}
    sqs.send_message(
        QueueUrl=url, MessageBody=json.dumps({"Records": [record]}), MessageAttributes={"lagloss-replay": attribute}
    )
    work_until(nodes, queue, lambda: bodies_read(nodes) == 2)
    nodes.close()
    assert nodes.beacons("june")["scores db.out"] == nodes.beacons("june")["scores db.in"] == 300
    assert nodes.beacons("june")["scores-files db-queue.in"] == 1


def test_an_overwritten_object_is_never_read_as_its_predecessor(nodes: Nodes) -> None:
    key = nodes.put(b"first")
    nodes.put(b"second", key)
    _, queue = nodes.importer()
    refused = 0

    def turn() -> bool:
        nonlocal refused
        for file in queue.receive(WaitTimeSeconds=1, MaxNumberOfMessages=10):
            with suppress(nodes.world.s3.exceptions.ClientError), queue.importing(file):
                try:
                    body = nodes.landing.bucket(nodes.world.s3).read(file.stored)["Body"].read()
                except nodes.world.s3.exceptions.ClientError:
                    refused += 1
                    raise
                assert body == b"second"
        return refused >= 2 and bodies_read(nodes) == 1

    wait_for(turn, timeout_s=60, what="both notifications")


def test_an_empty_queue_is_proven_empty_by_a_long_poll_and_then_the_node_closes(nodes: Nodes) -> None:
    nodes.put()
    node, queue = nodes.importer()
    work_until(nodes, queue, lambda: bodies_read(nodes) > 0 and nodes.world.counts(nodes.world.queues["db"]) == (0, 0))
    wait_for(lambda: queue.receive(WaitTimeSeconds=1) == [] and queue.progress.is_settled, what="an empty queue")
    node.close()
    assert node.records.close()
