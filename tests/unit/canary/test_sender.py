"""The sender without servers: its beacons in memory, and a producer of the test's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from canary import sender as sending
from canary.plan import MINUTE_S, plan_of
from canary.sender import CanarySender, NotTaken
from lagloss.testing import recorded
from lagloss_server.model.canary import NOT_TAKEN

START_S = int(time.time()) // MINUTE_S * MINUTE_S - 2 * MINUTE_S


class FatalProducer:
    """A producer that has a fatal error, from when its record is acknowledged or at once, and keeps it."""

    def __init__(self, *, refuses: bool, fails: bool) -> None:
        self._refuses, self._fails = refuses, fails
        self._answers: list[Callable[[], Any]] = []

    def produce(self, *_: Any, on_delivery: Callable[[KafkaError | None, Any], None]) -> None:
        error = KafkaError(KafkaError._FATAL)
        if self._refuses:
            raise KafkaException(error)
        self._answers.append(lambda: on_delivery(error if self._fails else None, None))

    def flush(self, _timeout_s: float) -> int:
        while self._answers:
            self._answers.pop()()
        return 0


@pytest.fixture
def clock() -> Iterator[SimpleNamespace]:
    with recorded():
        yield SimpleNamespace(now_s=START_S + 0.0)


@pytest.mark.parametrize("fault", [{"refuses": True, "fails": False}, {"refuses": False, "fails": True}])
def test_a_producer_that_has_failed_is_replaced_for_the_next_minute(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, fault: dict[str, bool]
) -> None:
    producers = [FatalProducer(**fault), FatalProducer(refuses=False, fails=False)]
    monkeypatch.setattr(sending, "Producer", lambda _options: producers.pop(0))
    sender = CanarySender("127.0.0.1:9", "http://127.0.0.1:9", "", now_s=lambda: clock.now_s)

    def tick(wait_s: float) -> None:
        clock.now_s += max(wait_s, 0.001)

    with pytest.raises(NotTaken, match=f"^{NOT_TAKEN}topic lagloss.canary: "):
        sender.send(plan_of(bytes(32), START_S), tick)
    clock.now_s = START_S + 60.0
    sender.send(plan_of(bytes(32), START_S + MINUTE_S), tick)
    assert producers == []
    sender.close()
