"""Index page, which the browser gets first: Dash's frame around all pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from dash import Dash

from dashboard.design import css_variables
from dashboard.web.first_answer import first_answer

_STYLES: Final = sorted(Path(__file__).parents[1].joinpath("assets").glob("*.css"))
"""12 kB, which every page needs before its first paint: as files they wait in a line with the scripts."""
PAGE: Final = (
    Path(__file__)
    .with_name("index.html")
    .read_text("utf-8")
    .replace("STYLES", "\n".join([css_variables(), *(path.read_text("utf-8") for path in _STYLES)]))
)
_POLYFILL: Final = re.compile(r'(?<=<script src=")[^"]*/polyfill@[^"]*')


class Index(Dash):
    """Dash, without the script that teaches browsers what all of them can by now: to run it takes a third of a second
    before anything is drawn. Of what it brings, Dash's charts still need one thing, which is loaded in its place. With
    the page's first answer."""

    def interpolate_index(self, *args: Any, **parts: Any) -> str:
        runtime = self.get_asset_url("vendor/regenerator-runtime.js")
        parts["app_entry"] += first_answer()
        parts["scripts"] = _POLYFILL.sub(runtime, parts["scripts"])
        return str(super().interpolate_index(*args, **parts))  # type: ignore[no-untyped-call]
