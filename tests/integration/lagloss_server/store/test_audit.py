"""The audit trail: what is done by commands is in it, in the same transaction, and stays as it was written."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, func, insert, select, text
from sqlalchemy.exc import ProgrammingError
from typer.testing import CliRunner, Result

from alerting.cli.main import app as alerts_app
from dashboard.access.cli import NoAccessFile
from dashboard.access.cli import app as access_app
from lagloss.broker.topics import BEACONS, create_topics
from lagloss_server.base.errors import BadGroup, UnknownPipeline, UnknownSilence
from lagloss_server.cli.main import app
from lagloss_server.incidents import actions
from lagloss_server.model.window import rfc3339
from lagloss_server.store import audit, recompute_requests
from lagloss_server.store.audit import Actor, acting_as, audit_table, note, note_look
from lagloss_server.store.store import Store
from tests.support.incident_rows import store_incident, store_receiver
from tests.support.logged_blocks import Logged
from tests.support.teams_world import ACCESS, OURS, START_S, THEIRS, definition

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def store(module_database_url: str) -> Iterator[Store]:
    store = Store(module_database_url)
    yield store
    store.close()


@pytest.fixture(autouse=True)
def settings(module_database_url: str, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The commands find the test's servers."""
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", module_database_url)
    monkeypatch.setenv("LAGLOSS_KAFKA_BOOTSTRAP", kafka_bootstrap)
    monkeypatch.setenv("LAGLOSS_DATA_DIR", str(tmp_path))


def run(*words: str, of: Any = app, typed: str = "") -> Result:
    done = CliRunner().invoke(of, words, input=typed)
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def entries(store: Store) -> list[Row[Any]]:
    with store.engine.connect() as connection:
        return list(connection.execute(select(audit_table).order_by(audit_table.c.id)))


def yaml_of(pipeline: str, folder: Path) -> str:
    path = folder / f"{pipeline}.yaml"
    path.write_text(definition(pipeline).model_dump_json(by_alias=True))
    return str(path)


def test_every_command_that_changes_or_shows_something_is_in_the_trail(
    store: Store, kafka_bootstrap: str, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    run("apply", yaml_of(OURS, tmp_path))
    run("apply", yaml_of(OURS, tmp_path))  # the same again is no new version
    token = run("token", "create", OURS, "--json").stdout
    run("token", "revoke", token.partition("lagloss_")[2][:12])
    for words in (("add", "cara", "--group", "red"), ("passwd", "cara")):
        run("users", *words, typed=f"{PASSWORD}\n")
    for words in (
        ("role", "cara", "operator"),
        ("groups", "cara", "red", "blue"),
        ("logout", "cara"),
        ("remove", "cara"),
    ):
        run("users", *words)
    with store.engine.begin() as connection:
        incident = store_incident(connection, pipeline=OURS)
        store_receiver(connection, "hook")
    run("ack", str(incident)[:8], of=alerts_app)
    made = run("silence", "kind=lag", "--for", "1h", "--reason", "known", "--author", "ann", of=alerts_app).stdout
    run("unsilence", made.split()[0], of=alerts_app)
    CliRunner().invoke(alerts_app, ["test", "hook", "--wait", "0"])
    run("show", str(incident), of=alerts_app)
    recompute_requests.add(store, OURS, START_S, START_S + 60)
    minute = Logged(OURS, START_S, kafka_bootstrap, BEACONS, store, 8)
    minute.tell("src.in", minute.put("src.in", ["m-1"], 10.0))
    for _ in range(2):
        run("matrix", OURS, "--window", rfc3339(START_S))
    found = entries(store)
    by_command = [entry for entry in found if entry.known_by == "command"]
    assert {(entry.actor, entry.address) for entry in by_command} == {(getpass.getuser(), socket.gethostname())}
    assert [entry.action for entry in found] == [
        *("definition.apply", "token.create", "token.revoke"),
        *("user.add", "user.password", "user.role", "user.groups", "user.logout", "user.remove"),
        *("incident.acknowledge", "silence.create", "silence.end", "receiver.test", "ids.incident", "recompute"),
        "ids.window",
    ]
    concerned = {entry.action: entry.pipelines for entry in found}
    for action in ("definition.apply", "token.revoke", "silence.create", "silence.end", "recompute", "ids.window"):
        assert concerned[action] == [OURS], action
    assert concerned["user.add"] == concerned["receiver.test"] == []
    assert PASSWORD not in str(found)
    assert token.partition('"token": "')[2][:40] not in str(found)


def test_what_fails_leaves_no_entry_and_without_an_entry_nothing_is_done(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(entries(store))
    with pytest.raises(UnknownPipeline):
        store.delete("nowhere")
    with pytest.raises(UnknownSilence):
        actions.unsilence(store, "nowhere", "ann")
    failed = CliRunner().invoke(app, ["users", "add", "dora", "--group", "a,b"], input=f"{PASSWORD}\n")
    assert isinstance(failed.exception, BadGroup)
    assert len(entries(store)) == before

    def away(*_: Any, **__: Any) -> None:
        raise OSError("the trail cannot be written")

    monkeypatch.setattr(audit, "note", away)
    with pytest.raises(OSError, match="trail"):
        store.apply(definition(THEIRS))
    assert THEIRS not in store.names()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_trail SET actor = 'eve'",
        "DELETE FROM audit_trail",
        "TRUNCATE audit_trail",
        "UPDATE audit_trail SET at = at - interval '1 year'",
    ],
)
def test_entries_stay_as_they_were_written_even_for_the_owner_of_the_table(store: Store, change: str) -> None:
    with store.engine.begin() as connection:
        note(connection, "recompute", "a", ["a"])
    before = entries(store)
    with pytest.raises(ProgrammingError, match="never changed"), store.engine.begin() as connection:
        connection.execute(text(change))
    assert entries(store) == before


def test_an_entry_of_more_than_thirty_days_can_be_deleted(store: Store) -> None:
    old = {"actor": "ann", "known_by": "none", "action": "recompute", "object": "old", "pipelines": [], "detail": {}}
    at = func.clock_timestamp() - text("interval '31 days'")
    with store.engine.begin() as connection:
        connection.execute(insert(audit_table).values(at=at, **old))
    with store.engine.begin() as connection:
        gone = connection.execute(audit_table.delete().where(audit_table.c.object == "old")).rowcount
    assert gone == 1


def test_a_look_is_noted_again_after_some_minutes_and_for_another_person_at_once(store: Store) -> None:
    def count() -> int:
        return sum(entry.object == "look" for entry in entries(store))

    earlier = func.clock_timestamp() - text(f"interval '{audit.LOOK_AGAIN_S + 5} s'")
    ann = Actor("ann", "local", "192.0.2.1")
    with acting_as(ann):
        note_look(store.engine, "ids.window", OURS, "look")
        note_look(store.engine, "ids.window", OURS, "look")
        assert count() == 1
    for other in (Actor("ann", "oidc", "192.0.2.1"), Actor("ann", "local", None), Actor("bob", "local", "192.0.2.1")):
        with acting_as(other):
            note_look(store.engine, "ids.window", OURS, "look")
            note_look(store.engine, "ids.window", OURS, "look")
    assert count() == 4
    values = {"actor": "cleo", "known_by": "local", "action": "ids.window", "object": "look"}
    with store.engine.begin() as connection:
        connection.execute(insert(audit_table).values(at=earlier, pipelines=[OURS], detail={}, **values))
    with acting_as(Actor("cleo", "local")):
        note_look(store.engine, "ids.window", OURS, "look")
    assert count() == 6


def test_the_command_says_which_pipelines_each_team_sees(store: Store, tmp_path: Path) -> None:
    store.apply(definition(OURS))
    store.apply(definition(THEIRS))
    file = tmp_path / "access.yaml"
    file.write_text(ACCESS)
    rows = run("check", str(file), of=access_app).stdout.splitlines()
    seen = {row.split()[0]: row.split()[-1] for row in rows[1:]}
    assert seen == {"red-operators": OURS, "red-viewers": OURS, "blue": THEIRS}
    assert isinstance(CliRunner().invoke(access_app, ["check"]).exception, NoAccessFile)
