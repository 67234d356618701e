"""The table of taps on a pipeline's page says what a tap does in words, and hides nothing that it could not read."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from dashboard.pages.pipeline.taps import taps_panel
from dashboard.queries.taps import TapState, TapStatus, UnreadableCount
from dashboard.request.links import Address
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.model.taps import Extraction, OffsetStorage, Tap

HERE = Address("/pipelines/tapped", {"zone": "UTC"})
NOW_S = 1_795_219_200.0
HOW = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
TOPIC = Tap("tapped", "shop", "", "orders", None, ("in", "out"), HOW, first=True)
GROUP = Tap("tapped", "store", "east", "orders", "sink", ("in",), HOW, first=False)


def shown(*taps: TapStatus) -> str:
    return str(taps_panel(taps, HERE, NOW_S))


def test_a_pipeline_without_taps_has_no_table() -> None:
    assert taps_panel([], HERE, NOW_S) is None


def test_a_tap_that_reads_has_its_source_and_no_word_of_being_behind() -> None:
    text = shown(TapStatus(TOPIC, TapState.READING, since_s=0, through_s=NOW_S - 2, behind_s=2.0, records=1_234))
    for part in ("shop.in", "shop.out", "topic orders", "reading", "23:59:58", "1,234", "none"):
        assert part in text, part
    for part in ("behind", "left out", "deleted", "polled"):
        assert part not in text, part


def test_rows_that_are_compared_again_are_named_with_what_keeps_them_from_it() -> None:
    spec = TableSpec(database="shop", table="a.b", id="id", event_time="at", cursor="n", recheck="7d")
    tap = TableTap("tapped", "store", spec, ("out",), first=False)
    text = shown(TapStatus(tap, TapState.READING, recheck_trouble="permission denied"))
    for part in ("rows compared again for 7d", "rows are not compared again: permission denied"):
        assert part in text, part
    assert TapStatus(tap, TapState.READING).document()["recheck"] == "7d"
    assert TapStatus(TOPIC, TapState.READING).document()["recheck"] is None


def test_a_tap_that_is_behind_says_by_how_much_and_what_it_did_not_read() -> None:
    text = shown(
        TapStatus(
            *(GROUP, TapState.WAITING, "polled", "no answer <b>"),
            through_s=NOW_S - 90_000,
            behind_s=90_000.0,
            left_out=5,
            early=6,
            gone=7,
            unreadable=(UnreadableCount("no_id", 12, 3, 4_711, NOW_S - 60),),
        )
    )
    for part in (
        *("waiting", "no answer <b>", "group sink", "of topic orders on east", "commits polled", "25 h behind"),
        *("5 excluded by its filter", "6 from before its first minute", "7 deleted before being read"),
        *("12 no_id", "3@4711", "at the time of the poll"),
    ):
        assert part in text, part


def test_how_commits_are_learned_is_said_of_groups_alone() -> None:
    assert "commits read from the log" in shown(TapStatus(GROUP, TapState.READING, "log"))
    mirror = replace(GROUP, group="mirror", offsets=OffsetStorage("", "connect-offsets"))
    assert "connector mirror" in shown(TapStatus(mirror, TapState.READING, "connect"))
    assert "offsets of Kafka Connect" in shown(TapStatus(mirror, TapState.READING, "connect"))
    document = TapStatus(mirror, TapState.READING).document()
    assert (document["group"], document["connector"]) == (None, "mirror")
    assert "commits" not in shown(TapStatus(TOPIC, TapState.READING)).replace("a reader's commits", "")


def test_a_table_is_named_with_its_database() -> None:
    spec = TableSpec(database="warehouse", table="public.orders", id="id", event_time="at", cursor="n")
    status = TapStatus(TableTap("tapped", "sink", spec, ("out",), first=False), TapState.READING)
    assert "table public.orders" in shown(status)
    assert "of database warehouse" in shown(status)
    document = status.document()
    assert (document["table"], document["database"], document["topic"]) == ("public.orders", "warehouse", None)
    assert TapStatus(TOPIC, TapState.READING).document()["table"] is None


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Kiritimati"]))
def test_the_time_of_what_could_not_be_read_may_be_any_number(at_ms: int, zone: str) -> None:
    example = UnreadableCount("no_id", 1, 3, 4_711, at_ms / 1_000)
    status = TapStatus(TOPIC, TapState.READING, since_s=0, through_s=NOW_S, behind_s=0.0, unreadable=(example,))
    assert "3@4711" in str(taps_panel([status], Address("/pipelines/tapped", {"zone": zone}), NOW_S))
    (shown_example,) = json.loads(json.dumps(status.document()))["unreadable"]
    assert datetime.fromisoformat(shown_example["example"]["timestamp"])
