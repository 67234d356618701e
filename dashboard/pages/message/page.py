"""One message of a pipeline: where it was, when, and for how long."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages import notices
from dashboard.pages.base import NAME, Part, live, moment_picker
from dashboard.pages.message.parts import message_part
from dashboard.pages.messages.listing import before_of, filters_of, listing
from dashboard.pages.messages.page import REFRESH_MS
from dashboard.pages.notices import Failed
from dashboard.pages.page import LIGHT, Control, Instead, Page, Panel, Visit
from dashboard.pages.shell import Shell, pipeline_nav
from dashboard.queries.message import MessageRead, Where, read_message
from dashboard.queries.problem_messages import ProblemMessages, read_problem_messages
from dashboard.queries.services import Services
from dashboard.request.current_user import asking
from dashboard.request.links import Address
from lagloss.wire.format import MAX_ID_BYTES
from lagloss_server.base.errors import BadTime, IdsHidden, UnknownPipeline
from lagloss_server.base.times import parse_time_s
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.lru_cache import Remembered

_WHERE: Final = ("around", "before", "after")
_KEPT: Final = 64
"""Answers, to be drawn anew in another zone or in other colours: a search may take half a minute."""


class MessageId(StrEnum):
    ASKED = "message-id"
    AROUND = "message-around"
    SEARCH = "message-search"
    BUSY = "message-busy"
    FOUND = "message-found"
    ANSWER = "message-answer"
    NOTICE = "message-notice"
    LISTING = "message-listing"


def frame(params: Mapping[str, str], address: Address) -> Part:
    pipeline = params["pipeline"]
    return dmc.Stack(
        [
            html.Div(
                [dmc.Title(f"Messages of {pipeline}", order=1, fz=22, mb=4), pipeline_nav(address, pipeline, "message")]
            ),
            dmc.Paper(
                dmc.Group(
                    [
                        dmc.TextInput(
                            id=MessageId.ASKED,
                            label="Message id or its hash in hex",
                            size="sm",
                            w={"base": "100%", "sm": 380},
                            attributes={"input": {"maxLength": MAX_ID_BYTES}},
                        ),
                        moment_picker(MessageId.AROUND, "Search near (optional)", 220, "sm", clearable=True),
                        dmc.Button("Search", id=MessageId.SEARCH, size="sm"),
                        dmc.Text("The id alone is enough; a time makes it faster.", size="sm", className="faint"),
                        live(MessageId.BUSY),
                    ],
                    gap="sm",
                    align="flex-end",
                ),
                p="sm",
                withBorder=True,
            ),
            live(MessageId.NOTICE),
            live(MessageId.FOUND),
            html.Div(id=MessageId.LISTING),
            dcc.Store(id=MessageId.ANSWER),
        ],
        gap="sm",
    )


def read(visit: Visit) -> ProblemMessages | None:
    """Read the newest messages that something is wrong with, unless the address asks for one.

    Raises:
        Instead: there is no pipeline of this name, or its message ids are hidden.
    """
    address, pipeline = visit.address, visit.pipeline
    if address.query.get("id"):
        return None
    try:
        return read_problem_messages(visit.store, pipeline, filters_of(address), before_of(address, visit.now_s))
    except UnknownPipeline:
        raise Instead(notices.unknown_pipeline(pipeline, visit.store.names(), address)) from None
    except IdsHidden as error:
        raise Instead(notices.ids_hidden(error)) from None


def _listing(messages: ProblemMessages | None, visit: Visit) -> Part:
    """Return the list; nothing below a message that was asked for."""
    return html.Span() if messages is None else listing(messages, visit.address, several=False)


def _register_search(app: Dash, services: Services) -> None:
    """Register the search; a page's result names its question and the number of its search."""
    answers: Remembered[MessageRead] = Remembered(_KEPT)
    searches = count(1)

    @app.callback(
        Output(MessageId.FOUND, "children"),
        Output(MessageId.ANSWER, "data"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.SCHEME, "data"),
        State(MessageId.ANSWER, "data"),
        running=[(Output(MessageId.BUSY, "children"), "Searching, up to 30 s …", "")],
    )
    async def find(pathname: str | None, search: str | None, scheme: str | None, answer: list[Any] | None) -> Any:
        address, params = PAGE.locate(pathname, search)
        pipeline = params["pipeline"]
        text = address.query.get("id", "")
        if not text:
            return None, None
        question = [pipeline, text, *(address.query.get(name) for name in _WHERE)]
        is_theirs = asking().grants.may_see_ids(pipeline)  # an answer of somebody else's is not to be asked for
        cached = answers.get(tuple(answer)) if is_theirs and answer and answer[:-1] == question else None
        if cached is not None:
            return message_part(cached, address, services.trace_links, dark=scheme == "dark"), no_update
        now_s = time.time()
        read = partial(_read, services, pipeline, text, address, now_s)
        result = await services.threads.read_log(notices.attempt, read)
        if isinstance(result, Failed):
            return notices.query_failed(result, address.zone, now_s), None
        if isinstance(result, list):
            return notices.unknown_pipeline(pipeline, result, address), None
        if isinstance(result, IdsHidden):
            return notices.ids_hidden(result), None
        answer = [*question, next(searches)]
        answers.put(tuple(answer), result)
        return message_part(result, address, services.trace_links, dark=scheme == "dark"), answer


def _search(address: Address, clicks: int | None, text: str | None, around: str | None) -> Address:
    """Return the page of the message that was asked for."""
    if not clicks:
        return address
    around_text = rfc3339(address.zone.parse(around)) if around else None
    return address.asking(id=text or None, around=around_text, before=None, after=None)


def _register_fields(app: Dash) -> None:
    @app.callback(
        Output(MessageId.ASKED, "value"),
        Output(MessageId.AROUND, "value"),
        Input(Shell.URL, "search"),
        State(Shell.URL, "pathname"),
    )
    def fill(search: str | None, pathname: str | None) -> tuple[Any, ...]:
        address, _ = PAGE.locate(pathname, search)
        if ctx.triggered_id is None and not address.query.keys() & {"id", "around"}:
            raise PreventUpdate  # the page has just been loaded, and something may be typed already
        around_s = _time_s(address.query.get("around"), time.time())
        return address.query.get("id", ""), None if around_s is None else address.zone.typed(around_s)


def _read(
    services: Services, pipeline: str, text: str, address: Address, now_s: float
) -> MessageRead | list[str] | IdsHidden:
    """Return the message, or the names of the pipelines there are, or that ids are hidden."""
    where = Where(*(_time_s(address.query.get(name), now_s) for name in _WHERE))
    try:
        return read_message(services.store, services.log, pipeline, text, where)
    except UnknownPipeline:
        return services.store.names()
    except IdsHidden as error:
        return error


def _time_s(text: str | None, now_s: float) -> float | None:
    """Parse a time of the address; one that cannot be read is ignored, so that the page shows something whatever its
    URL says."""
    try:
        return parse_time_s(text, now_s) if text else None
    except BadTime:
        return None


def _more(app: Dash, services: Services) -> None:
    _register_search(app, services)
    _register_fields(app)


PAGE: Final = Page(
    name="message",
    pattern=re.compile(rf"/pipelines/{NAME}/messages"),
    title=lambda params: f"messages of {params['pipeline']}",
    frame=frame,
    notice=MessageId.NOTICE,
    read=read,
    panels=(Panel(MessageId.LISTING, _listing, LIGHT),),
    refresh_ms=REFRESH_MS,
    controls=tuple(
        Control(id_, leads=_search, prop=prop, given=(MessageId.ASKED, MessageId.AROUND))
        for id_, prop in ((MessageId.SEARCH, "n_clicks"), (MessageId.ASKED, "n_submit"))
    ),
    more=_more,
)
