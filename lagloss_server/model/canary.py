"""The canary: a pipeline of lagloss's own, whose faults it makes itself, so that a result that misses one is noticed.

    app --SDK--> relay --topic, tap--> store --HTTP collector, or table, tap-->

It is in no listing of pipelines: `is_listed`. Who plans and makes its faults, and who compares results with them, is in
the package `canary`.
"""

from __future__ import annotations

import os
from typing import Final

CANARY: Final = "lagloss-canary"
"""Name of the pipeline, and of the receiver of its incidents."""
CANARY_TOPIC: Final = os.environ.get("LAGLOSS_KAFKA_TOPIC_CANARY") or "lagloss.canary"
TABLE_DATABASE: Final = "canary"
"""The database that `store` writes to, if the environment names one."""
TABLE: Final = "public.lagloss_canary"
APP: Final = "app"
RELAY: Final = "relay"
STORE: Final = "store"
GRACE_S: Final = 30
TARGET_LAG_MS: Final = 5_000
PLACE_TARGET: Final = 0.04
"""Share of a minute's messages that the two places with an alerting rule may lose: 2 of 60 are no breach, 3 are."""
ALERTING_PLACES: Final = (f"link {APP}->{RELAY}", f"node {STORE}")
"""The places with an alerting rule. In even hours the first breaches in every minute, in odd hours the second."""
REMIND_S: Final = 90
"""Interval of reminders of its open incident. Each names the newest window, so that an alerter that stopped is noticed
within minutes, not at the next incident."""
SENDING: Final = "sending"
SENT: Final = "sent"
NOT_DUE: Final = "not due"
"""States of a minute: only one that was sent as planned says anything of lagloss."""
NOT_TAKEN: Final = "not taken: "
"""How a reason begins that is up to what takes beacons and messages, parts of lagloss among it: too many are a
problem."""
RIGHT: Final = "right"
LATE: Final = "late"
WRONG: Final = "wrong"
"""Verdicts of a minute that was sent: late is right, after it had been wrong when it was due."""
DUE_S: Final = 240
"""From the start of a minute until it is wrong if it is not right: the minute, its grace, and 150 s for closing and
notifying, in which a service may be restarted."""
START_S: Final = 480
"""Of a canary that begins: without enough minutes that are due by then, something is wrong."""
NEEDED: Final = 3
"""Minutes in a row, the newest that are due, that have to be right."""
QUIET_S: Final = 240
"""Time without a minute that is found right after which nothing is known to be well."""
NOTICE_PATH: Final = "/notifications"
"""Where the canary takes its notifications."""


def is_listed(pipeline: str) -> bool:
    """Return whether a pipeline is in listings, counts and reports: it is not the canary."""
    return pipeline != CANARY


def alerting_rule(place: str) -> str:
    """Return the name of the alerting rule of one of `ALERTING_PLACES`."""
    return f"loss/{place.replace(' ', '/', 1)}"
