"""Links to the windows that a figure is made of: whoever doubts it can add them up."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from lagloss.result import rfc3339


def windows_link(base_url: str, pipeline: str, from_s: int, to_s: int) -> str:
    """The windows as the API tells them; a path where the dashboard's address is not known."""
    return f"{base_url.rstrip('/')}/api/v1/pipelines/{quote(pipeline, safe='')}/windows?{_range(from_s, to_s)}"


def page_link(base_url: str, pipeline: str, from_s: int, to_s: int) -> str:
    """The same windows on the pipeline's page."""
    return f"{base_url.rstrip('/')}/pipelines/{quote(pipeline, safe='')}?{_range(from_s, to_s)}"


def _range(from_s: int, to_s: int) -> str:
    return urlencode({"from": rfc3339(from_s), "to": rfc3339(to_s)}, safe=":")
