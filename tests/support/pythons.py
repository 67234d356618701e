"""The unit tests on every Python of this machine that lagloss runs on: `python -m tests.support.pythons [PATH...]`
(`make pythons`).

Each Python has an environment of the locked versions in `.tools/`. `PYTHONS`, paths separated by spaces, names those
that are not found by their name or below pyenv's folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.programs import TOOLS

ROOT = Path(__file__).resolve().parents[2]
MINORS = (11, 12, 13, 14)
UNIT = ("tests/unit", "tests/oracle")
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def main(paths: list[str]) -> int:
    """Run the tests on each Python; return 0 if they pass on all, and 3 if there is none."""
    pythons = dict(reversed(list(installed())))
    if not pythons:
        sys.stderr.write("pythons: none found; name some by PYTHONS='/path/to/python3.12 …'\n")
        return 3
    results = {version: _run(version, pythons[version], paths or list(UNIT)) for version in sorted(pythons)}
    for minor in MINORS:
        version = f"3.{minor}"
        sys.stdout.write(f"Python {version}: {results.get(version, 'not on this machine')}\n")
    return 0 if set(results.values()) == {"passed"} else 1


def installed() -> Iterator[tuple[str, str]]:
    """Yield the version and path of each Python that runs, preferred ones first."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    names = [f"python3.{minor}" for minor in MINORS]
    folders = [*os.environ["PATH"].split(os.pathsep), *map(str, sorted(pyenv.glob("versions/*/bin"), reverse=True))]
    found = (shutil.which(name, path=folder) for name in names for folder in folders)
    for path in (*os.environ.get("PYTHONS", "").split(), *filter(None, found)):
        done = subprocess.run([path, "-I", "-c", VERSION], capture_output=True, text=True, check=False)
        version = done.stdout.strip()
        if done.returncode == 0 and version in {name.removeprefix("python") for name in names}:
            yield version, path


def _run(version: str, python: str, paths: list[str]) -> str:
    """Install the locked packages and run the tests; return the result in a word or two."""
    folder = TOOLS / f"python-{version}"
    interpreter = str(folder / "bin" / "python")
    sys.stdout.write(f"== Python {version}: {python}\n")
    sys.stdout.flush()
    uv = (sys.executable, "-m", "uv", "--no-python-downloads")
    into = (*uv, "pip", "install", "--quiet", "--no-build-isolation", "--python", interpreter)
    commands = [
        (*uv, "venv", "--quiet", "--allow-existing", "--python", python, str(folder)),
        (*into, "--require-hashes", "-r", "requirements-build.txt"),
        (*into, "--require-hashes", "-r", "requirements-dev.txt"),
        (*into, "--no-deps", "--editable", "."),
    ]
    for command in commands:
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return "not installed"
    tests = (interpreter, "-m", "pytest", "-q", "-m", "not slow and not servers", *paths)
    together = ("-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider")
    return "failed" if subprocess.run((*tests, *together), cwd=ROOT, check=False).returncode else "passed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
