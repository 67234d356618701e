"""Distance to retention: when the broker deletes messages that a consumer group has not read yet.

A topic's limits delete from a partition's start on, in the order of offsets. Seen from the offset that a group takes in
next, deletion is a front that arrives there after some time and then goes on at some speed, while the group goes on at
its own. Messages are lost where the front meets the group.

Brokers delete whole segments, every few minutes, once the newest record in them is past the limit. So what is computed
here is the earliest moment: no message is deleted before it, and most are deleted later.

They go by the timestamps that producers wrote, whatever these are. One that is no time of a message (0, seconds,
microseconds) says nothing about those around it in the segment, so nothing is foreseen by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf
from typing import Final, Literal

from msgspec import Struct

from lagloss_server.groups.velocity import OffsetReading

Limit = Literal["time", "size"]


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """`retention.ms` and `retention.bytes` of a topic that deletes; None: no such limit."""

    retention_ms: int | None = None
    retention_bytes: int | None = None


EARLIEST_STAMP_MS: Final = 946_684_800_000
"""The year 2000: before it are zeros, and seconds taken for ms."""
AHEAD_MS: Final = 366 * 86_400_000
"""A timestamp further ahead is none of a clock: microseconds, say."""


def age_ms(stamped_ms: int | None, now_ms: int) -> int | None:
    """Return the age of a record by its timestamp, negative where a clock is ahead; None for one that is no time of a
    message."""
    if stamped_ms is None or not EARLIEST_STAMP_MS <= stamped_ms <= now_ms + AHEAD_MS:
        return None
    return now_ms - stamped_ms


class DeletionFront(Struct, frozen=True):
    """The message `k` offsets after the group's next one can be deleted from `arrives_s` + k / `per_s` on, in seconds
    from now."""

    limit: Limit
    arrives_s: float
    per_s: float


ROUNDING: Final = 1e-9
"""Offsets: far more than floats err by, far less than one."""


class LossAhead(Struct, frozen=True):
    """In `in_s` seconds, at the present velocity, the first message that the group has not read can be deleted;
    `messages` are those waiting now from that one on, at least one: offsets, markers of transactions among them."""

    in_s: float
    messages: int


def time_front(retention_ms: int, age_ms: int, lag: int) -> DeletionFront:
    """Return the front of `retention.ms`. `age_ms`: of the group's next record by its timestamp; the `lag` records from
    there on are taken as evenly spread from then to now."""
    per_s = inf if age_ms <= 0 else 1_000 * lag / age_ms
    return DeletionFront("time", max(0.0, (retention_ms - age_ms) / 1_000), per_s)


def size_front(retention_bytes: int, bytes_per_offset: float, lag: int, appends_per_s: float) -> DeletionFront | None:
    """Return the front of `retention.bytes`, which moves as the log grows; None where it does not grow."""
    if appends_per_s <= 0 or bytes_per_offset <= 0:
        return None
    retained = retention_bytes / bytes_per_offset
    return DeletionFront("size", max(0.0, (retained - lag) / appends_per_s), appends_per_s)


def fronts(
    limits: RetentionLimits, lag: int, age_ms: int | None, bytes_per_offset: float | None, appends_per_s: float | None
) -> list[DeletionFront]:
    """Return the fronts of a partition in which `lag` > 0 messages wait, as far as what they go by is known."""
    fronts_ = []
    if limits.retention_ms is not None and age_ms is not None:
        fronts_.append(time_front(limits.retention_ms, age_ms, lag))
    if limits.retention_bytes is not None and bytes_per_offset is not None and appends_per_s is not None:
        by_size = size_front(limits.retention_bytes, bytes_per_offset, lag, appends_per_s)
        fronts_ += [] if by_size is None else [by_size]
    return fronts_


def loss_ahead(ahead: Iterable[DeletionFront], lag: int, commits_per_s: float) -> LossAhead | None:
    """Return the first loss of messages that wait now, at the group's present velocity; None if it has taken all of
    them in before a front reaches it."""
    losses = [loss for front in ahead if (loss := _meeting(front, lag, commits_per_s)) is not None]
    return min(losses, key=lambda loss: loss.in_s, default=None)


def _meeting(front: DeletionFront, lag: int, commits_per_s: float) -> LossAhead | None:
    """Solve arrives_s + k / per_s = k / commits_per_s for the k that the front and the group reach together."""
    if front.arrives_s == inf or lag <= 0:
        return None
    if commits_per_s <= 0:
        return LossAhead(front.arrives_s, lag)
    slower_s = 1 / commits_per_s - 1 / front.per_s
    if slower_s <= 0:
        return None
    taken_in = front.arrives_s / slower_s
    if taken_in >= lag:
        return None
    # Without the allowance, rounding counts one more where both meet exactly at an offset.
    return LossAhead(taken_in / commits_per_s, max(1, ceil(lag - taken_in - ROUNDING)))


def deleted_unread(before: OffsetReading | None, now: OffsetReading) -> int:
    """Return the number of offsets that were deleted between two readings without the group having committed past them;
    of a first reading, and after one of which it is not known what waited, of all that lie between its commit and the
    log's start.

    Markers of transactions and records of aborted ones are among them, so it is the most messages that can have been
    lost. A group that was overtaken and went on past the gap between two readings is not seen.
    """
    passed = now.committed or 0
    if before is None or not (before.counts and now.counts):
        return 0 if now.committed is None else max(0, now.start - passed)
    if now.start < before.start:  # another log: the topic was created anew
        return 0
    return max(0, now.start - max(before.next, passed))
