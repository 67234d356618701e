"""Exponential backoff with jitter."""

from __future__ import annotations


def backoff_s(attempts: int, chance: float, first_s: float = 1.0, longest_s: float = 300.0) -> float:
    """Return the pause before the next attempt, in s.

    Doubles with each attempt, from `first_s` to `longest_s`, times 0.75 to 1.25 (`chance` in [0, 1)), so that receivers
    are not hit in step.
    """
    return min(first_s * 2.0 ** min(attempts - 1, 20), longest_s) * (0.75 + chance / 2)
