"""What a child process sees of its parent's environment and of the current directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lagloss.broker import connection
from lagloss.environment import secret
from lagloss.errors import BadSetting
from lagloss.sdk.outlets.choice import TOKEN_VARIABLE
from lagloss_server.base import settings
from lagloss_server.base.settings import Settings
from lagloss_server.net import schema_registry
from lagloss_server.ops.child_environment import PACKAGES, foreign_environment, own_environment, own_modules_first
from lagloss_server.ops.embedded.environment import LockedEnvironment
from lagloss_server.ops.processes import python, run, spawn
from lagloss_server.ops.up import _services

SECRETS = (
    *(f"{settings.ENV_PREFIX}{name}".upper() for name in settings.SECRETS),
    *(f"{connection.prefix_of(cluster)}{name}" for cluster in ("", "eu-1") for name in sorted(connection.SECRETS)),
    *(
        f"{schema_registry.registry_prefix(of)}{name}"
        for of in ("", "eu-1")
        for name in sorted(schema_registry.SECRETS)
    ),
    TOKEN_VARIABLE,
)
"""Every variable that `NAME_FILE` may stand for."""


@given(
    parent=some.dictionaries(some.sampled_from(SECRETS), some.sampled_from(["value", "file"])),
    passed=some.dictionaries(some.sampled_from(SECRETS), some.sampled_from(["", "passed"])),
)
def test_a_child_reads_each_secret_once_whether_it_comes_from_a_file_or_is_passed_on(
    parent: dict[str, str], passed: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "secret"
    file.write_text("from the file\n")
    given = {
        f"{name}_FILE" if how == "file" else name: str(file) if how == "file" else how for name, how in parent.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("LAGLOSS_")]:
            patch.delenv(name)
        for name, value in given.items():
            patch.setenv(name, value)
        child = own_environment(passed)
    for name in SECRETS:
        inherited = {"value": "value", "file": "from the file"}.get(parent.get(name, ""), "")
        assert secret(child, name) == passed.get(name, inherited)


def test_files_that_are_no_secret_stay() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAGLOSS_ACCESS_FILE", "/etc/access.yaml")
        assert own_environment({"LAGLOSS_DATABASE_URL": "x"})["LAGLOSS_ACCESS_FILE"] == "/etc/access.yaml"
        assert own_environment({"LAGLOSS_REPORTS_FILE": "/r"})["LAGLOSS_REPORTS_FILE"] == "/r"


def test_services_of_up_start_with_all_secrets_in_files_and_each_gets_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("LAGLOSS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "DATABASE_URL": "postgresql://ann@db/lagloss",
        "DATABASE_PASSWORD": "hunter2",
        "ALERT_WEBHOOK_URL": "https://hooks.example/T0",
        "OIDC_CLIENT_SECRET": "s3cr3t",
        "HEARTBEAT_URL": "https://hc.example/1",
    }.items():
        (tmp_path / name).write_text(value)
        monkeypatch.setenv(f"LAGLOSS_{name}_FILE", str(tmp_path / name))
    services = _services(Settings(data_dir=tmp_path), tmp_path)
    found = {}
    for service in services:
        child = own_environment(service.env)
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("LAGLOSS_")]:
                patch.delenv(name)
            for name, value in child.items():
                patch.setenv(name, value)
            its = Settings()
        assert "hunter2" in its.require_database()
        found[service.name] = (its.alert_webhook_url, its.oidc_client_secret, its.heartbeat_url)
    none = ("", "", "")
    assert found == {
        "aggregator": none,
        "alerting": ("https://hooks.example/T0", "", ""),
        "canary": ("", "", "https://hc.example/1"),
        "collector": none,
        "dashboard": ("", "s3cr3t", ""),
        "taps": none,
    }


def test_a_token_of_the_sdk_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lagloss.sdk.emitter import Emitter

    monkeypatch.delenv("LAGLOSS_KAFKA_BOOTSTRAP", raising=False)
    monkeypatch.setenv(f"{TOKEN_VARIABLE}_FILE", str(tmp_path / "token"))
    with pytest.raises(BadSetting, match="LAGLOSS_COLLECTOR_TOKEN_FILE is "):
        Emitter("clicks", "src", collector="http://127.0.0.1:9")
    (tmp_path / "token").write_text("lagloss_x_y\n")
    Emitter("clicks", "src", collector="http://127.0.0.1:9").close(0)


def test_a_foreign_program_gets_no_setting_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRETS, "PGPASSWORD", "PGPORT", "AWS_SECRET_ACCESS_KEY", "KAFKA_OPTS", "GITHUB_TOKEN", "CLASSPATH"):
        monkeypatch.setenv(name, "s3cr3t")
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    monkeypatch.setenv("JAVA_HOME", "/java")
    found = foreign_environment({"SERVICES": "s3"})
    assert "s3cr3t" not in found.values()
    assert "PYTHONPATH" not in found
    assert (found["PATH"], found["JAVA_HOME"], found["SERVICES"]) == (os.environ["PATH"], "/java", "s3")
    shown = run([sys.executable, "-c", "import os; print(sorted(os.environ))"], environment=foreign_environment).stdout
    assert "LAGLOSS" not in shown


def test_a_child_keeps_the_callers_path_after_lagloss_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/first", str(PACKAGES), "", ".", "src", "/second"]))
    assert own_modules_first()["PYTHONPATH"] == os.pathsep.join([str(PACKAGES), "/first", "/second"])


@pytest.fixture
def cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory of somebody else's, whose code leaves its name in `ran`."""
    folder = tmp_path / "cloned"
    (folder / "grpc_tools").mkdir(parents=True)
    leave = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).open('a').write(__file__)\n"
    for name in ("grpc_tools/__init__", "grpc_tools/protoc", "sitecustomize", "usercustomize", "json", "venv", "pip"):
        (folder / f"{name}.py").write_text(leave)
    (folder / ".numba_config.yaml").write_text(f"cache_dir: {folder}\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", ".")
    return folder


def ran(cloned: Path) -> str:
    path = cloned.with_name("ran")
    return path.read_text() if path.exists() else ""


def test_no_code_of_the_current_directory_runs_in_a_child(cloned: Path) -> None:
    done = run(python("json.tool", "--help"))
    assert "usage" in done.stdout
    assert spawn(python("json.tool", "--help"), cloned.with_name("log")).wait(30) == 0
    assert run(python("json.tool", "--help"), environment=foreign_environment).returncode == 0
    assert ran(cloned) == ""
    subprocess.run([sys.executable, "-m", "json.tool"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert "json.py" in ran(cloned)  # which is what would run


def test_protoc_is_not_taken_from_the_current_directory(cloned: Path) -> None:
    from lagloss_server.extraction.protobuf_schema import compile_proto

    assert compile_proto('syntax = "proto3"; message Click { string id = 1; }', {})
    assert ran(cloned) == ""


def test_an_environment_is_not_made_by_code_of_the_current_directory(
    cloned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = cloned.with_name("some.lock")
    lock.write_text("")
    monkeypatch.setenv("SOME_DIR", str(cloned.with_name("made")))
    assert LockedEnvironment("Some", lock, "SOME_DIR").ensure().exists()
    assert ran(cloned) == ""


def test_compiled_code_is_not_taken_from_a_folder_that_the_current_directory_names(cloned: Path) -> None:
    words = [sys.executable, "-P", "-c", "import numba; print(repr(numba.config.CACHE_DIR))"]
    assert run(words).stdout == "''\n"
    assert run(words, environment=foreign_environment).stdout == f"{str(cloned)!r}\n"  # which is what would be
