"""What a transport is: it sends notifications to one receiver, and says what the answer means for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from alerting.notification import Notification


@dataclass(frozen=True, slots=True)
class Sent:
    """Done: the receiver has them."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Failed for good: the receiver will not take them however often they come. `error` holds no secret."""

    error: str


@dataclass(frozen=True, slots=True)
class TryLater:
    """Not now; `after_s` where the receiver said when. `error` holds no secret."""

    error: str
    after_s: float | None = None


Outcome = Sent | Refused | TryLater


class Transport(Protocol):
    """One receiver. Used by one thread; an instance is made once and lives as long as the alerter leads."""

    takes_groups: bool
    """Whether several notifications may go in one `send`; else it is called with one at a time."""
    resend_s: float | None
    """Seconds after which an open incident has to be sent again (`refresh`), since this receiver forgets it else."""
    timeout_s: float
    """The longest that `send` takes."""

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        """Sends them as one message, oldest first. Raises nothing that a receiver or network can cause."""
        ...

    def close(self) -> None:
        """Gives connections back."""
        ...
