"""The table of the fault matrix in docs/reliability.md, made of the results file: `python -m tests.histories.table`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.histories.history import read_results
from tests.histories.nemeses import NEMESES

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN: Final = "<!-- made by python -m tests.histories.table -->\n"
END: Final = "<!-- end of the table -->\n"


def table(results: Iterable[dict[str, Any]], names: Sequence[str]) -> str:
    """Return the Markdown of histories by their faults; on the diagonal a fault was alone, or twice at once."""
    runs: Counter[frozenset[str]] = Counter()
    failures: Counter[frozenset[str]] = Counter()
    for result in results:
        pair = frozenset(result["nemeses"])
        runs[pair] += 1
        failures[pair] += bool(result["problems"])

    def cell(row: int, column: int) -> str:
        pair = frozenset((names[row], names[column]))
        if column > row or not runs[pair]:
            return ""
        return f"{runs[pair]}" + (f" ({failures[pair]})" if failures[pair] else "")

    head = ["", *map(str, range(1, len(names) + 1))]
    rows = [head, ["---"] * len(head)]
    rows += [
        [f"{row + 1} {name}", *(cell(row, column) for column in range(len(names)))] for row, name in enumerate(names)
    ]
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    return f"{lines}\n{runs.total()} histories, {failures.total()} with problems.\n"


def next_cell(results: Iterable[dict[str, Any]], seed: int) -> tuple[str, ...]:
    """Return faults that were together least often: one alone before a pair, and which one is the seed's choice."""
    runs = Counter(frozenset(result["nemeses"]) for result in results)
    cells = [*((name,) for name in NEMESES), *combinations(NEMESES, 2)]
    return min(cells, key=lambda cell: (runs[frozenset(cell)], len(cell), Random(f"{seed} {cell}").random()))


def main() -> int:
    """Replace the table in the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(read_results(), list(NEMESES))}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
