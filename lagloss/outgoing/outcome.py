"""What became of something that was sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """Done: the receiver has it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Failed for good: the receiver will not take it however often it comes. `error` holds no secret."""

    error: str


@dataclass(frozen=True, slots=True)
class TryLater:
    """Not now; `after_s` where the receiver said when. `error` holds no secret."""

    error: str
    after_s: float | None = None


Outcome = Sent | Refused | TryLater
