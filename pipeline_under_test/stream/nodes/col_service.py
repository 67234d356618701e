"""col-service: takes events in over HTTP and answers once the broker has them.

``POST /events`` takes one event or a list. An event is a JSON object with `url`, `kind` and, if it likes, the other
fields of the schema; `event_id` and `event_time` (ms since the epoch) are optional and set here, at the source, if
missing. The answer says what became of each event, by position, and it is sent *after* the broker has acknowledged them
on all in-sync replicas: an event that was answered is never lost::

    {"accepted": [{"index": 0, "event_id": "a"}], "rejected": [{"index": 1, "event_id": "b", "reason": "malformed"}]}

It is 200 if all were accepted, 503 if the broker did not acknowledge one (send that one again), else 422 if all were
malformed (or too large) and 207 if some were.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from pipeline_under_test.harness.ledger import LedgerEntry, place_of_node
from pipeline_under_test.stream.event_faults import Plan, poisoned
from pipeline_under_test.stream.events.event import NOT_ACKNOWLEDGED, Event
from pipeline_under_test.stream.events.schema import Schema, SchemaTopic, producers_schema
from pipeline_under_test.stream.kafka.clients import is_fatal, producer_config
from pipeline_under_test.stream.nodes.decision import Dead, Decision, Filtered, Lost, Pass, decided, ledger_entries
from pipeline_under_test.stream.nodes.loop import ReferenceNode
from pipeline_under_test.stream.nodes.serving import beating
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import COL_SERVICE, EVENT_NORM, topic_of

log = logging.getLogger(__name__)

ACK_TIMEOUT_S: Final = 10.0
MAX_AHEAD_MS: Final = 60_000
MAX_AGE_MS: Final = 7 * 86_400_000
"""The event times the first node takes: as old as the beacons' topic keeps, a minute ahead of its clock at most."""
MALFORMED: Final = "malformed"
TOO_LARGE: Final = "too large"
MAX_BODY_BYTES: Final = 256 * 1024
"""Size of an event as it is passed on: it grows on its way, and brokers take less than 1 MB."""


class Unacceptable(ValueError):
    """The event's id or time is unusable, so it can be neither forwarded nor counted."""


def identified(raw: object, now_ms: int) -> Event:
    """Return the event that `raw` describes, with the id and the time it gets where it brings none.

    Raises:
        Unacceptable: for an id or a time that cannot be one.
    """
    fields = raw if isinstance(raw, dict) else {}
    message_id = fields.get("event_id", None) or str(uuid.uuid4())
    event_time_ms = fields.get("event_time", now_ms)
    if not isinstance(message_id, str) or not _fits(message_id):
        raise Unacceptable("expected event_id to be text of 1 to 255 bytes of UTF-8")
    if type(event_time_ms) is not int or not now_ms - MAX_AGE_MS <= event_time_ms <= now_ms + MAX_AHEAD_MS:
        raise Unacceptable("expected event_time in ms since the epoch, up to 7 days old and not in the future")
    return Event(message_id, event_time_ms, json.dumps(raw, separators=(",", ":")).encode())


def _fits(message_id: str) -> bool:
    try:
        return 1 <= len(message_id.encode()) <= 255
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


class Acceptor:
    """An event that fits the schema is passed on, as Avro; another is handed back to its sender. Fields that the schema
    does not know are left out."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._fields = {field["name"] for field in schema.parsed["fields"]}

    def __call__(self, event: Event) -> Decision:
        content = json.loads(event.body)
        if not isinstance(content, dict):
            return Filtered(MALFORMED)
        try:
            body = self._schema.encode({name: value for name, value in content.items() if name in self._fields})
        except ValueError:
            return Filtered(MALFORMED)
        return Pass(event.with_body(body), (EVENT_NORM,)) if len(body) <= MAX_BODY_BYTES else Filtered(TOO_LARGE)


@dataclass(slots=True)
class IntakeOutcome:
    """Fate of one event of a request; `reason` is empty where it is accepted."""

    index: int
    event_id: str | None
    reason: str = ""

    def document(self) -> dict[str, Any]:
        named = {"index": self.index, "event_id": self.event_id}
        return {**named, "reason": self.reason} if self.reason else named


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event taken in and what is to be done with it."""

    outcome: IntakeOutcome
    event: Event
    plan: Plan
    decision: Decision | Lost


class EventIntake:
    """Produces what comes in and says, event by event, whether the broker has it."""

    def __init__(self, settings: ReferenceSettings, schema: Schema) -> None:
        self._topic = topic_of(settings.pipeline, EVENT_NORM)
        self._faults = settings.faults_of(COL_SERVICE)
        self._ledger = settings.ledger_of(COL_SERVICE)
        SchemaTopic(settings.bootstrap, settings.pipeline).publish(schema)
        self._accept = Acceptor(schema)
        self._node = ReferenceNode(settings, COL_SERVICE, first=True)
        timeout = {"delivery.timeout.ms": int(ACK_TIMEOUT_S * 1000)}
        self._producer = self._node.producer(producer_config(settings.bootstrap, COL_SERVICE) | timeout, polls=True)

    async def take_in(self, raws: Sequence[object]) -> list[IntakeOutcome]:
        """Take the events of one request in; return when each is acknowledged, handed back, or given up on."""
        with self._node.emitter.processing():
            now_ms = time.time_ns() // 1_000_000
            outcomes, arrivals = [], []
            for index, raw in enumerate(raws):
                try:
                    event = identified(raw, now_ms)
                except Unacceptable as problem:
                    outcomes.append(IntakeOutcome(index, None, str(problem)))
                    continue
                event.identity.report(self._node.emitter.received)
                plan = self._faults.plan(event)
                outcomes.append(IntakeOutcome(index, event.id))
                arrivals.append(Arrival(outcomes[-1], event, plan, decided(event, plan, self._accept)))
            self._ledger.write(
                entry
                for arrival in arrivals
                for entry in ledger_entries(COL_SERVICE, arrival.event, arrival.plan, arrival.decision)
            )
            await asyncio.gather(*(self._carry_out(arrival) for arrival in arrivals))
            return outcomes

    async def _carry_out(self, arrival: Arrival) -> None:
        event, plan = arrival.event, arrival.plan
        if plan.delay_s:
            await asyncio.sleep(plan.delay_s)
        match arrival.decision:
            case Filtered(reason) | Dead(reason):
                self._hand_back(arrival, reason)
            case Pass(passed) if EVENT_NORM in plan.lost_links:
                self._node.sent(passed.identity, payload=passed.body)
            case Pass(passed):
                if plan.poisoned:
                    passed = poisoned(passed)
                sent = await asyncio.gather(*(self._produce(passed, plan) for _ in range(plan.copies)))
                if not all(sent):
                    place = place_of_node(COL_SERVICE)
                    entry = LedgerEntry("filtered", event.id, event.event_time_ms, place, NOT_ACKNOWLEDGED)
                    self._ledger.write([entry])
                    self._hand_back(arrival, NOT_ACKNOWLEDGED)
            case Lost():
                pass

    def _hand_back(self, arrival: Arrival, reason: str) -> None:
        arrival.outcome.reason = reason
        self._node.filtered(arrival.event.identity, reason)

    async def _produce(self, event: Event, plan: Plan) -> bool:
        """Send the event; return True once all in-sync replicas acknowledged it."""
        sent = self._node.corrupted(event) if EVENT_NORM in plan.corrupted_links else event
        loop = asyncio.get_running_loop()
        acknowledged: asyncio.Future[bool] = loop.create_future()

        def report(error: KafkaError | None, _record: Message) -> None:  # in the polling thread
            if error is not None and is_fatal(error):
                # this producer is at its end: so is this process, another one takes its place
                log.error("producer: %s", error)
                os.kill(os.getpid(), signal.SIGTERM)
            loop.call_soon_threadsafe(acknowledged.set_result, error is None)

        try:
            self._producer.produce(self._topic, sent.body, sent.id.encode(), headers=sent.headers(), on_delivery=report)
        except (BufferError, KafkaException) as error:
            log.warning("cannot produce %s: %s", event.id, error)
            return False
        return await acknowledged

    def close(self) -> None:
        """Wait for what is on its way, then report the emitter closed."""
        self._node.close(ACK_TIMEOUT_S)
        self._ledger.close()


def status_of(outcomes: Sequence[IntakeOutcome]) -> int:
    """Return the HTTP status of an answer with these outcomes; see the top of this page."""
    reasons = [outcome.reason for outcome in outcomes]
    if NOT_ACKNOWLEDGED in reasons:
        return HTTPStatus.SERVICE_UNAVAILABLE
    if not any(reasons):
        return HTTPStatus.OK
    return HTTPStatus.UNPROCESSABLE_ENTITY if all(reasons) else HTTPStatus.MULTI_STATUS


def create_app(settings: ReferenceSettings) -> FastAPI:
    """Return the service; its intake lives as long as the application does.

    Raises:
        NotReadable: if it is to write with a schema that others could not read.
    """
    schema = producers_schema(settings.schema_path)
    intakes: list[EventIntake] = []

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        intakes.append(EventIntake(settings, schema))
        async with beating(settings):
            yield
        await asyncio.to_thread(intakes.pop().close)

    app = FastAPI(title=COL_SERVICE, lifespan=lifespan)

    @app.post("/events")
    async def events(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except ValueError:
            return JSONResponse(
                {"detail": "expected JSON with one event or a list of events"}, HTTPStatus.UNPROCESSABLE_ENTITY
            )
        outcomes = await intakes[0].take_in(body if isinstance(body, list) else [body])
        document = {
            "accepted": [outcome.document() for outcome in outcomes if not outcome.reason],
            "rejected": [outcome.document() for outcome in outcomes if outcome.reason],
        }
        return JSONResponse(document, status_of(outcomes))

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app
