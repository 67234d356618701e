"""Faults are parsed strictly, hold when they are said to, and hit the same ids whoever asks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pipeline_under_test.harness.faults import BadFault, Injection, Injections
from pipeline_under_test.stream.event_faults import NO_FAULT, Faults, Plan
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.faults import parse

EVENTS = [Event(f"e-{number:06d}", 1_700_000_000_000, b"") for number in range(20_000)]


def faults_of(node: str, *texts: str, seed: int = 0) -> Faults:
    made = tuple(Injection(parse(text)) for text in texts)
    return Faults(node, lambda: made, seed)


def plans(faults: Faults) -> list[Plan]:
    return [faults.plan(event) for event in EVENTS]


@pytest.mark.parametrize(
    ("text", "kind", "node", "to", "seconds"),
    [
        ("lose:link:event-norm->event-router:0.02", "lose-link", "event-norm", "event-router", 0.0),
        ("corrupt:event-norm->event-router:0.02", "corrupt", "event-norm", "event-router", 0.0),
        ("lose:node:conn-ga:0.01", "lose-node", "conn-ga", None, 0.0),
        ("filter:event-norm:1", "filter", "event-norm", None, 0.0),
        ("dead:conn-fb:0.5", "dead", "conn-fb", None, 0.0),
        ("duplicate:event-norm:0.01", "duplicate", "event-norm", None, 0.0),
        ("delay:conn-fb:2s:0.05", "delay", "conn-fb", None, 2.0),
        ("delay:conn-fb:250ms:0.05", "delay", "conn-fb", None, 0.25),
        ("wait:event-norm:5ms:1", "wait", "event-norm", None, 0.005),
        ("burn:event-norm:5ms:1", "burn", "event-norm", None, 0.005),
        ("poison:0.1", "poison", "col-service", None, 0.0),
        ("refuse:ga:0.01", "refuse", "ga", None, 0.0),
        ("crash:global-retrier", "crash", "global-retrier", None, 0.0),
        ("crash:conn-ga:5s", "crash", "conn-ga", None, 5.0),
        ("crash:event-norm-shadow", "crash", "event-norm-shadow", None, 0.0),
        ("stall:conn-ga", "stall", "conn-ga", None, 0.0),
        ("stop:conn-ga", "stop", "conn-ga", None, 0.0),
        ("restart:all", "restart", "all", None, 0.0),
        ("skew:conn-ga:+5m", "skew", "conn-ga", None, 300.0),
        ("skew:conn-ga:-90s", "skew", "conn-ga", None, -90.0),
        ("receiver:ga:429=5s:0.5", "receiver", "ga", None, 5.0),
        ("receiver:fb:503:1", "receiver", "fb", None, 0.0),
        ("broker:restart", "broker-restart", "", None, 0.0),
    ],
)
def test_a_fault_in_the_tables_is_understood(text: str, kind: str, node: str, to: str | None, seconds: float) -> None:
    fault = parse(text)
    assert (fault.kind, fault.node, fault.to, fault.text) == (kind, node, to, text)
    assert fault.seconds == pytest.approx(seconds)


def test_brokers_and_bursts_have_numbers() -> None:
    assert parse("broker:kill:2").number == 2
    assert parse("burst:10").number == 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lose:link:event-norm->conn-ga:0.02", "one of the links col-service->event-norm"),
        ("lose:link:event-norm:0.02", "one of the links"),
        ("lose:node:nobody:0.01", "one of the nodes col-service"),
        ("lose:node:global-retrier:0.01", "one of the nodes col-service"),
        ("lose:node:event-norm-shadow:0.01", "one of the nodes col-service"),
        ("crash:nobody", "event-norm-shadow, found 'nobody'"),
        ("lose:node:conn-ga:0", "a share above 0 and at most 1"),
        ("lose:node:conn-ga:1.5", "a share above 0 and at most 1"),
        ("lose:node:conn-ga:some", "a share above 0 and at most 1"),
        ("lose:node:conn-ga:nan", "a share above 0 and at most 1"),
        ("delay:conn-fb:2:0.05", "a duration such as 250ms, 2s or 5m"),
        ("dead:col-service:0.01", "expected filter"),
        ("skew:conn-fb:5s", "expected lose:link:"),
        ("broker:kill:first", "expected lose:link:"),
        ("receiver:aol:503:1", "one of the vendors ga, fb"),
        ("refuse:conn-ga:0.1", "one of the vendors ga, fb"),
        ("receiver:ga:999:1", "a status, 429=5s"),
        ("receiver:ga:timeout=5s:1", "a status, 429=5s"),
        ("receiver:ga:slow:1", "a status, 429=5s"),
        ("burst:0", "a factor above 0"),
        ("burst:inf", "a factor above 0"),
        ("explode:conn-fb:0.01", "expected lose:link:"),
        ("", "expected lose:link:"),
    ],
)
def test_another_fault_is_refused_with_what_was_expected_and_what_was_found(text: str, expected: str) -> None:
    with pytest.raises(BadFault, match=expected) as refused:
        parse(text)
    assert repr(text) in str(refused.value)


def test_the_same_ids_are_hit_by_whichever_process_asks() -> None:
    texts = ("lose:node:conn-ga:0.1", "duplicate:conn-ga:0.1")
    assert plans(faults_of("conn-ga", *texts, seed=7)) == plans(faults_of("conn-ga", *texts, seed=7))


def test_the_share_of_hit_ids_is_the_share_asked_for() -> None:
    hit = sum(plan.swallow for plan in plans(faults_of("conn-ga", "lose:node:conn-ga:0.1")))
    assert 0.09 < hit / len(EVENTS) < 0.11


def test_faults_with_different_texts_or_seeds_hit_different_ids() -> None:
    found = plans(faults_of("conn-ga", "lose:node:conn-ga:0.5", "duplicate:conn-ga:0.5"))
    both = sum(plan.swallow and plan.copies == 2 for plan in found)
    assert 0.22 < both / len(EVENTS) < 0.28
    elsewhere = plans(faults_of("conn-ga", "lose:node:conn-ga:0.5", seed=1))
    assert any(one.swallow != other.swallow for one, other in zip(elsewhere, found, strict=True))


def test_a_link_is_lost_by_its_sender_only() -> None:
    text = "lose:link:event-router->conn-ga:1"
    assert faults_of("event-router", text).plan(EVENTS[0]).lost_links == {"conn-ga"}
    assert faults_of("conn-ga", text).plan(EVENTS[0]) is NO_FAULT


def test_delays_of_one_event_add_up() -> None:
    faults = faults_of("conn-fb", "delay:conn-fb:2s:1", "delay:conn-fb:500ms:1")
    assert faults.plan(EVENTS[0]).delay_s == 2.5


def test_a_replayed_event_meets_no_fault() -> None:
    faults = faults_of("conn-fb", "lose:node:conn-fb:1")
    assert faults.plan(Event("a", 0, b"")).swallow
    assert faults.plan(Event("a", 0, b"", replay="r1")) is NO_FAULT


def test_a_fault_holds_for_event_times_from_its_start_to_before_its_end() -> None:
    made = (Injection(parse("lose:node:conn-fb:1"), 1_000, 2_000),)
    faults = Faults("conn-fb", lambda: made)
    hit = [faults.plan(Event("a", at, b"")).swallow for at in (999, 1_000, 1_999, 2_000)]
    assert hit == [False, True, True, False]


def test_whoever_reads_the_file_hears_of_faults_as_they_come_and_end(tmp_path: Path) -> None:
    writing, reading = Injections(tmp_path / "faults.jsonl", parse), Injections(tmp_path / "faults.jsonl", parse)
    assert reading.known() == ()
    began_ms = time.time() * 1000
    made = writing.add(parse("poison:0.5"), for_s=60, in_s=2)
    assert made.until_ms - made.from_ms == 60_000
    assert began_ms + 2_000 - 1 <= made.from_ms <= time.time() * 1000 + 2_000
    again = Injections(tmp_path / "faults.jsonl", parse)
    assert again.known() == (made,)
    assert again.holding("poison", made.from_ms) == [made]
    assert again.holding("crash", made.from_ms) == []
    writing.end_all()
    ended = Injections(tmp_path / "faults.jsonl", parse).known()
    assert [injection.holds(made.from_ms) for injection in ended] == [False]


def test_a_line_that_is_not_whole_yet_is_read_when_it_is(tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    line = b'{"fault": "poison:0.5", "from_ms": 1, "until_ms": 2}\n'
    path.write_bytes(line + line[:20])
    assert len(Injections(path, parse).known()) == 1
    path.write_bytes(line + line)
    assert len(Injections(path, parse).known()) == 2
