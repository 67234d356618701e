"""Page, and small parts that several pages share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import dash_mantine_components as dmc
from dash import Dash, html
from dash.exceptions import PreventUpdate

from dashboard.queries.services import Services
from dashboard.request.links import Address

Part: TypeAlias = Any
"""A Dash component; the component packages carry no types."""
NAME: Final = r"(?P<pipeline>[A-Za-z0-9][A-Za-z0-9_-]{0,99})"
"""A pipeline's name in a page's path."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the dashboard.

    `pattern` matches its whole path; what its groups find is given to `title` and `layout`. `layout` makes what is
    mounted when a reader comes: containers with ids, and nothing that has to be read first. `register` adds the
    callbacks that fill them; they take `Shell.URL` (pathname, search), `Shell.TICK` and `Shell.SCHEME` as inputs.
    `first` reads what the page says in the server's first answer, before a script has run (web/first_answer.py), at an
    epoch s; `filled` is the CSS selector of what is there once the page says the same.
    `ranged`: whether the range in the header is of any use here. `refresh_ms`: how often `Shell.TICK` comes, where that
    does not follow from the range in the address. `elsewhere`: the address with a span that other pages can show, too.
    """

    name: str
    pattern: re.Pattern[str]
    title: Callable[[dict[str, str]], str]
    layout: Callable[[dict[str, str], Address], Part]
    register: Callable[[Dash, Services], None]
    ranged: bool = False
    refresh_ms: int | None = None
    elsewhere: Callable[[Address], Address] = lambda here: here
    first: Callable[[Services, dict[str, str], Address, float], Part] | None = None
    filled: str = ""

    def match(self, path: str) -> dict[str, str] | None:
        found = self.pattern.fullmatch(path)
        return None if found is None else found.groupdict()

    def asked(self, pathname: str | None, search: str | None) -> tuple[Address, dict[str, str]]:
        """Return where the reader is, and what that is of; for callbacks, which are asked once more when the reader has
        gone on to another page.

        Raises:
            PreventUpdate: it is not this page.
        """
        here = Address.parse(pathname, search)
        of = self.match(here.path)
        if of is None:
            raise PreventUpdate
        return here, of


def step(here: Address, wanted: Address) -> str:
    """Return where a control leads, for the location's `href`.

    Raises:
        PreventUpdate: the reader is there already: the control was only filled from the address.
    """
    if wanted.href == here.href:
        raise PreventUpdate
    return wanted.href


def aria(**attributes: str) -> dict[str, Any]:
    """`aria(label="range")` as the component's keyword `aria-label`."""
    return {f"aria-{name}": value for name, value in attributes.items()}


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


def moment(text: str, utc: str) -> Part:
    """Return a local time whose UTC shows on hover and is read to those who cannot hover."""
    return html.Time(text, title=utc)


def outward(children: Any, url: str) -> Part:
    """Return a link to another system's page, in a tab of its own and without a word of where it comes from."""
    return html.A(children, href=url, target="_blank", rel="noopener noreferrer", className="message-link")


def sideways(label: str, children: Any) -> Part:
    """Return a region that scrolls sideways by itself, with the keyboard, too: what is in it may be wider than the
    page."""
    return html.Div(children, className="wide", tabIndex=0, role="region", **aria(label=label))
