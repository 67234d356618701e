"""The files that set-up and packaging rest on: Makefile, locks, compose file, metadata, changelog."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import lagloss
from lagloss_server.base.database_url import connection_options
from lagloss_server.base.settings import Settings
from lagloss_server.ops.jars import sha256_of
from pipeline_under_test.batch.__main__ import app as batch_commands
from pipeline_under_test.batch.settings import ENV_PREFIX, BatchSettings

ROOT = Path(__file__).parents[3]
TARGETS = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
IMAGE_LOCKS = ("deploy/requirements.txt", "deploy/requirements-aggregator.txt")
LOCKS = (*IMAGE_LOCKS, "requirements.txt", "requirements-dev.txt", "requirements-build.txt")
WHEELS = ("lagloss", "lagloss-server")
CHECKOUT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
DATA_SUFFIXES = {
    ".LICENSE", ".avsc", ".css", ".dictionary", ".html", ".j2", ".jinja", ".js", ".json", ".lock", ".mako", ".md",
    ".typed", ".xml", ".yaml",
}  # fmt: skip


def test_make_help_lists_every_target_in_one_line_each() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split()[1] for line in done.stdout.splitlines()] == TARGETS


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_every_package_with_a_hash(name: str) -> None:
    blocks = re.split(r"\n(?=[a-z])", (ROOT / name).read_text(), flags=re.IGNORECASE)
    pins = [block for block in blocks if not block.startswith("#")]
    assert len(pins) > 5
    for pin in pins:
        assert re.match(r"[A-Za-z0-9_.\[\]-]+==\S+", pin), pin
        assert "--hash=sha256:" in pin, pin


@pytest.mark.parametrize("name", [*LOCKS, "lagloss_server/ops/jars.lock"])
def test_a_lock_holds_no_address_and_no_path_of_a_machine(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "find-links" not in text
    assert "index-url" not in text
    assert not re.search(r"(^|\s)/\w", text)


def test_the_changelog_has_the_packages_version_as_its_newest_release_below_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(lagloss.__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1])


def test_the_package_says_the_licence_that_the_repository_holds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    for name in project["license-files"]:
        assert "Apache License\n                           Version 2.0" in (ROOT / name).read_text()


def test_the_hooks_of_pre_commit_are_valid_and_need_no_network() -> None:
    name = ".pre-commit-config.yaml"
    subprocess.run([sys.executable, "-m", "pre_commit", "validate-config", name], cwd=ROOT, check=True)
    repos = yaml.safe_load((ROOT / name).read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    assert {hook["language"] for hook in repos[0]["hooks"]} <= {"system", "pygrep"}


def test_all_locks_hold_the_same_versions() -> None:
    services, aggregator, run_time, development, build = (
        set(re.findall(r"^[A-Za-z0-9_.\[\]-]+==[^ ;\\]+", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS
    )
    assert services < aggregator < run_time < development
    assert build < run_time


UNLOCKED = {"msk"}
"""tests/acceptance/test_wheels.py installs and runs it."""


def test_the_locks_of_the_checkout_are_made_of_all_that_the_wheels_need() -> None:
    variable = re.search(r"^RUN_TIME := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert variable is not None
    locked = set(variable[1].split())
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert locked == groups.keys() - {"dev", *UNLOCKED}
    for name in WHEELS:
        wheel = tomllib.loads((ROOT / "packaging" / name / "pyproject.toml").read_text())
        taken = wheel["tool"]["hatch"]["metadata"]["hooks"]["custom"]
        assert {taken["dependencies"], *taken["extras"]} <= {*locked, *UNLOCKED}


def test_every_folder_of_code_lies_in_one_wheel() -> None:
    included: list[str] = []
    for name in WHEELS:
        wheel = tomllib.loads((ROOT / "packaging" / name / "pyproject.toml").read_text())
        included += wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    checkout = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sorted(included) == sorted(
        f"../../{folder}" for folder in [*checkout["packages"], "migrations", "scenarios"]
    )


def built(folder: Path, root: Path = ROOT, umask: int = -1, **variables: str) -> dict[str, Path]:
    """Both wheels by name, built with the locked hatchling."""
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"} | variables
    for name in WHEELS:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
        where = root / "packaging" / name
        subprocess.run(command, cwd=where, env=environment, umask=umask, check=True, capture_output=True)
    return {name: next(folder.glob(f"{name.replace('-', '_')}-*.whl")) for name in WHEELS}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    return {name: zipfile.ZipFile(path) for name, path in built(tmp_path_factory.mktemp("dist")).items()}


def test_wheels_are_the_same_bytes_wherever_and_whenever_they_are_built(
    wheels: dict[str, zipfile.ZipFile], tmp_path: Path
) -> None:
    checkout = tmp_path / "elsewhere"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ["packaging", *CHECKOUT["packages"][::-1], "scenarios", "migrations"]:  # in another order
        shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for path in checkout.rglob("*"):  # as a checkout of another day with a umask of 077
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    again = built(tmp_path / "dist", checkout, 0o077, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    for name, wheel in wheels.items():
        assert wheel.filename is not None
        assert sha256_of(again[name]) == sha256_of(Path(wheel.filename)), name


def test_wheels_hold_code_and_what_it_reads_and_nothing_else(wheels: dict[str, zipfile.ZipFile]) -> None:
    for name, wheel in wheels.items():
        files = [Path(file) for file in wheel.namelist() if ".dist-info/" not in file]
        top = {file.parts[0] for file in files}
        assert top == ({"lagloss"} if name == "lagloss" else set(CHECKOUT["packages"]) - {"lagloss"})
        assert not [file for file in files if {"tests", "__pycache__"} & set(file.parts) or file.name.startswith(".")]
        assert {file.suffix for file in files if file.suffix != ".py"} <= DATA_SUFFIXES
        for folder in top:
            tree = {file for file in (ROOT / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts}
            elsewhere = {file for file in files if {"migrations", "library"} & set(file.parts)}
            assert {ROOT / file for file in files if file.parts[0] == folder} - {
                ROOT / file for file in elsewhere
            } == tree


def test_wheels_say_what_they_need_once_each(wheels: dict[str, zipfile.ZipFile]) -> None:
    needs: dict[str, list[tuple[str, str]]] = {}
    for name, wheel in wheels.items():
        (path,) = (file for file in wheel.namelist() if file.endswith("/METADATA"))
        text = wheel.read(path).decode()
        assert f"\nVersion: {lagloss.__version__}\n" in text
        needs[name] = re.findall(r"^Requires-Dist: ([\w-]+).*?(; extra == .+)?$", text, re.MULTILINE)
        without_extra = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", text, re.MULTILINE)
        if name == "lagloss":
            assert without_extra == ["confluent-kafka", "fastavro", "numpy", "xxhash"]
        else:
            assert f"Requires-Dist: lagloss=={lagloss.__version__}\n" in text
    assert all(len(set(names)) == len(names) for names in needs.values())


def test_the_compose_file_keeps_each_record_on_three_brokers() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    brokers = [name for name in compose["services"] if name.startswith("kafka-")]
    assert len(brokers) == 3
    for name in brokers:
        settings = compose["services"][name]["environment"]
        assert (settings["KAFKA_DEFAULT_REPLICATION_FACTOR"], settings["KAFKA_MIN_INSYNC_REPLICAS"]) == (3, 2)
    assert {"aggregator", "alerting", "dashboard", "collector", "postgres"} <= set(compose["services"])


COMPOSE_FILES = ("docker-compose.yml", "docker-compose.batch.yml")


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_the_compose_files_follow_the_compose_specification(file: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_compose_files_name_only_services_volumes_and_secrets_that_they_declare() -> None:
    files = [yaml.safe_load((ROOT / file).read_text()) for file in COMPOSE_FILES]
    for number, compose in enumerate(files, start=1):
        declared = {part: {name for each in files[:number] for name in each.get(part, ())} for part in compose}
        for name, service in compose["services"].items():
            assert set(service.get("depends_on", ())) <= declared["services"], name
            mounts = [mount.split(":")[0] for mount in service.get("volumes", ())]
            assert {mount for mount in mounts if "/" not in mount} <= declared["volumes"], name
            assert set(service.get("secrets", ())) <= declared["secrets"], name


def test_the_batch_pipeline_in_containers_runs_commands_that_there_are_with_settings_that_there_are() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.batch.yml").read_text())["services"]
    commands = {command.name or command.callback.__name__ for command in batch_commands.registered_commands}
    settings = {f"{ENV_PREFIX}{name}".upper() for name in BatchSettings.model_fields}
    ours = {name: service for name, service in services.items() if service.get("image") == "lagloss-batch"}
    assert ours.keys() == {"batch-prepare", "landing", "db-import", "index-import", "airflow"}
    stages = re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    for name, service in ours.items():
        assert service["command"][0] in commands, name
        assert {each for each in service["environment"] if each.startswith(ENV_PREFIX)} <= settings, name
        assert service["build"]["target"] in stages
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert set(services["aggregator"]["environment"]) <= set(services["landing"]["environment"])


def test_every_service_of_the_compose_file_has_a_health_check_on_its_port_and_a_stage_of_the_image() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE))
    ports = {name: name.upper() for name in ("alerting", "canary", "collector", "dashboard", "taps")} | {
        "aggregator": "METRICS"
    }
    for name, service in services.items():
        if name == "prepare":  # runs once and ends
            continue
        assert service["healthcheck"]["test"], name
        if name in ports:
            port = service["environment"][f"LAGLOSS_{ports[name]}_PORT"]
            assert service["healthcheck"]["test"][-2:] == [port, "/healthz"]
            assert service["build"]["target"] in stages
            assert (service["build"]["target"] == "aggregator") == (name in ("aggregator", "taps", "dashboard"))


OURS = ("prepare", "aggregator", "alerting", "canary", "collector", "dashboard", "taps")


def test_the_compose_file_has_no_password_and_names_files_with_secrets() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for name, service in compose["services"].items():
        for variable, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD$|SECRET$|TOKEN$|WEBHOOK_URL$", variable), f"{name}: {variable}"
            assert "POSTGRES_PASSWORD" not in str(value)
    assert all(set(secret) == {"file"} for secret in compose["secrets"].values())
    assert connection_options(compose["services"]["collector"]["environment"]["LAGLOSS_DATABASE_URL"]).keys() == {
        "user", "host", "port", "dbname",
    }  # fmt: skip
    for name in ("postgres", *OURS):
        (secret,) = compose["services"][name]["secrets"]
        variable = "POSTGRES_PASSWORD_FILE" if name == "postgres" else "LAGLOSS_DATABASE_PASSWORD_FILE"
        assert compose["services"][name]["environment"][variable] == f"/run/secrets/{secret}"


def test_the_composed_services_are_not_root_and_change_no_file_of_their_image() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    settings = {f"LAGLOSS_{name}".upper() for name in Settings.model_fields}
    for name in OURS:
        service = services[name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["tmpfs"][0] == "/tmp:exec"
        given = {variable for variable in service["environment"] if variable not in settings}
        assert given - {"HOME"} <= {f"{setting}_FILE" for setting in settings}


def test_the_public_address_of_the_dashboard_is_a_setting_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("alerting", "dashboard"):
        assert services[name]["environment"]["LAGLOSS_DASHBOARD_URL"].startswith("${LAGLOSS_DASHBOARD_URL:-")


def test_the_image_copies_files_that_exist() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--)(\S+)", text, re.MULTILINE)
    mounted = re.findall(r"--mount=type=bind,source=([^,]+)", text)
    assert copied
    assert mounted
    assert all((ROOT / name).exists() for name in (*copied, *mounted))
