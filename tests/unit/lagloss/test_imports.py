"""What the SDK needs of its host's environment: four packages, those of its extras, of Airflow and of pytest, nothing
of the server."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lagloss
from lagloss.broker.connection import MSK_PACKAGE

ROOT = Path(lagloss.__file__).parent
NEEDED = {"confluent_kafka", "fastavro", "numpy", "xxhash"}
EXTRAS = {
    "aiokafka/__init__.py": {"aiokafka"},
    "aiokafka/consumer.py": {"aiokafka"},
    "aiokafka/lanes.py": {"aiokafka"},
    "aiokafka/node.py": {"aiokafka"},
    "aiokafka/producer.py": {"aiokafka"},
    "airflow/listener.py": {"pluggy"},
    "airflow/plugin.py": {"airflow"},
    "airflow/sensor.py": {"airflow"},
    "pytest_plugin.py": {"pytest"},
    "spark.py": {"pyarrow", "pyspark"},
    "sdk/outlets/http.py": {"httpx2"},
    "broker/connection.py": {MSK_PACKAGE},
}


def packages_in(path: Path) -> set[str]:
    """Top-level packages that a module imports, without those of the standard library."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"lagloss"}


def test_the_sdk_imports_its_four_packages_and_those_of_its_extras() -> None:
    found = {path.relative_to(ROOT).as_posix(): packages_in(path) for path in ROOT.rglob("*.py")}
    assert set().union(*found.values()) >= NEEDED
    assert {name: extra for name, packages in found.items() if (extra := packages - NEEDED)} == EXTRAS


@pytest.mark.parametrize(
    "module",
    [
        "lagloss",
        "lagloss.kafka",
        "lagloss.files",
        "lagloss.asgi",
        "lagloss.sink",
        "lagloss.identity",
        "lagloss.testing",
    ],
)
def test_a_public_module_is_imported_without_the_extras(module: str) -> None:
    asked = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    words = [sys.executable, "-I", "-c", asked]
    loaded = set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    assert not loaded & {
        "_pytest",
        "aiokafka",
        "pytest",
        "httpx2",
        "pyspark",
        "pandas",
        "pyarrow",
        "sqlalchemy",
        "pydantic",
        "lagloss_server",
    }
