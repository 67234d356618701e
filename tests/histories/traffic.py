"""What flows through the cluster: four pipelines, their nodes' hosts, and the fates of messages.

The fate of a message is in its id, so that every process treats it alike however often it meets it. Messages are lost
on purpose in every fourth minute only: incidents open and end, and open again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

SDK: Final = "sdk"
"""Three services on KafkaNode."""
TAPPED: Final = "tapped"
"""Three services that know nothing of lagloss."""
HTTP: Final = "http"
"""Two nodes whose beacons go through the collector."""
JSON: Final = "json"
"""A client that posts JSON, and counts only what the collector has acknowledged."""

WINDOW_S: Final = 60
GRACE_S: Final = 10
LOSSY_EVERY: Final = 4
LOSSY_SHARE: Final = 0.2
MESSAGES_PER_S: Final = 2.0

PASS: Final = "pass"
LOST_ON_LINK: Final = "lost-on-link"
LOST_AT_WORKER: Final = "lost-at-worker"
LOST_AT_SINK: Final = "lost-at-sink"
FILTERED: Final = "filtered"
_FATES: Final = {
    SDK: (LOST_ON_LINK, LOST_AT_WORKER, LOST_AT_SINK),
    TAPPED: (LOST_AT_WORKER,),
    HTTP: (LOST_ON_LINK, LOST_AT_WORKER),
    JSON: (),
}


@dataclass(frozen=True)
class Role:
    """A program of traffic: what it does, on which host, for which pipeline. `node` is the node that dies with it."""

    host: str
    pipeline: str
    node: str


NODES: Final = (
    Role("app1", SDK, "src"),
    Role("app2", SDK, "mid"),
    Role("app3", SDK, "snk"),
    Role("app4", TAPPED, "orders"),
    Role("app5", TAPPED, "work"),
    Role("app6", TAPPED, "sink"),
    Role("app7", HTTP, "shop"),
    Role("app8", JSON, "post"),
)
TOPICS: Final = ("sdk-mid", "sdk-snk", "tapped-in", "tapped-out")
_ALERTS: Final = "alerts: {resolveAfter: 2, loss: {page: {breaches: 1, of: 1, minMessages: 0, lostMessages: 1}}}"


def _definition(name: str, nodes: str) -> str:
    head = f"apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {{name: {name}}}\n"
    return f"{head}spec:\n  grace: {GRACE_S}s\n  sla: {{loss: {{max: 0}}}}\n  {_ALERTS}\n  nodes:\n{nodes}"


PIPELINES: Final = {
    SDK: _definition(SDK, "    - {name: src, to: [mid]}\n    - {name: mid, to: [snk]}\n    - {name: snk}\n"),
    TAPPED: _definition(
        TAPPED,
        "    - {name: orders, to: [work], taps: {out: {topic: tapped-in, id: $.id, eventTime: $.at}}}\n"
        "    - {name: work, to: [sink], taps: {in: {group: t-work}, out: {topic: tapped-out, id: $.id,"
        " eventTime: $.at}}}\n"
        "    - {name: sink, taps: {in: {group: t-sink}}}\n",
    ),
    HTTP: _definition(HTTP, "    - {name: shop, to: [mail]}\n    - {name: mail}\n"),
    JSON: _definition(JSON, "    - {name: post}\n"),
}


def draw_id(random: Random, pipeline: str, number: object, event_ms: int) -> str:
    """Return the id of a new message, with its fate."""
    fate = PASS
    if _FATES[pipeline] and event_ms // 1000 // WINDOW_S % LOSSY_EVERY == 0 and random.random() < LOSSY_SHARE:
        fate = random.choice(_FATES[pipeline])
    elif pipeline == SDK and random.random() < 0.04:
        fate = FILTERED
    return f"{number}.{fate}"


def fate_of(message_id: str) -> str:
    return message_id.rpartition(".")[2]


def pauses(random: Random) -> Iterator[float]:
    """Yield the pauses between messages, in s."""
    while True:
        yield random.uniform(0, 2 / MESSAGES_PER_S)
