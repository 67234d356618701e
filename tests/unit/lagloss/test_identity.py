"""Where id and event time come from, and what becomes of messages that have none."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS
from lagloss.identity import Carrier, Identities, Identity, Source, from_headers, from_json, mapping_of
from lagloss.wire.format import MAX_TIME_MS, UNNAMED_REPLAY, decode_block

NOW_MS = 1_795_250_400_000
GOOD = Identity("a", NOW_MS)


def carrier(body: Any = None, **headers: str) -> Carrier:
    return Carrier(
        mapping_of([(name.replace("_", "-"), text) for name, text in headers.items()]), json.dumps(body).encode(), None
    )


@given(st.integers(-MAX_TIME_MS // 10, MAX_TIME_MS), st.sampled_from([None, "again"]))
@example(7, None)  # elsewhere a number of this size is seconds
def test_headers_that_an_identity_writes_give_it_back(event_time_ms: int, replay: str | None) -> None:
    identity = Identity("a", event_time_ms, replay)
    assert Identities().of(Carrier(mapping_of(identity.headers()), b"", None)) == identity


@pytest.mark.parametrize("source", [from_headers, from_json("id", "at"), lambda carrier: None])
def test_the_header_names_the_replay_wherever_the_identity_is(source: Source) -> None:
    identities = Identities(source, missing=lambda carrier: GOOD)
    headers = {"lagloss_id": "a", "lagloss_event_time": str(NOW_MS), "lagloss_replay": "again"}
    assert identities.of(carrier({"id": "a", "at": NOW_MS}, **headers)) == Identity("a", NOW_MS, "again")


def test_a_source_may_name_the_replay_itself() -> None:
    named = Identity("a", NOW_MS, "from the payload")
    assert Identities(lambda carrier: named).of(carrier(lagloss_replay="again")) == named


@pytest.mark.parametrize("name", ["", "x" * 501, "\0"], ids=["empty", "too-long", "nul"])
def test_a_replay_whose_name_cannot_be_one_is_a_replay_all_the_same(name: str) -> None:
    found = Identities().of(carrier(lagloss_id="a", lagloss_event_time=str(NOW_MS), lagloss_replay=name))
    assert found == Identity("a", NOW_MS, UNNAMED_REPLAY)


def test_a_report_by_an_identity_is_part_of_its_replay() -> None:
    log, again = MemoryOutlet(), Identity("a", time.time_ns() // 1_000_000, "again")
    with Emitter("orders", "enrich", outlet=lambda: log) as emitter:
        assert again.report(emitter.received)
        assert again.report(emitter.filtered, reason="robot")
    blocks = [decode_block(value) for value in log.values(BEACONS)]
    assert {(block.checkpoint, block.reason, block.replay) for block in blocks} == {
        ("enrich.in", None, "again"),
        ("enrich.filtered", "robot", "again"),
    }


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"lagloss_id": "a"},
        {"lagloss_id": "a", "lagloss_event_time": "yesterday"},
        {"lagloss_id": "", "lagloss_event_time": "1795250400000"},
        {"lagloss_id": "x" * 256, "lagloss_event_time": "1795250400000"},
        {"lagloss_id": "a", "lagloss_event_time": "1" * 30},
    ],
)
def test_a_message_without_usable_headers_is_counted_and_has_no_identity(headers: dict[str, str]) -> None:
    identities = Identities()
    assert identities.of(carrier(**headers)) is None
    assert (identities.skipped, identities.skipped) == (1, 1)


@pytest.mark.parametrize("when", [NOW_MS, float(NOW_MS), "2026-11-21T08:40:00Z", "2026-11-21T09:40:00+01:00"])
def test_the_payload_may_hold_the_identity_in_fields_within_fields(when: Any) -> None:
    identities = Identities(from_json("order.id", "at"))
    assert identities.needs_body
    assert identities.of(carrier({"order": {"id": "a"}, "at": when})) == GOOD
    assert identities.of(carrier({"order": {"id": 7}, "at": when})) == Identity("7", NOW_MS)


@pytest.mark.parametrize(
    "body", [None, [], {"id": "a"}, {"id": None, "at": NOW_MS}, {"id": "a", "at": "2026-11-21T08:40"}]
)
def test_a_payload_without_the_fields_is_counted(body: Any) -> None:
    identities = Identities(from_json("id", "at"))
    assert identities.of(carrier(body)) is None
    assert identities.skipped == 1


def test_a_function_that_raises_has_found_nothing() -> None:
    identities = Identities(lambda carrier: carrier.original["nothing"])
    assert identities.of(carrier()) is None
    assert identities.skipped == 1


def test_a_missing_identity_is_drawn_at_the_first_node_only() -> None:
    identities = Identities(missing="draw", first=True)
    one, two = identities.of(carrier()), identities.of(carrier())
    assert one is not None
    assert two is not None
    assert one.message_id != two.message_id
    assert identities.skipped == 0
    with pytest.raises(ValueError, match="first node"):
        Identities(missing="draw")


def test_a_function_may_give_an_identity_or_deal_with_the_message() -> None:
    answers = iter([GOOD, None])
    identities = Identities(missing=lambda carrier: next(answers))
    assert identities.of(carrier()) == GOOD
    assert identities.skipped == 0
    assert identities.of(carrier()) is None
    assert identities.skipped == 1


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("missing", ["skip", "draw", lambda carrier: GOOD])
@pytest.mark.parametrize("source", [from_headers, from_json("id", "at"), lambda carrier: None])
def test_the_trace_is_read_from_its_header_wherever_the_identity_is(source: Source, missing: Any) -> None:
    headers = {"lagloss_id": "a", "lagloss_event_time": str(NOW_MS), "traceparent": TRACEPARENT}
    message = carrier({"id": "a", "at": NOW_MS}, **headers)
    for reads_traces in (True, False):
        found = Identities(source, missing, first=True, reads_traces=reads_traces).of(message)
        assert found is None or found.traceparent == (TRACEPARENT if reads_traces else None)


def test_a_source_may_name_the_trace_itself_and_no_header_carries_it_on() -> None:
    named = Identity("a", NOW_MS, traceparent=TRACEPARENT)
    found = Identities(lambda carrier: named, reads_traces=True).of(carrier(traceparent="another"))
    assert found == named
    assert "traceparent" not in dict(named.headers())


def test_a_header_of_any_bytes_is_a_trace_or_none() -> None:
    for value, kept in ((b"\xff" * 9_999, "\xff" * 56), (b"", "")):
        headers = {"lagloss-id": b"a", "lagloss-event-time": b"1", "traceparent": value}
        found = Identities(reads_traces=True).of(Carrier(headers, b"", None))
        assert found is not None
        assert found.traceparent == kept


def test_the_same_message_in_another_trace_is_the_same() -> None:
    traced = GOOD._replace(traceparent=TRACEPARENT)
    assert traced.is_same_message(GOOD)
    assert traced.is_same_copy(GOOD)
    assert not traced.is_same_copy(GOOD._replace(replay="again"))
