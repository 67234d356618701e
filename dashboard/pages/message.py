"""One message of a pipeline: where it was, when, and for how long."""

from __future__ import annotations

import re
from typing import Final

from dash import Dash, html

from dashboard.links import Address
from dashboard.pages.base import NAME, Page, Part
from dashboard.services import Services


def layout(of: dict[str, str], here: Address) -> Part:
    return html.Div()


def register(app: Dash, services: Services) -> None:
    pass


PAGE: Final = Page(
    name="message",
    pattern=re.compile(rf"/pipelines/{NAME}/messages"),
    title=lambda of: f"messages of {of['pipeline']}",
    layout=layout,
    register=register,
)
