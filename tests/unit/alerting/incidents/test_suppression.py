from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import example, given
from hypothesis import strategies as st

from alerting.incidents.suppression import (
    ActiveSilence,
    Maintenance,
    SuppressionContext,
    blind_upstream,
    suppression_reason,
)
from lagloss_server.model.matchers import Matcher

LABELS = {"pipeline": "clicks", "rule": "on-time", "severity": "warning"}
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CLICKS = (Matcher.parse("pipeline=clicks"),)


def nightly(zone: str = "Europe/Berlin") -> Maintenance:
    starts = rrulestr("FREQ=DAILY;BYHOUR=2;BYMINUTE=0;BYSECOND=0", dtstart=datetime.fromisoformat("2026-01-01"))
    return Maintenance("nightly", CLICKS, starts, ZoneInfo(zone), timedelta(hours=1), "compaction")


def test_without_a_reason_nobody_is_kept_from_being_told() -> None:
    assert suppression_reason(LABELS, ("loss",), SuppressionContext(), NOW) is None


def test_a_silence_withholds_what_it_matches_and_says_whose_it_is_and_why() -> None:
    silence = ActiveSilence("s1", CLICKS, "ann", "known")
    around = SuppressionContext(silences=[silence])
    assert str(suppression_reason(LABELS, (), around, NOW)) == "silence s1 by ann: known"
    assert suppression_reason({**LABELS, "pipeline": "orders"}, (), around, NOW) is None


def test_an_open_incident_that_tells_of_it_inhibits_and_only_that() -> None:
    around = SuppressionContext(open_rules={"loss": "warning", "lag": "critical"})
    assert str(suppression_reason(LABELS, ("loss", "lag"), around, NOW)) == "inhibited: loss is open and covers it"
    assert suppression_reason(LABELS, ("blind/evidence",), around, NOW) is None


def test_a_ticket_withholds_no_page_and_a_page_withholds_both() -> None:
    page = {**LABELS, "severity": "critical"}
    for severity, withheld in (("warning", (True, False)), ("critical", (True, True))):
        around = SuppressionContext(open_rules={"loss": severity})
        found = tuple(suppression_reason(labels, ("loss",), around, NOW) is not None for labels in (LABELS, page))
        assert found == withheld


def test_a_blind_pipeline_upstream_inhibits() -> None:
    assert suppression_reason(LABELS, (), SuppressionContext(blind_upstream={"orders"}), NOW) is not None


NAMES = "abcdef"


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, set[str]], list[tuple[set[str], list[str]]]]:
    """Pipelines with those upstream of them, and by turn the blind ones and the order in which they are evaluated."""
    upstream = {name: draw(st.sets(st.sampled_from(NAMES))) - {name} for name in NAMES}
    turn = st.tuples(st.sets(st.sampled_from(NAMES)), st.permutations(NAMES))
    return upstream, draw(st.lists(turn, min_size=1, max_size=3))


RING = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set(), "e": set(), "f": set()}


@given(worlds())
@example((RING, [(set("abc"), list(NAMES))]))
def test_of_blind_pipelines_that_withhold_each_other_one_pages_and_it_stays_so(world: Any) -> None:
    upstream, turns = world
    withheld: dict[str, str | None] = {}
    for blind, order in turns:
        withheld = {name: withheld.get(name) for name in blind}
        for _ in range(2 * len(NAMES)):
            before = dict(withheld)
            for name in (name for name in order if name in blind):
                around = SuppressionContext(blind_upstream=blind_upstream(name, upstream[name], withheld))
                reason = suppression_reason(LABELS, (), around, NOW)
                withheld[name] = None if reason is None else reason.ref
        assert withheld == before, "it does not come to rest"
        for name in blind:
            chain = [name]
            while (cause := withheld[chain[-1]]) is not None:
                assert cause in blind - set(chain), "all of these wait for each other"
                chain.append(cause)
            assert bool(upstream[name] & blind) or chain == [name], "it is withheld without a cause"


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES)))
def test_a_ring_that_was_withheld_as_a_whole_is_released(withheld: dict[str, str | None]) -> None:
    upstream = {name: {cause} for name, cause in withheld.items()}
    for _ in range(2):
        for name in sorted(withheld):
            withheld[name] = min(blind_upstream(name, upstream[name] - {name}, withheld), default=None)
    assert not withheld or None in withheld.values()


@pytest.mark.parametrize(
    ("moment", "is_on"),
    [
        ("2026-07-01T00:00:00Z", True),  # 2:00 in Berlin's summer
        ("2026-07-01T00:59:59Z", True),
        ("2026-07-01T01:00:00Z", False),
        ("2026-06-30T23:59:59Z", False),
        ("2026-12-01T01:00:00Z", True),  # 2:00 in its winter
        ("2026-12-01T00:30:00Z", False),
        ("2025-12-01T01:00:00Z", False),  # before the first
    ],
)
def test_maintenance_hangs_on_the_clock_of_its_time_zone(moment: str, is_on: bool) -> None:
    now = datetime.fromisoformat(moment)
    assert nightly().is_on(now) is is_on
    assert (suppression_reason(LABELS, (), SuppressionContext(maintenance=[nightly()]), now) is not None) is is_on


def test_maintenance_of_one_pipeline_leaves_the_others() -> None:
    during = datetime(2026, 12, 1, 1, 30, tzinfo=UTC)
    labels = {**LABELS, "pipeline": "orders"}
    assert suppression_reason(labels, (), SuppressionContext(maintenance=[nightly()]), during) is None
