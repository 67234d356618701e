"""Windows as data frames."""

from __future__ import annotations

import sys

import pandas as pd
import pytest

from lagloss_server.base.errors import BadTime, NotebookMissing
from lagloss_server.notebook import read_windows, windows_frame
from tests.support.window_documents import clicks, document, window_of

START_S = 1_795_250_400
REASONS = {"conn-ga": {"dead": {"unreadable": 3}, "filtered": {}}, "conn-fb": {"filtered": {"no consent": 20}}}
COUNTS = {"conn-ga.in": 60, "conn-ga.dead": 5, "conn-fb.filtered": 20}
LAGS = {"conn-ga.out": 40.0, "conn-fb.out": 90.0}
WINDOWS = [
    window_of(
        document(
            clicks(),
            START_S + 60 * at,
            verdict=verdict,
            messages=100,
            lost={"event-norm": (at, 2 * at)},
            counts=COUNTS,
            lags_ms=LAGS,
            due={"conn-ga": 60},
        )
        | {"reasons_by_node": REASONS if verdict else None, "staleness_ms": {"conn-ga.out": 60_000.0}}
    )
    for at, verdict in enumerate(["ok", "loss", None])
]


def test_a_window_is_a_row_with_its_fields_flattened() -> None:
    frame = windows_frame(WINDOWS)
    assert list(frame["window_start"]) == list(pd.date_range("2026-11-21T08:40:00Z", periods=3, freq="min"))
    assert frame["lost_min"].tolist()[:2] == [0, 1]
    assert pd.isna(frame["lost_min"][2])
    assert frame["loss_ratio_max"][1] == 0.02
    assert frame["e2e_lag_ms_p95"].tolist() == [90.0] * 3
    assert not {"checkpoints", "reasons_by_node"} & set(frame.columns)
    assert not [name for name in frame.columns if name.startswith("staleness")]


def test_parts_of_windows_are_rows_with_their_window() -> None:
    checkpoints = windows_frame(WINDOWS, "checkpoints")
    assert len(checkpoints) == 3 * 5
    assert checkpoints.columns[:3].tolist() == ["pipeline", "window_start", "name"]
    stale = checkpoints.set_index("name")["staleness_ms"]
    assert stale["conn-ga.out"].tolist() == [60_000.0] * 3
    assert stale["conn-fb.out"].isna().all()
    links = windows_frame(WINDOWS, "links")
    assert {"from", "to", "queue_time_p95_ms", "lost_min"} <= set(links.columns)
    assert windows_frame(WINDOWS, "destinations")["due"].tolist()[:2] == [60, 100]


def test_reasons_are_rows_and_those_that_are_not_known_are_empty() -> None:
    reasons = windows_frame(WINDOWS[:1], "reasons").drop(columns=["pipeline", "window_start"])
    assert reasons.to_dict("records") == [
        {"node": "conn-fb", "exit": "filtered", "reason": "no consent", "count": 20},
        {"node": "conn-ga", "exit": "dead", "reason": "unreadable", "count": 3},
        {"node": "conn-ga", "exit": "dead", "reason": None, "count": 2},
    ]


def test_no_window_gives_an_empty_frame_and_no_part_an_error() -> None:
    assert windows_frame([]).empty
    assert windows_frame([], "nodes").empty
    with pytest.raises(ValueError, match="expected one of windows, reasons, checkpoints"):
        windows_frame([], "hops")  # type: ignore[arg-type]


def test_an_invalid_time_and_a_missing_pandas_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadTime):
        read_windows("clicks", "yesterday")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotebookMissing, match=r"pip install 'lagloss-server\[notebook\]'"):
        windows_frame([])
