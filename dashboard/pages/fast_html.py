"""Light elements: HTML as nested lists, which assets/light.js builds in the browser without Dash.

Dash keeps books on every component: two hundred rows of twenty components each block the browser for half a minute,
and built like this they are there in milliseconds. An element is `[tag, attributes, child, ...]`, a child is text or an
element; text is never read as markup.
"""

from __future__ import annotations

from typing import Any, Final

Light = str | list[Any]
TAGS: Final = frozenset(
    {"a", "code", "div", "h2", "img", "p", "section", "span", "table", "tbody", "td", "th", "thead", "time", "tr"}
)


def element(tag: str, *children: Light | None, **attributes: str | None) -> Light:
    """`element("td", "1 s", data_label="Lag", class_="bad")`. What is None is left out."""
    if tag not in TAGS:
        raise ValueError(f"expected a tag of {', '.join(sorted(TAGS))}, found {tag}")
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    unsafe = [name for name in named if name.startswith("on") or name == "style"]
    if unsafe:
        raise ValueError(f"expected no code among the attributes, found {', '.join(unsafe)}")
    return [tag, named, *(child for child in children if child is not None)]


def link(text: str, href: str, **attributes: str | None) -> Light:
    """Return a link to another page of ours. A plain click goes there without loading the dashboard anew."""
    if not href.startswith("/") or href.startswith("//"):
        raise ValueError(f"expected an address of ours, found {href}")
    return element("a", text, href=href, data_inside="", **attributes)
