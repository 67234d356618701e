"""What became of something that was sent, and when it is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from lagloss_server.net.backoff import backoff_s

GIVE_UP_AFTER_S: Final = 86_400.0
"""What has not been taken for so long is given up."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Done: the receiver has it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Failed for good: the receiver will not take it however often it comes. `error` holds no secret."""

    error: str


@dataclass(frozen=True, slots=True)
class TryLater:
    """Not now; `after_s` if the receiver said when. `error` holds no secret."""

    error: str
    after_s: float | None = None

    def given_up(self, attempts: int) -> Refused:
        """Return what is recorded of it after GIVE_UP_AFTER_S."""
        return Refused(f"given up after {attempts} attempts in a day; the last: {self.error}")

    def wait_s(self, attempts: int, first_s: float = 1.0, longest_s: float = 300.0) -> float:
        """Return how long to wait now: as `backoff_s`, and not less than the receiver asked for."""
        return max(backoff_s(attempts, random.random(), first_s, longest_s), self.after_s or 0)


Outcome = Sent | Refused | TryLater
