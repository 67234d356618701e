"""The vendors' stand-in refuses what it is told to refuse, and counts what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.nodes.receiver import create_app
from pipeline_under_test.stream.settings import ReferenceSettings

EVENT_TIME_MS = 1_700_000_000_000
IDS = [f"e-{number:03d}" for number in range(200)]
REFUSE = "refuse:ga:0.1"


@pytest.fixture
def settings(tmp_path: Path) -> ReferenceSettings:
    made = ReferenceSettings(data_dir=tmp_path)
    made.injections().begin_anew([parse(REFUSE)])
    return made


@pytest.fixture
def hopeless(settings: ReferenceSettings) -> set[str]:
    plan = settings.faults_of("ga").plan
    found = {name for name in IDS if plan(Event(name, EVENT_TIME_MS, b"")).refused}
    assert found
    return found


def answers(
    settings: ReferenceSettings, vendor: str, batches: Sequence[Sequence[str]]
) -> tuple[list[int], dict[str, Any]]:
    """The status of the answer to each batch, and the receiver's counts then."""

    async def ask() -> tuple[list[int], dict[str, Any]]:
        transport = httpx2.ASGITransport(create_app(settings))
        async with httpx2.AsyncClient(transport=transport, base_url="http://vendors") as client:
            got = []
            for batch in batches:
                events = [{"event_id": name, "event_time": EVENT_TIME_MS, "content": {}} for name in batch]
                got.append((await client.post(f"/v1/{vendor}/events", json={"events": events})).status_code)
            return got, (await client.get("/counts")).json()

    return asyncio.run(ask())


def test_an_event_that_is_refused_is_refused_each_time_and_others_never(
    settings: ReferenceSettings, hopeless: set[str]
) -> None:
    got, counts = answers(settings, "ga", [[name] for name in IDS * 2])
    assert got == [400 if name in hopeless else 200 for name in IDS * 2]
    assert counts["ga"] == {"requests": 2 * len(IDS), "events": 2 * (len(IDS) - len(hopeless))}


def test_a_request_that_holds_a_refused_event_is_refused_as_a_whole(
    settings: ReferenceSettings, hopeless: set[str]
) -> None:
    good = [name for name in IDS if name not in hopeless]
    got, counts = answers(settings, "ga", [good, [*good, min(hopeless)]])
    assert got == [200, 400]
    assert counts["ga"] == {"requests": 2, "events": len(good)}


def test_another_vendor_takes_them_all(settings: ReferenceSettings) -> None:
    got, counts = answers(settings, "fb", [IDS])
    assert got == [200]
    assert counts == {"ga": {"requests": 0, "events": 0}, "fb": {"requests": 1, "events": len(IDS)}}
