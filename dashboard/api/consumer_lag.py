"""Routes of consumer lag: how far each node's consumer group was behind, and how the groups stand now."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter, Query

from dashboard.api.bounds import From, Range, To, span_of
from dashboard.queries.consumer_groups import ConsumerGroupsDocument, read_consumer_groups
from dashboard.queries.consumer_lag import By, ConsumerLagDocument, read_consumer_lag
from dashboard.queries.services import Services
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute

_ABOUT: Final = (
    "In the same buckets as `panels`, but by wall-clock time. `offsets`: log end - committed; `behind_ms`: time "
    "since the event time of the record at the committed offset, 0 if there is no lag. For a queue, `offsets` is the "
    "number of waiting messages, `in_flight` of those received and not deleted, `behind_ms` the age of the oldest. "
    "`last` is at the bucket's end, `max` the highest in it; null: unknown. `watched` is the group or queue of each "
    "node that names one in the definition."
)
_ABOUT_GROUPS: Final = (
    "`state`, `members` and `assigned` (partitions) as the coordinator describes the group. `status`: ok, warning (the "
    "lag grows), stalled (commits do not advance), stopped (also no members), not committed (`lag` is null, "
    "unless the group commits in other partitions of the topic) or beyond the end (the committed offset was not in the "
    "log; `lag` is null until another offset is committed). A group's status is that of its worst partition, "
    "its `lag` excludes those that are not committed. Velocities are offsets per second over 5 minutes. "
    "`deletes_from`: when retention deletes the next message, at the earliest; `loss_from`: when it deletes the first "
    "unread one, at these velocities, of `at_risk` waiting from there on. `deleted_unread`: offsets deleted unread in "
    "the range. Null: unknown or none."
)


def router(services: Services) -> APIRouter:
    """GET /pipelines/{p}/consumer-lag, and /consumer-groups."""
    routes = APIRouter(tags=["pipelines"], route_class=JsonRoute)
    store, read = services.store, services.threads.read

    @routes.get(
        "/pipelines/{pipeline}/consumer-lag",
        summary="Consumer lag over a time range, by node or by partition",
        description=_ABOUT,
        responses=documented(404, 422, 503),
    )
    async def consumer_lag(
        pipeline: str,
        from_: From = None,
        to: To = None,
        range_: Range = None,
        by: Annotated[By, Query(description="what each series covers")] = "node",
    ) -> Json[ConsumerLagDocument]:
        span = span_of(from_, to, range_)
        return await read(lambda: Json(read_consumer_lag(store, store.pipeline(pipeline), span, by).document()))

    @routes.get(
        "/pipelines/{pipeline}/consumer-groups",
        summary="Current state of consumer groups",
        description=_ABOUT_GROUPS,
        responses=documented(404, 422, 503),
    )
    async def consumer_groups(
        pipeline: str, from_: From = None, to: To = None, range_: Range = None
    ) -> Json[ConsumerGroupsDocument]:
        span, now_s = span_of(from_, to, range_), time.time()
        groups = await read(lambda: read_consumer_groups(store, store.pipeline(pipeline), span, now_s))
        return Json({"pipeline": pipeline, "groups": [group.document(now_s) for group in groups]})

    return routes
