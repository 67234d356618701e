"""Repairs of files: ids, notifications, objects that are gone, and what a kill leaves, with AWS in memory."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from hypothesis import given
from hypothesis import strategies as st

from lagloss.files.notifications import StoredObject, objects_in
from lagloss.wire.format import hash_id
from lagloss_server.base.errors import AwsUnreachable, Boto3Missing
from lagloss_server.model.message_ids import escape_id
from lagloss_server.repair.ledger import RepairPlan, RepairRequest, StoredRepair
from lagloss_server.repair.lost import LostId
from lagloss_server.repair.plan import FilePosition, PlannedMessage, batches, order
from lagloss_server.repair.queue import FileVersion, QueueTransport
from lagloss_server.repair.transport import NothingSent

STANDARD = "https://sqs.eu-central-1.amazonaws.com/1/import"
FIFO = "http://127.0.0.1:4566/000000000000/import.fifo"
STORED_AT = datetime(2026, 11, 24, 16, 0, 5, tzinfo=UTC)
ETAG = "9a0364b9e99bb480dd25e1f0284c8555"
REQUEST = RepairRequest("scores-files", "link landing->db-queue", 60, 120, with_perhaps=False)


def refused(status: int) -> ClientError:
    answer: Any = {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Request")


@dataclass
class Aws:
    """S3 and SQS. `objects`: the newest version of each, with its ETag; `versions`: all others; `bad_versions`: what S3
    says of a version id that is not of the bucket."""

    objects: dict[tuple[str, str], tuple[str, str | None]] = field(default_factory=dict)
    versions: set[tuple[str, str, str]] = field(default_factory=set)
    bad_version: int = 404
    sent: list[dict[str, Any]] = field(default_factory=list)
    failing: list[Exception] = field(default_factory=list)
    failing_ids: dict[str, str] = field(default_factory=dict)
    made: list[tuple[str, str | None]] = field(default_factory=list)
    meta: Any = field(default_factory=lambda: SimpleNamespace(region_name="us-east-1"))

    def client(self, service: str, region: str | None) -> Any:
        self.made.append((service, region))
        return self

    def close(self) -> None: ...

    def head_object(self, *, Bucket: str, Key: str, VersionId: str | None = None) -> Mapping[str, Any]:  # noqa: N803
        common = {"ContentLength": 7, "LastModified": STORED_AT}
        if VersionId is not None:
            if (Bucket, Key, VersionId) in self.versions:
                return {**common, "ETag": f'"{ETAG}"', "VersionId": VersionId}
            raise refused(self.bad_version)
        if (Bucket, Key) not in self.objects:
            raise refused(403 if Bucket == "closed" else 404)
        etag, version = self.objects[Bucket, Key]
        return {**common, "ETag": f'"{etag}"', **({"VersionId": version} if version else {})}

    def get_queue_attributes(self, **_: Any) -> Mapping[str, Any]:
        return {"Attributes": {}}

    def send_message_batch(self, *, QueueUrl: str, Entries: Sequence[dict[str, Any]]) -> Mapping[str, Any]:  # noqa: N803
        assert 0 < len(Entries) <= 10
        if self.failing:
            raise self.failing.pop(0)
        dropped = {entry["MessageDeduplicationId"] for entry in self.sent if "MessageDeduplicationId" in entry}
        for entry in Entries:
            if entry["Id"] not in self.failing_ids and entry.get("MessageDeduplicationId") not in dropped:
                self.sent.append(entry)
        failed = {entry["Id"] for entry in Entries} & self.failing_ids.keys()
        return {"Failed": [{"Id": name, "Code": self.failing_ids[name], "SenderFault": False} for name in failed]}


def lost(name: str) -> LostId:
    return LostId(60, hash_id(name), escape_id(name), "lost", 0.0)


def stored_repair(url: str, position: int = 0) -> StoredRepair:
    plan = RepairPlan("", (), {}, (), queue=url)
    return StoredRepair(
        "5f0c", REQUEST, plan, "ab", STORED_AT, "ann", "open", None, position, 50.0, None, None, None
    )  # fmt: skip


def begun(aws: Aws, url: str = STANDARD) -> QueueTransport:
    transport = QueueTransport(url, aws.client)
    transport.begin(stored_repair(url))
    return transport


def test_a_plan_with_a_queue_is_stored_and_names_the_queue() -> None:
    plan = RepairPlan("", (), {}, (), queue=STANDARD)
    assert RepairPlan.of("", json.loads(json.dumps(plan.document()))) == plan
    assert plan.topics == (STANDARD,)


@pytest.mark.parametrize(
    "name",
    ["raw/a@1", "raw-1.x_Y/dt=1/a b@c@Zm9v+/=", f"raw/\n@{ETAG}-3", "raw//@null", "raw/" + "k" * 150 + "@1"],
)
def test_an_id_names_bucket_key_and_version(name: str) -> None:
    file = FileVersion.of(lost(name))
    assert file is not None
    assert f"{file.bucket}/{file.key}@{file.version}" == name


@pytest.mark.parametrize("name", ["", "order-7", "raw/a", "raw@1", "raw/@1", "a b/c@1", "x/c@1"])
def test_other_ids_name_no_file(name: str) -> None:
    assert FileVersion.of(lost(name)) is None


def test_a_name_that_is_unknown_or_shortened_names_no_file() -> None:
    assert FileVersion.of(replace(lost("raw/a@1"), message_id=None)) is None
    assert FileVersion.of(replace(lost("raw/a@1"), message_id="raw/other@1")) is None
    long = StoredObject("raw", "k" * 1_000 + "/end", ETAG).message_id
    assert FileVersion.of(lost(long)) is None


@given(st.text(min_size=1, max_size=40), st.booleans())
def test_the_sdk_reads_the_same_file_from_the_notification(key: str, has_versions: bool) -> None:
    etag, version = ETAG, "3sL4kqtJlcpXroDTDmJ" if has_versions else None
    stored = StoredObject.of("raw", key, f'"{etag}"', version)
    aws = Aws({("raw", key): (etag, version)})
    transport = begun(aws)
    plan = order([lost(stored.message_id)], transport.locate([lost(stored.message_id)], lambda _: None))
    (entry,) = transport.read(plan).values()
    assert entry["MessageAttributes"] == {"lagloss-replay": {"DataType": "String", "StringValue": "repair-5f0c"}}
    (read,) = objects_in(entry["MessageBody"])
    assert read == replace(stored, size=7, stored_at_ms=int(STORED_AT.timestamp() * 1_000))
    assert read.message_id == stored.message_id
    (record,) = json.loads(entry["MessageBody"])["Records"]
    assert (record["eventSource"], record["awsRegion"]) == ("aws:s3", "eu-central-1")
    assert record["s3"]["object"]["key"].isascii()


def test_keys_are_encoded_as_s3_does() -> None:
    file = FileVersion("raw", "dt=2026/a b+ä.avro", "v1")
    head = {"ETag": f'"{ETAG}"', "ContentLength": 1, "LastModified": STORED_AT}
    (record,) = json.loads(file.notification(head, None))["Records"]
    assert record["s3"]["object"] == {
        "key": "dt%3D2026/a+b%2B%C3%A4.avro", "size": 1, "eTag": ETAG, "versionId": "v1",
    }  # fmt: skip
    assert record["eventTime"] == "2026-11-24T16:00:05.000Z"


@pytest.mark.parametrize("bad_version", [400, 404, 405])
def test_only_versions_that_the_bucket_still_has_are_located(bad_version: int) -> None:
    aws = Aws(
        {("raw", "plain"): (ETAG, None), ("raw", "overwritten"): ("f" * 32, None), ("raw", "new"): (ETAG, "v2")},
        {("raw", "new", "v1"), ("raw", "deleted", "v1")},
        bad_version,
    )
    there = [f"raw/plain@{ETAG}", "raw/new@v2", "raw/new@v1", "raw/deleted@v1"]
    gone = [f"raw/overwritten@{ETAG}", f"raw/new@{ETAG}", "raw/new@v0", "raw/none@v1", "order-7"]
    messages = list(map(lost, there + gone))
    positions = QueueTransport(STANDARD, aws.client).locate(messages, lambda _: None)
    assert positions == {lost(name).key: FilePosition(STANDARD) for name in there}
    assert aws.made == [("sqs", "eu-central-1"), ("s3", "eu-central-1")]


def test_a_bucket_that_does_not_let_the_user_look_is_an_error_and_nothing_is_gone() -> None:
    with pytest.raises(AwsUnreachable, match=r"HeadObject of closed/a failed: .*403.*"):
        QueueTransport(STANDARD, Aws().client).locate([lost("closed/a@1")], lambda _: None)


def test_without_boto3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(Boto3Missing, match=r"lagloss-server\[aws\]") as raised:
        QueueTransport(STANDARD)
    assert raised.value.exit_code == 3


def planned(transport: QueueTransport, count: int) -> list[PlannedMessage]:
    messages = [lost(f"raw/{number}@{ETAG}") for number in range(count)]
    return order(messages, transport.locate(messages, lambda _: None))


def aws_with(count: int, **more: Any) -> Aws:
    return Aws({("raw", str(number)): (ETAG, None) for number in range(count)}, **more)


@pytest.mark.parametrize(
    ("error", "is_certain"),
    [
        (refused(400), True),
        (refused(403), True),
        (EndpointConnectionError(endpoint_url="x"), True),
        (refused(500), False),
        (refused(503), False),
        (ReadTimeoutError(endpoint_url="x"), False),
    ],
)
def test_a_request_that_fails_has_sent_nothing_only_if_that_is_certain(error: Exception, is_certain: bool) -> None:
    aws = aws_with(2)
    transport = begun(aws)
    contents = transport.read(planned(transport, 2))
    aws.failing = [error]
    with pytest.raises(AwsUnreachable, match="SendMessageBatch to https://sqs") as raised:
        transport.send(contents, 2)
    assert isinstance(raised.value, NothingSent) is is_certain


def test_messages_that_sqs_refuses_are_named_and_all_of_them_are_an_error() -> None:
    aws = aws_with(3, failing_ids={"1": "RequestThrottled"})
    transport = begun(aws)
    contents = transport.read(planned(transport, 3))
    assert set(transport.send(contents, 3)) == {1}
    assert [entry["Id"] for entry in aws.sent] == ["0", "2"]
    with pytest.raises(NothingSent, match="RequestThrottled"):
        transport.send({1: contents[1]}, 3)


def test_an_object_that_is_deleted_before_it_is_sent_is_left_out() -> None:
    aws = aws_with(3)
    transport = begun(aws)
    plan = planned(transport, 3)
    del aws.objects["raw", "1"]
    kept = [message.position for message in plan if message.message.message_id != f"raw/1@{ETAG}"]
    assert list(transport.read(plan)) == kept


@dataclass
class World:
    """SQS, and the ledger of a repair: a batch is marked, sent, and marked again. A kill comes between any of these."""

    aws: Aws
    url: str
    plan: list[PlannedMessage]
    position: int = 0

    def run(self, size: int, steps: int) -> bool:
        """Run until so many steps are done; return whether the repair came to its end."""
        transport = begun(self.aws, self.url)
        self.position, self.plan = transport.resume(stored_repair(self.url, self.position), self.plan)
        for batch in batches(self.plan, self.position, size):
            contents = transport.read(
                [self.plan[at.position] for at in batch if self.plan[at.position].state == "planned"]
            )
            end = batch[-1].position + 1
            for number in range(3):
                if not steps:
                    return False
                steps -= 1
                if number == 0:
                    self._mark(contents, "sending")
                elif number == 1 and contents:
                    transport.send(contents, end)
                elif number == 2:
                    self._mark(contents, "sent")
                    self.position = end
        return True

    def _mark(self, positions: Mapping[int, Any], state: str) -> None:
        for position in positions:
            self.plan[position] = replace(self.plan[position], state=state)  # type: ignore[arg-type]


@given(st.integers(1, 25), st.lists(st.integers(0, 9), max_size=8), st.sampled_from([STANDARD, FIFO]), st.randoms())
def test_a_repair_that_is_killed_anywhere_notifies_of_each_file_at_most_once(
    count: int, kills: Sequence[int], url: str, random: Random
) -> None:
    aws = aws_with(count)
    world = World(aws, url, planned(begun(aws, url), count))
    for steps in kills:
        world.run(random.randint(1, 10), steps)
    assert world.run(10, 1_000)
    sent = Counter(entry["Id"] for entry in aws.sent)
    assert set(sent.values()) <= {1}
    unknown = {str(message.position) for message in world.plan if message.state == "sending"}
    assert {message.state for message in world.plan} <= {"sending", "sent"}
    assert unknown | sent.keys() == {str(number) for number in range(count)}


def test_a_fifo_queue_gets_the_ids_that_it_asks_for() -> None:
    aws = aws_with(1)
    transport = begun(aws, FIFO)
    (message,) = planned(transport, 1)
    transport.send(transport.read([message]), 1)
    (entry,) = aws.sent
    id_hash = f"{message.message.id_hash:016x}"
    assert (entry["MessageDeduplicationId"], entry["MessageGroupId"]) == (f"repair-5f0c/{id_hash}", id_hash)
