"""Small parts that several pages share, and the one table of all."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import dash_mantine_components as dmc
from dash import html
from dash.exceptions import PreventUpdate

from dashboard.queries.incident_filters import MAX_PAGE, PAGE_SIZE
from dashboard.request.links import Address

Part: TypeAlias = Any
"""A Dash component; the component packages carry no types."""
NAME: Final = r"(?P<pipeline>[A-Za-z0-9][A-Za-z0-9_-]{0,99})"
"""A pipeline's name in a page's path."""
SCRIPTED: Final = "scripted"
"""Class of components that are of use with a script only; the first answer leaves them out (printing)."""


def step(address: Address, wanted: Address) -> str:
    """Return where a control leads, for the location's `href`.

    Raises:
        PreventUpdate: the reader is there already: the control was only filled from the address.
    """
    if wanted.href == address.href:
        raise PreventUpdate
    return wanted.href


def aria(**attributes: str) -> dict[str, Any]:
    """`aria(label="range")` as the component's keyword `aria-label`."""
    return {f"aria-{name}": value for name, value in attributes.items()}


def data(**attributes: str) -> dict[str, Any]:
    """`data(label="Lag")` as the component's keyword `data-label`."""
    return {f"data-{name}": value for name, value in attributes.items()}


def icon(text: str) -> Part:
    """Return a sign beside a word that says the same: not read aloud."""
    return html.Span(text, **aria(hidden="true"))


def badge(word: str, sign: str, colour: str, size: str = "md") -> Part:
    """Return a status by sign, word and colour."""
    colour = {"red": "red.8", "gray": "gray.7"}.get(colour, colour)  # white on Mantine's own is hard to read
    return dmc.Badge(
        [icon(sign), f" {word}"], color=colour, size=size, variant="filled", autoContrast=True, className="verdict"
    )


def alert(title: str, children: Any, colour: str, sign: str) -> Part:
    """Return a notice over the page's content."""
    return dmc.Alert(children, title=title, color=colour, icon=icon(sign), mb="sm")


def live(id_: str, **more: Any) -> Part:
    """Return a container whose changes a screen reader announces politely."""
    return html.Div(id=id_, role="status", **aria(live="polite"), **more)


def moment_picker(id_: str, label: str, width_px: int, size: str = "xs", **more: Any) -> Part:
    """Return a date and a time to the minute, in the viewer's zone: filled by `Zone.typed`, read by `Zone.parse`."""
    return dmc.DateTimePicker(id=id_, label=label, size=size, w=width_px, valueFormat="YYYY-MM-DD HH:mm", **more)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table. `look`: CSS class of its cells; `names_rows`: its cells are the heads of their rows."""

    title: Part
    look: str = ""
    names_rows: bool = False

    @property
    def head_look(self) -> str:
        """CSS class of its head, which stands over numbers on the right."""
        return self.look if self.look == "number" else ""


Columns: TypeAlias = Sequence[TableColumn | str]


def number(title: str) -> TableColumn:
    """Return a column of numbers, which are set right."""
    return TableColumn(title, "number")


def names(title: Part) -> TableColumn:
    """Return the column that names the rows."""
    return TableColumn(title, names_rows=True)


def bare_table(columns: Columns, rows: Sequence[Sequence[Part]], foot: Part = None, **look: Any) -> Part:
    """Return a table without a region of its own. A cell that is a `dmc.TableTd` or `dmc.TableTh` stands as it is. A
    row may have fewer cells than columns. `look`: properties of `dmc.Table`."""
    named = [column if isinstance(column, TableColumn) else TableColumn(column) for column in columns]
    heads = dmc.TableThead(dmc.TableTr([dmc.TableTh(column.title, className=column.head_look) for column in named]))
    body = dmc.TableTbody([dmc.TableTr([_cell(*pair) for pair in zip(named, row, strict=False)]) for row in rows])
    return dmc.Table([*([heads] if any(column.title != "" for column in named) else []), body, foot], **look)


def _cell(column: TableColumn, cell: Part) -> Part:
    if isinstance(cell, dmc.TableTd | dmc.TableTh):
        return cell
    if column.names_rows:
        return dmc.TableTh(cell, attributes={"root": {"scope": "row"}}, className=column.look)
    return dmc.TableTd(cell, className=column.look)


DATED_S: Final = 43_200
"""From half a day on a time is shown with its date: before, the time alone is clear."""

FACTS: Final[Mapping[str, Any]] = {"highlightOnHover": True, "verticalSpacing": "xs", "className": "facts"}
"""Look of a table that is a page's main content."""
SMALL_FACTS: Final[Mapping[str, Any]] = {"verticalSpacing": 4, "className": "facts"}
"""Look of a table below a verdict."""


def table(label: str, columns: Columns, rows: Sequence[Sequence[Part]], foot: Part = None, **look: Any) -> Part:
    """Return a table in a region of its own, which scrolls sideways where the window is narrow."""
    return sideways(label, bare_table(columns, rows, foot, **(look or FACTS)))


def moment(text: str, utc: str) -> Part:
    """Return a local time whose UTC shows on hover and is read to those who cannot hover."""
    return html.Time(text, title=utc)


def faint(text: Part) -> Part:
    """Return a small line below a fact, which adds to it."""
    return dmc.Text(text, size="xs", className="faint")


def picture(svg: str, alt: str, **more: Any) -> Part:
    """Return a drawing that the server has made, as an image."""
    return html.Img(src=f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}", alt=alt, **more)


def outward(children: Any, url: str) -> Part:
    """Return a link to another system's page, in a tab of its own and without a word of where it comes from."""
    return html.A(children, href=url, target="_blank", rel="noopener noreferrer", className="message-link")


def sideways(label: str, children: Any) -> Part:
    """Return a region that scrolls sideways by itself, with the keyboard, too: what is in it may be wider than the
    page."""
    return html.Div(children, className="wide", tabIndex=0, role="region", **aria(label=label))


def fold(key: str, title: str, note: Part, children: Part) -> Part:
    """Return a section that is one line until it is opened; lagloss.js keeps for each reader which are open. `key`:
    its name there; `note`: its content in a few words, in the line."""
    head = html.Summary([dmc.Title(title, order=2, fz=16), html.Span(note, className="faint fold-note")])
    return html.Details([head, html.Div(children, className="fold-body")], className="fold", **data(fold=key))


def page_of(address: Address) -> int:
    """Return the page of a list that the address asks for; the first one for what is no number."""
    number = address.query.get("page", "1")
    return min(int(number), MAX_PAGE) if re.fullmatch(r"[1-9]\d{0,8}", number) else 1


def pages(page: int, total: int, address: Address) -> Part | None:
    """Links to the pages before and after; None where all is on this one."""
    last = max(1, -(-total // PAGE_SIZE))
    if last == 1 and page == 1:
        return None

    def link(label: str, to: int) -> Part:
        return dmc.Anchor(label, href=address.asking(page=str(to)).href, size="sm") if 1 <= to <= last else None

    summary = dmc.Text(f"page {page} of {last}, {total} in total", size="sm")
    steps = [link("← newer", page - 1), summary, link("older →", page + 1)]
    return html.Nav(dmc.Group(steps, gap="md", mt="xs"), **aria(label="pages of the list"))
