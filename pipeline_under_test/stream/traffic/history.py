"""A past for the first look: an hour of beacons with event times gone by, sent through the SDK like any others.

The traffic has the shape of a day, and two incidents: vendor fb answers slowly for eight minutes, and for three minutes
some of what event-router sends to conn-ga does not arrive: at least one message a minute, however low the rate. What
is lost is in the ledger, as it is for live traffic.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lagloss.sdk.emitter import Emitter
from pipeline_under_test.harness.ledger import Fate, LedgerEntry, place_of_link, place_of_node, place_of_vendor
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import COL_SERVICE, CONN_FB, CONN_GA, EVENT_NORM, EVENT_ROUTER, NEXT, VENDORS

HISTORY: Final = "history"
WINDOW_S: Final = 60
QUIET_S: Final = 10
"""The past ends at the last whole minute before this many seconds ago, so that no lag reaches into the future."""
SLOW_MINUTES: Final = range(18, 26)
SLOW_PEAK_MS: Final = 9_000.0
LOSSY_MINUTES: Final = range(41, 44)
LOSS_SHARE: Final = 0.025
FILTER_SHARE: Final = 0.02
DEAD_SHARE: Final = 0.002
BOTH_SHARE: Final = 0.5
FLUSH_EVERY: Final = 10
"""Minutes of the past between flushes; an emitter holds a million beacons, 80 minutes of 100 events a second."""
FLUSH_TIMEOUT_S: Final = 60.0

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SyntheticHop:
    """How long something usually takes: median in ms, and the spread of its logarithm."""

    median_ms: float
    spread: float

    def draw(self, random: np.random.Generator, count: int) -> Times:
        return random.lognormal(math.log(self.median_ms), self.spread, count)


INTAKE: Final = SyntheticHop(25, 0.5)
ANSWER: Final = SyntheticHop(8, 0.4)
QUEUE: Final = SyntheticHop(30, 0.6)
STEP: Final = SyntheticHop(6, 0.5)
DELIVERY: Final = SyntheticHop(110, 0.5)


def arrivals(minute_of_day: int, rate: float, random: np.random.Generator) -> int:
    """Return how many events a minute has: `rate` a second on average over a day, least at 4:00 UTC, most at 16:00."""
    shape = 1 - 0.5 * math.cos(2 * math.pi * (minute_of_day - 240) / 1440)
    return int(random.poisson(rate * WINDOW_S * shape))


def slowness_ms(minute: int) -> float:
    """Return the delay that vendor fb's fault adds in this minute of the hour, in ms: it grows and ends."""
    if minute not in SLOW_MINUTES:
        return 0.0
    return SLOW_PEAK_MS * math.sin(math.pi * (minute - SLOW_MINUTES.start + 0.5) / len(SLOW_MINUTES))


@dataclass(frozen=True, slots=True)
class SyntheticMinute:
    """The events of one minute: ids, event times (epoch ms), and who of them goes where and gets lost."""

    ids: list[str]
    event_times_ms: npt.NDArray[np.int64]
    filtered: npt.NDArray[np.bool_]
    dead: npt.NDArray[np.bool_]
    to: dict[str, npt.NDArray[np.bool_]]
    lost_to_ga: npt.NDArray[np.bool_]

    def arrived(self, node: str) -> npt.NDArray[np.bool_]:
        """Return which of the messages sent to this connector arrived there."""
        return self.to[node] & ~self.lost_to_ga if node == CONN_GA else self.to[node]

    def entries(self) -> Iterator[LedgerEntry]:
        """Return the ledger's entries of this minute."""
        facts: list[tuple[Fate, npt.NDArray[np.bool_], str]] = [
            ("answered", np.ones(len(self.ids), np.bool_), ""),
            ("filtered", self.filtered, place_of_node(EVENT_NORM)),
            ("dead", self.dead, place_of_node(EVENT_NORM)),
            ("lost", self.lost_to_ga, place_of_link(EVENT_ROUTER, CONN_GA)),
            *(("routed", chosen, place_of_link(EVENT_ROUTER, node)) for node, chosen in self.to.items()),
            *(("delivered", self.arrived(node), place_of_vendor(vendor)) for vendor, node in VENDORS.items()),
        ]
        for fate, concerned, place in facts:
            for index in np.flatnonzero(concerned):
                yield LedgerEntry(fate, self.ids[index], int(self.event_times_ms[index]), place)


def make_minute(number: int, start_s: int, rate: float, prefix: str, random: np.random.Generator) -> SyntheticMinute:
    """Minute `number` of the past, which begins at `start_s` (epoch seconds)."""
    count = arrivals(start_s // WINDOW_S % 1440, rate, random)
    offsets_ms = np.sort(random.integers(0, WINDOW_S * 1000, count))
    fate, vendor = random.random(count), random.random(count)
    filtered = fate < FILTER_SHARE
    dead = ~filtered & (fate < FILTER_SHARE + DEAD_SHARE)
    going = ~filtered & ~dead
    only = (1 - BOTH_SHARE) / 2
    to = {CONN_GA: going & (vendor >= only), CONN_FB: going & (vendor < 1 - only)}
    share = LOSS_SHARE if number in LOSSY_MINUTES else 0.0
    lost = to[CONN_GA] & (random.random(count) < share)
    if share and not lost.any():
        lost[np.flatnonzero(to[CONN_GA])[:1]] = True
    return SyntheticMinute(
        ids=[f"{prefix}-{number:02d}-{index:06d}" for index in range(count)],
        event_times_ms=start_s * 1000 + offsets_ms,
        filtered=filtered,
        dead=dead,
        to=to,
        lost_to_ga=lost,
    )


class SyntheticHistory:
    """Sends the past of all nodes, one emitter a node."""

    def __init__(self, settings: ReferenceSettings, rate: float) -> None:
        self._rate = rate
        self._random = np.random.default_rng(settings.seed)
        self._ledger = settings.ledger_of(HISTORY)
        self._emitters = {
            node: Emitter(settings.pipeline, node, settings.bootstrap, first=node == COL_SERVICE) for node in NEXT
        }

    def send(self, minutes: int) -> Iterator[tuple[int, int]]:
        """Send the past, oldest minute first; yield minutes sent and beacons sent so far.

        Raises:
            TimeoutError: if the broker does not acknowledge in time.
        """
        end_s = int(time.time() - QUIET_S) // WINDOW_S * WINDOW_S
        prefix, beacons = f"h-{uuid.uuid4().hex[:8]}", 0
        for number in range(minutes):
            start_s = end_s - (minutes - number) * WINDOW_S
            minute = make_minute(number, start_s, self._rate, prefix, self._random)
            self._ledger.write(minute.entries())
            beacons += self._send_minute(number, minute)
            if (number + 1) % FLUSH_EVERY == 0 or number + 1 == minutes:
                self._flush()
            yield number + 1, beacons
        for emitter in self._emitters.values():
            emitter.close()
        self._ledger.close()

    def _flush(self) -> None:
        """Wait until the broker has everything, so that no emitter has to drop beacons for want of room."""
        for emitter in self._emitters.values():
            emitter.request_flush()
        if not all(emitter.flush(FLUSH_TIMEOUT_S) for emitter in self._emitters.values()):
            raise TimeoutError(f"past beacons were not acknowledged within {FLUSH_TIMEOUT_S:.0f} s")

    def _send_minute(self, number: int, minute: SyntheticMinute) -> int:
        random, count = self._random, len(minute.ids)
        everyone = np.ones(count, np.bool_)
        going = ~minute.filtered & ~minute.dead
        times = minute.event_times_ms + INTAKE.draw(random, count)
        sent = self._beacons(COL_SERVICE, "in", minute, everyone, times)
        times = times + ANSWER.draw(random, count)
        sent += self._beacons(COL_SERVICE, "out", minute, everyone, times)
        times = times + QUEUE.draw(random, count)
        sent += self._beacons(EVENT_NORM, "in", minute, everyone, times)
        times = times + STEP.draw(random, count)
        sent += self._beacons(EVENT_NORM, "filtered", minute, minute.filtered, times)
        sent += self._beacons(EVENT_NORM, "dead", minute, minute.dead, times)
        sent += self._beacons(EVENT_NORM, "out", minute, going, times)
        times = times + QUEUE.draw(random, count)
        sent += self._beacons(EVENT_ROUTER, "in", minute, going, times)
        times = times + STEP.draw(random, count)
        for node in (CONN_GA, CONN_FB):
            sent += self._beacons(EVENT_ROUTER, f"out:{node}", minute, minute.to[node], times)
            slow_ms = slowness_ms(number) if node == CONN_FB else 0.0
            taken = times + QUEUE.draw(random, count) + slow_ms * random.uniform(0.6, 1.0, count)
            arrived = minute.arrived(node)
            sent += self._beacons(node, "in", minute, arrived, taken)
            delivered = taken + DELIVERY.draw(random, count) + slow_ms * 0.1
            sent += self._beacons(node, "out", minute, arrived, delivered)
        return sent

    def _beacons(self, node: str, point: str, minute: SyntheticMinute, who: npt.NDArray[np.bool_], at_ms: Times) -> int:
        """Send beacons of one checkpoint for the events chosen by `who`, observed at `at_ms`; return how many."""
        emitter, kind, to = self._emitters[node], *point.partition(":")[::2]
        chosen = np.flatnonzero(who)
        times, observed = minute.event_times_ms[chosen].tolist(), at_ms[chosen].tolist()
        for index, event_time_ms, observed_at in zip(chosen.tolist(), times, observed, strict=True):
            message_id = minute.ids[index]
            match kind:
                case "in":
                    emitter.received(message_id, event_time_ms, observed_at=observed_at)
                case "out":
                    emitter.sent(message_id, event_time_ms, to=to or None, observed_at=observed_at)
                case "filtered":
                    emitter.filtered(message_id, event_time_ms, "robot", observed_at=observed_at)
                case _:
                    emitter.dead_lettered(message_id, event_time_ms, "unreadable", observed_at=observed_at)
        return len(chosen)
