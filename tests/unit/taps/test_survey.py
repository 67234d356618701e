"""What a survey of topics reads at once, and what it says of those that it could not connect."""

from __future__ import annotations

import json
import time

from confluent_kafka import KafkaError, Producer

from taps.discovery import find_hops
from taps.discovery.summary import Connected, why_groups_are_not_connected
from taps.discovery.survey import MAX_RECORDS, READ, TopicSurvey, _in_reads, _reason, _within
from taps.plan import OffsetSpan
from tests.support.mock_kafka import mock_kafka


def test_a_batch_has_few_partitions_and_few_records_and_every_topic_is_in_one() -> None:
    spans = {f"t{number}": [OffsetSpan(0, 0, 20_000)] for number in range(5)}
    spans["wide"] = [OffsetSpan(partition, 0, 1) for partition in range(READ + 1)]
    batches = list(_in_reads(spans))
    assert [topic for batch in batches for topic in batch] == list(spans)
    for batch in batches:
        assert len(batch) == 1 or sum(map(len, batch.values())) <= READ
        assert len(batch) == 1 or sum(s.end - s.start for some in batch.values() for s in some) <= MAX_RECORDS
    assert list(_in_reads({})) == []


def test_a_span_is_cut_to_the_compared_time_and_to_a_size() -> None:
    span = OffsetSpan(3, 10, 100)
    for since, until, size, expected in [
        (20, 50, 1_000, (20, 50)), (20, -1, 1_000, (20, 100)), (-1, -1, 1_000, (100, 100)),
        (5, 200, 1_000, (10, 100)), (20, 50, 7, (20, 27)), (60, 50, 7, (60, 50)),
    ]:  # fmt: skip
        cut = _within("t", span, {("t", 3): since}, {("t", 3): until}, size)
        assert (cut.start, cut.end) == expected
    assert _within("t", span, {}, {}, 9).start == 100, "of a leader that did not answer nothing is read"


def test_errors_of_brokers_are_reasons() -> None:
    assert _reason(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)) == "denied"
    assert _reason(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)) == "does not exist"
    assert _reason(KafkaError(KafkaError._TIMED_OUT)) == "no response"


def test_shares_and_reasons_are_said_in_a_few_lines_whatever_the_names() -> None:
    names = {f"t{number}": "empty" for number in range(6)} | {"odd\n": "denied", "no": "no group"}
    assert Connected("topics", 10, names).lines() == [
        "2 of 10 topics connected (20%)",
        "  6 empty: t0, t1, t2 and 3 more",
        "  1 denied: 'odd\\n'",
        "  1 no group: no",
    ]
    assert Connected("groups", 0, {}).lines() == ["0 of 0 groups connected"]


def test_a_group_is_connected_by_any_of_its_topics() -> None:
    groups = {"a": ["x", "y"], "b": ["y", "z"], "c": [], "d": ["z"]}
    reasons = {"y": "empty", "z": "denied"}
    assert why_groups_are_not_connected(groups, reasons) == {"b": "empty", "c": "nothing committed", "d": "denied"}


def test_many_topics_are_sampled_by_one_consumer_and_the_empty_ones_are_counted() -> None:
    with mock_kafka() as bootstrap:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        now_ms = time.time_ns() // 1_000_000
        for number in range(60):
            order = json.dumps({"order_id": f"o-{number:05}", "at": now_ms - 10_000 + number})
            producer.produce("orders", order, timestamp=now_ms - 9_000 + number)
            producer.produce("enriched", order, timestamp=now_ms - 8_000 + number)
        for number in range(80):
            producer.list_topics(f"empty-{number}", timeout=10)
        assert producer.flush(30) == 0
        survey = TopicSurvey(bootstrap, None, now_ms - 120_000, now_ms + 1_000)
        advanced: list[int] = []
        survey.run(survey.topics(), advanced.append)
    assert sum(advanced) == 82
    assert survey.reasons == {f"empty-{number}": "empty" for number in range(80)}
    (hop,) = find_hops(survey.guesses)
    assert (hop.before, hop.after, hop.shared, hop.later_ms) == ("orders", "enriched", 1.0, 1_000)
