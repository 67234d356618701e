"""Pages as lists of panels: what a page reads, what it draws of it, and the one way in which it reaches a reader.

    address --(pattern)--> Page --read--> result --draw--> panel, panel, panel --+--> Dash's callback (a refresh, too)
                                                                               +--> HTML of the server's first answer

A `Page` has a `frame`: the tree of components that stands while nothing is read yet, with a container for each panel.
Its `read` returns everything that the page shows, once per visit. Each `Panel` draws its part of that result, and
reads nothing: `Panel(id, draw)` fills the children of the container with that id, `Panel(id, draw, "figure")` another
property of a component in the frame.

`registration.register` makes all callbacks of all pages:

- one that draws: on each address, on each tick of the shell's clock, and on what the page names in `also`. What a
  panel draws replaces what was there. `Instead`, raised by `read`, puts a notice in the place of all panels. If
  PostgreSQL does not answer, panels stay as they are, and a notice over them says so.
- one that shows the address in the page's `Control`s, and one that leads to another address by them. A control that
  only repeats the address leads nowhere.
- those of `more`, for whatever is not of this form: forms, menus, charts that are zoomed.

The first answer is the same frame with the same panels, printed by `printing` instead of by Dash: what needs a
script (controls, charts, and what is marked `SCRIPTED`) is left out there, and panels of other properties are not
drawn.

A page with a `stamp` shares what it read and drew among the readers of an address, and between the first answer and the
callbacks that follow it, for as long as the stamp stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from dash import Dash, Input, Output, State, dcc, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from dashboard.pages import notices
from dashboard.pages.base import Part
from dashboard.pages.printing import Printed, nodes_of
from dashboard.queries.services import Services
from dashboard.request.current_user import sight
from dashboard.request.links import Address
from lagloss_server.store.store import Store

R = TypeVar("R")
Opening: TypeAlias = Callable[[Services, Mapping[str, str], Address, float], Address]
"""Of services, the params of a path, an address without a range, and the time: the address with one."""
LIGHT: Final = "light"
"""In place of a property: what the panel draws is built by the browser without Dash (printing)."""
_PRINTED: Final = ("children", LIGHT)
"""Properties that the first answer has."""


class Instead(Exception):
    """A notice that a page shows in place of its panels; raised by its `read`."""

    def __init__(self, notice: Part) -> None:
        super().__init__()
        self.notice = notice


@dataclass(frozen=True, slots=True)
class Visit:
    """One look of a reader at a page. `params`: what the page's pattern found in the path; `now_s`: epoch s; `dark`:
    for pages that are `themed`; `is_refresh`: the shell's clock asks, not the reader; `given`: the values of the page's
    `also`, in order; `glance`: the answer of the page's `glance`. Both are empty in the first answer."""

    services: Services
    address: Address
    params: Mapping[str, str]
    now_s: float
    dark: bool = False
    is_refresh: bool = False
    given: tuple[Any, ...] = ()
    glance: Any = None

    @property
    def store(self) -> Store:
        return self.services.store

    @property
    def pipeline(self) -> str:
        return self.params["pipeline"]


@dataclass(frozen=True, slots=True)
class Panel(Generic[R]):
    """A part of a page. `draw` returns the value of property `prop` of the component `id`. `blank`: its value while a
    notice stands in place of the panels. `is_steady`: a refresh leaves it alone. `once`: a store; the panel is not
    drawn before that holds something."""

    id: str
    draw: Callable[[R, Visit], Any]
    prop: str = "children"
    blank: Any = None
    is_steady: bool = False
    once: str = ""
    is_notice: bool = False

    @property
    def store(self) -> str:
        """Id of the store through which nested lists reach the browser."""
        return f"{self.id}-drawn"

    @property
    def output(self) -> Output:
        return Output(self.store, "data") if self.prop == LIGHT else Output(self.id, self.prop)

    def drawn(self, result: R, visit: Visit) -> Any:
        """Return what is drawn of a result; nested lists, which readers share, are printed here, once for all of
        them."""
        value = self.draw(result, visit)
        return value if self.prop != LIGHT or value is no_update else Printed(nodes_of(value))

    def sent(self, value: Any) -> Any:
        """Return what the browser gets of a value that was drawn."""
        if self.prop != LIGHT or value is no_update:
            return value
        return {"into": self.id, "tree": next(iter(nodes_of(value)), None)}


@dataclass(frozen=True, slots=True)
class Control:
    """A control that follows the address, and leads to others. `shows`: the value of property `prop` by the address;
    `choices`: its `data`; `leads`: the address that a new value leads to, which gets the values of the components
    `given` as well."""

    id: str
    shows: Callable[[Address], Any] | None = None
    leads: Callable[..., Address] | None = None
    prop: str = "value"
    choices: Callable[[Services, Address], Sequence[Any]] | None = None
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """One page of the dashboard.

    `pattern` matches its whole path; `title` and `frame` get what its groups find. `notice` is the container of
    notices, or a panel of it. `panels`: the first one is there once the page says what its first answer said. `busy`:
    the container that is marked busy until it is first drawn. `ranged`: whether the range in the header is of any use.
    `themed`: whether it is drawn in other colours on dark ground. `refresh_ms`: the time between two ticks of the
    shell's clock, if that does not follow from the range in the address. `elsewhere`: the address with a span that
    other pages can show, too. `opens`: adds a range with data to an address without one. `glance`: asked before `read`,
    in the threads of questions to brokers.
    """

    name: str
    pattern: re.Pattern[str]
    title: Callable[[Mapping[str, str]], str]
    frame: Callable[[Mapping[str, str], Address], Part]
    notice: str | Panel[R] = ""
    read: Callable[[Visit], R] | None = None
    panels: tuple[Panel[R], ...] = ()
    controls: tuple[Control, ...] = ()
    also: tuple[Input | State, ...] = ()
    more: Callable[[Dash, Services], None] | None = None
    stamp: Callable[[Visit], Hashable] | None = None
    glance: Callable[[Services], Any] | None = None
    busy: str = ""
    ranged: bool = False
    themed: bool = False
    refresh_ms: int | None = None
    elsewhere: Callable[[Address], Address] = lambda address: address
    opens: Opening | None = None

    def __post_init__(self) -> None:
        if self.stamp is not None and (self.also or self.glance is not None):
            raise ValueError(f"page {self.name}: what readers share depends on nothing but the address")

    def match(self, path: str) -> dict[str, str] | None:
        matched = self.pattern.fullmatch(path)
        return None if matched is None else matched.groupdict()

    def locate(self, pathname: str | None, search: str | None) -> tuple[Address, dict[str, str]]:
        """Return where the reader is, and what that is of; for callbacks, which are asked once more when the reader has
        gone on to another page.

        Raises:
            PreventUpdate: it is not this page.
        """
        address = Address.parse(pathname, search)
        params = self.match(address.path)
        if params is None:
            raise PreventUpdate
        return address, params

    def opened(self, services: Services, params: Mapping[str, str], address: Address, now_s: float) -> Address:
        """Return the address with the range that the page opens at, where it names none."""
        if self.opens is None or address.names_range:
            return address
        return self.opens(services, params, address, now_s)

    def visit(
        self, services: Services, address: Address, params: Mapping[str, str], now_s: float, **more: Any
    ) -> Visit:
        """Return a look at the page, at a range that has data; reads from the store."""
        return Visit(services, self.opened(services, params, address, now_s), params, now_s, **more)

    @property
    def filled(self) -> str:
        """CSS selector of what is there once the page is drawn."""
        return ", ".join(f"#{panel.id} > *" for panel in (self.panels[0], self.notice_panel))

    def layout(self, params: Mapping[str, str], address: Address) -> Part:
        """Return what is mounted when a reader comes: nothing of it is read."""
        stores = [dcc.Store(id=panel.store) for panel in self.panels if panel.prop == LIGHT]
        return [self.frame(params, address), *stores]

    def draw(self, visit: Visit, waiting: Collection[str] = ()) -> list[Any]:
        """Read and draw the notice and all panels, in this order; not those that come `once` a store that is still
        `waiting` holds something."""
        panels = (self.notice_panel, *self.panels)
        due = [panel for panel in panels if panel.once not in waiting]
        values = iter(self.drawn(visit, due))
        drawn = [next(values) if panel.once not in waiting else no_update for panel in panels]
        pairs = zip(panels, drawn, strict=True)
        return [no_update if visit.is_refresh and panel.is_steady else value for panel, value in pairs]

    def first(self, services: Services, params: Mapping[str, str], address: Address, now_s: float) -> Part:
        """Return the frame with what the panels say, for the server's first answer."""
        printed = [panel for panel in (self.notice_panel, *self.panels) if panel.prop in _PRINTED]
        drawn = self.drawn(self.visit(services, address, params, now_s), printed)
        frame = self.frame(params, address)
        contents = {panel.id: value for panel, value in zip(printed, drawn, strict=True) if value is not no_update}
        for component in [frame, *frame._traverse()]:  # Dash has no public walk; texts are yielded as well
            id_ = getattr(component, "id", None)
            if isinstance(component, Component) and id_ in contents:
                component.children = contents[id_]
        return frame

    @property
    def notice_panel(self) -> Panel[R]:
        """The panel of notices, drawn or only filled by `Instead` and failures."""
        draw = (lambda _result, _visit: None) if isinstance(self.notice, str) else self.notice.draw
        id_ = self.notice if isinstance(self.notice, str) else self.notice.id
        return Panel(id_, draw, is_notice=True)

    def drawn(self, visit: Visit, panels: Sequence[Panel[R]]) -> list[Any]:
        """Return what panels draw, shared with other readers if the page has a stamp."""
        assert self.read is not None
        read = self.read
        if self.stamp is None:
            return _drawn_of(visit, panels, read)
        stamp, services, key = self.stamp(visit), visit.services, (visit.address.href, sight())

        def read_once(visit: Visit) -> R:
            return services.reads.read(key, stamp, lambda: read(visit))  # type: ignore[no-any-return]

        return services.drawn.read(  # type: ignore[no-any-return]
            (*key, visit.dark, tuple((panel.id, panel.prop) for panel in panels)),
            stamp,
            lambda: _drawn_of(visit, panels, read_once),
        )


def _drawn_of(visit: Visit, panels: Sequence[Panel[R]], read: Callable[[Visit], R]) -> list[Any]:
    try:
        result = read(visit)
    except Instead as instead:
        return [instead.notice if panel.is_notice else panel.blank for panel in panels]
    return [panel.drawn(result, visit) for panel in panels]


def next_address(address: Address, changed: Mapping[Control, Any], given_values: Mapping[str, Any]) -> Address:
    """Return where controls with new values lead. What only repeats the address leads nowhere: a control was filled
    from it. Nor does a button without clicks: it was mounted just now."""
    target = address
    for control, value in changed.items():
        assert control.leads is not None
        if value if control.shows is None else (value or None) != (control.shows(address) or None):
            target = control.leads(target, value, *(given_values[id_] for id_ in control.given))
    return target


def pipeline_names(services: Services) -> list[str]:
    """Return the names of pipelines to choose from; none if PostgreSQL does not answer."""
    return notices.or_nothing(services.store.names) or []
