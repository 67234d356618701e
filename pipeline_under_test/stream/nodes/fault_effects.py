"""Effects of faults on a node's thread and an event's body."""

from __future__ import annotations

import time

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.schema import SchemaReader, packaged
from pipeline_under_test.stream.plan import Plan

POISON = b"\xde\xad\xbe\xef"


def apply_delay(plan: Plan) -> None:
    """Take the time that the event's faults take: asleep, which costs no CPU, then awake, which does."""
    if plan.wait_s:
        time.sleep(plan.wait_s)
    if plan.burn_s:
        end = time.thread_time() + plan.burn_s
        while time.thread_time() < end:
            pass


def corrupted(event: Event) -> Event:
    """Return the event with another URL: readable as ever, so that only checksums show it."""
    reader = SchemaReader(packaged())
    content = reader.decode(event.body)
    return event.with_body(reader.schema.encode({**content, "url": f"{content['url']}#changed"}))


def poisoned(event: Event) -> Event:
    """Return the event with a body that cannot be decoded."""
    return event.with_body(POISON)
