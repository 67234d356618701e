"""One incident: all that happened to it, and who was told."""

from __future__ import annotations

import re
from typing import Final

from dash import Dash, html

from dashboard.links import Address
from dashboard.pages.base import Page, Part
from dashboard.services import Services


def layout(of: dict[str, str], here: Address) -> Part:
    return html.Div()


def register(app: Dash, services: Services) -> None:
    pass


PAGE: Final = Page(
    name="incident",
    pattern=re.compile(r"/incidents/(?P<incident>[0-9a-f-]{1,36})"),
    title=lambda of: f"incident {of['incident'][:8]}",
    layout=layout,
    register=register,
)
