"""A real Prometheus, started for tests, that scrapes one address, and its promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from lagloss_server.ops.processes import choose_port
from tests.fakes.readiness import await_ready
from tests.programs import need

_CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: lagloss
    static_configs: [{{targets: ["{target}"]}}]
"""


@dataclass(frozen=True)
class Prometheus:
    url: str

    def values(self, query: str) -> list[float]:
        """What an instant query finds now, a number for each series."""
        answer = httpx2.get(f"{self.url}/api/v1/query", params={"query": query}, trust_env=False).raise_for_status()
        return [float(series["value"][1]) for series in answer.json()["data"]["result"]]

    def rules(self) -> dict[str, tuple[str, str]]:
        """State (of an alert) and health of each rule by its name."""
        answer = httpx2.get(f"{self.url}/api/v1/rules", trust_env=False).raise_for_status()
        found = [rule for group in answer.json()["data"]["groups"] for rule in group["rules"]]
        return {rule["name"]: (rule.get("state", ""), rule["health"]) for rule in found}


@contextmanager
def run_prometheus(folder: Path, target: str, rules: Path | None = None) -> Iterator[Prometheus]:
    """Scrapes /metrics of `target` (host:port), and evaluates a file of rules, five times a second while the block
    runs; its data in `folder`."""
    config = folder / "prometheus.yml"
    config.write_text(_CONFIG.format(target=target, rules=rules or ""))
    url = f"http://127.0.0.1:{choose_port('prometheus')}"
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
    ]
    command = [need("prometheus"), *arguments]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            await_ready("Prometheus", url, process, folder / "log")
            yield Prometheus(url)
        finally:
            process.terminate()
            process.wait()


def complaints(metrics: str) -> str:
    """What `promtool check metrics` finds wrong with a text of metrics; empty if nothing."""
    checked = subprocess.run(
        [need("promtool"), "check", "metrics"], input=metrics, capture_output=True, text=True, check=False
    )
    said = checked.stdout + checked.stderr
    return said or ("" if checked.returncode == 0 else f"exit code {checked.returncode}")
