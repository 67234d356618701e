"""The load: events at a given rate, whatever the answers do (an open loop, so a slow service shows as lag).

A fault `burst:FACTOR` multiplies the rate while it is on. An event that got no answer, or a 503, is sent again, as a
client that cares would do; its id and its time stay.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpx2

from pipeline_under_test.harness.ledger import Fate, Ledger, LedgerEntry
from pipeline_under_test.stream.events.event import NOT_ACKNOWLEDGED
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import VENDORS

LOAD: Final = "load"
TICK_S: Final = 0.1
"""Events made within a tick travel in one request."""
ATTEMPTS: Final = 8
FIRST_PAUSE_S: Final = 0.25
MAX_PAUSE_S: Final = 5.0
MAX_REQUESTS: Final = 1000
"""Requests under way at a time; a service slower than that ends the open loop, and the events wait."""

Answer = tuple[dict[str, Any], Fate]
CERTAIN: Final = frozenset(
    {HTTPStatus.OK, HTTPStatus.MULTI_STATUS, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE}
)
"""The answers that say of each event what became of it."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the events that are made so that a node has something to do besides passing them on."""

    robots: float = 0.02
    unreadable: float = 0.002
    malformed: float = 0.002


class EventMaker:
    """Plausible clicks, the same ones for the same seed save for ids and times."""

    def __init__(self, seed: int, mix: Mix) -> None:
        self._random = random.Random(seed)
        self._mix = mix
        self._prefix = f"e-{uuid.uuid4().hex[:8]}"
        self._made = 0

    def make(self, event_time_ms: int) -> dict[str, Any]:
        draw = self._random
        self._made += 1
        event: dict[str, Any] = {
            "event_id": f"{self._prefix}-{self._made:08d}",
            "event_time": event_time_ms,
            "kind": draw.choice(("Click", "View", "Scroll")),
            "url": f"https://shop.example/{draw.choice(('cart', 'item', 'search'))}/{draw.randrange(1000)}",
            "vendors": draw.choice((["ga"], ["fb"], list(VENDORS), list(VENDORS))),
        }
        dice = draw.random()
        if dice < self._mix.malformed:
            del event["url"]
        elif dice < self._mix.malformed + self._mix.unreadable:
            event["url"] = "https://[broken"
        elif dice < self._mix.malformed + self._mix.unreadable + self._mix.robots:
            event["bot"] = True
        return event


class Load:
    """Sends events to col-service at `rate` a second until stopped, and notes each one's fate in the ledger."""

    def __init__(self, settings: ReferenceSettings, rate: float, mix: Mix) -> None:
        self._url = f"{settings.collector_url}/events"
        self._rate = rate
        self._maker = EventMaker(settings.seed, mix)
        self._ledger: Ledger = settings.ledger_of(LOAD)
        self._injections = settings.injections()
        self._under_way = asyncio.Semaphore(MAX_REQUESTS)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Make no more events; `run` returns when those under way are answered or given up."""
        self._stop.set()

    async def run(self) -> None:
        """Make and send events until stopped."""
        next_s = time.time()
        async with httpx2.AsyncClient(timeout=30) as client, asyncio.TaskGroup() as requests:
            while not self._stop.is_set():
                interval_s = 1 / self._rate_now()
                times_ms = []
                while next_s <= time.time():
                    times_ms.append(int(next_s * 1000))
                    next_s += interval_s
                if times_ms:
                    await self._under_way.acquire()
                    requests.create_task(self._send(client, [self._maker.make(time_ms) for time_ms in times_ms]))
                await self._pause()
        self._ledger.close()

    def _rate_now(self) -> float:
        bursts = self._injections.holding("burst", time.time() * 1000)
        return self._rate * math.prod(injection.fault.number for injection in bursts)

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), TICK_S)
        except TimeoutError:
            return

    async def _send(self, client: httpx2.AsyncClient, events: list[dict[str, Any]]) -> None:
        try:
            self._note((event, "generated") for event in events)
            for attempt in range(ATTEMPTS):
                if attempt:
                    await asyncio.sleep(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**attempt))
                answers = await self._post(client, events)
                self._note(answers)
                event_ids = {event["event_id"] for event, _ in answers}
                events = [event for event in events if event["event_id"] not in event_ids]
                if not events:
                    return
            self._note((event, "unanswered") for event in events)
        finally:
            self._under_way.release()

    async def _post(self, client: httpx2.AsyncClient, events: Sequence[dict[str, Any]]) -> list[Answer]:
        """Send these events; return those that need not be sent again, each with its fate."""
        try:
            response = await client.post(self._url, json=events)
        except httpx2.TransportError:
            return []
        if response.status_code not in CERTAIN:
            return []
        document = response.json()
        answers: list[Answer] = [(events[item["index"]], "answered") for item in document["accepted"]]
        answers += [
            (events[item["index"]], "refused") for item in document["rejected"] if item["reason"] != NOT_ACKNOWLEDGED
        ]
        return answers

    def _note(self, fates: Iterable[Answer]) -> None:
        self._ledger.write(LedgerEntry(fate, event["event_id"], event["event_time"]) for event, fate in fates)
