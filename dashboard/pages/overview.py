"""Every pipeline, worst first."""

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
    name="overview",
    pattern=re.compile(r"/"),
    title=lambda _of: "Overview",
    layout=layout,
    register=register,
)
