"""Words and table of the dashboard."""

from __future__ import annotations

import pytest

from dashboard import format as words
from dashboard.pages.window.table import ANY_OUT, table_rows
from lagloss_server.base import format as fmt
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import Interval
from tests.support.window_documents import chain, clicks, document, window_of

START = 1_795_250_400
TALK = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: talk}
spec:
  nodes:
    - {name: a, to: [b]}
    - {name: b, to: [c]}
    - {name: c, to: [d]}
    - {name: d}
"""


def test_the_verdict_sentence_says_how_many_and_where() -> None:
    window = document(chain(), START, verdict="loss", messages=10, lost={"src->mid": (2, 2), "mid": (1, 3)}, pending=1)
    assert words.verdict_sentence(window_of(window), 0.01) == (
        "3 of 10 messages (30 %) certainly lost, above the target of 1 %: 2 on link src → mid, 1 at node mid. "
        "2 more possibly lost: 2 at node mid. 1 pending: late, not lost."
    )


@pytest.mark.parametrize(
    ("verdict", "word"), [(None, "Not closed yet"), ("idle", "No messages"), ("unknown", "sufficient")]
)
def test_every_other_verdict_has_its_own_sentence(verdict: str | None, word: str) -> None:
    assert word in words.verdict_sentence(window_of(document(chain(), START, verdict=verdict)), 0.01)


def test_reasons_are_told_in_words() -> None:
    assert words.reason("evidence:conn-ga") == "the evidence of node conn-ga is incomplete"
    for code in ("pending", "overdue", "unexplained", "version", "sample"):
        assert words.reason(code) != code


def test_the_talks_table() -> None:
    talk = parse_definition(TALK)
    window = document(
        talk,
        START,
        verdict="loss",
        messages=10,
        counts={"a.in": 10, "b.in": 9, "c.in": 7, "d.in": 5},
        lost={"a->b": (1, 1), "b": (1, 1), "b->c": (1, 1), "c": (2, 2)},
    )
    rows = {row.checkpoint: row for row in table_rows(window_of(window), talk.graph)}
    ins = [rows[f"{node}.in"] for node in "abcd"]
    assert [row.count for row in ins] == [10, 9, 7, 5]
    assert [row.lost and row.lost.max for row in ins] == [0, 1, 2, 2]
    assert fmt.count_interval(window_of(window).lost) == "5"
    assert fmt.percent_interval(window_of(window).loss_ratio) == "50 %"


def test_what_a_router_and_a_sink_lose_stands_in_rows_of_their_own() -> None:
    window = document(
        clicks(),
        START,
        verdict="loss",
        lost={"event-router": (4, 4), "conn-ga": (2, 3), "event-router->conn-fb": (1, 1)},
    )
    rows = {row.checkpoint: row.lost for row in table_rows(window_of(window), clicks().graph)}
    assert rows[f"event-router{ANY_OUT}"] == Interval(4, 4)
    assert rows["conn-ga.out"] == Interval(2, 3)
    assert rows["conn-fb.in"] == Interval(1, 1)
    assert rows["conn-ga.in"] == Interval(0, 0)
    assert sum(lost.max for lost in rows.values() if lost) == window["lost"]["max"]


def test_an_open_window_has_live_counts_and_no_losses() -> None:
    window = document(chain(), START, verdict=None, counts={"src.in": 7})
    rows = {row.checkpoint: row for row in table_rows(window_of(window), chain().graph)}
    assert (rows["src.in"].count, rows["src.in"].lost) == (7, None)
    assert rows["mid.in"].count is None
