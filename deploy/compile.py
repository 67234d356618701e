"""Compile the modules that the programs of an image import, so that equal sources make equal files.

`python compile.py MODULE…`, in a stage of deploy/Dockerfile. What Python compiles by itself holds the times of the
sources; these files hold a hash of them, which no import checks: the root of a container is read-only.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path


def sources(names: list[str]) -> list[str]:
    """Import modules; return the sources of all that are now imported and not compiled."""
    for name in names:
        import_module(name)
    specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
    return sorted(
        {spec.origin for spec in specs if spec and spec.origin and spec.cached and not Path(spec.cached).exists()}
    )


def main(names: list[str]) -> int:
    """Compile what these modules import; return the exit code."""
    # In a process of its own: which strings marshal writes once depends on those that the process holds already.
    command = [sys.executable, "-P", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-i", "-"]
    return subprocess.run(command, input="\n".join(sources(names)), text=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
