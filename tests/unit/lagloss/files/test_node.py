"""A node of files without servers: its beacons, and how far it says that the queue has been received."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.files import FileNode, NodeQueue
from lagloss.files.progress import CLOCKS_MS, SETTLED_MS, Held, QueueProgress
from lagloss.wire.format import EmitterReport, Progress, decode_block, decode_report, hash_id
from tests.fakes.aws import FakeBucket, FakeQueue, etag, event_bridge_event, notification

NOW_MS = time.time_ns() // 1_000_000
STORED = datetime.fromtimestamp(NOW_MS // 1000, UTC).isoformat()
KEY = f"dt=1/{NOW_MS}-a.avro"
URL = "http://queues/1/db-queue"
DLQ = f"{URL}-dlq"
VISIBILITY_MS = 60_000
IDS, TIMES = ["a", "b", "c"], np.array([NOW_MS, NOW_MS, NOW_MS])


def beacons(log: MemoryOutlet) -> Counter[str]:
    """Beacons by checkpoint, behind the pipeline's name."""
    found: Counter[str] = Counter()
    for block in map(decode_block, log.values(BEACONS)):
        found[f"{block.pipeline} {block.checkpoint}"] += block.count
    return found


def reasons(log: MemoryOutlet) -> set[tuple[str, str | None]]:
    found = map(decode_block, log.values(BEACONS))
    return {(block.checkpoint, block.reason) for block in found if block.reason is not None}


def newest(log: MemoryOutlet) -> dict[tuple[str, str], EmitterReport]:
    return {(report.pipeline, report.node): report for report in map(decode_report, log.values(REPORTS))}


@pytest.fixture
def log() -> MemoryOutlet:
    return MemoryOutlet()


@pytest.fixture
def node(log: MemoryOutlet) -> Iterator[FileNode]:
    with FileNode(
        "scores", "db", files="scores-files", queue="db-queue", deleted="db-done", outlet=lambda: log
    ) as made:
        yield made


@pytest.fixture
def sqs() -> FakeQueue:
    found = FakeQueue(NOW_MS)
    found.send(json.dumps(notification(KEY, at=STORED)))
    return found


def import_all(queue: NodeQueue, *, fails: bool = False) -> int:
    files = queue.receive(WaitTimeSeconds=20, MaxNumberOfMessages=10)
    for file in files:
        with suppress(OSError), queue.importing(file):
            file.received(IDS, TIMES)
            if fails:
                raise OSError("the database is away")
    return len(files)


def settle(node: FileNode, queue: NodeQueue) -> None:
    """Have all that is imported deleted: its beacons acknowledged, then those of the last stage."""
    for _ in range(2):
        assert all(each.flush() for each in node.emitters)
        queue.settle()


# -- landing --------------------------------------------------------------------------------------------------------


def test_a_file_that_is_stored_sends_its_records_and_itself_to_every_next_node(log: MemoryOutlet) -> None:
    s3 = FakeBucket()
    with FileNode("scores", "landing", files="scores-files", first=True, outlet=lambda: log) as node:
        bucket = node.bucket(s3, to=["db", "index"], files_to=["db-queue", "index-queue"])
        bucket.put(IDS, TIMES, Bucket="raw", Key=KEY, Body=b"rows")
    assert s3.objects == {KEY: b"rows"}
    assert beacons(log) == {
        "scores landing.in": 3,
        "scores landing.out:db": 3,
        "scores landing.out:index": 3,
        "scores-files landing.in": 1,
        "scores-files landing.out:db-queue": 1,
        "scores-files landing.out:index-queue": 1,
    }
    ids = {int(block.id_hash[0]) for block in map(decode_block, log.values(BEACONS)) if "files" in block.pipeline}
    assert ids == {hash_id(f"raw/{KEY}@{etag(b'rows')}")}
    assert all(report.closed and not report.unfinished for report in newest(log).values())


def test_a_file_that_could_not_be_stored_is_in_hand_until_it_is_and_comes_in_once(log: MemoryOutlet) -> None:
    s3 = FakeBucket(failures=1)
    node = FileNode("scores", "landing", files="scores-files", first=True, outlet=lambda: log)
    with pytest.raises(ConnectionError):
        node.bucket(s3).put(IDS, TIMES, Bucket="raw", Key=KEY, Body=b"rows")
    assert node.records._beacons.in_flight_since() is not None
    node.bucket(s3).put(IDS, TIMES, Bucket="raw", Key=KEY, Body=b"rows")
    assert node.records._beacons.in_flight_since() is None
    assert node.close()
    assert beacons(log)["scores landing.in"] == beacons(log)["scores landing.out"] == 3


def test_a_node_that_ends_with_a_file_not_stored_is_unfinished(log: MemoryOutlet) -> None:
    node = FileNode("scores", "landing", first=True, outlet=lambda: log)
    with pytest.raises(ConnectionError):
        node.bucket(FakeBucket(failures=1)).put(IDS, TIMES, Bucket="raw", Key=KEY, Body=b"rows")
    node.close()
    assert [report.unfinished for report in newest(log).values()] == [True]


def test_a_large_file_is_stored_in_parts(log: MemoryOutlet) -> None:
    s3, body = FakeBucket(), bytes(20 * 1024 * 1024)
    with FileNode("scores", "landing", files="scores-files", first=True, outlet=lambda: log) as node:
        answer = node.bucket(s3).put(IDS, TIMES, Bucket="raw", Key=KEY, Body=body)
        s3.failures = 1
        with pytest.raises(ConnectionError):
            node.bucket(s3).put(IDS, TIMES, Bucket="raw", Key="other", Body=body)
    assert answer["VersionId"] == "v7"
    assert list(map(len, s3.parts)) == [8 << 20, 8 << 20, 4 << 20]
    assert s3.aborted == 1


def test_a_node_behind_a_kafka_consumer_only_reports_records_as_stored(log: MemoryOutlet) -> None:
    emitter = Emitter("scores", "landing", outlet=lambda: log)
    with FileNode("scores", "landing", files="scores-files", first=True, emitter=emitter, outlet=lambda: log) as node:
        node.bucket(FakeBucket()).put(IDS, TIMES, Bucket="raw", Key=KEY, Body=b"rows")
    assert emitter.close()
    assert beacons(log)["scores landing.in"] == 0
    assert beacons(log)["scores landing.out"] == 3


# -- importing ------------------------------------------------------------------------------------------------------


def test_an_imported_file_is_notified_received_imported_and_deleted(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue
) -> None:
    queue = node.queue(sqs, URL)
    assert import_all(queue) == 1
    assert sqs.deleted == []  # not before its beacons are acknowledged
    node.close()
    assert sqs.deleted == ["m0"]
    assert beacons(log) == {
        "scores db.in": 3,
        "scores db.out": 3,
        **{f"scores-files {at}": 1 for at in ("db-queue.in", "db-queue.out", "db.in", "db.out")},
        **{f"scores-files {at}": 1 for at in ("db-done.in", "db-done.out")},
    }


def test_nothing_is_deleted_while_beacons_are_not_acknowledged(
    node: FileNode, sqs: FakeQueue, log: MemoryOutlet
) -> None:
    queue = node.queue(sqs, URL)
    assert node.records.flush()
    log.down = True
    import_all(queue)
    queue.settle()
    assert sqs.deleted == []
    log.down = False
    settle(node, queue)
    assert sqs.deleted == ["m0"]


def test_a_file_has_reached_its_last_stage_before_its_message_is_deleted(
    node: FileNode, sqs: FakeQueue, log: MemoryOutlet
) -> None:
    queue = node.queue(sqs, URL)
    import_all(queue)
    assert all(each.flush() for each in node.emitters)
    log.down = True
    queue.settle()
    assert sqs.deleted == []  # killed now, the file comes again
    log.down = False
    settle(node, queue)
    assert sqs.deleted == ["m0"]
    assert beacons(log)["scores-files db-done.in"] == 1


def test_a_file_imported_at_its_last_try_is_at_its_last_stage_before_it_is_out(
    node: FileNode, sqs: FakeQueue, log: MemoryOutlet
) -> None:
    queue = node.queue(sqs, URL)
    sqs.receive_message(QueueUrl=URL, VisibilityTimeout=1)
    sqs.now_ms += 2_000
    assert import_all(queue) == 1
    # killed now, the message ends in the dead-letter queue, and its file is not missing behind its import
    assert beacons(log)["scores-files db-done.out"] == 1
    node.close()
    assert sqs.deleted == ["m0"]
    assert beacons(log)["scores-files db-done.out"] == beacons(log)["scores-files db.out"] == 1


def test_a_try_that_fails_leaves_the_file_in_hand_and_the_last_one_is_dead_with_its_reason(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue
) -> None:
    queue = node.queue(sqs, URL)
    import_all(queue, fails=True)
    assert node.records._beacons.in_flight_since() is not None
    assert not queue.progress.is_settled
    sqs.now_ms += 31_000
    import_all(queue, fails=True)
    assert node.records._beacons.in_flight_since() is None
    node.close()
    assert sqs.deleted == []
    assert reasons(log) == {("db.dead", "OSError")}
    assert beacons(log) == {
        "scores db.in": 6,
        "scores db.dead": 3,
        **{f"scores-files {at}": 2 for at in ("db-queue.in", "db-queue.out", "db.in")},
        "scores-files db.dead": 1,
    }


def test_records_that_are_rejected_are_not_out(log: MemoryOutlet, node: FileNode, sqs: FakeQueue) -> None:
    queue = node.queue(sqs, URL)
    (file,) = queue.receive(WaitTimeSeconds=1)
    with queue.importing(file):
        file.received(IDS, TIMES)
        file.filtered(["a"], TIMES[:1], "robot")
    node.close()
    assert beacons(log)["scores db.out"] == 2
    assert beacons(log)["scores db.filtered"] == 1


def test_records_whose_table_is_tapped_are_not_reported_as_out_and_their_file_is(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue
) -> None:
    queue = node.queue(sqs, URL, reports_out=False)
    import_all(queue)
    settle(node, queue)
    counts = beacons(log)
    assert (counts["scores db.in"], counts["scores db.out"], counts["scores-files db.out"]) == (3, 0, 1)
    assert sqs.deleted


def test_a_message_of_several_files_is_deleted_with_the_last_of_them(node: FileNode) -> None:
    sqs = FakeQueue(NOW_MS)
    sqs.send(json.dumps(notification(KEY, f"dt=1/{NOW_MS}-b.avro")))
    queue = node.queue(sqs, URL)
    first, second = queue.receive(WaitTimeSeconds=1)
    for file, expected in ((first, []), (second, ["m0"])):
        with queue.importing(file):
            pass
        settle(node, queue)
        assert sqs.deleted == expected


def test_a_test_event_is_deleted_and_what_is_no_notification_is_left_to_the_redrive_policy(node: FileNode) -> None:
    sqs = FakeQueue(NOW_MS)
    sqs.send(json.dumps({"Event": "s3:TestEvent"}))
    sqs.send("hello")
    queue = node.queue(sqs, URL)
    assert queue.receive(WaitTimeSeconds=1, MaxNumberOfMessages=10) == []
    settle(node, queue)
    assert sqs.deleted == ["m0"]
    assert queue.unreadable == 1
    for _ in range(2):
        sqs.now_ms += 31_000
        queue.receive(WaitTimeSeconds=1)
    assert [message.body for message in sqs.dead] == ["hello"]


def test_a_queue_may_have_notifications_of_every_form_and_others_stop_none(node: FileNode) -> None:
    sqs = FakeQueue(NOW_MS)
    keys = [f"dt=1/{NOW_MS}-{letter}+ä.avro" for letter in "abcd"]
    for content in (
        notification(keys[0], at=STORED),
        {"Type": "Notification", "Message": json.dumps(notification(keys[1], at=STORED))},
        {"bucket": "raw", "key": "a transformer's own"},
        event_bridge_event(keys[2]),
        event_bridge_event(keys[2], "Object Deleted"),
        {"Type": "Notification", "Message": json.dumps(event_bridge_event(keys[3]))},
    ):
        sqs.send(json.dumps(content))
    queue = node.queue(sqs, URL)
    files = queue.receive(WaitTimeSeconds=1, MaxNumberOfMessages=10)
    assert [file.stored.key for file in files] == keys
    for file in files:
        with queue.importing(file):
            pass
    settle(node, queue)
    assert sorted(sqs.deleted) == ["m0", "m1", "m3", "m4", "m5"]
    assert queue.unreadable == 1
    assert "expected an S3 notification" in (queue.last_error or "")


def test_a_file_whose_last_importer_was_killed_is_found_in_the_dead_letter_queue(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue
) -> None:
    queue = node.queue(sqs, URL)
    for _ in range(3):  # received twice by somebody else, and moved by the third look
        sqs.receive_message(QueueUrl=URL, VisibilityTimeout=1)
        sqs.now_ms += 2_000
    assert queue.dead_letters(DLQ) == 1
    sqs.now_ms += 10_000
    assert queue.dead_letters(DLQ) == 0
    node.close()
    assert reasons(log) == {("db.dead", "maxReceiveCount")}


def test_a_file_without_an_event_time_is_skipped_and_its_records_are_not(log: MemoryOutlet, node: FileNode) -> None:
    sqs = FakeQueue(NOW_MS)
    sqs.send(json.dumps(notification("a.avro")))
    import_all(node.queue(sqs, URL))
    assert node.skipped == 1
    node.close()
    assert beacons(log) == {"scores db.in": 3, "scores db.out": 3}


def test_messages_in_hand_are_kept_invisible_and_others_are_not(node: FileNode, sqs: FakeQueue) -> None:
    queue = node.queue(sqs, URL, visibility_s=1)
    (file,) = queue.receive(WaitTimeSeconds=1)
    deadline = time.monotonic() + 10
    while not sqs.extended and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sqs.extended[0] == ("m0", 1)
    with suppress(OSError), queue.importing(file):
        raise OSError
    before = len(sqs.extended)
    queue._extend()
    assert len(sqs.extended) == before


def test_a_message_that_could_not_be_deleted_comes_again(node: FileNode, sqs: FakeQueue) -> None:
    queue = node.queue(sqs, URL)
    sqs.failing = True
    import_all(queue)
    settle(node, queue)
    assert not queue.progress.is_settled
    sqs.failing = False
    sqs.now_ms += 31_000
    import_all(queue)
    settle(node, queue)
    assert sqs.deleted == ["m0"]


def test_an_object_that_was_overwritten_is_not_read_in_its_place(node: FileNode, sqs: FakeQueue) -> None:
    s3 = FakeBucket({KEY: b"new"})
    (file,) = node.queue(sqs, URL).receive(WaitTimeSeconds=1)
    with pytest.raises(ValueError, match="412"):
        node.bucket(s3).read(file.stored)


# -- progress -------------------------------------------------------------------------------------------------------


def lanes(progress: QueueProgress, **options: bool) -> dict[str, int]:
    return {lane.lane: lane.until for lane in progress.lanes("db.in", **options)}


@dataclass
class Clock:
    """A clock that is never set, and how far the host's is ahead of it."""

    steady_ms: int = NOW_MS
    ahead_ms: int = 0


def progress_of(slack_ms: int, clock: Clock | None = None) -> QueueProgress:
    by = clock or Clock()
    return QueueProgress("q", slack_ms, VISIBILITY_MS, lambda: by.steady_ms + by.ahead_ms, lambda: by.steady_ms)


def test_nothing_is_claimed_before_a_long_poll_came_back_empty_and_then_up_to_its_slack() -> None:
    progress = progress_of(60_000)
    assert lanes(progress) == {"": 0}
    progress.emptied(NOW_MS)
    assert lanes(progress) == {"": NOW_MS - 60_000, "q": NOW_MS - 60_000}
    progress.emptied(NOW_MS - 1)
    assert lanes(progress)["q"] == NOW_MS - 60_000


@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 600_000), st.integers(-600_000, 600_000), st.booleans()))
)
def test_whatever_the_hosts_clock_no_more_is_claimed_than_the_last_empty_poll_proves(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    """By the clock as it is now; in the second time of a step the machine sleeps. If it slept since the poll, a clock
    that is set back afterwards shows less of that."""
    clock, slept_ms, asked = Clock(), 0, None
    progress = progress_of(60_000, clock)
    for passed_ms, sleeps_ms, ahead_ms, is_empty in steps:
        clock.steady_ms += passed_ms
        slept_ms += sleeps_ms
        clock.ahead_ms = ahead_ms + slept_ms
        if is_empty:
            asked = clock.steady_ms + slept_ms, clock.steady_ms + clock.ahead_ms, slept_ms
            progress.emptied(clock.steady_ms)
        if asked is None:
            assert lanes(progress) == {"": 0}
            continue
        true_ms, by_host_ms, slept_before_ms = asked
        claimed = lanes(progress)["q"]
        assert claimed <= min(true_ms + ahead_ms, by_host_ms) - 60_000 + slept_ms - slept_before_ms
        assert claimed <= by_host_ms - 60_000
        if not slept_ms:
            assert claimed == min(true_ms + ahead_ms, by_host_ms) - 60_000


def test_a_message_in_hand_holds_its_own_process_back_and_not_the_shared_lane() -> None:
    progress = progress_of(1_000)
    held = Held(NOW_MS - 500_000, NOW_MS)
    progress.hold("m", held)
    progress.emptied(NOW_MS)
    assert lanes(progress) == {"": NOW_MS - 500_000 - CLOCKS_MS, "q": NOW_MS - 1_000}
    held.is_imported = True
    assert lanes(progress) == {"": NOW_MS - 1_000, "q": NOW_MS - 1_000}
    assert lanes(progress, until_deleted=True)[""] == NOW_MS - 500_000 - CLOCKS_MS
    progress.drop("m", held)
    assert lanes(progress, until_deleted=True)[""] == NOW_MS - 1_000
    assert progress.is_settled


def test_a_message_that_was_given_up_is_held_until_it_was_visible_twice_and_is_reported() -> None:
    clock = Clock()
    progress = progress_of(1_000, clock)
    held = Held(0, NOW_MS + 60_000)
    progress.hold("m", held)
    progress.give_up(held)
    for wait_ms in (60_000, VISIBILITY_MS + 20_000, SETTLED_MS + 20_000):
        for passed_ms in (wait_ms - 1, 1):
            assert lanes(progress)[""] == 0
            asked_ms = clock.steady_ms = clock.steady_ms + passed_ms
            clock.steady_ms += 20_000 * (passed_ms == 1)  # of the poll
            progress.emptied(asked_ms)
            clock.steady_ms = asked_ms
    assert lanes(progress)[""] > 0


def test_a_message_received_again_is_in_hand_anew() -> None:
    progress = progress_of(1_000)
    before, after = Held(0, NOW_MS), Held(0, NOW_MS + 30_000)
    progress.hold("m", before)
    progress.hold("m", after)
    progress.drop("m", before)  # by a worker that took too long
    assert not progress.is_settled
    assert progress.working() == [("m", after)]


def test_a_short_poll_proves_nothing(node: FileNode) -> None:
    queue = node.queue(FakeQueue(NOW_MS), URL)
    queue.receive()
    assert lanes(queue.progress) == {"": 0}
    queue.receive(WaitTimeSeconds=1)
    assert lanes(queue.progress)["db-queue"] > 0


@pytest.mark.parametrize(
    ("argument", "parameter"), [({"VisibilityTimeout": 600}, "visibility_s"), ({"QueueUrl": DLQ}, "url")]
)
def test_a_request_cannot_differ_from_what_the_proofs_take_for_granted(
    node: FileNode, sqs: FakeQueue, argument: dict[str, Any], parameter: str
) -> None:
    with pytest.raises(ValueError, match=parameter):
        node.queue(sqs, URL).receive(WaitTimeSeconds=1, **argument)
    assert sqs.messages[0].received == 0


def test_a_request_for_other_attributes_leaves_the_last_try_known(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue
) -> None:
    sqs.messages[0].received = 1
    queue = node.queue(sqs, URL)
    [file] = queue.receive(WaitTimeSeconds=1, MessageSystemAttributeNames=["SenderId"])
    queue.fail(file, "poison")
    assert node.files is not None
    assert node.files.flush()
    assert ("db.dead", "poison") in reasons(log)


def test_a_node_that_never_found_its_queue_empty_is_unfinished(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue
) -> None:
    import_all(node.queue(sqs, URL))
    node.close()
    assert {report.unfinished for report in newest(log).values()} == {True}


def test_a_node_that_found_its_queue_empty_closes_and_its_lanes_are_reported(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue
) -> None:
    queue = node.queue(sqs, URL, notified_within_s=60)
    import_all(queue)
    settle(node, queue)
    before_ms = time.time_ns() // 1_000_000
    import_all(queue)
    node.close()
    reports = newest(log)
    assert {(report.closed, report.unfinished) for report in reports.values()} == {(True, False)}
    for pipeline, name in [("scores", "db"), ("scores-files", "db"), ("scores-files", "db-queue")]:
        shared = [lane for lane in reports[pipeline, name].progress if lane.lane == "db-queue"]
        assert [lane.checkpoint for lane in shared] == [f"{name}.in"]
        assert before_ms - 65_001 <= shared[0].until <= before_ms - 60_000
        assert Progress(f"{name}.in", "", shared[0].until) in reports[pipeline, name].progress


# -- replays ----------------------------------------------------------------------------------------------------------


def replayed(log: MemoryOutlet) -> dict[str | None, Counter[str]]:
    """Return the beacons by replay and by checkpoint, behind the pipeline's name."""
    found: dict[str | None, Counter[str]] = {}
    for block in map(decode_block, log.values(BEACONS)):
        found.setdefault(block.replay, Counter())[f"{block.pipeline} {block.checkpoint}"] += block.count
    return found


STAGES = {
    "scores db.in": 3,
    "scores db.out": 3,
    "scores-files db-queue.in": 1,
    "scores-files db-queue.out": 1,
    "scores-files db.in": 1,
    "scores-files db.out": 1,
    "scores-files db-done.in": 1,
    "scores-files db-done.out": 1,
}


@pytest.mark.parametrize(
    ("attribute", "replay"),
    [
        ({"DataType": "String", "StringValue": "june"}, "june"),
        ({"DataType": "Binary", "BinaryValue": b"june"}, "june"),
        ({"DataType": "Binary", "BinaryValue": b"\xff"}, "\ufffd"),
        ({"DataType": "String", "StringValue": "x" * 501}, "unnamed"),
        ({"DataType": "String", "StringValue": ""}, "unnamed"),
    ],
)
def test_a_message_names_the_replay_of_its_files_and_their_records(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue, attribute: dict[str, Any], replay: str
) -> None:
    sqs.messages[0].attributes = {"lagloss-replay": attribute, "other": {"DataType": "String", "StringValue": "x"}}
    queue = node.queue(sqs, URL)
    [file] = queue.receive(WaitTimeSeconds=20, MessageAttributeNames=["other"])
    assert file.replay == replay
    with queue.importing(file):
        file.received(IDS, TIMES)
    settle(node, queue)
    assert replayed(log) == {replay: STAGES}


@pytest.mark.parametrize(
    ("attribute", "replay"),
    [
        ({"Type": "String", "Value": "june"}, "june"),
        ({"Type": "Binary", "Value": "anVuZQ=="}, "june"),
        ({"Type": "Binary", "Value": "no base64"}, "no base64"),
        ({"Type": "String", "Value": None}, "unnamed"),
        ("odd", "unnamed"),
        (None, None),
    ],
)
def test_the_envelope_of_sns_names_it_too(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue, attribute: Any, replay: str | None
) -> None:
    body = {"Type": "Notification", "Message": sqs.messages[0].body, "MessageAttributes": {"lagloss-replay": attribute}}
    sqs.messages[0].body = json.dumps(body)
    queue = node.queue(sqs, URL)
    assert import_all(queue) == 1
    settle(node, queue)
    assert replayed(log) == {replay: STAGES}


def test_what_comes_back_from_the_dead_letter_queue_is_a_replay(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue
) -> None:
    queue = node.queue(sqs, URL)
    for _ in range(3):
        import_all(queue, fails=True)
        sqs.now_ms += 60_000
    assert len(sqs.dead) == 1
    assert queue.dead_letters(DLQ) == 1
    sqs.redrive()
    assert import_all(queue) == 1
    settle(node, queue)
    found = replayed(log)
    assert found["redrive"] == STAGES
    assert found[None]["scores-files db.in"] == 2
    assert found[None]["scores-files db.dead"] == 2


def test_a_message_that_died_in_another_queue_is_live_in_this_one(
    log: MemoryOutlet, node: FileNode, sqs: FakeQueue
) -> None:
    sqs.messages[0].system["DeadLetterQueueSourceArn"] = "arn:aws:sqs:eu-central-1:1:another"
    queue = node.queue(sqs, URL)
    assert import_all(queue) == 1
    settle(node, queue)
    assert replayed(log) == {None: STAGES}


def test_a_replay_that_fails_for_good_is_dead_in_its_replay(log: MemoryOutlet, node: FileNode, sqs: FakeQueue) -> None:
    sqs.messages[0].attributes = {"lagloss-replay": {"DataType": "String", "StringValue": "june"}}
    queue = node.queue(sqs, URL)
    for _ in range(3):
        import_all(queue, fails=True)
        sqs.now_ms += 60_000
    assert queue.dead_letters(DLQ) == 1
    settle(node, queue)
    [(replay, found)] = replayed(log).items()
    assert (replay, found["scores-files db.dead"], found["scores db.dead"]) == ("june", 2, 3)
