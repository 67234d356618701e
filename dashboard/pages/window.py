"""One minute of a pipeline: its matrix, its verdict with reasons, and set differences."""

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
    name="window",
    pattern=re.compile(rf"/pipelines/{NAME}/windows/(?P<start>[0-9T:.Z+-]+)"),
    title=lambda of: f"{of['pipeline']} {of['start']}",
    layout=layout,
    register=register,
)
