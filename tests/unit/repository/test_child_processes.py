"""Programs are started in one place of the product, which says what of the environment and of the disk they see."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "packages"
]
STARTING = "lagloss_server/ops/processes.py"
BY_THEMSELVES = {
    "lagloss_server/ops/machine.py": "runs before anything is installed, as a file: `java -version`",
    "lagloss_server/ops/_die_with_parent.py": "is what a program is started by",
}
PYTHON_OF_WORKERS = {"lagloss_server/ops/spark_session.py", "pipeline_under_test/batch/hourly/aggregate.py"}
"""They name the Python to Spark, whose JVM starts it as a daemon of PYTHONSAFEPATH."""
STARTS = {
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "multiprocessing": {"Pool", "Process", "get_context"},
    "os": {"fork", "forkpty", "popen", "posix_spawn", "posix_spawnp", "startfile", "system"}
    | {f"{kind}{suffix}" for kind in ("exec", "spawn") for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")},
    "pty": {"spawn"},
    "runpy": {"run_module", "run_path"},
    "subprocess": {"Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "run"},
}


def starts(code: str) -> Iterator[str]:
    """What starts a program otherwise in this code, or is a part of a command that does, by line."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if name in STARTS.get(module, ()):
                yield f"{node.lineno}: {module}.{name}"
            case ast.Call(func=ast.Attribute(attr="subprocess_exec" | "subprocess_shell" as name)):
                yield f"{node.lineno}: {name}"
            case ast.ImportFrom(module=module, names=names):
                yield from (
                    f"{node.lineno}: from {module} import {each.name}"
                    for each in names
                    if each.name in STARTS.get(module or "", ())
                )
            case ast.Import(names=names):
                yield from (
                    f"{node.lineno}: import {each.name} as {each.asname}"
                    for each in names
                    if each.asname and each.name in STARTS
                )
            case ast.Attribute(value=ast.Name(id="sys"), attr="executable"):
                yield f"{node.lineno}: sys.executable"
            case ast.Constant(value="-m"):
                yield f'{node.lineno}: "-m"'


@pytest.mark.parametrize("package", PACKAGES)
def test_programs_are_started_by_the_functions_of_processes_only(package: str) -> None:
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name != STARTING and name not in BY_THEMSELVES:
            allowed = {"sys.executable"} if name in PYTHON_OF_WORKERS | {"lagloss_server/ops/machine.py"} else set()
            found += [f"{name}:{what}" for what in starts(path.read_text()) if what.split(": ")[1] not in allowed]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess; subprocess.run([])",
        "from subprocess import Popen",
        "import subprocess as sp",
        "import os; os.execve('', [], {})",
        "import os\nos.system('x')",
        "words = [sys.executable, script]",
        "words = [python, '-m', 'venv']",
        "import asyncio; await asyncio.create_subprocess_exec('x')",
        "import multiprocessing; multiprocessing.Process()",
    ],
)
def test_each_way_to_start_one_is_seen(code: str) -> None:
    assert list(starts(code))
