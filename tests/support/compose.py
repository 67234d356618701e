"""The compose file's health check of the brokers, as Docker runs it."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def broker_check(port: int) -> list[str]:
    """The command, for a broker on another port. It waits one second for an answer, not five."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    checks = [services[f"kafka-{number}"]["healthcheck"]["test"] for number in (1, 2, 3)]
    kind, *command = checks[0]
    assert checks == [[kind, *command]] * 3
    assert kind == "CMD"
    return [word.replace("$$", "$").replace("9092", str(port)).replace("timeout 5", "timeout 1") for word in command]
