"""Dash as the dashboard needs it: the index page, which the browser gets first, and checks of what pages ask."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dash import Dash, Output
from fastapi import HTTPException

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

    def _initialize_context(self, body: Any) -> Any:
        try:
            known = self.callback_map[body["output"]]
            is_known = _places(body["inputs"] + body.get("state", [])) == _places(known["inputs"] + known["state"])
            is_known &= known["no_output"] or _outputs(body["outputs"]) == _outputs(known["output"])
            is_known &= all(isinstance(changed, str) for changed in body.get("changedPropIds", ()))
        except (AttributeError, LookupError, TypeError, ValueError):
            is_known = False
        if not is_known:  # Dash reads it unchecked, and its own answer is 500
            raise HTTPException(400, "no callback of this dashboard")
        return super()._initialize_context(body)


def _places(parts: Sequence[Any]) -> list[tuple[str, str]]:
    return [(part["id"], part["property"]) for part in parts]


def _outputs(outputs: Any) -> list[tuple[str, str]]:
    """Return components and properties, of callbacks as Dash keeps them or as a browser names them: a property that
    several callbacks write has the hash of one behind it there."""
    parts = outputs if isinstance(outputs, list) else [outputs]
    if isinstance(parts[0], Output):
        return [(part.component_id, part.component_property) for part in parts]
    return [(part["id"], part["property"].partition("@")[0]) for part in parts]
