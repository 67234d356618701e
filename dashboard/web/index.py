"""Index page, which the browser gets first: Dash's frame around all pages."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dash import Dash

from dashboard.design import css_variables
from dashboard.web.first_answer import first_answer

_STYLES: Final = sorted(Path(__file__).parents[1].joinpath("assets").glob("*.css"))
"""12 kB, which every page needs before its first paint: as files they wait in a line with the scripts."""
_START: Final = Path(__file__).with_name("start.js").read_text("utf-8")
PAGE: Final = (
    Path(__file__)
    .with_name("index.html")
    .read_text("utf-8")
    .replace("STYLES", "\n".join([css_variables(), *(path.read_text("utf-8") for path in _STYLES)]))
    .replace("START", _START)
)
_POLYFILL: Final = re.compile(r'(?<=<script src=")[^"]*/polyfill@[^"]*')


class Index(Dash):
    """Dash, whose scripts run once the page's first answer is drawn (`start.js`), without the one that teaches browsers
    what all of them can by now: to run it takes a third of a second. Of what it brings, Dash's charts still need one
    thing, which is loaded in its place."""

    def interpolate_index(self, *args: Any, **parts: Any) -> str:
        runtime = self.get_asset_url("vendor/regenerator-runtime.js")
        parts["app_entry"] += first_answer()
        parts["scripts"] = _POLYFILL.sub(runtime, parts["scripts"])
        return str(super().interpolate_index(*args, **parts))  # type: ignore[no-untyped-call]

    def csp_hashes(self, hash_algorithm: Any = "sha256") -> Sequence[str]:
        digest = base64.b64encode(hashlib.new(hash_algorithm, _START.encode()).digest()).decode()
        return [*super().csp_hashes(hash_algorithm), f"'{hash_algorithm}-{digest}'"]
