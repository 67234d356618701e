"""HTML of components and light elements, without Dash: what a page says, readable before a script has run.

Controls, charts, ids and whatever is marked as `SCRIPTED` are left out: they are of no use without a script, and stand
in the page that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from dash.development.base_component import Component

from dashboard.pages.base import SCRIPTED, Part

_MANTINE: Final[Mapping[str, str]] = {
    "Anchor": "a",
    "Badge": "span",
    "Code": "code",
    "List": "ul",
    "ListItem": "li",
    "Paper": "section",
    "Table": "table",
    "TableCaption": "caption",
    "TableTbody": "tbody",
    "TableTd": "td",
    "TableTfoot": "tfoot",
    "TableTh": "th",
    "TableThead": "thead",
    "TableTr": "tr",
}
"""Tags of Mantine's components; others are a `div`."""
_LEFT_OUT: Final = frozenset(
    {
        *("Autocomplete", "Button", "Checkbox", "DateTimePicker", "Modal", "MultiSelect", "NumberInput", "Popover"),
        *("SegmentedControl", "Select", "Switch", "Textarea", "TextInput", "Tooltip"),
        *("Form", "Input", "Script", "Style"),
    }
)
_NAMESPACES: Final = frozenset({"dash_html_components", "dash_mantine_components"})
"""Of others, those of charts and stores, nothing is shown."""
_BOXES: Final = frozenset({"div", "section", "nav"})
"""Tags that are left out where they would be empty."""
_VOID: Final = frozenset({"br", "hr", "img"})
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "className": "class",
    "colSpan": "colspan",
    "dateTime": "datetime",
    "rowSpan": "rowspan",
    **{name: name for name in ("alt", "class", "height", "rel", "role", "scope", "target", "title", "width")},
}
_ADDRESSES: Final[Mapping[str, tuple[str, ...]]] = {
    "href": ("/", "#", "https://", "http://"),
    "src": ("/", "data:image/svg+xml"),
}
"""Beginnings of addresses that are kept: none runs a script."""
BOLD: Final = 600
"""Weight from which on text is drawn bold."""


def html_of(part: Part) -> str:
    """Return the HTML of a component, a light element, a text, or a list of them."""
    return "".join(_pieces(part))


def _pieces(part: Part) -> Iterator[str]:
    if isinstance(part, Component):
        yield from _component(**part.to_plotly_json())  # type: ignore[no-untyped-call]
    elif isinstance(part, list) and len(part) > 1 and isinstance(part[1], dict):
        yield from _element(part[0], part[1], part[2:])
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _pieces(each)
    elif part is not None and not isinstance(part, bool):
        yield escape(str(part))


def _component(type: str, namespace: str, props: Mapping[str, Any]) -> Iterator[str]:
    if namespace not in _NAMESPACES or type in _LEFT_OUT or _needs_script(props):
        return
    children = props.get("children")
    if namespace == "dash_html_components":
        yield from _element(type.lower(), props, children)
        return
    tag = f"h{props.get('order', 1)}" if type == "Title" else _MANTINE.get(type, "div")
    if type == "Text" and (props.get("span") or props.get("inherit")):
        tag = "span"
    colour = props.get("color")
    classes = [f"plain-{type.lower()}", f"plain-{colour.partition('.')[0]}" if colour else None, props.get("className")]
    heavy = int(props.get("fw") or 0) >= BOLD
    named = {**props, "className": " ".join(each for each in [*classes, "plain-bold" if heavy else None] if each)}
    named |= props.get("attributes", {}).get("root", {})
    if type == "Alert":
        children = [["p", {"class": "plain-bold"}, str(named.pop("title", ""))], children]
    yield from _element(tag, named, children)


def _needs_script(props: Mapping[str, Any]) -> bool:
    """Return whether a component is of no use without a script, or hidden until one shows it."""
    is_hidden = "none" in (props.get("display"), (props.get("style") or {}).get("display"))
    return bool(props.get("hidden")) or is_hidden or SCRIPTED in str(props.get("className")).split()


def _element(tag: str, attributes: Mapping[str, Any], children: Part) -> Iterator[str]:
    inside = list(_pieces(children))
    if tag in _BOXES and not any(inside):
        return  # a box of controls, or one that nothing is drawn in
    yield f"<{tag}{''.join(_attributes(attributes))}>"
    if tag not in _VOID:
        yield from inside
        yield f"</{tag}>"


def _attributes(attributes: Mapping[str, Any]) -> Iterator[str]:
    for name, value in attributes.items():
        known = _ATTRIBUTES.get(name, name if name.startswith(("aria-", "data-label")) else None)
        is_address = name in ("href", "src") and str(value).startswith(_ADDRESSES[name])
        if (known is not None or is_address) and value is not None and not name.startswith("aria-live"):
            yield f' {known or name}="{escape(str(value))}"'
