"""Running instances of `lagloss up` and `lagloss demo` of this user, and their endpoints.

Each leaves its endpoints in its data directory and a link to that directory, named by its process, in `registry()`. A
command without `--data-dir` follows the links; one with it uses the instance there or below (the demo keeps its data in
`DIR/demo`).
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

ENDPOINTS_FILE: Final = "endpoints.json"


def default_data_dir() -> Path:
    """Return `~/.local/share/lagloss`, or the same below XDG_DATA_HOME if that is set."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "lagloss"


def registry() -> Path:
    """Return the folder of links to the data directories in use, one per process."""
    return default_data_dir() / "running"


def find_running(data_dir: Path | None = None) -> list[Path]:
    """Return the data directories of running instances, sorted; with `data_dir`, only those at it or below it.

    An instance at `data_dir` itself hides those below it. Links of dead processes are removed on the way.
    """
    folders = {path for path in _linked() if data_dir is None or path.is_relative_to(data_dir.resolve())}
    expected = (data_dir or default_data_dir()).resolve()
    if _is_alive(read_endpoints(expected)):  # perhaps without a link: started under another HOME
        folders.add(expected)
    if data_dir is not None and expected in folders:
        return [expected]
    return sorted(folders)


def read_endpoints(data_dir: Path) -> dict[str, str]:
    """Return the endpoints that the running instance left in its data directory; empty if there is none."""
    try:
        endpoints = json.loads((data_dir / ENDPOINTS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return {key: str(value) for key, value in endpoints.items()} if isinstance(endpoints, dict) else {}


def write_endpoints(data_dir: Path, endpoints: dict[str, str]) -> None:
    """Publish the endpoints of this process, whole or not at all, readable by their owner only."""
    draft = data_dir / f"{ENDPOINTS_FILE}.new"
    draft.touch(mode=0o600)
    draft.write_text(json.dumps({**endpoints, "pid": str(os.getpid())}, indent=1) + "\n")
    draft.replace(data_dir / ENDPOINTS_FILE)
    with suppress(OSError):  # a home that cannot be written to: commands then need --data-dir
        registry().mkdir(parents=True, exist_ok=True)
        _link().unlink(missing_ok=True)
        _link().symlink_to(data_dir.resolve())


def remove_endpoints(data_dir: Path) -> None:
    """Take back what `write_endpoints` published."""
    (data_dir / ENDPOINTS_FILE).unlink(missing_ok=True)
    with suppress(OSError):
        _link().unlink(missing_ok=True)


def _link() -> Path:
    return registry() / str(os.getpid())


def _linked() -> set[Path]:
    folders = set()
    with suppress(OSError):
        for link in registry().iterdir():
            data_dir = link.resolve()
            endpoints = read_endpoints(data_dir)
            if endpoints.get("pid") == link.name and _is_alive(endpoints):
                folders.add(data_dir)
            else:
                link.unlink(missing_ok=True)
    return folders


def _is_alive(endpoints: dict[str, str]) -> bool:
    return endpoints.get("pid", "").isdigit() and psutil.pid_exists(int(endpoints["pid"]))
