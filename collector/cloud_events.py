"""CloudEvents as beacons: one event a beacon, in JSON, one by one or as a batch.

| attribute | holds |
|---|---|
| type | io.lagloss.beacon.in, .out, .filtered or .dead |
| source | /pipelines/PIPELINE/nodes/NODE |
| subject | the message's id |
| time | when it was seen |
| eventtime | epoch ms or RFC 3339 |
| to, reason, replay, traceparent | as in a batch; optional |
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from cloudevents.core.exceptions import BaseCloudEventException
from cloudevents.core.v1.event import CloudEvent
from pydantic import ValidationError

from collector.models import BATCH, BatchJson, invalid
from lagloss_server.net.problem_details import Problem

SINGLE: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
TYPE_PREFIX: Final = "io.lagloss.beacon."
_SOURCE: Final = re.compile(r"/pipelines/([^/]+)/nodes/([^/]+)")
_ATTRIBUTE_OF: Final = {"checkpoint": "type", "message_id": "subject", "event_time": "eventtime", "observed_at": "time"}
_EXTENSIONS: Final = ("reason", "replay", "traceparent")


def read_events(body: bytes, media_type: str) -> tuple[BatchJson, str]:
    """Return the events of a body as a batch, and a key that is the same for the same events.

    Raises:
        Problem: 422 that names the first event that is none, and its attribute.
    """
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(422, "Bad body", "expected JSON") from None
    events = read if media_type == BATCHED else [read]
    if not isinstance(events, list) or not events:
        raise Problem(422, "Bad body", "expected a list of at least one event")
    found = [_event(at, event) for at, event in enumerate(events)]
    return _batch(found), _key(found)


def _event(position: int, raw: object) -> CloudEvent:
    if not isinstance(raw, dict) or "id" not in raw:  # the library would draw one
        raise _bad(position, "id", "expected a CloudEvent with an id")
    attributes = {name: value for name, value in raw.items() if name not in ("data", "data_base64")}
    attributes["time"] = _time(attributes.get("time"))
    if attributes["time"] is None:
        del attributes["time"]
    try:
        event = CloudEvent(attributes)
    except BaseCloudEventException as error:
        raise _bad(position, next(iter(getattr(error, "errors", {})), None), str(error)) from None
    if "time" not in raw:
        del event.get_attributes()["time"]  # the library puts one of now
    return event


def _time(value: object) -> object:
    """Return a time as the library wants it; anything else is left for it to refuse."""
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _batch(events: Sequence[CloudEvent]) -> BatchJson:
    source = _SOURCE.fullmatch(events[0].get_source())
    if source is None:
        raise _bad(0, "source", "expected /pipelines/PIPELINE/nodes/NODE")
    for at, event in enumerate(events):
        if event.get_source() != events[0].get_source():
            raise _bad(at, "source", "expected the same source as the first event's")
        if not event.get_type().startswith(TYPE_PREFIX):
            raise _bad(at, "type", f"expected {TYPE_PREFIX}in, out, filtered or dead")
    beacons = [_beacon(event.get_attributes()) for event in events]
    try:
        return BATCH.validate_python({"pipeline": source[1], "node": source[2], "beacons": beacons})
    except ValidationError as error:
        raise renamed(invalid(error, "source", "event", "beacons")) from None


def renamed(problem: Problem) -> Problem:
    """Return the problem of a beacon, as one of the event's attribute."""
    field = problem.document.field or ""
    problem.document.field = _ATTRIBUTE_OF.get(field, problem.document.field)
    return problem


def _beacon(attributes: Mapping[str, Any]) -> dict[str, Any]:
    place, to = str(attributes["type"]).removeprefix(TYPE_PREFIX), attributes.get("to")
    beacon = {
        "checkpoint": place if to is None else f"{place}:{to}",
        "message_id": attributes.get("subject"),
        "event_time": attributes.get("eventtime"),
    }
    if "time" in attributes:
        beacon["observed_at"] = attributes["time"].timestamp() * 1000
    return beacon | {name: attributes[name] for name in _EXTENSIONS if name in attributes}


def _key(events: Sequence[CloudEvent]) -> str:
    """CloudEvents' own rule: source and id name an event."""
    names = json.dumps([(event.get_source(), event.get_id()) for event in events])
    return "events " + hashlib.sha256(names.encode()).hexdigest()


def _bad(position: int, field: str | None, detail: str) -> Problem:
    return Problem(422, "Bad event", detail, position=position, field=field)
