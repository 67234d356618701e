"""All five services beside rows that a newer version has stored: those wait, and everything else goes on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg.conninfo import make_conninfo
from sqlalchemy import text

from lagloss.broker.topics import create_topics
from lagloss_server.base.database_url import connection_options
from lagloss_server.base.settings import Settings
from lagloss_server.model.definition import as_document, parse_definition
from lagloss_server.ops.doctor import check_rows
from lagloss_server.ops.processes import choose_port, spawn, terminate
from lagloss_server.store import tokens
from lagloss_server.store.store import Store
from tests.integration.aggregator.test_aggregator_process import metric
from tests.integration.aggregator.test_outages import MESSAGES, Minutes
from tests.support.closers import wait_until
from tests.support.databases import password_in

SERVICES = ("aggregator", "alerting", "taps", "collector", "dashboard")
BY_A_NEWER_VERSION = text(
    "INSERT INTO pipeline (name, version, applied_at, definition) SELECT name, version + 1, applied_at + 1,"
    " jsonb_set(definition, '{spec,futureField}', '1') FROM pipeline WHERE name = :name"
)
ONE_NODE = "metadata: {name: %s}, spec: {nodes: [{name: only}]}"
DAMAGED = text("UPDATE pipeline SET definition = '[]' WHERE name = :name")
MENDED = text("UPDATE pipeline SET definition = CAST(:definition AS jsonb) WHERE name = :name")
UNREADABLE_SILENCE = text(
    "INSERT INTO silence (id, matchers, reason, author, starts_at, ends_at)"
    " VALUES ('f00', '[]', 'of a newer version', 'ann', now() - interval '1 hour', 'infinity')"
)


@contextmanager
def service(module: str, bootstrap: str, database_url: str, folder: Path) -> Iterator[str]:
    """A service's process, which has the database's password from a file, as in a container; its address."""
    port = choose_port(module)
    variable = {"aggregator": "METRICS"}.get(module, module.upper())
    options = connection_options(database_url)
    (folder / "password").write_text(password_in(Path(options.pop("passfile"))))
    env = {
        f"LAGLOSS_{variable}_PORT": str(port),
        "LAGLOSS_KAFKA_BOOTSTRAP": bootstrap,
        "LAGLOSS_DATABASE_URL": make_conninfo(**options),
        "LAGLOSS_DATABASE_PASSWORD_FILE": str(folder / "password"),
        "LAGLOSS_DATA_DIR": str(folder / module),
        "LAGLOSS_SPARK_DRIVER_MEMORY": "1g",
    }
    process = spawn([sys.executable, "-P", "-m", module], folder / f"{module}.log", env=env)
    try:
        yield f"http://127.0.0.1:{port}"
        assert process.poll() is None, (folder / f"{module}.log").read_text()
    finally:
        terminate(process, 20)


def health(url: str) -> tuple[int, str]:
    try:
        answer = httpx2.get(f"{url}/healthz", timeout=5)
    except httpx2.HTTPError:
        return 0, ""
    return answer.status_code, answer.text


def test_rows_of_a_newer_version_wait_and_everything_else_goes_on(
    kafka_bootstrap: str, database_url: str, store: Store, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    with ExitStack() as stack:
        good, bad = (stack.enter_context(closing(Minutes(kafka_bootstrap))) for _ in range(2))
        topic = f"{good.name}-tapped"
        admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        good.define(store)
        bad.define(store)
        damaged = f"{good.name}-damaged"
        store.apply(chain := parse_definition(f"{{apiVersion: lagloss/v1, kind: Pipeline, {ONE_NODE % damaged}}}"))
        taps = f"{{out: {{topic: {topic}, id: $.id, eventTime: timestamp}}}}"
        nodes = f"[{{name: src, to: [snk], taps: {taps}}}, {{name: snk}}]"
        head = f"apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {topic}}}"
        store.apply(parse_definition(f"{{{head}, spec: {{nodes: {nodes}}}}}"))
        token, shown = tokens.create(store, good.name)
        urls = {name: stack.enter_context(service(name, kafka_bootstrap, database_url, tmp_path)) for name in SERVICES}

        def until(condition: Callable[[], Any], what: str, timeout_s: float = 60) -> None:
            wait_until(condition, timeout_s, what)

        def send() -> None:
            for minutes in (good, bad):
                minutes.send()
                minutes.flush()

        def closed(minutes: Minutes) -> int:
            return len(minutes.closed(store))

        def intake() -> int:
            url = f"{urls['collector']}/v1/pipelines/{good.name}/intake"
            return httpx2.get(url, headers={"Authorization": f"Bearer {shown}"}).status_code

        def evaluated_s() -> float:
            return metric(urls["alerting"], "lagloss_alerting_evaluated_timestamp_seconds")

        send()
        until(lambda: closed(good) == closed(bad) == 1, "the windows before", 150)
        until(lambda: all(health(url)[0] == 200 for url in urls.values()), "all to be well")
        until(lambda: intake() == 200, "the token to be known")

        with store.engine.begin() as connection:
            connection.execute(BY_A_NEWER_VERSION, {"name": bad.name})
            connection.execute(DAMAGED, {"name": damaged})
            connection.execute(UNREADABLE_SILENCE)
        place = f"definition {bad.name}/2 (written by a newer version"
        places = (place, f"definition {damaged}/1 (cannot be read: ")

        def names_both(url: str) -> bool:
            return all(each in health(url)[1] for each in places)

        until(lambda: all(map(names_both, urls.values())), "each service to name the definitions")
        assert {health(url)[0] for url in urls.values()} == {200}
        send()
        tapped = Producer({"bootstrap.servers": kafka_bootstrap})
        tapped.produce(topic, b'{"id": "1"}')
        tapped.flush(10)
        until(lambda: closed(good) == 2, "the other pipeline's window")
        since_s = time.time()
        until(lambda: evaluated_s() > since_s, "a whole round of the alerter")
        assert metric(urls["alerting"], "lagloss_alerting_evaluations_failed_total") == 0
        until(lambda: metric(urls["taps"], "lagloss_taps_records_total") >= 1, "the tap of another pipeline")
        overview = httpx2.get(f"{urls['dashboard']}/api/v1/overview", timeout=30).json()
        assert {each["pipeline"] for each in overview["pipelines"]} == {good.name, topic}
        assert {each["pipeline"] for each in overview["set_aside"]} == {bad.name, damaged}
        items = httpx2.get(f"{urls['dashboard']}/api/v1/health", timeout=30).json()["set_aside"]
        assert {(each["kind"], each["pipeline"], each["item"]) for each in items} == {
            ("definition", bad.name, "2"),
            ("definition", damaged, "1"),
            ("silence", "", "f00"),
        }
        tokens.revoke(store, token.id)
        until(lambda: intake() == 401, "the revoked token to be refused", 10)
        for url in urls.values():
            assert metric(url, 'lagloss_set_aside{kind="definition"}') == 2
        (check,) = check_rows(Settings(database_url=database_url))
        assert (check.verdict, place in check.finding) == ("warn", True)
        assert f"deferred: {', '.join(sorted((bad.name, damaged)))}" in health(urls["aggregator"])[1]
        assert closed(bad) == 1

        with store.engine.begin() as connection:
            connection.execute(text("DELETE FROM pipeline WHERE name = :name AND version = 2"), {"name": bad.name})
            connection.execute(text("DELETE FROM silence"))
            connection.execute(MENDED, {"name": damaged, "definition": json.dumps(as_document(chain))})
        until(lambda: closed(bad) == 2, "the window that waited")
        until(lambda: all("aside" not in health(url)[1] for url in urls.values()), "all to be well again")
        assert [window["messages"] for window in bad.closed(store)] == [MESSAGES] * 2
        assert health(urls["aggregator"]) == (200, "ok")
        assert json.loads(health(urls["collector"])[1]) == {"kafka": "ok", "postgresql": "ok"}
        assert check_rows(Settings(database_url=database_url))[0].verdict == "ok"
