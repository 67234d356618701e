"""A LocalStack on loopback: an emulator of S3, SNS and SQS that keeps everything in memory.

It is for tests and demos of code that is written against AWS by boto3; nothing in it is durable. Its packages do not go
together with lagloss's, so it runs in an environment of its own, which is made from a lock when it is first needed
(319 MB): `python -m lagloss_server.ops.embedded.localstack` makes it now.
"""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lagloss_server.base.errors import ServerNotReady
from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.embedded.environment import LockedEnvironment
from lagloss_server.ops.processes import LOOPBACK, choose_port, log_tail, python, spawn, terminate

ENVIRONMENT: Final = LockedEnvironment(
    "LocalStack", Path(__file__).with_name("localstack.lock"), "LAGLOSS_LOCALSTACK_DIR"
)
REGION: Final = "us-east-1"
SERVICES: Final = ("s3", "sns", "sqs")


class EmbeddedLocalStack:
    """One LocalStack, on the given port, or on any free one. Start from a thread that lives on (see `spawn`)."""

    def __init__(self, data_dir: Path, port: int = 0) -> None:
        self.data_dir = data_dir.absolute()
        self.log_path = self.data_dir / "localstack.log"
        self._wanted_port = port
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Endpoint of all of its services."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """What boto3's environment needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Process of the running server, for callers that watch or kill it."""
        return [self._process] if self._process else []

    def start(self, timeout_s: float = 60) -> Self:
        """Start it, and wait until it answers.

        Raises ServerNotInstalled, PortInUse or ServerNotReady.
        """
        interpreter = ENVIRONMENT.ensure()
        self.port = choose_port("LocalStack", self._wanted_port, self.port or None)
        settings = {
            "SERVICES": ",".join(SERVICES),
            "EAGER_SERVICE_LOADING": "1",
            "GATEWAY_LISTEN": f"{LOOPBACK}:{self.port}",
            "DNS_ADDRESS": "0",
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
            "SQS_ENDPOINT_STRATEGY": "path",
            "FILESYSTEM_ROOT": str(self.data_dir / "files"),
        }
        self._process = spawn(
            python("localstack.runtime.main", interpreter=interpreter),
            self.log_path,
            env=settings,
            environment=foreign_environment,
            cwd=self.data_dir,
        )
        try:
            self._await_ready(self._process, timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, timeout_s: float = 20) -> None:
        """Stop it, which forgets everything. Idempotent."""
        if self._process is not None:
            terminate(self._process, timeout_s)
            self._process = None

    def _await_ready(self, process: subprocess.Popen[bytes], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerNotReady(server="LocalStack", detail=log_tail(self.log_path), log=self.log_path)
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_localstack/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


if __name__ == "__main__":
    ENVIRONMENT.ensure()
