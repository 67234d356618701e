"""Airflow 3 on loopback: scheduler, API server and DAG processor, with tasks run by the LocalExecutor.

Its packages do not go together with lagloss's, so it runs in an environment of its own, which is made from a lock when
it is first needed (468 MB): `python -m pipeline_under_test.batch.airflow` makes it now. The environment has what the
wheel lagloss depends on; lagloss itself is linked beside it, with its entry point, so that Airflow finds the plugin as
if the wheel were installed.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx2

from lagloss import __version__
from lagloss_server.base.errors import ServerNotReady
from lagloss_server.ops.child_environment import PACKAGES
from lagloss_server.ops.embedded.environment import LockedEnvironment
from lagloss_server.ops.processes import LOOPBACK, choose_port, log_tail, run, spawn, terminate

ENVIRONMENT: Final = LockedEnvironment("Airflow", Path(__file__).with_name("airflow.lock"), "LAGLOSS_AIRFLOW_DIR")
USER: Final = "admin"
COMPONENTS: Final = {
    "api-server": ("api-server", "--workers", "1"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}
STOPPED: Final = ("scheduler", "dag-processor", "api-server")
"""The order in which they are."""
HEALTHY: Final = ("metadatabase", "scheduler", "dag_processor")
PARALLEL_TASKS: Final = 4
LOOK_EVERY_S: Final = 0.25
PLUGIN: Final = "[airflow.plugins]\nlagloss = lagloss.airflow.plugin:LaglossPlugin\n"


class EmbeddedAirflow:
    """One Airflow with its DAGs, below `data_dir`; start from a thread that lives on (see `spawn`).

    Args:
        data_dir: for configuration, secrets and logs; made, for its owner only.
        database_url: libpq's URL of an empty PostgreSQL database, or of the one it had before.
        dags: the files that define its DAGs.
        variables: more of its environment, and so of its tasks': those of the collector, for example.
        port: of its page and API; 0: any free one.
        address: what the page listens on.
    """

    def __init__(
        self,
        data_dir: Path,
        database_url: str,
        dags: Sequence[Path],
        variables: Mapping[str, str],
        port: int = 0,
        address: str = LOOPBACK,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.address = address
        self.port = port
        self._wanted_port = port
        self._database_url = database_url
        self._dags = dags
        self._variables = dict(variables)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """URL of its page and its API."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.data_dir / "scheduler.log"

    @property
    def password(self) -> str:
        """USER's."""
        return self._secret("password")

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Its components' processes, for callers that watch or kill them."""
        return list(self._running.values())

    def start(self, timeout_s: float = 180) -> Self:
        """Start it, and wait until its scheduler and its DAG processor are at work.

        Raises ServerNotInstalled, PortInUse or ServerNotReady.
        """
        self.prepare(timeout_s)
        self.launch()
        self.await_ready(timeout_s)
        return self

    def prepare(self, timeout_s: float = 180) -> None:
        """Write its files and make its tables, so that a launch is short."""
        python = ENVIRONMENT.ensure()
        self.port = choose_port("Airflow", self._wanted_port, self.port or None)
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write_files()
        self._migrate(python, timeout_s)

    def launch(self, variables: Mapping[str, str] | None = None) -> None:
        """Start its processes, with more variables; does not wait until they work."""
        self._variables |= variables or {}
        program, environment = ENVIRONMENT.ensure().with_name("airflow"), self._environment()
        for name, words in COMPONENTS.items():
            address = ("--host", self.address, "--port", str(self.port)) if name == "api-server" else ()
            command, log = [program, *words, *address], self.data_dir / f"{name}.log"
            self._running[name] = spawn(command, log, env=environment, cwd=self.data_dir)

    def await_ready(self, timeout_s: float = 180, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until it works, and call `meanwhile` again and again; stop it if it does not.

        Raises:
            ServerNotReady: a process has ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        try:
            with httpx2.Client(base_url=self.url, timeout=5) as client:
                while not _is_healthy(client):
                    self.check(deadline)
                    meanwhile()
                    time.sleep(LOOK_EVERY_S)
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout_s: float = 30) -> None:
        """Stop it, and the tasks that it runs. Idempotent."""
        for name in STOPPED:  # tasks that end report so to the API server
            if name in self._running:
                # It leads a group of its own, whose members do not all pass the signal on.
                with suppress(ProcessLookupError):
                    os.killpg(self._running[name].pid, signal.SIGTERM)
                terminate(self._running[name], timeout_s)
        self._running.clear()

    def _write_files(self) -> None:
        """Write the DAGs, the password, and a folder of packages in which lagloss is, and nothing else of ours."""
        dags, packages = self.data_dir / "dags", self.data_dir / "packages"
        for folder in (dags, packages):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for path in self._dags:
            shutil.copy(path, dags)
        (packages / "lagloss").symlink_to(PACKAGES / "lagloss")
        metadata = packages / f"lagloss-{__version__}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lagloss\nVersion: {__version__}\n")
        (metadata / "entry_points.txt").write_text(PLUGIN)
        passwords = self.data_dir / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({USER: self.password}))

    def _secret(self, name: str, size: int = 32) -> str:
        """Return a secret of this instance, of `size` random bytes, drawn when it is first asked for."""
        path = self.data_dir / f"{name}.secret"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(urlsafe_b64encode(secrets.token_bytes(size)).decode())
        return path.read_text()

    def _environment(self) -> dict[str, str]:
        settings = {
            "API__BASE_URL": self.url,
            "API__SECRET_KEY": self._secret("api"),
            "API_AUTH__JWT_SECRET": self._secret("jwt", 48),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__DAGS_FOLDER": str(self.data_dir / "dags"),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__FERNET_KEY": self._secret("fernet"),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__PARALLELISM": str(PARALLEL_TASKS),
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.data_dir / "passwords.json"),
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "DATABASE__SQL_ALCHEMY_CONN": self._database_url.replace("postgresql://", "postgresql+psycopg2://", 1),
            "OPENLINEAGE__DISABLED": "True",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        packages = {"PYTHONPATH": str(self.data_dir / "packages"), "AIRFLOW_HOME": str(self.data_dir)}
        return {**{f"AIRFLOW__{name}": value for name, value in settings.items()}, **packages, **self._variables}

    def _migrate(self, python: Path, timeout_s: float) -> None:
        command = [python.with_name("airflow"), "db", "migrate"]
        done = run(command, self._environment(), timeout_s=timeout_s, cwd=self.data_dir)
        if done.returncode != 0:
            log = self.data_dir / "migrate.log"
            log.write_text(done.stdout + done.stderr)
            raise ServerNotReady(server="Airflow", detail=log_tail(log), log=log)

    def check(self, deadline: float = math.inf) -> None:
        """Raise ServerNotReady if one of its processes has ended, or the deadline of the monotonic clock is over."""
        for name, process in self._running.items():
            if process.poll() is not None or time.monotonic() > deadline:
                log = self.data_dir / f"{name}.log"
                raise ServerNotReady(server=f"Airflow's {name}", detail=log_tail(log), log=log)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _is_healthy(client: httpx2.Client) -> bool:
    try:
        answer = client.get("/api/v2/monitor/health")
        document = answer.json() if answer.status_code == httpx2.codes.OK else {}
    except (httpx2.HTTPError, ValueError):
        return False
    return all(document.get(part, {}).get("status") == "healthy" for part in HEALTHY)


if __name__ == "__main__":
    ENVIRONMENT.ensure()
