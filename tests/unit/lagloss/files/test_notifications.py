"""Notifications of S3: raw and in SNS's envelope, test events, odd keys, and what an object is called as a message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.files import BadNotification, StoredObject, objects_in, time_in_name
from lagloss.wire.format import MAX_ID_BYTES
from tests.fakes.aws import notification

TEST_EVENT = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "raw"}


def envelope(content: Any) -> dict[str, Any]:
    return {"Type": "Notification", "TopicArn": "arn", "Message": json.dumps(content)}


@pytest.mark.parametrize("wrap", [lambda content: content, envelope])
def test_a_notification_names_its_objects_raw_and_in_an_envelope(wrap: Any) -> None:
    first, second = objects_in(json.dumps(wrap(notification("dt=1/a b+ü.avro", "b.avro"))))
    assert (first.bucket, first.key, first.version, first.version_id) == ("raw", "dt=1/a b+ü.avro", "e", None)
    assert first.stored_at_ms == 1_795_536_000_000
    assert second.key == "b.avro"


@pytest.mark.parametrize("wrap", [lambda content: content, envelope])
def test_a_test_event_names_no_object(wrap: Any) -> None:
    assert objects_in(json.dumps(wrap(TEST_EVENT))) == []


def test_only_objects_that_were_created_count() -> None:
    assert objects_in(json.dumps(notification("a", event="ObjectRemoved:Delete"))) == []
    assert len(objects_in(json.dumps(notification("a", event="s3:ObjectCreated:CompleteMultipartUpload")))) == 1


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no JSON",
        "[]",
        "{}",
        '{"Records": 3}',
        '{"Records": [{}]}',
        '{"Records": [7]}',
        json.dumps({"Type": "Notification"}),
        json.dumps(notification("a", at="yesterday")),
    ],
)
def test_anything_else_is_no_notification(body: str) -> None:
    with pytest.raises(BadNotification):
        objects_in(body)


def test_the_version_is_the_version_id_or_else_the_etag() -> None:
    assert StoredObject.of("raw", "a", '"e"', "v1").message_id == "raw/a@v1"
    assert StoredObject.of("raw", "a", '"e"', "null").message_id == "raw/a@e"
    assert StoredObject.of("raw", "a", "e", None).message_id == "raw/a@e"


@given(st.text(min_size=1, max_size=1024), st.text(min_size=1, max_size=1024))
def test_every_key_makes_an_id_that_a_beacon_can_carry_and_different_keys_different_ones(one: str, other: str) -> None:
    ids = [StoredObject.of("raw", key, "e", None).message_id for key in (one, other)]
    assert all(1 <= len(message_id.encode()) <= MAX_ID_BYTES for message_id in ids)
    assert (ids[0] == ids[1]) == (one == other)


def test_a_files_event_time_is_the_last_epoch_time_in_its_key() -> None:
    assert time_in_name("dt=1/1795536000000-7f.avro") == 1_795_536_000_000
    assert time_in_name("1795536000000/1795536000001.avro") == 1_795_536_000_001
    assert time_in_name("17955360000001.avro") is None
    assert time_in_name("a.avro") is None
