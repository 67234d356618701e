"""The plan of a minute: which of the canary's 60 messages meet which fault. It follows from a secret and the minute.

Without the secret a minute cannot be foreseen, however many others are known. With it the plan can be made again, so
that only the secret is stored.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Final, Literal, TypeVar

from lagloss_server.model.canary import ALERTING_PLACES, APP, RELAY, STORE

T = TypeVar("T")

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
MESSAGES: Final = 60
"""Messages per minute."""
Fate = Literal["delivered", "lost", "late", "doubled", "corrupted", "dead"]
Fault = tuple[Fate, str]
"""A fate, and the place or checkpoint where it is met."""
UNHARMED: Final[Fault] = ("delivered", "")
CORRUPTING: Final = f"link {APP}->{RELAY}"
"""The link whose both sides carry checksums."""
LOSING: Final = (*ALERTING_PLACES, f"node {RELAY}", f"link {RELAY}->{STORE}")
"""Places that lose messages: two links, two nodes."""
RARE: Final[tuple[Fault, ...]] = (
    *(("lost", place) for place in LOSING[2:]),
    ("late", f"{STORE}.out"),
    *(("doubled", checkpoint) for checkpoint in (f"{RELAY}.in", f"{RELAY}.out", f"{STORE}.in")),
    ("corrupted", CORRUPTING),
    ("dead", f"{RELAY}.dead"),
)
"""Faults of some minutes: each of at least one in an hour, chosen by the secret, and of others by chance."""
ONE_IN: Final = 6
"""A rare fault is in one minute of so many."""
BURST_MS: Final = (3_000, 42_000)
"""When within the minute the messages are sent: at once, between these, in ms. A burst costs all parts much less than a
message per second, and shows as much."""
SPACING_MS: Final = 5
LATE_MS: Final = (8_000, 14_000)
"""How long a late message is held back. All are delivered within their minute."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a minute: sent `offset_ms` after its start, delivered `delay_ms` after that. `place`: of its
    fault."""

    id: str
    offset_ms: int
    fate: Fate
    place: str = ""
    delay_ms: int = 0
    checksum: int = 0


@dataclass(frozen=True)
class MinutePlan:
    """The messages of a minute in the order in which they are sent, and what results have to say of them."""

    start_s: int
    messages: tuple[Message, ...]

    def of_fate(self, fate: Fate) -> list[Message]:
        """Return the messages that meet a fate."""
        return [message for message in self.messages if message.fate == fate]

    @cached_property
    def lost(self) -> dict[str, str]:
        """The place of each lost message, by its id."""
        return {message.id: message.place for message in self.of_fate("lost")}

    @cached_property
    def lost_at(self) -> Counter[str]:
        """The number of lost messages by place."""
        return Counter(self.lost.values())

    @cached_property
    def doubled_at(self) -> Counter[str]:
        """The number of messages that a checkpoint sees twice, by checkpoint."""
        return Counter(message.place for message in self.of_fate("doubled"))

    @cached_property
    def seen_at(self) -> dict[str, int]:
        """The number of messages that each checkpoint sees, by checkpoint; none that sees none."""
        relayed = len(self.messages) - self.lost_at[f"link {APP}->{RELAY}"]
        produced = relayed - self.dead - self.lost_at[f"node {RELAY}"]
        counts = {
            f"{APP}.in": len(self.messages),
            f"{APP}.out": len(self.messages),
            f"{RELAY}.in": relayed,
            f"{RELAY}.dead": self.dead,
            f"{RELAY}.out": produced,
            f"{STORE}.in": produced - self.lost_at[f"link {RELAY}->{STORE}"],
            f"{STORE}.out": self.delivered,
        }
        return {checkpoint: number for checkpoint, number in counts.items() if number}

    @cached_property
    def delays_ms(self) -> list[int]:
        """How long each message that arrives is held back, the shortest first."""
        return sorted(message.delay_ms for message in self.messages if message.fate not in ("lost", "dead"))

    @property
    def dead(self) -> int:
        return len(self.of_fate("dead"))

    @property
    def late(self) -> int:
        return len(self.of_fate("late"))

    @property
    def corrupted(self) -> int:
        return len(self.of_fate("corrupted"))

    @property
    def delivered(self) -> int:
        """Messages that arrive, late or on time."""
        return len(self.messages) - len(self.lost) - self.dead

    @property
    def on_time_share(self) -> float:
        """The share on time of the messages that are to arrive: of all but the dead."""
        return (self.delivered - self.late) / (len(self.messages) - self.dead)

    @property
    def breaching_place(self) -> str:
        """The place whose alerting rule is breached by this minute."""
        return _breaching(self.start_s)


def plan_of(secret: bytes, start_s: int) -> MinutePlan:
    """Return the plan of the minute that starts at `start_s` (epoch s, a multiple of 60)."""
    draws = _Draws(secret, f"minute/{start_s}")
    faults = list(_faults(secret, start_s, draws))
    fates = [*faults, *[UNHARMED] * (MESSAGES - len(faults))]
    draws.shuffle(fates)
    first_ms = draws.between(*BURST_MS)
    return MinutePlan(
        start_s,
        tuple(
            Message(
                f"canary-{draws.below(1 << 64):016x}",
                first_ms + index * SPACING_MS,
                fate,
                place,
                draws.between(*LATE_MS) if fate == "late" else 0,
                draws.below(1 << 32),
            )
            for index, (fate, place) in enumerate(fates)
        ),
    )


def _breaching(start_s: int) -> str:
    return ALERTING_PLACES[start_s // HOUR_S % len(ALERTING_PLACES)]


def _faults(secret: bytes, start_s: int, draws: _Draws) -> Iterator[Fault]:
    """Yield the faults of a minute, once for each message that meets one."""
    for place in ALERTING_PLACES:
        number = draws.between(3, 6) if place == _breaching(start_s) else draws.below(2)
        lost: Fault = ("lost", place)
        yield from [lost] * number
    for fault in RARE:
        number = 1 + draws.below(2) if draws.below(ONE_IN) == 0 else 0
        yield from [fault] * max(number, start_s == _sure_minute(secret, start_s, fault))


def _sure_minute(secret: bytes, start_s: int, fault: Fault) -> int:
    """Return the minute of the hour in which a rare fault is certain."""
    hour_s = start_s // HOUR_S * HOUR_S
    return hour_s + _Draws(secret, f"hour/{hour_s}/{fault}").below(HOUR_S // MINUTE_S) * MINUTE_S


class _Draws:
    """Numbers that follow from a secret and a name: HMAC-SHA256 of a counter."""

    def __init__(self, secret: bytes, name: str) -> None:
        blocks = (hmac.digest(secret, f"{name}/{number}".encode(), "sha256") for number in count())
        self._words = (int.from_bytes(block[at : at + 8]) for block in blocks for at in range(0, len(block), 8))

    def below(self, limit: int) -> int:
        """Return a number from 0 to below `limit`, at most 2^64, each as likely."""
        fair = (1 << 64) - (1 << 64) % limit
        return next(word for word in self._words if word < fair) % limit

    def between(self, first: int, last: int) -> int:
        """Return a number from `first` to `last`, both included."""
        return first + self.below(last - first + 1)

    def shuffle(self, values: list[T]) -> None:
        for last in range(len(values) - 1, 0, -1):
            other = self.below(last + 1)
            values[last], values[other] = values[other], values[last]
