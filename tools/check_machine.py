"""Says whether this machine has what set-up needs: Python 3.11, its venv module, Java 17. Exit code 0 or 3.

Runs before anything is installed, perhaps on an old Python: standard library and old syntax only.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

MIN_PYTHON = (3, 11)
MIN_JAVA = 17


def problems():
    """What is missing, a line each."""
    if sys.version_info < MIN_PYTHON:
        yield (
            "Python 3.11 or newer is needed, found {} at {}. Install one, or name it: make setup PYTHON=path"
        ).format(sys.version.split()[0], sys.executable)
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        yield "Python's venv module is missing. Install it (Debian: apt-get install python3-venv)"
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    found = java_version(java) if java else None
    if found is None or found < MIN_JAVA:
        yield (
            "Java 17 or newer is needed, found {}. Install it (Debian: apt-get install default-jre-headless) "
            "or set JAVA_HOME to one"
        ).format("none" if found is None else "Java {} at {}".format(found, java))


def java_version(java):
    """The major version, None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stdout.decode(errors="replace"))
    if match is None:
        return None
    return int(match.group(2) or 1) if match.group(1) == "1" else int(match.group(1))


if __name__ == "__main__":
    missing = list(problems())
    for line in missing:
        sys.stderr.write("set-up: {}\n".format(line))
    sys.exit(3 if missing else 0)
