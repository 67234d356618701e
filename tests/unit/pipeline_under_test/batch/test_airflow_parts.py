"""Airflow's parts that need no Airflow: its files, the schedule, the command of a task, its API's client."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx2
import pytest

from pipeline_under_test.batch.airflow import EmbeddedAirflow
from pipeline_under_test.batch.airflow_api import AirflowRun, TokenAuth
from pipeline_under_test.batch.stack import step_command


def test_lagloss_is_beside_airflow_as_an_installed_plugin_and_nothing_else_of_ours(tmp_path: Path) -> None:
    airflow = EmbeddedAirflow(tmp_path / "airflow", "postgresql://h/airflow?passfile=%2Fp", [], {"MORE": "1"})
    airflow.data_dir.mkdir(mode=0o700)
    airflow._write_files()
    packages = airflow.data_dir / "packages"
    (found,) = metadata.distributions(path=[str(packages)])
    (plugin,) = found.entry_points.select(group="airflow.plugins")
    assert (found.name, plugin.value) == ("lagloss", "lagloss.airflow.plugin:LaglossPlugin")
    assert sorted(path.name for path in packages.iterdir() if not path.name.endswith(".dist-info")) == ["lagloss"]
    environment = airflow._environment()
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == "postgresql+psycopg2://h/airflow?passfile=%2Fp"
    assert environment["MORE"] == "1"
    assert environment["PYTHONPATH"] == str(packages)


def test_secrets_are_kept_and_their_owners_only(tmp_path: Path) -> None:
    first, again = (EmbeddedAirflow(tmp_path, "postgresql://h/airflow", [], {}) for _ in range(2))
    assert first.password == again.password
    assert stat.S_IMODE((tmp_path / "password.secret").stat().st_mode) == 0o600


def test_a_task_runs_in_this_environment_and_ends_with_its_parent() -> None:
    script = f"exec {step_command('json.tool')} --help"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "json" in done.stdout
    assert sys.executable in script
    assert str(os.getpid()) not in script.split()


@pytest.fixture
def dag(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The DAG's module, with the least of Airflow that it needs."""

    class Task:
        def __init__(self, **given: Any) -> None:
            vars(self).update(given)
            made.append(self)

        def __rshift__(self, other: Task) -> Task:
            order.append((self.task_id, other.task_id))  # type: ignore[attr-defined]
            return other

    class Dag:
        def __init__(self, name: str, **given: Any) -> None:
            given_to_dag.update(given, name=name)

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    made: list[Any] = []
    order: list[tuple[str, str]] = []
    given_to_dag: dict[str, Any] = {}
    modules: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("airflow", "airflow.providers", "airflow.providers.standard")},
        "airflow.providers.standard.operators": {},
        "airflow.providers.standard.operators.bash": {"BashOperator": Task},
        "airflow.sdk": {"DAG": Dag, "CronDataIntervalTimetable": lambda cron, timezone: (cron, timezone)},
        "lagloss.airflow.sensor": {"WholeSpanSensor": Task, "WhenLossy": str},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name, value in {"SCORES_SPAN_S": "120", "SCORES_STEP": "step", "SCORES_START_S": "1795579200"}.items():
        monkeypatch.setenv(name, value)
    module = import_module("pipeline_under_test.batch.hourly.dag")
    yield SimpleNamespace(module=module, tasks=made, order=order, dag=given_to_dag)
    monkeypatch.delitem(sys.modules, "pipeline_under_test.batch.hourly.dag")


def test_the_dag_waits_aggregates_loads_checks_and_publishes(dag: Any) -> None:
    names = ["whole", "aggregate", "load", "check", "publish"]
    assert dag.order == list(pairwise(names))
    assert dag.dag["schedule"] == ("*/2 * * * *", "UTC")
    assert dag.dag["max_active_runs"] == 1
    assert [task.bash_command for task in dag.tasks[1:]] == [
        f"exec step {name} --hour {{{{ hour_of(dag_run) }}}}" for name in names[1:]
    ]


@pytest.mark.parametrize(
    ("minutes", "cron"), [(2, "*/2 * * * *"), (30, "*/30 * * * *"), (60, "0 * * * *"), (360, "0 */6 * * *")]
)
def test_a_span_that_divides_hours_or_days_has_a_schedule(dag: Any, minutes: int, cron: str) -> None:
    assert dag.module.cron_of(timedelta(minutes=minutes)) == cron


@pytest.mark.parametrize("minutes", [0, 7, 90, 300])
def test_any_other_span_is_refused(dag: Any, minutes: int) -> None:
    with pytest.raises(ValueError, match="expected a duration that divides an hour"):
        dag.module.cron_of(timedelta(minutes=minutes))


def test_a_token_is_drawn_when_it_is_needed_and_anew_when_it_has_expired() -> None:
    valid = ["second", "first"]
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        if request.url.path == "/auth/token":
            return httpx2.Response(201, json={"access_token": valid[-1]})
        is_valid = request.headers["Authorization"] == f"Bearer {valid[-1]}"
        return httpx2.Response(200 if is_valid else 401)

    auth = TokenAuth("http://airflow", "admin", "secret")
    with httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://airflow", auth=auth) as client:
        assert client.get("/one").status_code == 200
        assert client.get("/two").status_code == 200
        valid.pop()
        assert client.get("/three").status_code == 200
    assert asked == ["/auth/token", "/one", "/two", "/three", "/auth/token", "/three"]


def test_a_run_is_read_with_the_start_of_its_hour() -> None:
    document = {"dag_run_id": "scheduled", "state": "failed", "data_interval_start": "2026-11-25T04:00:00Z"}
    assert AirflowRun.of(document) == AirflowRun("scheduled", "failed", 1_795_579_200)
    assert AirflowRun.of({**document, "data_interval_start": None}).hour is None
