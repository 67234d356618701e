"""Transports: how notifications reach one receiver, and what several kinds of them have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from alerting.incidents.notification import Notification
from lagloss_server.net.outcome import Outcome

GROUP_AT_MOST: Final = 50
"""Notifications in one message, if the receiver has no smaller limit."""
MAX_REMEMBERED: Final = 1_000


class Transport(Protocol):
    """One receiver. Used by one thread; an instance is made once and lives as long as the alerter leads."""

    at_most: int
    """Number of notifications that may go in one `send`: as many as one message shows."""
    resend_s: float | None
    """Seconds after which an open incident has to be sent again (`refresh`): the receiver expires it otherwise."""
    timeout_s: float
    """The longest that `send` takes."""

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        """Send notifications as one message, oldest first. Raise nothing that a receiver or network can cause."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class TransportConfig(BaseModel):
    """One transport's part of a receiver in the alerting file. Its errors do not quote what was written."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    @abstractmethod
    def build(self) -> Transport:
        """Build the transport, its secrets resolved.

        Raises:
            SecretMissing: a secret is not where the configuration says.
            UnusableReceiver: what the configuration says cannot work; says why, and holds no secret.
        """


class HttpConfig(TransportConfig):
    """How far a transport that speaks HTTP may reach."""

    allow_private: bool = Field(default=False, alias="allowPrivate")
    """Whether it may go to addresses that are not public: this machine, the internal network."""
    ca_file: Path | None = Field(default=None, alias="caFile")
    """Certificates (PEM) of authorities to trust besides the public ones."""


class Reached:
    """Recipients that already have a message, so that a retry goes only to the others.

    Kept in memory: after a restart all are sent the message again, as at-least-once allows.
    """

    def __init__(self) -> None:
        self._by_message: OrderedDict[str, set[str]] = OrderedDict()

    def add(self, message: str, names: Iterable[str]) -> None:
        self._by_message.setdefault(message, set()).update(names)
        self._by_message.move_to_end(message)
        while len(self._by_message) > MAX_REMEMBERED:
            self._by_message.popitem(last=False)

    def of(self, message: str) -> frozenset[str]:
        return frozenset(self._by_message.get(message, ()))

    def forget(self, message: str) -> None:
        self._by_message.pop(message, None)
