"""Components without Dash: as nested lists, which assets/light.js builds in the browser, and as HTML text.

Dash keeps books on every component: two hundred rows of twenty components each block the browser for half a minute. As
nested lists, `[tag, attributes, child, ...]`, they are there in milliseconds; a child is a text or such a list, and
text is never read as markup.

Making and printing a component takes several times as long as an `element`, which is printed when it is made: cells of
tables with hundreds of rows are elements.

Controls, charts, ids and whatever is marked as `SCRIPTED` are left out: they are of no use without a script, and stand
in the page that follows. No attribute runs code: only those that are named here are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, TypeAlias

from dash import html
from dash.development.base_component import Component

from dashboard.pages.base import SCRIPTED, Part, aria, data

Node: TypeAlias = str | list[Any]

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
    "tabIndex": "tabindex",
    **{name: name for name in ("alt", "height", "rel", "role", "scope", "target", "title", "width")},
    **{name: name for name in ("data-fold", "data-inside", "data-key", "data-label")},
}
_ADDRESSES: Final[Mapping[str, tuple[str, ...]]] = {
    "href": ("/", "#", "https://", "http://"),
    "src": ("/", "data:image/svg+xml"),
}
"""Beginnings of addresses that are kept: none runs a script."""
BOLD: Final = 600
"""Weight from which on text is drawn bold."""


def html_of(part: Part) -> str:
    """Return the HTML of a component, a text, or a list of them."""
    return "".join(map(_text, nodes_of(part)))


def _text(node: Node) -> str:
    if isinstance(node, str):
        return escape(node)
    tag, attributes, *children = node
    # without Dash, which light.js would tell of a click, a link is followed by the browser
    named = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items() if name != "data-inside")
    return f"<{tag}{named}>" if tag in _VOID else f"<{tag}{named}>{''.join(map(_text, children))}</{tag}>"


@dataclass(frozen=True, slots=True)
class Printed:
    """Nested lists of what is printed already: a part like others, but not for Dash."""

    nodes: Sequence[Node]


def nodes_of(part: Part) -> list[Node]:
    """Return the nested lists of a component, a text, or a list of them."""
    nodes: list[Node] = []
    _print(part, nodes)
    return nodes


def element(tag: str, children: Part = None, **properties: Any) -> Printed:
    """Return the element that a component of Dash's `html` with these properties is printed as."""
    nodes: list[Node] = []
    _print_element(tag, properties, children, nodes)
    return Printed(nodes)


def card_table(heads: Sequence[str], rows: Sequence[Printed]) -> Printed:
    """Return a table whose rows, of `card_row`, are cards on narrow screens (overview.css)."""
    columns = [element("th", head, role="columnheader", scope="col") for head in heads]
    head = element("thead", element("tr", columns, role="row"), role="rowgroup")
    return element("table", [head, element("tbody", rows, role="rowgroup")], role="table", className="overview")


def card_row(heads: Sequence[str], name: Part, values: Sequence[Part], **attributes: Any) -> Printed:
    """Return a row of a `card_table`: its name, and the values below the other heads."""
    titled = zip(heads[1:], values, strict=True)
    cells = [element("td", value, role="cell", **data(label=label)) for label, value in titled]
    return element("tr", [element("th", name, role="rowheader", scope="row"), *cells], role="row", **attributes)


def small(text: str) -> Printed | None:
    """Return a second, smaller line of a cell."""
    return element("div", text, className="small") if text else None


def status(word: str, sign: str, colour: str, title: str | None = None) -> Printed:
    """Return a status by sign, word and colour, as `base.badge` does of a component."""
    shown = element("span", sign, **aria(hidden="true"))
    return element("span", [shown, f" {word}"], className=f"status status-{colour}", title=title)


def inside_link(text: str, href: str, **more: Any) -> Printed:
    """Return a link to another page of ours. Where the browser builds it without Dash (light.js), a plain click still
    leads there without loading the dashboard again.

    Raises:
        ValueError: `href` leads elsewhere.
    """
    if not href.startswith("/") or href.startswith("//"):
        raise ValueError(f"expected an address of ours, found {href}")
    return element("a", text, href=href, **data(inside=""), **more)


def _print(part: Part, nodes: list[Node]) -> None:
    # `Component` comes last: whether something is of an abstract class takes long to find out
    if isinstance(part, str):
        nodes.append(str(part))
    elif isinstance(part, Printed):
        nodes += part.nodes
    elif isinstance(part, list | tuple):
        for child in part:
            _print(child, nodes)
    elif isinstance(part, Component):
        _print_component(part, nodes)
    elif part is not None and not isinstance(part, bool):
        nodes.append(str(part))


def _print_component(component: Any, nodes: list[Node]) -> None:
    # Dash's own way to the properties, to_plotly_json, takes as long as making the component
    kind, namespace, props = component._type, component._namespace, vars(component)
    if namespace not in _NAMESPACES or kind in _LEFT_OUT or _needs_script(props):
        return
    children = props.get("children")
    if namespace == "dash_html_components":
        _print_element(kind.lower(), props, children, nodes)
        return
    tag = f"h{props.get('order', 1)}" if kind == "Title" else _MANTINE.get(kind, "div")
    if kind == "Text" and (props.get("span") or props.get("inherit")):
        tag = "span"
    colour, is_bold = props.get("color"), int(props.get("fw") or 0) >= BOLD
    classes = [f"plain-{kind.lower()}", colour and f"plain-{colour.partition('.')[0]}", props.get("className")]
    classes += ["plain-bold"] if is_bold else []
    named = {**props, "className": " ".join(filter(None, classes)), **props.get("attributes", {}).get("root", {})}
    if kind == "Alert":
        children = [html.P(str(named.pop("title", "")), className="plain-bold"), children]
    _print_element(tag, named, children, nodes)


def _needs_script(props: Mapping[str, Any]) -> bool:
    """Return whether a component is of no use without a script, or hidden until one shows it."""
    is_hidden = "none" in (props.get("display"), (props.get("style") or {}).get("display"))
    return bool(props.get("hidden")) or is_hidden or SCRIPTED in str(props.get("className")).split()


def _print_element(tag: str, properties: Mapping[str, Any], children: Part, nodes: list[Node]) -> None:
    inside = nodes_of(children)
    if tag in _BOXES and not any(inside):
        return  # a box of controls, or one that nothing is drawn in
    nodes.append([tag, _attributes(properties), *inside])


def _attributes(properties: Mapping[str, Any]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, value in properties.items():
        if value is None:
            continue
        if name in _ATTRIBUTES:
            named[_ATTRIBUTES[name]] = str(value)
        elif name in _ADDRESSES:
            if str(value).startswith(_ADDRESSES[name]):
                named[name] = str(value)
        elif name.startswith("aria-") and name != "aria-live":
            named[name] = str(value)
    # Dash keeps properties in the order of a set; light.js compares attributes as text
    return dict(sorted(named.items()))
