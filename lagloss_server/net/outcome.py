"""Outcomes of a delivery, and the pause before a retry."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

GIVE_UP_AFTER_S: Final = 86_400.0
"""Age at which an undelivered message is given up."""
LONGEST_WAIT_S: Final = 300.0
"""Longest pause before a retry, if the receiver names none."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Success: the receiver has it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Permanent failure: the receiver will not accept it on any retry. `error` holds no secret."""

    error: str


@dataclass(frozen=True, slots=True)
class TryLater:
    """Transient failure; `after_s` if the receiver named a pause. `error` holds no secret."""

    error: str
    after_s: float | None = None

    def given_up(self, attempts: int) -> Refused:
        """Return the outcome to record after GIVE_UP_AFTER_S."""
        return Refused(f"gave up after {attempts} attempts in a day; last error: {self.error}")

    def wait_s(self, attempts: int, first_s: float = 1.0, longest_s: float = LONGEST_WAIT_S) -> float:
        """Return the pause before the next attempt, in s: `backoff_s`, and at least the receiver's."""
        return max(backoff_s(attempts, random.random(), first_s, longest_s), self.after_s or 0)


Outcome = Sent | Refused | TryLater


def backoff_s(attempts: int, chance: float, first_s: float = 1.0, longest_s: float = LONGEST_WAIT_S) -> float:
    """Return the pause before the next attempt, in s.

    Doubles with each attempt, from `first_s` to `longest_s`, times 0.75 to 1.25 (`chance` in [0, 1)), so that receivers
    are not hit in step.
    """
    return min(first_s * 2.0 ** min(attempts - 1, 20), longest_s) * (0.75 + chance / 2)
