"""What a transport is: it sends notifications to one receiver, and says what the answer means for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from alerting.incidents.notification import Notification
from lagloss_server.net.outcome import Outcome


class Transport(Protocol):
    """One receiver. Used by one thread; an instance is made once and lives as long as the alerter leads."""

    takes_groups: bool
    """Whether several notifications may go in one `send`; else it is called with one at a time."""
    resend_s: float | None
    """Seconds after which an open incident has to be sent again (`refresh`), since this receiver forgets it else."""
    timeout_s: float
    """The longest that `send` takes."""

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        """Send notifications as one message, oldest first. Raise nothing that a receiver or network can cause."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...
