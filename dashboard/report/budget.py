"""What is spent and left of an error budget: one account for reports and for the overview."""

from __future__ import annotations

from dataclasses import dataclass

from lagloss.result import Interval

Share = dict[str, float]
"""Of a budget, `min` and `max`: spent or left, which is below 0 where more than all of it is spent."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Of the `allowed` messages that may be bad, what is `used`: at least what is bad for certain; at most all that
    cannot be ruled out, and with it every message of minutes without a verdict. Nothing unknown counts as good."""

    allowed: float
    used: Interval

    @property
    def spent(self) -> Share | None:
        """The share that is used up; None where none may be bad."""
        if not self.allowed:
            return None
        return {"min": self.used.min / self.allowed, "max": self.used.max / self.allowed}

    @property
    def left(self) -> Share | None:
        """The share that is not; None where none may be bad."""
        spent = self.spent
        return None if spent is None else {"min": 1 - spent["max"], "max": 1 - spent["min"]}

    @property
    def is_used_up(self) -> bool:
        """For certain."""
        return self.used.min > 0 and self.used.min >= self.allowed
