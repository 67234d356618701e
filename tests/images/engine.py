"""The composed services by `docker compose`, where a Docker runs, else by podman-compose."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.images.stand_ins import make_missing

ROOT = Path(__file__).parents[2]
PROJECT = "lagloss-test"
CONFIG = """\
[engine]
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
"""
"""Of podman, unless CONTAINERS_CONF names other settings: containers of machines that are containers themselves."""
PROGRAMS = ("podman", "buildah", "runc", "debootstrap", "netavark", "aardvark-dns")
OUTSIDE_PATH = Path("/usr/lib/podman")


def has_docker() -> bool:
    """Whether a Docker with compose answers."""
    if shutil.which("docker") is None:
        return False
    asked = (["docker", "info"], ["docker", "compose", "version"])
    return all(subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in asked)


def missing_programs() -> list[str]:
    """Return the programs that this machine lacks, none where Docker runs."""
    if has_docker():
        return []
    missing = [name for name in PROGRAMS if not shutil.which(name) and not (OUTSIDE_PATH / name).exists()]
    return missing + ([] if os.geteuid() == 0 else ["root's rights, for debootstrap"])


@dataclass
class Composed:
    """The services of docker-compose.yml, as a project of their own whose files are in `folder`."""

    folder: Path
    is_docker: bool = field(default_factory=has_docker)

    def __post_init__(self) -> None:
        self.env = {**os.environ, "COMPOSE_PROJECT_NAME": PROJECT, **self._secret()}
        if self.is_docker:
            self.cli, self.file = "docker", ROOT / "docker-compose.yml"
            self.compose = ["docker", "compose", "-f", str(self.file)]
            return
        self.cli, self.file = "podman", self.folder / "docker-compose.yml"
        (self.folder / "containers.conf").write_text(CONFIG)
        self.env = {"CONTAINERS_CONF": str(self.folder / "containers.conf"), "BUILDAH_ISOLATION": "chroot", **self.env}
        os.environ.update({name: self.env[name] for name in ("CONTAINERS_CONF", "BUILDAH_ISOLATION")})
        self.file.write_text(yaml.safe_dump(self._understood(), sort_keys=False))
        self.compose = [sys.executable, "-m", "podman_compose", "-p", PROJECT, "-f", str(self.file)]

    def _secret(self) -> dict[str, str]:
        password = self.folder / "postgres-password"
        password.write_text(os.urandom(24).hex())
        password.chmod(0o644)
        return {"POSTGRES_PASSWORD_FILE": str(password)}

    def _understood(self) -> dict[str, Any]:
        """Return the file with absolute paths, and without `start_interval`, which podman knows since 4.4."""
        document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        for service in document["services"].values():
            service.get("healthcheck", {}).pop("start_interval", None)
            if "build" in service:
                service["build"] = {**service["build"], "context": str(ROOT)}
            mounts = [f"{ROOT}{each[1:]}" if each.startswith("./") else each for each in service.get("volumes", ())]
            service["volumes"] = mounts
        return document

    @property
    def services(self) -> Mapping[str, Any]:
        """The services of the file."""
        found: dict[str, Any] = yaml.safe_load(self.file.read_text())["services"]
        return found

    def run(self, *command: str | Path, check: bool = True, stdin: str | None = None) -> str:
        """Run a command; return what it printed. Raises AssertionError with its errors."""
        done = subprocess.run(
            command, env=self.env, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False, timeout=900
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def build(self) -> None:
        """Build the images, those of services that share one once."""
        if not self.is_docker:
            make_missing()
        self.run(*self.compose, "build", "collector", "aggregator")

    def container(self, service: str) -> str:
        """Return the name of a service's container."""
        labels = f"label=com.docker.compose.service={service}", f"label=com.docker.compose.project={PROJECT}"
        return self.run(
            self.cli, "ps", "-a", "--filter", labels[0], "--filter", labels[1], "--format", "{{.Names}}"
        ).split()[0]

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what the engine knows of a service's container."""
        found: dict[str, Any] = json.loads(self.run(self.cli, "container", "inspect", self.container(service)))[0]
        return found

    def is_healthy(self, service: str) -> bool:
        """Whether a service's health check succeeds. podman runs it by timers of systemd, which is not everywhere."""
        if self.is_docker:
            return bool(self.inspect(service)["State"].get("Health", {}).get("Status") == "healthy")
        command = ["podman", "healthcheck", "run", self.container(service)]
        return subprocess.run(command, env=self.env, capture_output=True, check=False).returncode == 0

    def up(self) -> None:
        """Start all services in the order of their conditions, and wait until all are healthy."""
        if self.is_docker:
            self.run(*self.compose, "up", "--detach", "--wait", "--wait-timeout", "300")
            return
        waiting, done = dict(self.services), set[str]()
        while waiting:
            ready = [name for name, service in waiting.items() if set(service.get("depends_on", ())) <= done]
            self.run(*self.compose, "up", "--detach", "--no-deps", "--no-build", *ready)
            self.wait_for(name for name in ready if "healthcheck" in waiting[name])
            for name in (name for name in ready if "healthcheck" not in waiting[name]):
                assert self.run("podman", "wait", self.container(name)).strip() == "0", self.logs(name)
            done.update(ready)
            waiting = {name: service for name, service in waiting.items() if name not in ready}

    def wait_for(self, services: Iterable[str], timeout_s: float = 240) -> None:
        """Wait until services are healthy."""
        deadline = time.monotonic() + timeout_s
        for service in services:
            while not self.is_healthy(service):
                assert time.monotonic() < deadline, f"{service} is not healthy: {self.logs(service)}"
                time.sleep(1)

    def kill(self, service: str) -> None:
        """Kill a service's container, without time to end; the engine does not start it again."""
        self.run(self.cli, "stop", "--time", "0", self.container(service))

    def start(self, service: str) -> None:
        """Start a killed container, and wait until it is healthy."""
        self.run(self.cli, "start", self.container(service))
        self.wait_for([service])

    def exec(self, service: str, *command: str, stdin: str | None = None, check: bool = True) -> str:
        """Run a command in a service's container."""
        return self.run(self.cli, "exec", "-i", self.container(service), *command, stdin=stdin, check=check)

    def logs(self, service: str) -> str:
        """Return a service's last lines."""
        done = subprocess.run(
            [self.cli, "logs", "--tail", "40", self.container(service)],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def down(self) -> None:
        """End and delete containers, networks and volumes."""
        self.run(*self.compose, "down", "--volumes", check=False)
