"""What benchmarks return: figures, each beside what is asked for and its reference from the same run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value. `goal`: at most this, or at least this where more is better; None if none is asked for."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    reference: float | None = None
    reference_name: str = ""
    more_is_better: bool = False

    @property
    def is_met(self) -> bool:
        """Return whether it is as good as asked for."""
        return self.goal is None or (self.value >= self.goal if self.more_is_better else self.value <= self.goal)


def table(figures: Iterable[Figure]) -> str:
    """Return a table in Markdown: what, asked for, reference (same run), measured."""
    rows = [("what", "asked for", "reference (same run)", "measured"), ("---",) * 4]
    for figure in figures:
        bound = "at least" if figure.more_is_better else "at most"
        goal = "" if figure.goal is None else f"{bound} {_amount(figure.goal, figure.unit)}"
        name = f" ({figure.reference_name})" if figure.reference_name else ""
        reference = "" if figure.reference is None else f"{_amount(figure.reference, figure.unit)}{name}"
        measured = f"{_amount(figure.value, figure.unit)}{'' if figure.is_met else ', **missed**'}"
        rows.append((figure.name, goal, reference, measured))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _amount(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"
