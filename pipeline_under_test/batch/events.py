"""Events of the pipeline `scores`, and those that the stream's load makes as such."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from pipeline_under_test.stream.traffic.load import EventMaker, Mix

USERS: Final = 1000
_PLAIN: Final = Mix(robots=0, unreadable=0, malformed=0)


@dataclass(frozen=True, slots=True)
class ScoreEvent:
    """`id` and `event_ms` (epoch) are set at the source and never change. `referrer` came with version 2."""

    id: str
    event_ms: int
    campaign: str
    user_id: str
    kind: str
    value: float
    referrer: str | None = None

    @property
    def problem(self) -> str | None:
        """Why it cannot be imported; None if it can."""
        if not self.campaign:
            return "campaign"
        return None if math.isfinite(self.value) else "value"


def of_click(click: Mapping[str, Any], user_id: str, value: float) -> ScoreEvent:
    """Return a click of the stream as an event of this pipeline, under the same id."""
    url = str(click["url"])
    campaign = urlsplit(url).path.split("/")[1]
    return ScoreEvent(click["event_id"], click["event_time"], campaign, user_id, click["kind"], value, url)


class ScoreMaker:
    """Makes the clicks that the stream's load makes, with a user and a value."""

    def __init__(self, seed: int) -> None:
        self._clicks = EventMaker(seed, _PLAIN)
        self._random = random.Random(seed)

    def make(self, event_ms: int) -> ScoreEvent:
        user = f"u-{self._random.randrange(USERS):04d}"
        return of_click(self._clicks.make(event_ms), user, round(self._random.uniform(0, 100), 2))
