"""The newest lost, late, dead-lettered and corrupted messages of all pipelines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, live
from dashboard.pages.first_run import first_run
from dashboard.pages.messages.listing import before_of, filters_of, listing
from dashboard.pages.page import LIGHT, Instead, Page, Panel, Visit
from dashboard.queries.problem_messages import ProblemMessages, read_problem_messages
from dashboard.request import links
from dashboard.request.links import Address

REFRESH_MS: Final = 30_000


class MessagesId(StrEnum):
    """Ids of this page."""

    NOTICE = "messages-notice"
    CONTENT = "messages-content"


def frame(_params: Mapping[str, str], _address: Address) -> Part:
    about = "Choose a pipeline above to search for a message by its id."
    return html.Div(
        [
            html.H1("Lost, late and dead-lettered messages", className="page-title"),
            dmc.Text(about, size="sm", className="faint", mb=4),
            live(MessagesId.NOTICE),
            html.Div(id=MessagesId.CONTENT),
        ]
    )


def read(visit: Visit) -> ProblemMessages:
    """Read the messages that the address asks for.

    Raises:
        Instead: there is no pipeline.
    """
    address = visit.address
    messages = read_problem_messages(visit.store, None, filters_of(address), before_of(address, visit.now_s))
    if messages.to_s is None and not visit.store.names():
        raise Instead(first_run(visit))
    return messages


PAGE: Final = Page(
    name="messages",
    pattern=re.compile(re.escape(links.MESSAGES)),
    title=lambda _params: "Lost messages",
    frame=frame,
    notice=MessagesId.NOTICE,
    read=read,
    panels=(Panel(MessagesId.CONTENT, lambda messages, visit: listing(messages, visit.address, several=True), LIGHT),),
    refresh_ms=REFRESH_MS,
)
