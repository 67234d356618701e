"""Scenario files are read strictly, and what comes of a scenario is held against what it expects, and against truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lagloss.wire.format import hash_id
from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.yaml_files import parse_yaml
from lagloss_server.model.window import ListedWindow, rfc3339
from lagloss_server.ops.demo.pipeline import ACTS, FAULTS
from lagloss_server.store.store import MissingMessage
from pipeline_under_test.harness.ledger import Fate, LedgerEntry
from pipeline_under_test.harness.loss_watch import FalseLoss, false_loss
from pipeline_under_test.harness.scenario import DIRECTORY
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.outcome import ScenarioOutcome, problems_of
from pipeline_under_test.stream.scenario import Scenario, load_scenario, shipped_scenarios
from pipeline_under_test.stream.truth import StreamTruth, StreamWindow
from tests.support.window_documents import window_of

START_S = 1_795_250_400
LINK = "link event-norm->event-router"
HEAD = "name: some\ndescription: some\nload: {rate: 10, minutes: 1}\n"
SHIPPED = shipped_scenarios()
PROMISED = {
    *("quiet-day", "two-percent-loss", "consumer-stopped", "retry-storm", "crash-loop", "deploy", "broker-loss"),
    *("poison-flood", "burst", "storm-and-loss"),
}


def scenario(text: str = "") -> Scenario:
    return parse_yaml(Scenario, HEAD + text, "some.yaml")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_scenario_of_the_repository_can_be_read_and_is_called_as_its_file(path: Path) -> None:
    found = load_scenario(path)
    assert found.name == path.stem
    assert found.definition().name == path.stem


def test_the_repository_has_all_the_scenarios_that_are_promised() -> None:
    assert {path.stem for path in SHIPPED} >= PROMISED


def test_the_demo_loses_events_at_a_node_that_its_acts_kill() -> None:
    acts = [load_scenario(DIRECTORY / f"{name}.yaml") for _, name in ACTS]
    killed = {injected.fault.node for act in acts for injected in act.faults if injected.fault.kind == "crash"}
    assert killed & {fault.node for fault in map(parse, FAULTS) if fault.kind == "lose-node"}


def test_lagloss_is_told_the_scenarios_grace_and_patience() -> None:
    spec = scenario("run: {grace: 5s, maxWait: 40s}\n").definition().spec
    assert (spec.grace, spec.max_wait) == (5_000, 40_000)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("faults:\n  - {at: 1s, fault: explode}\n", 5, "expected lose:link:A->B:SHARE"),
        ("faults:\n  - {at: 1s, fault: 7}\n", 5, "expected lose:link:A->B:SHARE"),
        (
            "faults:\n  - {at: 1s, fault: 'crash:conn-ga'}\n  - {at: 2m, fault: 'crash:conn-ga'}\n",
            6,
            "the end of the load",
        ),
        ("faults:\n  - {at: 1s, fault: 'broker:kill:2'}\n", 5, "expected `run: {brokers: 3}`"),
        ("faults:\n  - {at: soon, fault: 'crash:conn-ga'}\n", 5, "expected a duration"),
        ("run: {brokers: 2}\n", 4, "expected 1 or 3, found 2"),
        ("expect:\n  lost:\n    link a->b: {count: {min: 1}}\n", 6, "expected one of the places"),
        (f"expect:\n  lost:\n    {LINK}: {{}}\n", 6, "expected either count or share"),
        ("expect:\n  verdicts: [fine]\n", 5, "expect.verdicts[0]: expected 'ok'"),
        ("until: tomorrow\n", 4, "until: expected one of these keys:"),
    ],
)
def test_a_bad_file_is_refused_with_its_line_and_what_was_expected(text: str, line: int, expected: str) -> None:
    with pytest.raises(BadDefinition) as refused:
        scenario(text)
    assert f"some.yaml:{line}: " in str(refused.value)
    assert expected in str(refused.value)


def verdict(**changes: Any) -> dict[str, Any]:
    """A verdict on one quiet window; `changes` of its parts by name: injected, measured, window, or of itself."""
    window = {"verdict": "ok", "messages": 100, "e2e_lag_ms": {"p95": 200.0, "max": 900.0}}
    found: dict[str, Any] = {
        "agree": True,
        "waiting": [],
        "differences": [],
        "injected": {"messages": 100, "lost": 0, "pending": 0, "dead": 2, "filtered": 3, "lost_at": {}},
        "measured": {"duplicates": 4, "lost": {"min": 0, "max": 0}},
        "windows": [{"measured": window | changes.pop("window", {})}, {"measured": None}],
    }
    for name, change in changes.items():
        found[name] = found[name] | change if isinstance(change, dict) else change
    return found


def problems(expected: str, restarts: int = 0, false_losses: tuple[FalseLoss, ...] = (), **changes: Any) -> str:
    return "\n".join(
        problems_of(scenario(expected and f"expect: {expected}\n"), verdict(**changes), false_losses, restarts)
    )


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("", {}),
        ("{dead: {min: 1}, filtered: {max: 3}, duplicates: {min: 4, max: 4}}", {}),
        (f"{{lost: {{{LINK}: {{count: {{min: 5}}}}}}}}", {"injected": {"lost_at": {LINK: 5}}}),
        (f"{{lost: {{{LINK}: {{share: {{min: 0.04, max: 0.06}}}}}}}}", {"injected": {"lost_at": {LINK: 5}}}),
        ("{verdicts: [loss]}", {"window": {"verdict": "loss"}}),
        ("{restarts: {min: 2}}", {"restarts": 2}),
    ],
)
def test_what_is_as_expected_is_no_problem(expected: str, changes: dict[str, Any]) -> None:
    assert problems(expected, **changes) == ""


@pytest.mark.parametrize(
    ("expected", "changes", "problem"),
    [
        ("", {"injected": {"lost_at": {LINK: 5}}}, f"expected nothing lost at {LINK}, found 5"),
        (f"{{lost: {{{LINK}: {{count: {{max: 4}}}}}}}}", {"injected": {"lost_at": {LINK: 5}}}, "0 to 4, found 5"),
        (f"{{lost: {{{LINK}: {{share: {{min: 0.06}}}}}}}}", {"injected": {"lost_at": {LINK: 5}}}, "0.06, found 0.05"),
        (f"{{lost: {{{LINK}: {{count: {{min: 1}}}}}}}}", {}, "at least 1, found 0"),
        ("{dead: {max: 1}}", {}, "expected dead: 0 to 1, found 2"),
        ("{filtered: {min: 4}}", {}, "expected filtered: at least 4, found 3"),
        ("{duplicates: {max: 0}}", {}, "expected duplicates: 0 to 0, found 4"),
        ("{restarts: {min: 2}}", {"restarts": 1}, "expected restarts: at least 2, found 1"),
        ("{verdicts: [loss]}", {}, "expected a window with the verdict loss"),
        ("", {"injected": {"pending": 7}}, "found 7 pending"),
        ("", {"waiting": ["2026-11-21T08:40:00Z"]}, "08:40:00Z still waiting"),
        ("", {"false_losses": (FalseLoss(0.0, START_S, 3, 2, ("m1",)),)}, "reported 3 lost of 2 injected m1"),
    ],
)
def test_what_is_not_as_expected_is_told(expected: str, changes: dict[str, Any], problem: str) -> None:
    assert problem in problems(expected, **changes)


def test_a_disagreement_is_told_with_its_first_difference() -> None:
    first = {"what": "lost", "injected": 3, "measured": 2, "window_start_s": START_S}
    assert "found 1 differences, the first: lost, injected 3, measured 2" in problems(
        "", agree=False, differences=[first]
    )


@pytest.mark.parametrize(
    ("p95s_s", "problem"), [((1, 40, 2), ""), ((1, 20, 2), "above 30 s, found at most 20.0 s"), ((1, 40, 9), "9.0 s")]
)
def test_lag_has_to_rise_and_to_fall_again(p95s_s: tuple[int, ...], problem: str) -> None:
    found = verdict()
    (row, _) = found["windows"]
    lags = [{"p95": p95_s * 1000.0, "max": p95_s * 1000.0} for p95_s in p95s_s]
    found["windows"] = [{"measured": row["measured"] | {"e2e_lag_ms": lag}} for lag in lags]
    told = "\n".join(problems_of(scenario("expect: {lag: {above: 30s, thenBelow: 5s}}\n"), found, (), 0))
    assert problem in told
    assert bool(problem) == bool(told)
    assert ScenarioOutcome("some", found).max_lag_ms == max(p95s_s) * 1000


def true_window(*facts: tuple[Fate, str]) -> StreamWindow:
    truth = StreamTruth()
    truth.add(LedgerEntry(fate, name, START_S * 1000, LINK) for fate, name in facts)
    return truth.windows[START_S]


def window(lost: int) -> ListedWindow:
    return window_of({"window_start": rfc3339(START_S), "lost": {"min": lost, "max": lost}})


def missing(name: str, kind: str = "lost") -> MissingMessage:
    return MissingMessage(START_S, hash_id(name), name, kind, [LINK], "event-norm.out", 0.0)


def test_a_loss_that_the_ledger_knows_of_is_not_false() -> None:
    assert false_loss(window(1), [missing("a")], true_window(("lost", "a"), ("lost", "b")), 0.0) is None


def test_a_loss_that_the_ledger_does_not_know_of_is_false_and_named() -> None:
    found = false_loss(window(1), [missing("a")], true_window(("lost", "b")), 7.0)
    assert found == FalseLoss(7.0, START_S, 1, 1, ("a",))


def test_more_losses_than_the_ledger_knows_of_are_false_even_where_they_have_no_names() -> None:
    assert false_loss(window(2), [missing("a")], true_window(("lost", "a")), 0.0) is not None


def test_only_what_is_lost_for_certain_can_be_false() -> None:
    waiting = [missing("a", "pending"), missing("b", "perhaps"), missing("c", "overdue")]
    assert false_loss(window(0), waiting, true_window(), 0.0) is None


def test_what_a_replay_is_bringing_back_may_still_be_told_as_lost() -> None:
    assert false_loss(window(1), [missing("a")], true_window(("lost", "a"), ("replayed", "a")), 0.0) is None


def test_what_nobody_answered_for_may_be_lost() -> None:
    assert false_loss(window(1), [missing("a")], true_window(("unanswered", "a")), 0.0) is None
