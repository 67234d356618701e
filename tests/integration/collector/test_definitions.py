"""Definitions and tokens: what the collector lets whom do, with a real PostgreSQL that may go away."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from sqlalchemy import select

from collector.definitions import MAX_VERSIONS_A_DAY
from lagloss_server.base.errors import UnknownPipeline, UnknownToken
from lagloss_server.model.definition import parse_definition
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store import tokens
from lagloss_server.store.audit import audit_table
from lagloss_server.store.store import Store
from lagloss_server.store.tokens import Scope
from tests.integration.collector.test_collector import batch, beacon
from tests.integration.conftest import DEFINITION, YAML, Collector
from tests.support.kafka_log import wait_for

LagLoss = Callable[..., Any]
DEFINITION_JSON = """{"apiVersion": "lagloss/v1", "kind": "Pipeline",
"metadata": {"name": "NAME", "description": "TEXT"}, "spec": {"nodes": [{"name": "src"}]}}"""


@pytest.fixture
def lagloss(collector: Collector, tmp_path: Path) -> LagLoss:
    """The command line on the collector's database; what it prints as JSON, or its exit code and message."""

    def run(*words: str) -> Any:
        env = {"LAGLOSS_DATABASE_URL": collector.database_url, "LAGLOSS_DATA_DIR": str(tmp_path), "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-m", "lagloss_server.cli.main", *words], capture_output=True, text=True, env=env
        )
        return json.loads(done.stdout) if "--json" in words and done.returncode == 0 else (done.returncode, done.stderr)

    return run


def new_token(collector: Collector, pipeline: str, scope: Scope = "intake", rate: int | None = None) -> dict[str, str]:
    return bearer(tokens.create(collector.store, pipeline, scope, rate)[1])


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_definition_is_stored_changed_shown_and_deleted(collector: Collector, pipeline: str) -> None:
    client, path = collector.client, f"/v1/pipelines/{pipeline}"
    text = DEFINITION.replace("NAME", pipeline)
    assert client.put(path, content=text, headers=YAML).status_code == 200  # the same again is no new version
    changed = client.put(path, json=yaml.safe_load(text) | {"metadata": {"name": pipeline, "description": "new"}})
    assert (changed.status_code, changed.json()["version"]) == (201, 2)
    assert client.get(path).json()["definition"]["metadata"]["description"] == "new"
    assert [each["version"] for each in client.get(f"{path}/versions").json()] == [1, 2]
    assert pipeline in [each["name"] for each in client.get("/v1/pipelines").json()]
    assert client.delete(path).status_code == 401  # it takes a token, on this machine too
    admin = new_token(collector, pipeline, "admin")
    assert client.delete(path, headers=admin).status_code == 204
    assert [ask(path, headers=admin).status_code for ask in (client.delete, client.get)] == [404, 404]
    assert client.get(f"{path}/versions", headers=admin).status_code == 404
    assert pipeline not in [each["name"] for each in client.get("/v1/pipelines", headers=admin).json()]
    assert client.post("/v1/beacons", json=batch(pipeline, beacon()), headers=admin).status_code == 404
    again = client.put(path, content=text, headers=YAML | admin)
    assert (again.status_code, again.json()["version"]) == (201, 3)
    assert client.post("/v1/beacons", json=batch(pipeline, beacon()), headers=admin).status_code == 202
    token = admin["Authorization"].split("_")[1]
    with collector.store.engine.connect() as connection:
        trail = connection.execute(
            select(audit_table).where(audit_table.c.pipelines.contains([pipeline])).order_by(audit_table.c.id)
        ).all()
    assert [(entry.action, entry.actor, entry.known_by, entry.address, entry.detail) for entry in trail] == [
        ("definition.apply", "local", "machine", "127.0.0.1", {"version": 1}),
        ("definition.apply", "local", "machine", "127.0.0.1", {"version": 2}),
        ("token.create", "lagloss", "none", None, {"scope": "admin"}),
        ("definition.delete", token, "token", "127.0.0.1", {}),
        ("definition.apply", token, "token", "127.0.0.1", {"version": 3}),
    ]


def test_a_pipeline_gets_so_many_versions_a_day_and_those_that_change_nothing_cost_none(
    collector: Collector, pipeline: str
) -> None:
    client, path = collector.client, f"/v1/pipelines/{pipeline}"

    def text(of: str, number: int) -> str:
        return DEFINITION.replace("{name: NAME}", f"{{name: {of}, description: version {number}}}")

    def put(number: int, of: str = pipeline) -> httpx2.Response:
        return client.put(f"/v1/pipelines/{of}", content=text(of, number), headers=YAML)

    now_ms = int(time.time() * 1000)
    for number in range(MAX_VERSIONS_A_DAY - 2):  # the first is the fixture's
        collector.store.apply(parse_definition(text(pipeline, number)), now_ms - 3_600_000 + number)
    assert put(1_000).status_code == 201
    refused = put(1_001)
    assert (refused.status_code, put(1_000).status_code) == (429, 200)
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert len(client.get(f"{path}/versions").json()) == MAX_VERSIONS_A_DAY
    assert put(0, f"{pipeline}-other").status_code == 201


@pytest.mark.parametrize("text", [r"\u0000", r"\ud800"])
def test_text_that_postgresql_cannot_hold_is_422_and_names_its_field(
    collector: Collector, pipeline: str, text: str
) -> None:
    for kind, body in (
        ("application/yaml", DEFINITION.replace("{name: NAME}", f'{{name: {pipeline}, description: "{text}"}}')),
        ("application/json", DEFINITION_JSON.replace("NAME", pipeline).replace("TEXT", text)),
    ):
        answer = collector.client.put(f"/v1/pipelines/{pipeline}", content=body, headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["field"]) == (422, "metadata.description"), answer.text


def test_both_halves_of_a_surrogate_pair_in_json_are_one_character(collector: Collector, pipeline: str) -> None:
    body = DEFINITION_JSON.replace("NAME", pipeline).replace("TEXT", r"\ud83d\ude00")
    answers = [
        collector.client.put(f"/v1/pipelines/{pipeline}", content=body, headers={"Content-Type": "application/json"})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert answers[0].json()["definition"]["metadata"]["description"] == "\U0001f600"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("a: [", 1, "expected YAML"),
        (DEFINITION.replace("name: fb}", "name: fb, colour: red}"), 10, "colour"),
        (DEFINITION.replace("to: [mid]", "to: [nowhere]"), 5, "nowhere"),
        (DEFINITION.replace("NAME", "another"), None, "expected metadata.name"),
        ("[" * 5_000, None, "expected YAML"),
        ("\0", None, "expected YAML"),
        ("a: 2026-99-99", 1, "expected YAML"),
    ],
)
def test_a_bad_definition_is_told_as_lagloss_apply_does(
    collector: Collector, text: str, line: int | None, expected: str
) -> None:
    answer = collector.client.put("/v1/pipelines/NAME", content=text, headers=YAML)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert expected in answer.json()["detail"]
    assert line is None or answer.json()["line"] == line


def test_the_schema_accepts_what_is_stored(collector: Collector, pipeline: str) -> None:
    schema = collector.client.get("/v1/schemas/pipeline.json").json()
    stored = collector.client.get(f"/v1/pipelines/{pipeline}").json()["definition"]
    assert set(stored) == set(schema["properties"])
    target = schema["$defs"]["LagSla"]["properties"]["target"]
    assert (target["type"], target["default"]) == ("string", "5s")


def test_there_is_a_schema_of_defaults_in_which_each_setting_can_be_left_out(collector: Collector) -> None:
    schema = collector.client.get("/v1/schemas/defaults.json").json()
    assert set(schema["properties"]) == {"apiVersion", "kind", "metadata", "spec"}
    assert schema["$defs"]["DefaultsClass"]["required"] == ["match"]


def test_defaults_are_no_pipeline(collector: Collector) -> None:
    text = "{apiVersion: lagloss/v1, kind: Defaults, metadata: {name: a}, spec: [{match: {}}]}"
    answer = collector.client.put("/v1/pipelines/a", content=text, headers=YAML)
    assert answer.status_code == 422
    assert "expected 'Pipeline', found 'Defaults'" in answer.json()["detail"]


def test_a_body_of_several_documents_is_refused(collector: Collector, pipeline: str) -> None:
    text = DEFINITION.replace("NAME", pipeline)
    answer = collector.client.put(f"/v1/pipelines/{pipeline}", content=f"{text}---\n{text}", headers=YAML)
    assert answer.status_code == 422
    assert "expected a single document, found another one" in answer.json()["detail"]


def test_a_token_opens_its_pipeline_and_no_other(collector: Collector, pipeline: str) -> None:
    client, path = collector.client, f"/v1/pipelines/{pipeline}"
    intake, admin = new_token(collector, pipeline), new_token(collector, pipeline, "admin")

    def post(headers: dict[str, str], name: str = pipeline) -> int:
        return client.post("/v1/beacons", json=batch(name, beacon()), headers=headers).status_code

    assert post(intake) == post(admin) == 202
    assert post(intake, "another") == 403
    for wrong in (
        {"Authorization": intake["Authorization"] + "x"},
        bearer("lagloss_0_0"),
        {"Authorization": "Basic eA=="},
    ):
        assert post(wrong) == 401
    wait_for(lambda: post({}) == 401, what="the pipeline to ask for a token")  # even on this machine
    for method in ("GET", "DELETE"):
        assert client.request(method, path, headers=intake).status_code == 403
        assert client.request(method, path).status_code == 401
    assert client.get(path, headers=admin).status_code == 200
    assert [each["name"] for each in client.get("/v1/pipelines", headers=admin).json()] == [pipeline]
    assert pipeline not in [each["name"] for each in client.get("/v1/pipelines").json()]


def test_a_revoked_token_stops_working_within_seconds(collector: Collector, pipeline: str, lagloss: LagLoss) -> None:
    made = lagloss("token", "create", pipeline, "--json")
    path = f"/v1/pipelines/{pipeline}/intake"
    assert collector.client.get(path, headers=bearer(made["token"])).status_code == 200
    assert lagloss("token", "revoke", made["id"]) == (0, "")
    wait_for(lambda: collector.client.get(path, headers=bearer(made["token"])).status_code == 401, timeout_s=5)
    assert collector.client.get(path).status_code == 401  # it does not open again to whoever comes
    [listed] = [each for each in lagloss("token", "list", "--json") if each["id"] == made["id"]]
    assert listed["revoked_at"] is not None
    assert "token" not in listed
    with pytest.raises(UnknownToken):
        tokens.revoke(collector.store, made["id"])
    with pytest.raises(UnknownPipeline):
        tokens.create(collector.store, "nobody")


def test_who_is_not_on_this_machine_needs_a_token(collector: Collector, pipeline: str) -> None:
    # a proxy on this machine says whom it speaks for
    for path in (f"/v1/pipelines/{pipeline}/intake", "/v1/pipelines"):
        answer = collector.client.get(path, headers={"X-Forwarded-For": "192.0.2.7"})
        assert (answer.status_code, "Bearer" in answer.headers["www-authenticate"]) == (401, True)


def test_a_token_sends_no_faster_than_its_rate(collector: Collector, pipeline: str) -> None:
    headers = new_token(collector, pipeline, rate=10)

    def post(beacons: int) -> httpx2.Response:
        body = batch(pipeline, *(beacon(message_id=str(i)) for i in range(beacons)))
        return collector.client.post("/v1/beacons", json=body, headers=headers)

    assert [post(60).status_code, post(40).status_code] == [202, 202]
    refused = post(40)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert post(101).status_code == 413
    parts = {"progress": [{"checkpoint": "mid.in", "lane": f"t/{at}", "until": 1} for at in range(40)]}
    report = {
        "pipeline": pipeline,
        "node": "mid",
        "emitter": str(uuid.uuid4()),
        "seq": 1,
        "started_at": 1,
        "sent_at": 1,
    }
    fast = new_token(collector, pipeline, rate=10)
    answers = [collector.client.post("/v1/reports", json=report | parts, headers=fast).status_code for _ in range(3)]
    assert answers == [202, 202, 429]


def test_secrets_are_kept_as_hashes_only(collector: Collector, pipeline: str) -> None:
    token = tokens.create(collector.store, pipeline)[1]
    secret = token.split("_", 2)[2]
    with collector.store.engine.connect() as connection:
        kept = connection.exec_driver_sql("SELECT t::text FROM token t").scalars().all()
    assert kept
    assert not any(secret in row or secret.encode().hex() in row for row in kept)


def test_without_postgresql_what_is_known_goes_on_and_definitions_wait(
    collector: Collector, postgres: EmbeddedPostgres, pipeline: str
) -> None:
    headers = new_token(collector, pipeline, "admin")
    client, path = collector.client, f"/v1/pipelines/{pipeline}"
    assert client.post("/v1/beacons", json=batch(pipeline, beacon()), headers=headers).status_code == 202
    name = collector.store.engine.url.database

    elsewhere = Store(postgres.url)  # a database lets nobody shut it from inside
    with elsewhere.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as held:
        held.exec_driver_sql(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        others = "FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        held.exec_driver_sql(f"SELECT pg_terminate_backend(pid) {others}", (name,))
        try:
            wait_for(lambda: client.get("/healthz").json()["postgresql"] != "ok", what="it to be noticed")
            assert client.post("/v1/beacons", json=batch(pipeline, beacon()), headers=headers).status_code == 202
            assert client.post("/v1/beacons", json=batch("unheard-of", beacon())).status_code == 503
            for answer in (client.get(path, headers=headers), client.get("/v1/pipelines")):
                assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
        finally:
            held.exec_driver_sql(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    wait_for(lambda: client.get("/healthz").json()["postgresql"] == "ok", what="it to be back")
    elsewhere.close()
    assert client.get(path, headers=headers).status_code == 200


def test_what_another_collector_has_just_stored_is_known_at_once(collector: Collector, pipeline: str) -> None:
    """Definitions come to this one by the database alone, between two of its looks."""
    head = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: NAME}\nspec:\n"
    for round_ in range(5):
        node, fresh, dag = f"late-{round_}", f"{pipeline}-{round_}", f"{pipeline}-dag-{round_}"
        jobs = f"  jobs: [{{dag: {dag}}}]\n"
        collector.store.apply(parse_definition(f"{head}  nodes: [{{name: {node}}}]\n".replace("NAME", pipeline)))
        collector.store.apply(parse_definition(f"{head}  nodes: [{{name: src}}]\n{jobs}".replace("NAME", fresh)))
        bodies = [{**batch(pipeline, beacon()), "node": node}, {**batch(fresh, beacon()), "node": "src"}]
        run = {"dag": dag, "run_id": "r", "due_at": "2026-11-26T12:00:00Z"}
        run["run"] = {"state": "success", "at": run["due_at"], "started_at": run["due_at"]}
        answers = [collector.client.post("/v1/beacons", json=body) for body in bodies]
        assert [answer.status_code for answer in answers] == [202, 202], [answer.text for answer in answers]
        collector.store.apply(
            parse_definition(f"{head}  nodes: [{{name: src}}]\n  jobs: [{{dag: {dag}-2}}]\n".replace("NAME", fresh))
        )
        told = collector.client.post("/v1/task-runs", json={"reports": [{**run, "dag": f"{dag}-2"}]}).json()
        assert told == {"accepted": 1, "ignored": 0}
