"""Notifications of S3: raw and in SNS's envelope, test events, odd keys, and what an object is called as a message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.files import BadNotification, StoredObject, objects_in, time_in_name
from lagloss.wire.format import MAX_ID_BYTES
from tests.fakes.aws import event_bridge_event, notification

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


@pytest.mark.parametrize("wrap", [lambda content: content, envelope])
def test_event_bridge_names_its_object_as_s3_does_but_plainly(wrap: Any) -> None:
    key = "dt=1/a b+ü%2B.avro"
    (found,) = objects_in(json.dumps(wrap(event_bridge_event(key, **{"version-id": "v1"}))))
    (same,) = objects_in(json.dumps(notification(key, at="2026-11-24T16:00:00.000Z")))
    assert (found.bucket, found.key, found.size, found.stored_at_ms) == ("raw", key, 1, same.stored_at_ms)
    assert (found.message_id, found.sequencer) == (f"raw/{key}@v1", "00617F08299329D189")
    (unversioned,) = objects_in(json.dumps(wrap(event_bridge_event(key))))
    assert unversioned.message_id == same.message_id


@pytest.mark.parametrize("kind", ["Object Deleted", "Object Tags Added", "Object Restore Completed"])
def test_other_events_of_event_bridge_name_no_object(kind: str) -> None:
    assert objects_in(json.dumps(event_bridge_event("a", kind))) == []


def test_a_time_without_an_offset_is_utc() -> None:
    for content in (notification("a", at="2026-11-24T16:00:00"), event_bridge_event("a", at="2026-11-24T16:00:00")):
        assert objects_in(json.dumps(content))[0].stored_at_ms == 1_795_536_000_000


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
        "[" * 100_000,
        '{"Type": "Notification", "Message": ' + '{"a":' * 50_000,
        json.dumps(envelope("hello")),
        json.dumps(notification("a", at=7)),  # type: ignore[arg-type]
        json.dumps({"Records": [{"eventName": "ObjectCreated:Put", "s3": []}]}),
        json.dumps({"Records": notification("a")["Records"] + [{"body": "of a queue"}]}),
        json.dumps({"source": "aws.s3"}),
        json.dumps({"source": "aws.s3", "detail-type": 7}),
        json.dumps({"source": "aws.s3", "detail-type": "Object Created"}),
        json.dumps({"source": "aws.s3", "detail-type": "Object Created", "detail": {"object": "a"}}),
        json.dumps({"source": "aws.s3", "detail-type": "AWS API Call via CloudTrail", "detail": {}}),
        json.dumps({"source": "my.own", "detail-type": "Object Created"}),
        json.dumps(event_bridge_event("a")["detail"]),
        json.dumps(event_bridge_event("a", at="yesterday")),
        json.dumps(event_bridge_event("\ud800")),
        json.dumps(event_bridge_event(7)),  # type: ignore[arg-type]
        json.dumps({"bucket": "raw", "key": "a transformer's own"}),
        json.dumps({"Type": "SubscriptionConfirmation", "Message": "You have chosen to subscribe"}),
    ],
)
def test_anything_else_is_no_notification(body: str) -> None:
    with pytest.raises(BadNotification):
        objects_in(body)


def test_the_version_is_the_version_id_or_else_the_etag() -> None:
    assert StoredObject.of("raw", "a", '"e"', "v1").message_id == "raw/a@v1"
    assert StoredObject.of("raw", "a", '"e"', "null").message_id == "raw/a@e"
    assert StoredObject.of("raw", "a", "e", None).message_id == "raw/a@e"


some_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


@given(st.data(), st.sampled_from([notification("a", "b"), event_bridge_event("a"), TEST_EVENT]), st.booleans())
def test_a_notification_of_which_anything_is_changed_is_read_or_refused(
    data: st.DataObject, content: dict[str, Any], wrapped: bool
) -> None:
    changed = json.loads(json.dumps(content))
    place: Any = changed
    while isinstance(place, dict | list) and place:
        step = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if data.draw(st.booleans()) or not isinstance(place[step], dict | list):
            place[step] = data.draw(some_json)
            break
        place = place[step]
    try:
        found = objects_in(json.dumps(envelope(changed) if wrapped else changed))
    except BadNotification:
        return
    assert all(each.message_id.encode() for each in found)


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
