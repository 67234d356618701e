"""Which results time alone may change: those windows are judged again without a new tally."""

from __future__ import annotations

from aggregator.closing.context import JudgementContext, Versions
from aggregator.closing.judge import close
from aggregator.closing.report_state import ReportState
from lagloss.wire.format import OffsetRange
from lagloss_server.judging.evidence import EmitterState, LaneState
from lagloss_server.judging.facts import Pattern, WindowFacts
from lagloss_server.model.definition import StoredPipeline, parse_definition

START_S = 1_795_250_400
SEEN_MS = START_S * 1_000 + 30_000
NOW_MS = START_S * 1_000 + 300_000
FORK = parse_definition(
    "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: fork}\n"
    "spec: {nodes: [{name: src, to: [a, b], copy: all}, {name: a}, {name: b}]}\n"
)


def deadline(behind_ms: int) -> int | None:
    """Of a window whose one message is out for `a` and `b` and came to neither; `b` is that much behind."""
    versions = Versions([StoredPipeline("fork", 1, 0, FORK)])
    emitters = [
        EmitterState(name.encode(), name, SEEN_MS - 60_000, NOW_MS, False, NOW_MS // 1_000, NOW_MS, NOW_MS // 1_000)
        for name in ("src", "a", "b")
    ]
    until = {"a": NOW_MS, "b": NOW_MS - behind_ms}
    lanes = [LaneState(f"{node}.in", at, None, "q", node.encode()) for node, at in until.items()]
    window = ("fork", START_S)
    state = ReportState(1, {"fork": emitters}, {"fork": lanes}, {window: []}, {window: list[OffsetRange]()})
    known = JudgementContext(state, {"fork": versions}, {}, NOW_MS)
    mask = versions.newest.mask(["src.in", "src.out:a", "src.out:b"])
    closing = close(known, *window, WindowFacts(patterns=(Pattern(mask, 1, (), SEEN_MS, SEEN_MS),)))
    assert closing.result.lost is not None
    assert closing.result.lost.min == 1
    return closing.deadline


def test_what_is_lost_at_one_place_and_may_still_come_at_another_is_judged_again() -> None:
    assert deadline(behind_ms=0) is None
    assert deadline(behind_ms=280_000) is not None
