"""The tools: what each returns, and how it is read. All of them only read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypedDict, TypeVar

from dashboard.api.report_documents import ReportDocument
from dashboard.mcp.answers import Answer
from dashboard.mcp.arguments import (
    DAY_S,
    Arguments,
    Matching,
    OneMessage,
    OneWindow,
    OptionalPipeline,
    OptionalPipelineRange,
    PipelineRange,
    WindowRange,
)
from dashboard.queries import alerts
from dashboard.queries.cluster_groups import GroupFilters, read_groups
from dashboard.queries.incident_documents import IncidentDocument, OpenIncidentDocument
from dashboard.queries.incident_filters import IncidentFilters
from dashboard.queries.message import MessageDocument, Where, read_message
from dashboard.queries.overview import SetAsideDefinition, StandingDocument, detailed
from dashboard.queries.pipeline_status import State
from dashboard.queries.services import Services
from dashboard.reports import make_report
from dashboard.reports.ranges import choose
from dashboard.request.zones import UTC_NAME
from lagloss.wire.format import WINDOW_S
from lagloss_server.base.errors import IdsHidden, UnknownWindow
from lagloss_server.base.times import parse_time_s
from lagloss_server.blame.window_blame import WindowBlameDocument, blame_document, read_blame
from lagloss_server.groups.cluster_groups import GroupDocument
from lagloss_server.incidents.response_times import Times
from lagloss_server.model.window import PrintedWindow, rfc3339
from lagloss_server.queries.named_messages import KeptMessages, NamedMessageDocument, read_kept

A = TypeVar("A", bound=Arguments)
_MAX_PIPELINES: Final = 200
_MAX_RESOLVED: Final = 500
"""Rows that are read for one answer, more than it can hold."""


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    """`read` blocks; `reads_log`: whether it reads beacons from Kafka. `narrow`: how to ask for what an answer leaves
    out."""

    name: str
    title: str
    description: str
    arguments: type[A]
    document: type
    read: Callable[[Services, A], Answer]
    narrow: str
    reads_log: bool = False


class PipelinesDocument(TypedDict):
    """Pipelines, worst first: `matching` of `total`. `states`: the number of all pipelines in each state."""

    as_of: str
    total: int
    matching: int
    states: dict[State, int]
    pipelines: list[StandingDocument]
    set_aside: list[SetAsideDefinition]


def _list_pipelines(services: Services, asked: Matching) -> Answer:
    overview = services.overview()
    matching = overview.chosen(asked.text)
    shown = detailed(services.store, matching[:_MAX_PIPELINES], overview.now_s)
    document = overview.document(len(matching), shown)
    pipelines = [{name: value for name, value in row.items() if name != "hours"} for row in document["pipelines"]]
    return Answer({**document, "pipelines": pipelines}, {"pipelines": len(matching) - len(shown)})


class WindowsDocument(TypedDict):
    """Windows, newest first, each with the fields of `lagloss windows --json`."""

    pipeline: str
    windows: list[PrintedWindow]


def _windows(services: Services, asked: WindowRange) -> Answer:
    bounds = asked.time_range("-1h", DAY_S)
    services.store.demand(asked.pipeline)
    windows = [
        window.contract()
        for window in reversed(services.store.windows(asked.pipeline, bounds.from_s, bounds.to_s))
        if asked.verdict is None or window.verdict == asked.verdict
    ]
    return Answer({"pipeline": asked.pipeline, "windows": windows})


class IncidentsDocument(TypedDict):
    """Open incidents, worst first; rules that have begun to breach; resolved incidents that were opened in the range,
    newest first, and response times."""

    open: list[OpenIncidentDocument]
    pending: list[alerts.PendingDocument]
    resolved: list[IncidentDocument]
    times: Times


def _incidents(services: Services, asked: OptionalPipelineRange) -> Answer:
    store, bounds = services.store, asked.time_range("-24h")
    if asked.pipeline is not None:
        store.demand(asked.pipeline)
    filters = IncidentFilters(asked.pipeline)
    history = alerts.read_history(store, filters, bounds, size=_MAX_RESOLVED)
    resolved = history.document()["incidents"]
    document: IncidentsDocument = {
        "open": [opened.document() for opened in alerts.read_open(store, filters)],
        "pending": [breach.document() for breach in alerts.read_pending(store, filters)],
        "resolved": resolved,
        "times": history.times,
    }
    return Answer(document, {"resolved": history.total - len(resolved)})


class BlamedWindowDocument(WindowBlameDocument):
    """What the bad messages of a window have in common, and these messages as the closing kept them, lost ones first:
    see `NamedMessageDocument`. `more_messages`: whether the window has more of them; `ids_hidden`: whether they are
    left out, since the caller is not allowed to see message ids."""

    messages: list[NamedMessageDocument]
    more_messages: bool
    ids_hidden: bool


def _blame(services: Services, asked: OneWindow) -> Answer:
    store, start_s = services.store, asked.start_s
    blames = read_blame(store, asked.pipeline, [start_s])
    if not store.windows(asked.pipeline, start_s, start_s + WINDOW_S):
        raise UnknownWindow(pipeline=asked.pipeline, start=rfc3339(start_s))
    kept = _kept(services, asked.pipeline, start_s)
    messages = [] if kept is None else kept.named("all")
    document: BlamedWindowDocument = {
        **blame_document(asked.pipeline, start_s, blames),
        "messages": [message.document(services.trace_links) for message in messages],
        "more_messages": kept is not None and kept.is_truncated("all"),
        "ids_hidden": kept is None,
    }
    return Answer(document)


def _kept(services: Services, pipeline: str, start_s: int) -> KeptMessages | None:
    """Return the messages that a closing kept; None if the caller is not allowed to see message ids."""
    try:
        services.store.look_at_ids("ids.window", pipeline, rfc3339(start_s))
    except IdsHidden:
        return None
    return read_kept(services.store, pipeline, start_s)


def _trace_message(services: Services, asked: OneMessage) -> Answer:
    now_s = time.time()
    around_s, before_s, after_s = (
        None if text is None else parse_time_s(text, now_s) for text in (asked.window, asked.to, asked.from_)
    )
    where = Where(around_s, before_s, after_s)
    message = read_message(services.store, services.log, asked.pipeline, asked.message_id, where)
    return Answer(message.document(services.trace_links))


class GroupsDocument(TypedDict):
    """Consumer groups, worst first, named by a definition or not: see `GroupDocument`."""

    groups: list[GroupDocument]


def _groups(services: Services, asked: OptionalPipeline) -> Answer:
    if asked.pipeline is not None:
        services.store.demand(asked.pipeline)
    now_s = time.time()
    readings = [
        reading
        for reading in read_groups(services.store, GroupFilters()).matching
        if asked.pipeline is None or any(named.pipeline == asked.pipeline for named in reading.group.named_by)
    ]
    document: GroupsDocument = {"groups": [reading.document(now_s) for reading in readings]}
    return Answer(document)


def _report(services: Services, asked: PipelineRange) -> Answer:
    now_s = time.time()
    span = choose(None, asked.from_, asked.to, UTC_NAME, now_s)
    report = make_report(services.store, asked.pipeline, span, now_s)
    return Answer(report.document(services.settings.dashboard_url))


TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        "list_pipelines",
        "Pipelines",
        "List the pipelines, worst first: state, freshness, targets, newest closed window, error budgets, open "
        "incidents. Start here.",
        Matching,
        PipelinesDocument,
        _list_pipelines,
        "Give part of a name as `text`.",
    ),
    Tool(
        "windows",
        "Windows",
        "List the 1-minute windows of a pipeline, newest first: messages, delivered, lost, pending, lag per "
        "checkpoint, and loss per node and link. `lost.min` messages are lost for certain, `lost.max` at most. At most "
        "24 hours per call, by default the last hour; `report` covers longer ranges.",
        WindowRange,
        WindowsDocument,
        _windows,
        "Give a shorter range by `from` and `to`, or a `verdict`.",
    ),
    Tool(
        "incidents",
        "Incidents",
        "List open incidents, worst first, rules that have begun to breach, and resolved incidents that were opened in "
        "the range (by default the last 24 hours).",
        OptionalPipelineRange,
        IncidentsDocument,
        _incidents,
        "Give a `pipeline`, or a shorter range by `from` and `to`.",
    ),
    Tool(
        "blame",
        "Blame",
        "Show what the lost, late, dead-lettered or corrupted messages of one window have in common that the others do "
        "not have, and list these messages with their ids, lost ones first.",
        OneWindow,
        BlamedWindowDocument,
        _blame,
        "`lagloss export` writes all messages of a window to a file.",
    ),
    Tool(
        "trace_message",
        "Trace of a message",
        "Find one message by its id: the checkpoints that it reached, its lag there, where it is missing, and how long "
        "it stayed at each place. A search stops after 30 s: to continue, set `to` to `looked_through.from`.",
        OneMessage,
        MessageDocument,
        _trace_message,
        "Give a shorter range by `from` and `to`.",
        reads_log=True,
    ),
    Tool(
        "groups",
        "Consumer groups",
        "List all consumer groups of Kafka, named by a definition or not, worst first: state, members, lag, age of the "
        "first unread record, and time until retention deletes unread records. With `pipeline`, those that it names.",
        OptionalPipeline,
        GroupsDocument,
        _groups,
        "Give a `pipeline`.",
    ),
    Tool(
        "report",
        "SLA report",
        "Make the SLA report of a pipeline over a range (by default the last calendar month, UTC): attainment against "
        "targets, error budgets, destinations, lag by hop, days, worst hours, incidents.",
        PipelineRange,
        ReportDocument,
        _report,
        "Give a shorter range by `from` and `to`.",
    ),
)
