"""Faults are parsed strictly and hit the same ids whoever asks."""

from __future__ import annotations

import pytest

from pipeline_under_test.faults import NO_FAULT, BadFault, Faults, parse

IDS = [f"e-{number:06d}" for number in range(20_000)]


@pytest.mark.parametrize(
    ("text", "kind", "node", "to", "delay_s"),
    [
        ("lose:link:event-norm->event-router:0.02", "lose-link", "event-norm", "event-router", 0.0),
        ("lose:node:conn-ga:0.01", "lose-node", "conn-ga", None, 0.0),
        ("filter:event-norm:1", "filter", "event-norm", None, 0.0),
        ("dead:conn-fb:0.5", "dead", "conn-fb", None, 0.0),
        ("duplicate:event-norm:0.01", "duplicate", "event-norm", None, 0.0),
        ("delay:conn-fb:2s:0.05", "delay", "conn-fb", None, 2.0),
        ("delay:conn-fb:250ms:0.05", "delay", "conn-fb", None, 0.25),
    ],
)
def test_a_fault_in_the_table_is_understood(text: str, kind: str, node: str, to: str | None, delay_s: float) -> None:
    fault = parse(text)
    assert (fault.kind, fault.node, fault.to, fault.delay_s, fault.text) == (kind, node, to, delay_s, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lose:link:event-norm->conn-ga:0.02", "one of the links col-service->event-norm"),
        ("lose:link:event-norm:0.02", "one of the links"),
        ("lose:node:nobody:0.01", "one of the nodes col-service"),
        ("lose:node:conn-ga:0", "a share above 0 and at most 1"),
        ("lose:node:conn-ga:1.5", "a share above 0 and at most 1"),
        ("lose:node:conn-ga:some", "a share above 0 and at most 1"),
        ("delay:conn-fb:2:0.05", "a duration such as 250ms or 2s"),
        ("dead:col-service:0.01", "expected filter"),
        ("explode:conn-fb:0.01", "expected lose:link:"),
        ("", "expected lose:link:"),
    ],
)
def test_another_fault_is_refused_with_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(BadFault, match=expected):
        parse(text)


def test_the_same_ids_are_hit_by_whichever_process_asks() -> None:
    faults = [parse("lose:node:conn-ga:0.1"), parse("duplicate:conn-ga:0.1")]
    one, other = Faults("conn-ga", faults, seed=7), Faults("conn-ga", faults, seed=7)
    assert [one.plan(message_id) for message_id in IDS] == [other.plan(message_id) for message_id in IDS]


def test_the_share_of_hit_ids_is_the_share_asked_for() -> None:
    faults = Faults("conn-ga", [parse("lose:node:conn-ga:0.1")])
    hit = sum(faults.plan(message_id).swallow for message_id in IDS)
    assert 0.09 < hit / len(IDS) < 0.11


def test_faults_with_different_texts_or_seeds_hit_different_ids() -> None:
    losing, doubling = parse("lose:node:conn-ga:0.5"), parse("duplicate:conn-ga:0.5")
    plans = [Faults("conn-ga", [losing, doubling]).plan(message_id) for message_id in IDS]
    both = sum(plan.swallow and plan.copies == 2 for plan in plans)
    assert 0.22 < both / len(IDS) < 0.28
    elsewhere = Faults("conn-ga", [losing], seed=1)
    assert any(elsewhere.plan(message_id).swallow != plan.swallow for message_id, plan in zip(IDS, plans, strict=True))


def test_a_link_is_lost_by_its_sender_only() -> None:
    fault = parse("lose:link:event-router->conn-ga:1")
    assert Faults("event-router", [fault]).plan("a").lost_links == {"conn-ga"}
    assert Faults("conn-ga", [fault]).plan("a") is NO_FAULT


def test_delays_of_one_event_add_up() -> None:
    faults = Faults("conn-fb", [parse("delay:conn-fb:2s:1"), parse("delay:conn-fb:500ms:1")])
    assert faults.plan("a").delay_s == 2.5
