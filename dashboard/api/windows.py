"""Routes of one window: its result, its matrix, set differences, and its revisions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from dashboard.queries.export import read_export
from dashboard.queries.services import Services
from dashboard.queries.window import ExplainedWindow, Revision, check_known, read_revisions, read_window_page
from lagloss.wire.format import WINDOW_S, window_start_of
from lagloss_server.base.errors import UnknownWindow
from lagloss_server.base.fields import NAME_PATTERN
from lagloss_server.base.times import parse_time_s
from lagloss_server.blame.window_blame import WindowBlameDocument, blame_document, read_blame
from lagloss_server.model.window import rfc3339
from lagloss_server.net.problem_details import documented
from lagloss_server.net.responses import Json, JsonRoute, json_content
from lagloss_server.queries.csv_lines import csv_lines
from lagloss_server.queries.difference import Difference, DifferenceDocument, difference_in
from lagloss_server.queries.export import MEDIA_TYPES, ExportDocument, ExportFormat, file_name
from lagloss_server.queries.matrix import MatrixDocument, Only, Presence
from lagloss_server.queries.named_messages import What
from lagloss_server.store.audit import Look

MAX_ROWS: Final = 10_000
_SLICE: Final = 1_000
PipelineName = Annotated[str, Path(pattern=NAME_PATTERN)]
Start = Annotated[str, Path(description="RFC 3339: a moment within the minute")]
Format = Literal["json", "csv"]
PATH: Final = "/pipelines/{pipeline}/windows/{start}"
_CSV: Final = {"text/csv": {"schema": {"type": "string"}}}
_PARQUET: Final = {MEDIA_TYPES["parquet"]: {"schema": {"type": "string", "format": "binary"}}}
_OR_CSV: Final[dict[int | str, dict[str, Any]]] = {200: {"content": _CSV}}
_EXPORT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {**_CSV, **_PARQUET, **json_content(ExportDocument)}}
}


def router(services: Services) -> APIRouter:
    """Beacons are read from the log: 409 where it no longer holds them or they are too many, 503 where Kafka does not
    answer. What names messages is 403 for whom their ids are hidden from."""
    routes = APIRouter(tags=["windows"], route_class=JsonRoute)
    store, threads = services.store, services.threads

    async def read_log(pipeline: str, start_s: int, format: Format) -> Presence:
        look: Look = "ids.export" if format == "csv" else "ids.window"
        return await threads.read_log(services.logged.read, store, services.log, pipeline, start_s, look)

    def csv(name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Response:
        return streamed(csv_lines(header, rows), MEDIA_TYPES["csv"], _attachment(name))

    def streamed(lines: Iterator[str], media_type: str, headers: Mapping[str, str]) -> Response:
        """Sent while it is made, so many lines at a time, each time in a turn among those who read the log."""

        async def texts() -> AsyncIterator[str]:
            while text := await threads.read_log(lambda: "".join(islice(lines, _SLICE))):
                yield text

        return StreamingResponse(texts(), media_type=media_type, headers=headers)

    @routes.get(PATH, responses=documented(404, 422, 503))
    async def window(pipeline: PipelineName, start: Start) -> Json[ExplainedWindow]:
        """Return the result as `lagloss windows --json` prints it, and `gaps`: whose evidence is missing."""
        start_s = _start_s(start)
        window = await threads.read(read_window_page, store, pipeline, start_s, time.time())
        document = window.document()
        if document is None:
            raise UnknownWindow(pipeline=pipeline, start=rfc3339(start_s))
        return Json(document)

    @routes.get(f"{PATH}/blame", responses=documented(404, 422, 503))
    async def blame(pipeline: PipelineName, start: Start) -> Json[WindowBlameDocument]:
        """Return what the lost, late, dead or corrupted messages have in common, as `lagloss blame --json` does."""
        start_s = _start_s(start)
        causes = await threads.read(read_blame, store, pipeline, [start_s])
        if not causes and not await threads.read(store.windows, pipeline, start_s, start_s + WINDOW_S):
            raise UnknownWindow(pipeline=pipeline, start=rfc3339(start_s))
        return Json(blame_document(pipeline, start_s, causes))

    @routes.get(f"{PATH}/revisions", responses=documented(404, 422, 503))
    async def revisions(pipeline: PipelineName, start: Start) -> Json[tuple[Revision, ...]]:
        """Return the kept results of a window, newest first, each with its changes from the one before."""
        start_s = _start_s(start)
        listed = await threads.read(store.windows, pipeline, start_s, start_s + WINDOW_S)
        if not listed:
            raise UnknownWindow(pipeline=pipeline, start=rfc3339(start_s))
        return Json(await threads.read(read_revisions, store, pipeline, start_s, listed[0]))

    @routes.get(f"{PATH}/matrix", responses={**_OR_CSV, **documented(403, 404, 409, 422, 503)})
    async def matrix(
        pipeline: PipelineName,
        start: Start,
        only: Only | None = None,
        where: Annotated[str | None, Query(max_length=300, description="missing at this place: link a->b")] = None,
        text: Annotated[str, Query(max_length=300, description="part of the id, or its hash in hex")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS, description="JSON only; CSV holds all rows")] = 1_000,
        format: Format = "json",
    ) -> Json[MatrixDocument] | Response:
        """Return which message was seen at which checkpoint, and its lag there in ms, by event time."""
        presence = await read_log(pipeline, _start_s(start), format)
        rows = await threads.read_log(partial(presence.select, only=only, where=where, text=text))
        if format == "json":
            matrix = await threads.read_log(presence.matrix, rows, limit)
            return Json(matrix.document(services.trace_links))
        points = (f"{name} ms" for name in presence.at)
        header = ("message_id", "event_time", *points, "missing_at", "duplicates", "trace_id")
        return csv(_file_name(pipeline, presence.blocks.window_start_s, "matrix"), header, _rows(presence, rows))

    @routes.get(f"{PATH}/export", response_class=Response, responses={**_EXPORT, **documented(403, 404, 422, 503)})
    async def export(
        pipeline: PipelineName,
        start: Start,
        what: Annotated[What, Query(description="which messages; all: also pending and corrupted ones")] = "all",
        format: ExportFormat = "csv",
    ) -> Response:
        """Return the messages that something is wrong with, as `lagloss export` does: all that the log has; where it
        cannot be read, those that the closing kept (`source` and `truncated` of the JSON say so)."""
        start_s = _start_s(start)
        export = await threads.read_log(read_export, services, pipeline, start_s, what)
        headers = _attachment(file_name(pipeline, start_s, what, format))
        if format == "parquet":
            file = await threads.document(export.parquet)
            return Response(file, media_type=MEDIA_TYPES[format], headers=headers)
        return streamed(export.texts(format, services.trace_links), MEDIA_TYPES[format], headers)

    @routes.get(f"{PATH}/difference", responses={**_OR_CSV, **documented(403, 404, 409, 422, 503)})
    async def difference(
        pipeline: PipelineName,
        start: Start,
        from_: Annotated[str, Query(alias="from", description="checkpoint, such as src.in")],
        to: Annotated[str, Query(description="checkpoint, such as snk.out")],
        format: Format = "json",
    ) -> Json[DifferenceDocument] | Response:
        """Ids at one checkpoint and not at another, as `lagloss diff --json` prints them; CSV names all of them."""
        start_s = _start_s(start)
        await threads.read(check_known, store, pipeline, start_s, from_, to)
        presence = await read_log(pipeline, start_s, format)
        limit = {} if format == "json" else {"limit": None}
        difference: Difference = await threads.read_log(partial(difference_in, presence.blocks, from_, to, **limit))
        if format == "json":
            return Json(difference.document(services.trace_links))
        named = _file_name(pipeline, start_s, f"{from_}-not-{to}")
        return csv(named, ("message_id",), ((name,) for name in difference.message_ids))

    return routes


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _start_s(moment: str) -> int:
    """Raise BadTime."""
    return window_start_of(parse_time_s(moment) * 1_000)


def _rows(presence: Presence, rows: npt.NDArray[np.intp]) -> Iterator[list[Any]]:
    """Yield one list per message, made a slice at a time: a window may have millions."""
    for index in range(0, rows.size, _SLICE):
        for message in presence.messages(rows[index : index + _SLICE]):
            event_time = None if message.event_time_ms is None else rfc3339(message.event_time_ms / 1_000)
            lags = (message.lags_ms.get(name) for name in presence.at)
            more = " ".join(f"{name} {count}" for name, count in message.duplicates.items())
            trace_id = message.trace and message.trace.trace_id
            yield [message.message_id, event_time, *lags, ", ".join(message.missing_at), more, trace_id]


def _file_name(pipeline: str, start_s: int, what: str) -> str:
    return f"{pipeline}-{rfc3339(start_s).replace(':', '')}-{what.replace(':', '-')}.csv"
