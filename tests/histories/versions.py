"""Another version of lagloss with the same tables and wire format, from which services are upgraded."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import Final

from lagloss_server.ops.child_environment import PACKAGES

FORMATS: Final = ("migrations", "lagloss_server/store/schema", "lagloss/wire/schemas")
"""What versions that run together have in common."""


def unpack_oldest(folder: Path) -> Path:
    """Return the tree, unpacked into `folder`, of the oldest commit from which on tables and wire format are as they
    are now.

    Raises:
        CalledProcessError: this is no checkout of git.
    """
    commit = _git("log", "-1", "--format=%H", "--", *FORMATS).strip()
    tree = folder / f"version-{commit[:8]}"
    if not tree.exists():
        archive = tree.with_suffix(".tar")
        _git("archive", "--format=tar", f"--output={archive}", commit)
        with tarfile.open(archive) as tar:
            tar.extractall(tree, filter="data")
        archive.unlink()
    return tree


def _git(*words: str) -> str:
    """Return what git prints of the checkout that these tests are in, whoever owns it."""
    argv = ["git", "-c", f"safe.directory={PACKAGES}", "-C", str(PACKAGES), *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
