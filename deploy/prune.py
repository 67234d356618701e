"""Delete the files that deploy/unused.txt lists from installed packages, and strip symbols from their libraries.

`python prune.py PREFIX`, in a stage of deploy/Dockerfile. Ends with 1 if a pattern of an installed package matches
nothing: the package has changed, and the list with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

UNUSED = Path(__file__).with_name("unused.txt")


def read_patterns(text: str) -> list[str]:
    """Return the patterns, relative to site-packages; comments are their reasons."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def matches(packages: Path, patterns: list[str]) -> Iterator[Path]:
    """Yield what patterns match. Raises LookupError: naming one that matches nothing of its package."""
    for pattern in patterns:
        package = pattern.partition("/")[0]
        paths = list(packages.glob(pattern))
        if not paths and (packages / package).exists():
            raise LookupError(pattern)
        yield from paths


def strip(packages: Path) -> None:
    """Strip symbols from libraries, except those that auditwheel has moved: binutils breaks their layout."""
    libraries = [str(path) for path in packages.rglob("*.so*") if not path.parent.name.endswith(".libs")]
    if libraries:
        subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)


def main(prefix: Path) -> int:
    """Prune the packages below a prefix; return the exit code."""
    (packages,) = prefix.glob("lib/python3*/site-packages")
    try:
        unused = list(matches(packages, read_patterns(UNUSED.read_text())))
    except LookupError as error:
        sys.stderr.write(f"prune: nothing matches {error} of deploy/unused.txt\n")
        return 1
    for path in unused:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    strip(packages)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
