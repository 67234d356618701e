"""The boundary between a repair and what it reads from and sends into: Kafka topics, or a queue of files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from lagloss_server.base.errors import AwsUnreachable
from lagloss_server.repair.ledger import StoredRepair
from lagloss_server.repair.lost import LostId
from lagloss_server.repair.plan import PlannedMessage, Position
from lagloss_server.repair.records import MessageKey

Say = Callable[[str], None]


class NothingSent(AwsUnreachable):
    """{what} failed: {detail}. Nothing of this batch was sent; the same command goes on."""


class RecordsRefused(Exception):
    """The topic takes no such records, at these positions of the plan: they are too large for it, or not of its form.
    Nothing of the batch was sent."""

    def __init__(self, positions: Collection[int]) -> None:
        super().__init__(positions)
        self.positions = positions


class RepairTransport(Protocol):
    """Finds what was lost, and sends it again. Used by one thread.

    To prepare a repair, `locate`, `ends` and `rate`; to run one, `begin`, `resume`, then `read` and `send` by batches.
    Between `read` and `send`, the ledger has the batch as `sending`; behind `send`, as `sent`.

    Raises, as its methods:
        KafkaException, AwsUnreachable: a server does not answer, or refuses.
    """

    most: int
    """Messages that one `send` takes."""

    def close(self) -> None:
        """Close its connections."""

    def locate(self, messages: Sequence[LostId], say: Say) -> Mapping[MessageKey, Position]:
        """Return where these messages are, of those that are still there."""

    def ends(self) -> dict[str, dict[int, int]]:
        """Return the end of each topic that is sent into, by topic and partition."""

    def rate(self) -> float:
        """Return how many messages per second it gets of late; 0 if that is unknown."""

    def begin(self, repair: StoredRepair) -> None:
        """Prepare to send for a repair, and shut out every other process that does.

        Raises:
            TakenOver: another one has shut this one out.
        """

    def resume(self, repair: StoredRepair, plan: Sequence[PlannedMessage]) -> tuple[int, list[PlannedMessage]]:
        """Return the position to go on from, and the plan with what is known of the batch that is `sending`."""

    def read(self, waiting: Sequence[PlannedMessage]) -> Mapping[int, Any]:
        """Return what to send, by position, of those of these messages that are still there."""

    def send(self, contents: Mapping[int, Any], position: int) -> Collection[int]:
        """Send what was read, with the position of the plan behind it; return the positions of what was not sent.

        Raises:
            NothingSent, RecordsRefused: for certain. After any other error, a part or all of it may have been sent.
            TakenOver: as `begin`.
        """
