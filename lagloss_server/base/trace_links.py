"""Links to traces: an address with places for a trace's ids and times, as LAGLOSS_TRACE_URL has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypedDict
from urllib.parse import urlsplit

from lagloss.wire.format import WINDOW_S
from lagloss.wire.traces import TraceContext

AROUND_S: Final = 3_600
"""Trace stores look in a span of time: so much before a message's minute, and after it."""
_PLACES: Final = ("trace_id", "span_id", "from_s", "to_s", "from_ms", "to_ms")
_PLACE: Final = re.compile(r"\{(\w+)\}")
_EXPECTED: Final = (
    "expected http(s)://… with {trace_id}, and optionally {span_id}, {from_s}, {to_s}, {from_ms} and {to_ms}"
)


def checked_template(text: str) -> str:
    """Return this text if it is empty or a template.

    Raises:
        ValueError: for anything else.
    """
    if not text:
        return text
    names = _PLACE.findall(text)
    try:
        address = urlsplit(text)
        is_address = address.scheme in ("http", "https") and bool(address.hostname)
    except ValueError:
        is_address = False
    is_one_line = text.isprintable() and " " not in text
    if not is_address or not is_one_line or "trace_id" not in names or not set(names) <= set(_PLACES):
        raise ValueError(_EXPECTED)
    return text


class TraceDocument(TypedDict, total=False):
    """A message's trace; nothing where it is unknown. `trace_url`: where LAGLOSS_TRACE_URL is set."""

    trace_id: str
    span_id: str
    trace_url: str


@dataclass(frozen=True, slots=True)
class TraceLinks:
    """Makes links to traces; `template`: empty for none."""

    template: str = ""

    def url(self, trace: TraceContext | None, window_start_s: int) -> str | None:
        """Return the address of a message's trace; None where the trace is not known, or there is no template."""
        if trace is None or not self.template:
            return None
        from_s, to_s = window_start_s - AROUND_S, window_start_s + WINDOW_S + AROUND_S
        values = (*trace, from_s, to_s, from_s * 1_000, to_s * 1_000)
        texts = dict(zip(_PLACES, map(str, values), strict=True))
        return _PLACE.sub(lambda match: texts[match[1]], self.template)

    def document(self, trace: TraceContext | None, window_start_s: int) -> TraceDocument:
        """Return the trace as JSON has it wherever a message is named: nothing where it is not known."""
        if trace is None:
            return {}
        document_: TraceDocument = {"trace_id": trace.trace_id, "span_id": trace.span_id}
        if (url := self.url(trace, window_start_s)) is not None:
            document_["trace_url"] = url
        return document_


NO_LINKS: Final = TraceLinks()
