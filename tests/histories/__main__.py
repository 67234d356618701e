"""Run histories on a cluster of their own: `python -m tests.histories --seed N [--nemesis A [--nemesis B]] [--runs N]`.

A failure prints its seed and timeline; the same seed and nemeses repeat it. Results are appended to a file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from lagloss_server.ops.up import signals_interrupt
from tests.histories.cluster import cluster, wait
from tests.histories.history import RESULTS, Observer, Plan, append_result, run
from tests.histories.nemeses import NEMESES
from tests.histories.net import missing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--nemesis", action="append", default=[], choices=list(NEMESES), help="twice: both at once")
    parser.add_argument("--runs", type=int, default=1, help="histories, each with the next seed")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no history after so long")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, help="where logs and ledgers go")
    chosen = parser.parse_args()
    if why := missing():
        sys.stderr.write(f"{why}\n")
        return 3
    until = time.monotonic() + 60 * chosen.minutes
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="lagloss-histories-"))
    folder.mkdir(exist_ok=True, parents=True)
    folder.chmod(0o755)
    failed = 0
    with signals_interrupt(), cluster(folder) as made:
        print(f"logs and ledgers: {folder}", flush=True)
        observer = Observer(made)
        wait(lambda: 200 in (made.health("ag1"), made.health("ag2")), 240, "an aggregator", made)
        for seed in range(chosen.seed, chosen.seed + chosen.runs):
            if time.monotonic() > until:
                break
            outcome = run(observer, Plan.draw(seed, chosen.nemesis))
            append_result(outcome, chosen.results)
            failed += bool(outcome.problems)
            state = "FAILED" if outcome.problems else "ok"
            print(f"{state} {seed} {outcome.targets} {outcome.seconds:.0f} s, recovery {outcome.recovery_s:.0f} s")
            print(outcome.text() if outcome.problems else "", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
