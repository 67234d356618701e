"""Plans of repairs: which records are sent, in which order, how fast, and where one that was killed goes on. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from lagloss_server.repair.lost import LostId
from lagloss_server.repair.records import MessageKey, RecordPosition

MessageState = Literal["planned", "sending", "sent", "arrived", "elsewhere", "gone", "refused"]
"""`sending`: in the transaction that may have been committed, or in a request that SQS may have accepted; `arrived`: it
came meanwhile, and is not sent; `elsewhere`: it passed the place meanwhile, and has not arrived; `gone`: its record is
not in the topics any more, or its object not in the bucket; `refused`: the topic takes no such record."""
PERHAPS_SENT: Final = ("sent", "sending")
"""States of what must not be sent again. Kafka settles `sending` when a run begins; where SQS cannot, it remains."""
LEAST_RATE: Final = 50.0
"""Records per second that are sent at least, however quiet the topic is."""
SHARE_OF_RATE: Final = 0.1
BATCH_S: Final = 1.0
"""Records of one transaction, as time at the rate."""
MAX_BATCH: Final = 500
IN_FLIGHT_S: Final = 30.0
"""Records that may be on their way, as time at the rate: more means that the nodes behind do not keep up."""
LEAST_IN_FLIGHT: Final = 200


@dataclass(frozen=True, slots=True)
class FilePosition:
    """A version of an object that its bucket has, by the id of the message, and the queue that is to be notified."""

    target: str


Position = RecordPosition | FilePosition


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """A message of a plan. `record`: where it is; None if it is gone."""

    position: int
    message: LostId
    record: Position | None
    state: MessageState = "planned"
    is_delivered: bool = False


def order(messages: Iterable[LostId], records: Mapping[MessageKey, Position]) -> list[PlannedMessage]:
    """Return a plan: records in the order in which they stand in their topics, then the messages whose records are
    gone."""
    located: list[tuple[Position | None, LostId]] = []
    gone: list[tuple[Position | None, LostId]] = []
    for message in messages:
        record = records.get(message.key)
        (gone if record is None else located).append((record, message))
    located.sort(key=lambda pair: _place(pair[0]))
    gone.sort(key=lambda pair: pair[1].key)
    return [
        PlannedMessage(position, message, record, "gone" if record is None else "planned")
        for position, (record, message) in enumerate([*located, *gone])
    ]


def _place(record: Position | None) -> tuple[str, int, int]:
    return (record.topic, record.partition, record.offset) if isinstance(record, RecordPosition) else ("", 0, 0)


def without_planned(plan: Iterable[PlannedMessage], keys: Collection[MessageKey]) -> list[PlannedMessage]:
    """Return a plan without the messages of these keys, which another repair has."""
    rest = [planned for planned in plan if planned.message.key not in keys]
    return [replace(planned, position=position) for position, planned in enumerate(rest)]


def set_hash(messages: Iterable[LostId]) -> str:
    """Return the SHA-256 of a set, by windows and id hashes, whatever its order."""
    lines = sorted(f"{message.window_start_s}/{message.id_hash:016x}\n" for message in messages)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def default_rate(topic_rate: float) -> float:
    """Return the records per second to send into a topic that gets so many."""
    return max(LEAST_RATE, topic_rate * SHARE_OF_RATE)


def batch_size(rate: float, most: int = MAX_BATCH) -> int:
    """Return how many records to send at once."""
    return max(1, min(most, round(rate * BATCH_S)))


def most_in_flight(rate: float) -> int:
    """Return how many records may be on their way to their destinations."""
    return max(LEAST_IN_FLIGHT, round(rate * IN_FLIGHT_S))


def batches(plan: Sequence[PlannedMessage], position: int, size: int) -> Iterator[Sequence[PlannedMessage]]:
    """Yield what is to be sent from a position on, in the order of the plan."""
    rest = [planned for planned in plan if planned.position >= position and planned.record is not None]
    for start in range(0, len(rest), size):
        yield rest[start : start + size]


def resume(
    plan: Iterable[PlannedMessage], stored: int, committed: int | None, sent: Collection[MessageKey] | None = None
) -> tuple[int, list[PlannedMessage]]:
    """Return the position at which a repair goes on, and its plan with what is known of the last transaction.

    `stored`: the position in PostgreSQL, which is written after a transaction; `committed`: that in Kafka, which is
    part of it, None if Kafka has none. Then `sent` are the messages that the topic itself shows as sent.
    """
    position = max(stored, committed or 0)
    resumed: list[PlannedMessage] = []
    for planned in plan:
        if planned.state == "sending":
            is_sent = planned.position < position or (sent is not None and planned.message.key in sent)
            planned = replace(planned, state="sent" if is_sent else "planned")
        resumed.append(planned)
    if committed is None and sent:
        position = max([position, *(planned.position + 1 for planned in resumed if planned.state == "sent")])
    return position, resumed
