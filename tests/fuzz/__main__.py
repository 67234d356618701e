"""Run a target by coverage-guided fuzzing: `python -m tests.fuzz report --seconds 600`, or `all`.

What crashes or takes longer than `--hang` seconds is written to tests/fuzz/found/TARGET, which
tests/unit/repository/test_fuzz.py goes through from then on. Needs `pip install atheris`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FOUND = Path(__file__).parent / "found"


def fuzz(name: str, corpus: Path, seconds: int, hang_s: int) -> None:
    """Run one target in this process, which then ends, with another code than 0 for a crash or a hang."""
    import atheris

    # Compiled loops do not look at bounds, and cannot be looked into.
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    with atheris.instrument_imports(include=["collector", "taps", "lagloss", "lagloss_server", "yaml", "fastavro"]):
        from tests.fuzz.targets import TARGETS

    target = TARGETS[name]

    def once(data: bytes) -> None:
        with suppress(*target.allowed):
            target.parse(data)

    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds:
        (folder / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-timeout={hang_s}", "-max_len=65536", "-rss_limit_mb=3000"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={found}/", str(folder)], once)
    atheris.Fuzz()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", help="a name of tests/fuzz/targets.py, or `all`")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--hang", type=int, default=5, help="seconds after which an input counts as a hang")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"), help="where interesting inputs are kept")
    given = parser.parse_args(arguments)
    if given.target != "all":
        fuzz(given.target, given.corpus, given.seconds, given.hang)
        return 0
    from tests.fuzz.targets import TARGETS

    limits = ["--seconds", str(given.seconds), "--hang", str(given.hang), "--corpus", str(given.corpus)]
    broken = [
        name for name in TARGETS if subprocess.run([sys.executable, "-m", "tests.fuzz", name, *limits]).returncode
    ]
    print("found:", ", ".join(broken) or "nothing")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
