"""Two teams and their pipelines: red, whose members ask, and blue, of whom they must learn nothing."""

from __future__ import annotations

import contextvars
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import httpx2
from sqlalchemy import JSON, BigInteger, Boolean, Connection, DateTime, Double, Integer, LargeBinary, Table, Uuid
from sqlalchemy.types import ARRAY

from dashboard.request.current_user import Person, answer_for
from dashboard.request.grants import Grants
from dashboard.web.server import create_server
from lagloss.broker.topics import BEACONS, create_topics
from lagloss.wire.format import hash_id
from lagloss_server.groups.cluster_groups import NamedBy, keep_cluster_groups
from lagloss_server.groups.coverage import keep_cluster_topics
from lagloss_server.incidents import actions
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.model.window import rfc3339
from lagloss_server.runs.run_store import RunReport, StateAt, record
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema import alerting, audit, canary, dashboard, runs, taps  # noqa: F401  # their tables are registered
from lagloss_server.store.schema.core import Base
from lagloss_server.store.store import Store
from tests.support.group_rows import group
from tests.support.incident_rows import (
    EXAMPLE,
    WHERE,
    detail_of,
    store_delivery,
    store_incident,
    store_leader,
    store_receiver,
)
from tests.support.logged_blocks import Logged
from tests.support.login_world import serving
from tests.support.lost_rows import store_lost
from tests.support.tap_rows import store_tap
from tests.support.window_documents import document, result_of, store_named, store_window, window_of

OURS, THEIRS, HUSHED = "red-orders", "blue-salaries", "blue-hushed"
"""The pipeline of the team that asks, the one that its members ask for, and one whose name they never heard."""
ABSENT = "blue-nothing!"[: len(THEIRS)].replace("!", "x")
"""A pipeline that is not there."""
SECRET = "zyzzyva"
"""Stands in every text that is about blue's pipelines, and nowhere else."""
ACCESS = """
apiVersion: lagloss/v1
kind: Access
teams:
  - {name: red-operators, groups: [red-ops], pipelines: [team=red], role: operator, ids: show}
  - {name: red-viewers, groups: [red], pipelines: [team=red]}
  - {name: blue, groups: [blue], pipelines: [team=blue], role: operator, ids: show}
"""
DEFINITION = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME, description: "WORD in words", labels: {team: TEAM, word: WORD}}
spec:
  nodes:
    - {name: src, to: [snk], taps: {out: {topic: WORD-topic, id: $.id, eventTime: $.at}}}
    - {name: snk, group: WORD-group}
  jobs: [{dag: WORD-dag}]
"""
T = TypeVar("T")


def word(pipeline: str) -> str:
    """What stands in texts about it."""
    return "plain" if pipeline == OURS else SECRET


def definition(pipeline: str) -> Definition:
    team = pipeline.partition("-")[0]
    return parse_definition(DEFINITION.replace("NAME", pipeline).replace("WORD", word(pipeline)).replace("TEAM", team))


def asked_by(person: Person, act: Callable[..., T], *args: Any, **named: Any) -> T:
    """What comes of it when this person asks."""

    def run() -> T:
        answer_for(person)
        return act(*args, **named)

    return contextvars.copy_context().run(run)


def member(*, acts: bool = False, ids: bool = False) -> Person:
    """Somebody of the team red."""
    own = frozenset({OURS})
    grants = Grants(own, own if acts else frozenset(), own if ids else frozenset())
    return Person("rhea", "operator" if acts else "viewer", granted=grants)


_NUMBERS = count(10_000)
"""Parts of keys, no two alike."""


def fill_every_table(connection: Connection, pipeline: str, start_s: int) -> None:
    """A row in each table, about this pipeline where the table has a column for that."""
    incident = uuid4()
    names = [name for name in Base.metadata.tables if name not in ("incident", "pipeline", "lease")]
    fill(connection, pipeline, start_s, ["incident", *names], incident)


def fill(connection: Connection, pipeline: str, start_s: int, names: Sequence[str], incident: UUID) -> None:
    """A row in each of these tables."""
    ensure_days(connection, [start_s])
    for name in names:
        table = Base.metadata.tables[name]
        connection.execute(table.insert().values(_row(table, pipeline, start_s, incident)))


def _row(table: Table, pipeline: str, start_s: int, incident: UUID) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for column in table.c:
        if column.identity is None:
            value = _value(column.type, column.name, word(pipeline), start_s)
            if column.primary_key and isinstance(value, str):
                value += f" {next(_NUMBERS)}"
            elif column.primary_key and isinstance(value, bytes):
                value += f" {next(_NUMBERS)}".encode()
            elif column.primary_key and value == len(word(pipeline)):
                value = next(_NUMBERS)
            values[column.name] = value
    special: dict[str, Any] = {
        "pipeline": pipeline,
        "pipelines": [pipeline],
        "incident_id": incident,
        "state": "open",
        "groups": [],
        "answer": None,
        "kind": "checkpoint" if table.name == "stranger" else "loss",
        "withheld_kind": None,
    }
    if table.name == "incident":
        special["id"] = incident
        name = f"id-{word(pipeline)}"
        blame = {"findings": [{"kind": "prefix", "value": name}]}
        special["detail"] = detail_of(text=word(pipeline), examples=[{"message_id": name}], blame=blame)
    return values | {name: value for name, value in special.items() if name in table.c}


def _value(kind: Any, name: str, about: str, start_s: int) -> Any:
    match kind:
        case JSON():
            return {"of": about}
        case ARRAY():
            return []
        case Boolean():
            return False
        case Double():
            return 1.5
        case Integer() | BigInteger():
            if name in ("window_start", "start", "hour", "from_s", "to_s", "since"):
                return start_s
            return int(time.time() * 1_000) - 90_000 if name.endswith("_at") else len(about)
        case LargeBinary():
            return result_of(window_of({"pipeline": about})).pack() if name == "document" else about.encode()
        case DateTime():
            return datetime.now(UTC)
        case Uuid():
            return uuid4()
    return f"{about} {name}"


def as_text(rows: Any) -> str:
    """All that is in some rows."""
    return json.dumps([[repr(value) for value in row] for row in rows])


START_S = int(time.time()) // 60 * 60 - 600
RECEIVER = f"hook-of-{SECRET}"
TABLES_OF_HEALTH = (
    *("emitter", "stranger", "set_aside", "consumer_lag", "quarantine", "quarantine_count", "pending_breach"),
    *("recompute_request", "progress", "token"),
)


def ids(pipeline: str) -> list[str]:
    return [f"id-{word(pipeline)}-{at}" for at in range(4)]


@dataclass(frozen=True)
class TeamsWorld:
    """A database and a log with the same of every pipeline, and who asks a dashboard about it by way of a proxy."""

    store: Store
    incidents: dict[str, UUID]
    silences: dict[str, str]

    start_s: int = START_S

    @property
    def start(self) -> str:
        return rfc3339(self.start_s)


def seed(store: Store, bootstrap: str) -> TeamsWorld:
    """Each pipeline has a closed window with a lost message, an incident about it, and rows in every other table."""
    create_topics(bootstrap)
    incidents = {}
    for pipeline in (OURS, THEIRS, HUSHED):
        store.apply(definition(pipeline), (START_S - 86_400) * 1_000)
        minute = Logged(pipeline, START_S, bootstrap, BEACONS, store, 8)
        for checkpoint, names in {
            "src.in": ids(pipeline),
            "src.out": ids(pipeline),
            "snk.in": ids(pipeline)[:3],
        }.items():
            minute.tell(checkpoint, minute.put(checkpoint, names, 10.0), beacons=len(names))
        window = document(
            definition(pipeline),
            START_S,
            verdict="loss",
            messages=4,
            lost={"src->snk": (1, 1)},
            lags_ms={"snk.in": 10.0},
        )
        with store.engine.begin() as connection:
            store_window(connection, window, START_S, notify=False)
            store_named(
                connection, pipeline, START_S, ids(pipeline)[3], kind="lost", place="link src->snk", last="src.out"
            )
            incidents[pipeline] = _incident(connection, pipeline)
            fill(connection, pipeline, START_S, TABLES_OF_HEALTH, incidents[pipeline])
            (tap,) = definition(pipeline).taps
            bad = {f"{word(pipeline)}-reason": (3, 0, 41, START_S * 1_000)}
            store_tap(connection, tap, since_ms=0, through_ms=START_S * 1_000, unreadable=bad)
            store_lost(connection, pipeline, START_S, ids(pipeline)[2], source=f"table {word(pipeline)}")
            dag, due_ms = f"{word(pipeline)}-dag", START_S * 1_000
            task = StateAt("failed", due_ms + 1, due_ms, due_ms + 1)
            run = RunReport(dag, f"{word(pipeline)}-run", due_ms, task=f"{word(pipeline)}-task", task_event=task)
            record(connection, [(pipeline, run)])
            named_by = [NamedBy(pipeline, "mid")]
            name = "plain-group" if pipeline == OURS else f"{word(pipeline)}-{pipeline}"
            if pipeline == OURS:
                named_by.append(NamedBy(HUSHED, f"{SECRET}-node"))
            keep_cluster_groups(connection, START_S * 1_000, [group(name, named_by)])
    with store.engine.begin() as connection:
        store_receiver(connection, RECEIVER)
        keep_cluster_groups(connection, START_S * 1_000, [group(f"{SECRET}-unnamed", [])])
        keep_cluster_topics(connection, "", START_S * 1_000, [f"{SECRET}-topic"])
        store_leader(connection, "alerter-1", datetime.now(UTC))
    silences = {
        "theirs": _silence(store, f"pipeline={THEIRS}", "kind=lag"),
        "of all": _silence(store, f"pipeline=~{OURS}|{HUSHED}", "kind=lag"),
    }
    return TeamsWorld(store, incidents, silences)


def _incident(connection: Connection, pipeline: str) -> UUID:
    about, opened_at = word(pipeline), datetime.now(UTC)
    detail = {
        "text": f"{about} text",
        "where": [{**WHERE, "text": f"{about} where"}],
        "examples": [{**EXAMPLE, "message_id": ids(pipeline)[3], "id_hash": f"{hash_id(ids(pipeline)[3]):016x}"}],
        "notes": [f"{about} note"],
    }
    found = store_incident(connection, pipeline=pipeline, opened_at=opened_at, detail=detail)
    store_incident(
        connection, pipeline=pipeline, rule=f"{about}-over", opened_at=opened_at, resolved_at=opened_at, detail=detail
    )
    for outcome in ("failed", "sent", None):
        store_delivery(connection, found, f"hook-of-{about}", outcome, at=opened_at, error=f"{about} error")
    store_delivery(connection, None, RECEIVER, "sent", at=opened_at, change="test")
    return found


def _silence(store: Store, *matchers: str) -> str:
    made, _ = actions.silence(store, matchers, reason="known", author="olga", for_s=3_600)
    return made.id


@contextmanager
def dashboard_of(world: TeamsWorld, bootstrap: str, folder: Path) -> Iterator[str]:
    """The whole dashboard behind a proxy, with these teams; its address."""
    file = folder / "access.yaml"
    file.write_text(ACCESS)
    settings = {"login": "proxy", "login_operators": "sre", "proxy_trusted": "127.0.0.0/8"}
    with serving(world.store, create_server, **settings, access_file=file, kafka_bootstrap=bootstrap) as url:
        yield url


def known_as(name: str, *groups: str) -> dict[str, str]:
    """What the proxy adds to the requests of a member of these groups."""
    return {"X-Forwarded-User": name, "X-Forwarded-Groups": ",".join(groups)}


def secrets_in(answer: httpx2.Response) -> list[str]:
    """What is in an answer that only the team blue may know: their texts, and names that nobody asked for."""
    text = answer.text + answer.headers.get("content-disposition", "")
    return [secret for secret in (SECRET, HUSHED) if secret in text]


@contextmanager
def user(url: str, name: str, *groups: str) -> Iterator[httpx2.Client]:
    """A client for whom the proxy names these groups."""
    headers = {**known_as(name, *groups), "origin": url}
    with httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
        yield client
