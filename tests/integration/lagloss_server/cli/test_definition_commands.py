"""`lagloss apply`, `get` and `delete` on a real database: what a plan shows is what is done, or nothing is."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, text
from typer.testing import CliRunner, Result

from lagloss.errors import EXIT_OK, EXIT_WOULD_CHANGE
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.cli.main import app
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.audit import audit_table
from lagloss_server.store.store import Store

PIPELINE = """apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME, description: "line\\nbreak", labels: {team: TEAM, tier: gold, commit: "1e10", empty: ''}}
spec:
  nodes:
    - {name: a, to: [b], taps: {out: {topic: t, id: [$.a, $.b], eventTime: timestamp}}}
    - {name: b, group: g}
  alerts: {lag: [{breaches: 1}, {at: node=a, target: 1s}], volume: off}
"""
DEFAULTS = """apiVersion: lagloss/v1
kind: Defaults
metadata: {name: tiers}
spec: [{match: {tier: gold}, sla: {loss: {max: MAX}}}]
"""


@pytest.fixture
def store(database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """A database that the commands find as well."""
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", database_url)
    monkeypatch.setenv("LAGLOSS_DATA_DIR", str(tmp_path / "data"))
    store = Store(database_url)
    yield store
    store.close()


def definition(name: str, team: str = "web") -> str:
    return PIPELINE.replace("NAME", name).replace("TEAM", team)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "web.yaml").write_text("---\n".join([definition("orders"), definition("clicks")]))
    (folder / "defaults.yaml").write_text(DEFAULTS.replace("MAX", "0.002"))
    return folder


def run(*words: str, code: int = EXIT_OK, typed: str = "") -> Result:
    done = CliRunner().invoke(app, words, input=typed)
    assert done.exit_code == code, (done.output, done.exception)
    return done


def actions(store: Store) -> list[tuple[str, str, str]]:
    row = audit_table.c
    with store.engine.connect() as connection:
        rows = connection.execute(select(row.action, row.object, row.known_by).order_by(row.id))
        return [(action, name, known_by) for action, name, known_by in rows]


def test_a_plan_and_a_check_change_nothing_and_after_apply_nothing_would_change(store: Store, folder: Path) -> None:
    for words in (("--plan",), ("--check",), ("--plan", "--check", "--json")):
        run("apply", str(folder), *words, code=EXIT_WOULD_CHANGE if "--check" in words else EXIT_OK)
    assert store.names() == []
    assert actions(store) == []
    assert run("apply", str(folder)).stdout == "orders: version 1\nclicks: version 1\n"
    assert store.pipeline("orders").definition.spec.sla.loss.max == 0.002
    checked = run("apply", str(folder), "--check")
    assert checked.stdout.splitlines()[-1] == "0 to create, 0 to change, 0 to delete, 2 unchanged"
    assert run("apply", str(folder)).stdout == "orders: version 1\nclicks: version 1\n"
    assert actions(store) == [("definition.apply", name, "command") for name in ("orders", "clicks")]


def test_changed_defaults_change_the_pipelines_of_their_class(store: Store, folder: Path) -> None:
    run("apply", str(folder))
    (folder / "defaults.yaml").write_text(DEFAULTS.replace("MAX", "0.004"))
    planned = run("apply", str(folder), "--check", code=EXIT_WOULD_CHANGE).stdout
    change = "    spec.sla.loss.max: 0.002 -> 0.004 (from the defaults tiers)"
    assert planned.splitlines()[:2] == ["change    orders (version 1)", change]
    assert run("apply", str(folder)).stdout == "orders: version 2\nclicks: version 2\n"


def test_what_get_prints_is_applied_as_no_change(store: Store, folder: Path) -> None:
    run("apply", str(folder))
    printed = run("get", "-o", "yaml").stdout
    assert run("apply", "-", "--check", typed=printed).stdout.splitlines()[-1].endswith("2 unchanged")
    assert run("apply", "-", typed=printed).stdout == "clicks: version 1\norders: version 1\n"
    documents = json.loads(run("get", "orders", "-o", "json").stdout)
    assert [document["metadata"]["name"] for document in documents] == ["orders"]
    assert documents[0]["spec"]["sla"]["loss"] == {"max": 0.002}


def test_get_chooses_by_name_and_by_label(store: Store) -> None:
    for name, team in (("orders", "web"), ("clicks", "web"), ("stock", "shop")):
        store.apply(parse_definition(definition(name, team)))
    assert run("get", "-o", "name").stdout == "clicks\norders\nstock\n"
    assert run("get", "--label", "team=web", "--label", "tier=gold", "-o", "name").stdout == "clicks\norders\n"
    assert run("get", "stock", "--label", "team=web", "-o", "yaml").stdout == ""
    header, first, *_ = run("get").stdout.splitlines()
    assert header.split() == ["name", "version", "applied_at", "labels"]
    assert first.split()[:2] == ["clicks", "1"]
    assert "team=web, tier=gold" in first
    with pytest.raises(UnknownPipeline, match=r"No pipeline is named nowhere; .*clicks, orders, stock"):
        run_raising("get", "orders", "nowhere")


def run_raising(*words: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exception is not None
    raise done.exception


def test_pruning_deletes_within_the_label_what_the_folder_no_longer_has(store: Store, folder: Path) -> None:
    run("apply", str(folder))
    store.apply(parse_definition(definition("stock", "shop")))
    (folder / "web.yaml").write_text(definition("orders"))
    words = ("apply", str(folder), "--prune", "--label", "team=web")
    planned = json.loads(run(*words, "--check", "--json", code=EXIT_WOULD_CHANGE).stdout)
    done = [(entry["pipeline"], entry["action"]) for entry in planned["pipelines"]]
    assert (planned["applied"], done) == (False, [("orders", "unchanged"), ("clicks", "delete")])
    assert store.names() == ["clicks", "orders", "stock"]
    assert run(*words).stdout == "orders: version 1\nclicks: deleted\n"
    assert store.names() == ["orders", "stock"]
    assert actions(store)[-1] == ("definition.delete", "clicks", "command")
    assert json.loads(run(*words, "--json").stdout)["applied"]
    run(*words, "--check")


def test_a_definition_that_cannot_be_read_is_never_pruned_and_is_replaced_by_apply(store: Store, folder: Path) -> None:
    run("apply", str(folder))
    with store.engine.begin() as connection:
        connection.execute(text("""UPDATE pipeline SET definition = jsonb_set(definition::jsonb, '{spec,new}', '1')"""))
    (folder / "web.yaml").write_text(definition("orders"))
    planned = run("apply", str(folder), "--prune", "--label", "team=web", "--check", code=EXIT_WOULD_CHANGE)
    assert planned.stdout.startswith("change    orders: written by a newer version of lagloss")
    assert "delete    clicks" not in planned.stdout
    assert "Skipped an unreadable row: definition clicks/1" in planned.stderr
    assert run("apply", str(folder), "--prune", "--label", "team=web").stdout == "orders: version 2\n"
    assert store.names() == ["clicks", "orders"]


def test_all_changes_are_made_or_none(store: Store) -> None:
    new = parse_definition(definition("orders"))
    with pytest.raises(UnknownPipeline):
        store.change([new], ["nowhere"])
    assert store.names() == []
    assert actions(store) == []


def test_delete_checks_all_names_first_and_takes_pipelines_up_again(store: Store) -> None:
    for name in ("orders", "clicks"):
        store.apply(parse_definition(definition(name)))
    with pytest.raises(UnknownPipeline, match="clicks, orders"):
        run_raising("delete", "orders", "nowhere", "--yes")
    assert store.names() == ["clicks", "orders"]
    assert run("delete", "orders", "clicks", "orders", "--yes").stdout == "orders: deleted\nclicks: deleted\n"
    assert store.names() == []
    assert [action for action, _, _ in actions(store)][-2:] == ["definition.delete"] * 2
    assert store.apply(parse_definition(definition("orders"))) == 2


@pytest.mark.parametrize(("answer", "names", "code"), [(b"n\n", ["orders"], 1), (b"y\n", [], 0)])
def test_on_a_terminal_a_deletion_is_confirmed(
    store: Store, database_url: str, answer: bytes, names: list[str], code: int
) -> None:
    store.apply(parse_definition(definition("orders")))
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run(
        [sys.executable, "-m", "lagloss_server.cli.main", "delete", "orders"],
        stdin=theirs,
        capture_output=True,
        text=True,
        env={**os.environ, "LAGLOSS_DATABASE_URL": database_url},
        timeout=60,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == code, done.stderr
    assert "Delete orders?" in done.stdout + done.stderr
    assert store.names() == names
