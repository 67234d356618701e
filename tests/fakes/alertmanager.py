"""A real Alertmanager, started for tests, that notifies nobody."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from lagloss_server.ops.processes import choose_port
from tests.fakes.readiness import await_ready
from tests.programs import need

_CONFIG = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


@dataclass(frozen=True)
class Alertmanager:
    url: str

    def alerts(self) -> list[dict[str, Any]]:
        """Those that have not ended."""
        found: list[dict[str, Any]] = httpx2.get(f"{self.url}/api/v2/alerts", trust_env=False).raise_for_status().json()
        return found


@contextmanager
def run_alertmanager(folder: Path) -> Iterator[Alertmanager]:
    """Runs while the block does; its data in `folder`."""
    binary = need("alertmanager")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "alertmanager.yml"
    config.write_text(_CONFIG)
    url = f"http://127.0.0.1:{choose_port('alertmanager')}"
    arguments = [
        f"--config.file={config}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen([binary, *arguments], stdout=log, stderr=log) as process:
        try:
            await_ready("Alertmanager", url, process, folder / "log")
            yield Alertmanager(url)
        finally:
            process.terminate()
            process.wait()
