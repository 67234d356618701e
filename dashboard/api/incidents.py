"""Routes of incidents, acknowledgements, silences, and deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from dashboard import actions as acts
from dashboard.access.silences import read_silences
from dashboard.api.bounds import From, Range, To, span_of
from dashboard.queries import alerts
from dashboard.queries import deliveries as sent
from dashboard.queries.incident_documents import IncidentRecordDocument
from dashboard.queries.incident_filters import MAX_PAGE, PAGE_SIZE, IncidentFilters
from dashboard.queries.services import Services
from dashboard.request.shown_range import ShownRange
from lagloss_server.base.fields import DurationMs, Text
from lagloss_server.incidents.actions import MAX_AUTHOR, MAX_TEXT, SilenceDocument
from lagloss_server.incidents.receiver_check import WAIT_S
from lagloss_server.model.matchers import MAX_MATCHER, MAX_MATCHERS
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute

MAX_SIZE: Final = 500

IncidentId = Annotated[UUID, Path(description="of the incident, in full")]
PipelineName = Annotated[str | None, Query(description="only this pipeline")]
Kind = Annotated[str | None, Query(description="only this kind of rule: loss, lag, ...")]
Severity = Annotated[Literal["critical", "warning"] | None, Query()]
PageNumber = Annotated[int, Query(ge=1, le=MAX_PAGE, description="starting at 1")]
Size = Annotated[int, Query(ge=1, le=MAX_SIZE, description="items per page")]
Author = Annotated[Text | None, Field(max_length=MAX_AUTHOR, description="name of the author, if there is no login")]


@dataclass(frozen=True, slots=True)
class Listed:
    """Selection from a list: which rows, of when, and which page of them."""

    filters: IncidentFilters
    bounds: tuple[str | None, str | None, str | None]
    page: int
    size: int

    @property
    def span(self) -> ShownRange:
        """Raises BadTime or BadSpan (422)."""
        return span_of(*self.bounds)


def _listed(
    pipeline: PipelineName = None,
    kind: Kind = None,
    severity: Severity = None,
    from_: From = None,
    to: To = None,
    range_: Range = None,
    page: PageNumber = 1,
    size: Size = PAGE_SIZE,
) -> Listed:
    return Listed(IncidentFilters(pipeline, kind, severity), (from_, to, range_), page, size)


Listing = Annotated[Listed, Depends(_listed)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Acknowledgement(_Body):
    """An acknowledgement."""

    note: Text | None = Field(None, max_length=MAX_TEXT, description="findings or next steps")
    author: Author = None


class NewSilence(_Body):
    """A silence of what matches all of these."""

    matchers: list[Annotated[Text, Field(max_length=MAX_MATCHER)]] = Field(
        min_length=1, max_length=MAX_MATCHERS, examples=[["pipeline=clicks", "rule=~lag.*"]]
    )
    duration: DurationMs = Field(description="such as 30m or 2h, at most 24h", examples=["2h"])
    reason: Text = Field(max_length=MAX_TEXT)
    author: Author = None


class Silences(Struct):
    """Silences that hold now, the one that ends first first."""

    silences: list[SilenceDocument]


class MadeSilence(SilenceDocument):
    """A silence, and the open incidents that it matches."""

    open_incidents: list[str]


class Receivers(Struct):
    """The receivers that the leading alerter knows, by name."""

    receivers: list[sent.ReceiverStatus]


class TriedReceiver(Struct):
    """What became of a test of a receiver: see `CheckOutcome`."""

    receiver: str
    outcome: Literal["sent", "refused", "retried"]
    attempts: int
    error: str | None


def router(services: Services) -> APIRouter:
    """Serve reads to viewers, and actions to operators."""
    routes = APIRouter(tags=["incidents"], route_class=JsonRoute)
    _add_reads(routes, services)
    _add_incident(routes, services)
    _add_silences(routes, services)
    _add_receivers(routes, services)
    return routes


def _add_reads(routes: APIRouter, services: Services) -> None:
    store, threads = services.store, services.threads

    @routes.get("/incidents", responses=documented(422, 503))
    async def incidents(
        listed: Listing,
        state: Annotated[
            Literal["open", "resolved"], Query(description="resolved: those opened in the range, newest first")
        ] = "open",
    ) -> Json[alerts.OpenIncidents] | Json[alerts.ResolvedIncidents]:
        """Open incidents, worst first, with what is pending; or a page of the resolved ones, with their times."""
        if state == "open":
            incidents = await threads.read(alerts.read_open, store, listed.filters)
            pending = await threads.read(alerts.read_pending, store, listed.filters)
            return Json(
                alerts.OpenIncidents(
                    incidents=[opened.document() for opened in incidents],
                    pending=[breach.document() for breach in pending],
                )
            )
        history = await threads.read(alerts.read_history, store, listed.filters, listed.span, listed.page, listed.size)
        return Json(history.document())

    @routes.get("/deliveries", responses=documented(422, 503))
    async def deliveries(listed: Listing) -> Json[sent.DeliveriesDocument]:
        """Return what was sent to receivers in the range, or waits to be: failed first, then waiting."""
        deliveries = await threads.read(
            sent.read_deliveries, store, listed.filters, listed.span, listed.page, listed.size
        )
        return Json(deliveries.document())


def _add_incident(routes: APIRouter, services: Services) -> None:
    store, threads = services.store, services.threads
    url = services.settings.dashboard_url

    async def whole(incident_id: UUID) -> Json[IncidentRecordDocument]:
        opened, record = await threads.read(alerts.read_incident, store, str(incident_id))
        return Json(opened.details(record, url))

    @routes.get("/incidents/{incident_id}", responses=documented(404, 422, 503))
    async def incident(incident_id: IncidentId) -> Json[IncidentRecordDocument]:
        """Return all of one incident, as `lagloss alerts show --json` prints it."""
        return await whole(incident_id)

    @routes.post("/incidents/{incident_id}/acknowledge", responses=documented(403, 404, 409, 422, 503))
    async def acknowledge(
        incident_id: IncidentId, request: Acknowledgement | None = None
    ) -> Json[IncidentRecordDocument]:
        """Take it: no escalation, no reminders any more. 409: already acknowledged, or resolved."""
        asked = request or Acknowledgement()
        await threads.act(acts.acknowledge, store, str(incident_id), asked.note, asked.author)
        return await whole(incident_id)


def _add_silences(routes: APIRouter, services: Services) -> None:
    store, threads = services.store, services.threads

    @routes.get("/silences", responses=documented(503))
    async def silences() -> Json[Silences]:
        """Return those that hold now, the one that ends first first."""
        silences = await threads.read(read_silences, store)
        return Json(Silences([held.silence.document() for held in silences]))

    @routes.post("/silences", status_code=201, responses=documented(403, 422, 503))
    async def silence(request: NewSilence) -> Json[MadeSilence]:
        """Silence what matches from now on; with the open incidents that it matches."""
        silenced, about = await threads.act(
            acts.silence,
            store,
            request.matchers,
            reason=request.reason,
            for_s=timedelta(milliseconds=request.duration).total_seconds(),
            author=request.author,
        )
        return Json({**silenced.document(), "open_incidents": [str(pipeline) for pipeline in about]}, 201)

    @routes.delete("/silences/{silence_id}", status_code=204, responses=documented(403, 404, 422, 503))
    async def end_silence(silence_id: str) -> None:
        """End it now: receivers are notified of what is still open."""
        await threads.act(acts.end_silence, store, silence_id)


def _add_receivers(routes: APIRouter, services: Services) -> None:
    store, threads = services.store, services.threads

    @routes.get("/receivers", responses=documented(503))
    async def receivers() -> Json[Receivers]:
        """Return those that the leading alerter knows."""
        return Json(Receivers(await threads.read(sent.read_receivers, store)))

    @routes.post("/receivers/{name}/test", responses=documented(403, 404, 422, 503))
    async def test(name: str) -> Json[TriedReceiver]:
        """Sends it a test by way of the alerter, and waits up to 30 s: `sent`, `refused` for good, or `retried`."""
        outcome = await threads.trial(acts.rehearse, store, name, wait_s=WAIT_S)
        return Json(TriedReceiver(name, outcome.outcome, outcome.attempts, outcome.error))
