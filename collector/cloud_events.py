"""CloudEvents as beacons: one event a beacon, in JSON, one by one or as a batch.

| attribute | holds |
|---|---|
| type | io.lagloss.beacon.in, .out, .filtered or .dead |
| source | /pipelines/PIPELINE/nodes/NODE |
| subject | the message's id |
| time | when it was seen |
| eventtime | the event time |
| to, reason, replay, traceparent | as in a batch; optional |
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from collector.bodies import demand_few_objects
from collector.models import BATCH, BatchJson, demand_few_members, invalid
from lagloss_server.base.invalid import explain, write_path
from lagloss_server.net.problem_details import Problem

SINGLE: Final = "application/cloudevents+json"
BATCHED: Final = "application/cloudevents-batch+json"
TYPE_PREFIX: Final = "io.lagloss.beacon."
_SOURCE: Final = re.compile(r"/pipelines/([^/]+)/nodes/([^/]+)")
_ATTRIBUTE_OF: Final = {"checkpoint": "type", "message_id": "subject", "event_time": "eventtime", "observed_at": "time"}
_EXTENSIONS: Final = ("reason", "replay", "traceparent")
_ATTRIBUTE: Final = re.compile(r"[a-z0-9]+|data_base64")
_Text = Annotated[str, Field(min_length=1, strict=True)]


@with_config(ConfigDict(extra="allow"))
class CloudEventJson(TypedDict):
    """The attributes of CloudEvents 1.0 that a beacon needs. Times and extension attributes are also allowed."""

    specversion: Literal["1.0"]
    id: _Text
    source: _Text
    type: _Text
    subject: NotRequired[_Text]


_EVENT: Final = TypeAdapter(CloudEventJson)


def read_events(body: bytes, media_type: str) -> tuple[BatchJson, str]:
    """Return the events of a body as a batch, and a key that is the same for the same events.

    Raises:
        Problem: 422 that names the first event that is none, and its attribute; 413 for too many objects.
    """
    demand_few_objects(body)
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(422, "Bad body", "expected JSON") from None
    demand_few_members(body, read, "event")
    events = read if media_type == BATCHED else [read]
    if not isinstance(events, list) or not events:
        raise Problem(422, "Bad body", "expected a list with at least one event")
    beacons = [_event(index, event) for index, event in enumerate(events)]
    return _batch(beacons), _key(beacons)


def _event(position: int, raw: object) -> CloudEventJson:
    try:
        event = _EVENT.validate_python(raw)
    except ValidationError as error:
        problem = next(explain(error, raw))
        raise _bad(position, write_path(problem.path) if problem.path else None, problem.problem) from None
    for name in event:
        if not _ATTRIBUTE.fullmatch(name):
            raise _bad(position, name, "expected attribute names of lower-case letters and digits")
    return event


def _batch(events: Sequence[CloudEventJson]) -> BatchJson:
    source = _SOURCE.fullmatch(events[0]["source"])
    if source is None:
        raise _bad(0, "source", "expected /pipelines/PIPELINE/nodes/NODE")
    for index, event in enumerate(events):
        if event["source"] != events[0]["source"]:
            raise _bad(index, "source", "expected the source of the first event")
        if not event["type"].startswith(TYPE_PREFIX):
            raise _bad(index, "type", f"expected {TYPE_PREFIX} followed by in, out, filtered or dead")
    beacons = [_beacon(event) for event in events]
    batch = {"pipeline": source[1], "node": source[2], "beacons": beacons}
    try:
        return BATCH.validate_python(batch)
    except ValidationError as error:
        raise renamed(invalid(error, batch, "source", "event", "beacons")) from None


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
        "observed_at": attributes.get("time"),
    }
    return beacon | {name: attributes[name] for name in _EXTENSIONS if name in attributes}


def _key(events: Sequence[CloudEventJson]) -> str:
    """CloudEvents' own rule: source and id name an event."""
    names = json.dumps([(event["source"], event["id"]) for event in events])
    return "events " + hashlib.sha256(names.encode()).hexdigest()


def _bad(position: int, field: str | None, detail: str) -> Problem:
    return Problem(422, "Bad event", detail, position=position, field=field)
