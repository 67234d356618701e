"""Due and stale: one definition, whichever way it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerting.rules.blind import ClosingHealth, blind_rules
from dashboard.queries.condition import Condition, Freshness, condition
from lagloss.wire.format import WINDOW_S
from lagloss_server.judging.freshness import CLOSES_WITHIN_S, due_ms, expected_to_s, newest_due_s
from lagloss_server.model.definition import parse_definition
from tests.support.window_documents import CHAIN

START_S = 1_780_000_020


@given(st.integers(0, 7_200_000), st.integers(0, 3_600_000))
def test_the_newest_due_window_is_the_last_one_that_is_due(since_ms: int, grace_ms: int) -> None:
    now_ms = START_S * 1000 + since_ms
    newest_s = newest_due_s(now_ms, grace_ms)
    assert newest_s % WINDOW_S == 0
    assert due_ms(newest_s, grace_ms) <= now_ms < due_ms(newest_s + WINDOW_S, grace_ms)


@given(st.integers(0, 3_600_000))
def test_a_window_is_expected_to_be_closed_a_minute_after_it_was_due(grace_ms: int) -> None:
    now_s = due_ms(START_S, grace_ms) / 1000 + CLOSES_WITHIN_S
    assert expected_to_s(now_s, grace_ms) == pytest.approx(START_S)


@given(st.integers(0, 3_600), st.integers(0, 7_200))
def test_a_page_says_stale_when_a_pager_says_that_no_window_closes(grace_s: int, age_s: int) -> None:
    definition = parse_definition(f"{CHAIN}  grace: {grace_s}s\n")
    (closing,) = (rule for rule in blind_rules(definition) if isinstance(rule, ClosingHealth))
    fresh = Freshness(START_S, "ok", START_S, float(START_S), emitters=1, reporting=1)
    now_s = START_S + WINDOW_S + age_s
    said = condition(fresh, definition.spec.grace, now_s, has_windows=True)
    assert (said is Condition.STALE) is (age_s > closing.target)
