"""`lagloss alerts backtest` on windows that were really committed and revised: what an alerter would have told live."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from alerting.backtest.backtest import try_rules, with_rules
from alerting.backtest.replay import UNTRIED, is_by_the_clock
from alerting.cli.main import app
from alerting.rules import rules_of
from alerting.rules.early_baseline import SLOT_S
from alerting.views.view_cache import ViewCache
from lagloss_server.base.errors import BadDefinition, NotEnoughData
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.store.store import Store
from tests.support.alert_views import Told
from tests.support.stored_windows import DEFINITION, NOW_S, Stored
from tests.support.window_documents import document, store_window

FROM_S = NOW_S // 60 * 60 - 4 * 3_600
MINUTES = 60
LENIENT = "sla: {loss: {max: 0.2}, lag: {target: 6s}}"


def closings(seed: int) -> list[tuple[float, int, int, int, float]]:
    """Moment, start, messages, lost and lag of windows that close a minute or two late, some of them again later."""
    chance = random.Random(seed)
    found = []
    for at in range(MINUTES):
        start = FROM_S + 60 * at
        bad = 12 <= at < 16 or 30 <= at < 33
        for delay in [chance.choice([61, 125]), *([600] if chance.random() < 0.2 else [])]:
            messages = chance.choice([700, 700, 100])
            lost = messages // 10 if bad and delay < 600 else 0
            found.append((start + 60 + delay, start, messages, lost, chance.choice([10.0, 10.0, 9_000.0])))
    return sorted(found)


def told_live(store: Store, stored: Stored, seed: int) -> set[tuple[str, frozenset[int], float, float | None]]:
    """What is told by an alerter that evaluates right after each commit."""
    pipeline, readings = store.pipeline("chain"), ViewCache(store)
    rules = [rule for rule in rules_of(pipeline.definition) if not is_by_the_clock(rule) and rule.name not in UNTRIED]
    told = [Told(rule) for rule in rules]
    for at_s, start, messages, lost, lag_ms in closings(seed):
        stored.close(start, messages, lost, lag_ms, now_ms=int(at_s * 1_000))
        view = readings.view(pipeline, at_s)
        for each in told:
            each.evaluate(view)
    return {
        (each.rule.name, found.breaches, found.worst, found.resolved_at_s)
        for each in told
        for found in each.incidents.values()
    }


def definition_of(store: Store) -> Definition:
    return store.pipeline("chain").definition


@pytest.mark.parametrize("seed", [1, 2])
def test_it_opens_what_an_alerter_told_when_these_windows_closed(store: Store, seed: int) -> None:
    live = told_live(store, Stored(store=store), seed)
    assert {name for name, *_ in live} >= {"loss", "lag"}
    definition = definition_of(store)
    tried = try_rules(store, definition, definition, FROM_S, FROM_S + 60 * MINUTES)
    found = {
        (incident.rule.name, incident.known.breaches, incident.known.worst, incident.resolved_at_s)
        for incident in tried.incidents
        if not is_by_the_clock(incident.rule)
    }
    assert found == live
    assert tried.windows == MINUTES
    assert tried.revisions > 0


@pytest.fixture
def lossy(store: Store) -> Store:
    stored = Stored(store=store)
    for at_s, start, messages, lost, lag_ms in closings(1):
        stored.close(start, messages, lost, lag_ms, now_ms=int(at_s * 1_000))
    return store


def test_other_rules_and_another_sla_are_tried_on_the_same_windows(lossy: Store) -> None:
    stored = definition_of(lossy)
    lenient = parse_definition(DEFINITION.replace("{name: snk}]}", f"{{name: snk}}], {LENIENT}}}"))
    tried = try_rules(lossy, stored, with_rules(stored, lenient, None), FROM_S, NOW_S)
    names = {incident.rule.name for incident in tried.incidents}
    assert "loss" not in names
    assert {limit.rule for limit in tried.limits if not limit.tried} == {
        "blind/reports", "on-time", "budget/on-time/1h", "budget/on-time/6h", "budget/on-time/3d",
    }  # fmt: skip


def test_rules_that_name_places_of_another_pipeline_are_refused(store: Store) -> None:
    Stored(store=store)
    other = parse_definition(
        "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: other}\nspec:\n  nodes: [{name: a}]\n"
        "  alerts: {lag: [{at: node=a, target: 1s}]}\n"
    )
    problem = r"rules.yaml:1: spec.alerts.lag\[0\].at: expected a node of this pipeline, found node=a"
    with pytest.raises(BadDefinition, match=problem):
        with_rules(definition_of(store), other, Path("rules.yaml"))


def test_a_first_hour_has_the_baseline_that_an_alerter_had(store: Store) -> None:
    Stored(store=store)
    pipeline, readings = store.pipeline("chain"), ViewCache(store)
    told = Told.of(pipeline.definition, "filtered")
    for at in range(70):
        start = FROM_S + 60 * at
        filtered = {"filtered": 540 if 45 <= at < 62 else 12}
        with store.engine.begin() as connection:
            store_window(connection, document(pipeline.definition, start, messages=600) | filtered, start, notify=False)
        told.evaluate(readings.view(pipeline, start + 121))
    (live,) = told.incidents.values()
    tried = try_rules(store, pipeline.definition, pipeline.definition, FROM_S, FROM_S + 60 * 70)
    (found,) = [incident for incident in tried.incidents if incident.rule.name == "filtered"]
    assert (found.known.breaches, found.known.worst) == (live.breaches, live.worst)
    assert 0 <= min(live.breaches) - (FROM_S + 60 * 45) < SLOT_S
    assert found.text.startswith("90 % of messages filtered, usually 2 %, compared with ")
    assert found.text.endswith(" min before (no earlier day)")


def run(database_url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lagloss_server.cli.main", "alerts", "backtest", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "LAGLOSS_DATABASE_URL": database_url, "COLUMNS": "200"},
    )


def test_the_command_prints_the_incidents_as_a_table_or_as_one_document(lossy: Store, database_url: str) -> None:
    done = run(database_url, "chain", "--from", "-5h", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    first = next(incident for incident in told["incidents"] if incident["rule"] == "loss")
    assert (first["severity"], first["target"], first["unit"], first["worst"]) == ("critical", 0.01, "ratio", 0.1)
    assert first["text"] == "10 % of messages lost, target 1 %"
    assert (told["limits"][0]["rule"], told["limits"][0]["tried"]) == ("blind/reports", False)
    shown = CliRunner().invoke(app, ["backtest", "chain", "--from", "-5h"], env={"LAGLOSS_DATABASE_URL": database_url})
    assert f"incidents: {len(told['incidents'])}, on {told['windows']} windows" in shown.stdout
    assert "blind/reports: not tried" in shown.stdout


def test_the_command_says_what_is_wrong_with_its_words(database_url: str) -> None:
    unknown, empty = "lagloss: No pipeline is named nobody", "Usage: lagloss alerts backtest"
    for words, expected in ((("nobody",), unknown), ((), empty)):
        done = run(database_url, *words)
        assert (done.returncode, expected in done.stderr) == (2, True), done.stderr


def test_windows_that_are_not_there_and_a_file_that_is_no_definition_are_told(
    lossy: Store, database_url: str, tmp_path: Path
) -> None:
    bad = tmp_path / "rules.yaml"
    bad.write_text("apiVersion: lagloss/v1\nkind: Pipeline\n")

    def failed(*words: str) -> BaseException | None:
        environment = {"LAGLOSS_DATABASE_URL": database_url}
        return CliRunner().invoke(app, ["backtest", "chain", *words], env=environment).exception

    nothing = failed("--from", "-9d", "--to", "-8d")
    assert isinstance(nothing, NotEnoughData)
    assert str(nothing) == "chain has no closed window in this range."
    refused = failed("--rules", str(bad))
    assert isinstance(refused, BadDefinition)
    assert str(refused).startswith(f"{bad}:1: metadata")
