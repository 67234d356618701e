"""Run histories on a cluster of their own: `python -m tests.histories --seed N [--nemesis A [--nemesis B]] [--runs N]`.

A failure prints its seed and timeline; the same seed and nemeses repeat it, and the next history has a new cluster.
Results are appended to a file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from lagloss_server.ops.up import signals_interrupt
from tests.histories.cluster import Cluster, cluster, wait
from tests.histories.history import RESULTS, Observer, Plan, append_result, read_results, run
from tests.histories.nemeses import NEMESES
from tests.histories.net import missing
from tests.histories.table import next_cell


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--nemesis", action="append", default=[], choices=list(NEMESES), help="twice: both at once")
    parser.add_argument("--runs", type=int, default=1, help="histories, each with the next seed")
    parser.add_argument("--fill", action="store_true", help="of the faults that the results have least often")
    parser.add_argument("--every", type=float, default=0, metavar="S", help="begin no history sooner after the last")
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
    seeds, failed = deque(range(chosen.seed, chosen.seed + chosen.runs)), 0
    with signals_interrupt():
        while seeds and time.monotonic() < until:
            with cluster(folder) as made:
                print(f"logs and ledgers: {folder}", flush=True)
                failed += not _withstands(made, seeds, until, chosen)
    return 1 if failed else 0


def _withstands(made: Cluster, seeds: deque[int], until: float, chosen: argparse.Namespace) -> bool:
    """Run histories of these seeds on a cluster, until one fails; return whether none did."""
    observer = Observer(made)
    wait(lambda: 200 in (made.health("ag1"), made.health("ag2")), 240, "an aggregator", made)
    while seeds and time.monotonic() < until:
        seed, next_at = seeds.popleft(), time.monotonic() + chosen.every
        names = next_cell(read_results(chosen.results), seed) if chosen.fill else chosen.nemesis
        outcome = run(observer, Plan.draw(seed, names))
        append_result(outcome, chosen.results)
        took = f"{outcome.seconds:.0f} s, recovery {outcome.recovery_s:.0f} s"
        print("FAILED" if outcome.problems else "ok", seed, outcome.targets, took, flush=True)
        if outcome.problems:
            print(outcome.text(), flush=True)
            made.postgres.dump(made.logs.with_name(f"{seed}.sql"))
            return False
        while seeds and time.monotonic() < min(next_at, until):
            if ended := made.tend():
                print(f"FAILED after {seed}: {' '.join(ended)} ended by themselves", flush=True)
                return False
            time.sleep(1)
    return True


if __name__ == "__main__":
    sys.exit(main())
