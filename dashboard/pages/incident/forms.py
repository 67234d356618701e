"""Forms in which operators act on incidents, opened, filled and sent off.

The address says which is open (`do`, `of`), so that a link can lead to it. They stand beside what is redrawn at each
refresh: typed text stays.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages import notices
from dashboard.pages.base import Part, alert, live
from dashboard.pages.incident.act_links import Do
from dashboard.pages.incident.acts import ACTS, Act, Submitted, Typed
from dashboard.pages.notices import Failed
from dashboard.pages.shell import Shell
from dashboard.queries.services import Services
from dashboard.repairing import NotConfirmed
from dashboard.request.current_user import LOCAL, asking
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss.errors import LaglossError
from lagloss_server.base.errors import AlreadyAcknowledged
from lagloss_server.base.times import parse_time_s


class Form(StrEnum):
    """Ids that all forms share: `DONE` changes when something was done, `CONFIRMATION` says what, `SHOWN` is which is
    open."""

    DONE = "act-done"
    CONFIRMATION = "act-told"
    SHOWN = "act-shown"


@dataclass(frozen=True, slots=True)
class _Ids:
    """Ids of one act's form."""

    form: str
    subject: str
    name: str
    name_box: str
    wrong: str
    submit: str

    @classmethod
    def of(cls, do: Do) -> _Ids:
        return cls(*(f"{do}-{part}" for part in ("form", "subject", "name", "name-box", "wrong", "it")))


_IDS = [_Ids.of(act.do) for act in ACTS]
_FIELDS = [field.id for act in ACTS for field in act.fields]


@dataclass(frozen=True, slots=True)
class Asked:
    """Action that an address asks for, with the id of an incident or a silence."""

    do: Do
    of: str

    @classmethod
    def of_address(cls, address: Address) -> Asked | None:
        do, target = address.query.get("do"), address.query.get("of")
        target = target or address.path.removeprefix("/incidents/")
        return cls(Do(do), target) if do in list(Do) else None


def forms() -> Part:
    """To be put on a page once, outside of what is redrawn."""
    shared = [dcc.Store(id=Form.DONE), dcc.Store(id=Form.SHOWN), live(Form.CONFIRMATION)]
    return html.Div([*shared, *(_form(act, _Ids.of(act.do)) for act in ACTS)])


def _form(act: Act, ids: _Ids) -> Part:
    name = dmc.TextInput(id=ids.name, label="Your name", placeholder=LOCAL.name)
    inside = [
        dmc.Text(id=ids.subject, fw=600, className="breaks"),
        dmc.Text(act.about, size="sm"),
        *act.fields,
        html.Div(name, id=ids.name_box),
        live(ids.wrong),
        dmc.Button(act.title, id=ids.submit),
    ]
    return dmc.Modal(
        dmc.Stack(inside, gap="sm"),
        id=ids.form,
        title=act.title,
        opened=False,
        closeButtonProps={"aria-label": "close"},
    )


def register(app: Dash, services: Services) -> None:
    """Once for all pages that have the forms."""
    _register_opening(app, services)
    _register_closing(app)
    for act in ACTS:
        _register_submitting(app, services, act)


def _register_opening(app: Dash, services: Services) -> None:
    @app.callback(
        *(Output(ids.form, "opened") for ids in _IDS),
        *(Output(ids.subject, "children") for ids in _IDS),
        *(Output(ids.wrong, "children") for ids in _IDS),
        *(Output(ids.name_box, "style") for ids in _IDS),
        *(Output(field, "value") for field in _FIELDS),
        Output(Form.SHOWN, "data"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        State(Form.SHOWN, "data"),
    )
    async def follow_address(pathname: str | None, search: str | None, shown: str | None) -> Any:
        request = Asked.of_address(Address.parse(pathname, search))
        key = "" if request is None else f"{request.do}/{request.of}"
        if key == (shown or ""):
            raise PreventUpdate
        may = asking().role == "operator"
        opened = [may and request is not None and request.do == act.do for act in ACTS]
        box = {} if asking() is LOCAL else {"display": "none"}
        subjects: dict[Do, str] = {}
        typed: Typed = {}
        for act in ACTS:
            if request is not None and request.do == act.do:
                fresh = await services.threads.read(notices.or_nothing, act.fresh, services.store, request.of)
                if fresh is not None:
                    subjects[act.do], typed = fresh.subject, fresh.typed
        return (
            *opened,
            *(subjects.get(act.do, no_update) for act in ACTS),
            *(None for _ in ACTS),
            *(box for _ in ACTS),
            *(typed.get(field, no_update) for field in _FIELDS),
            key,
        )


def _register_closing(app: Dash) -> None:
    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        *(Input(ids.form, "opened") for ids in _IDS),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def close(*clicks: Any) -> str:
        *opened, pathname, search = clicks
        address = Address.parse(pathname, search)
        if any(opened) or "do" not in address.query or asking().role != "operator":
            raise PreventUpdate
        return _closed(address)


def _register_submitting(app: Dash, services: Services, act: Act) -> None:
    ids, fields = _Ids.of(act.do), [field.id for field in act.fields]

    @app.callback(
        Output(Form.CONFIRMATION, "children", allow_duplicate=True),
        Output(ids.wrong, "children", allow_duplicate=True),
        Output(Form.DONE, "data", allow_duplicate=True),
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(ids.submit, "n_clicks"),
        *(State(field, "value") for field in (ids.name, *fields)),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        running=[(Output(ids.submit, "disabled"), True, False)],
        prevent_initial_call=True,
    )
    async def submit(clicks: int | None, name: str | None, *typed_name: str | None) -> tuple[Any, ...]:
        *values, pathname, search = typed_name
        address = Address.parse(pathname, search)
        request = Asked.of_address(address)
        if not clicks or request is None:
            raise PreventUpdate
        typed = {field: value or "" for field, value in zip(fields, values, strict=True)}
        submitted = Submitted(request.of, typed, name or "", address.zone)
        try:
            summary = await services.threads.act(notices.attempt, act.perform, services.store, submitted)
        except LaglossError as error:
            return _refused(_why(error, address.zone))
        if isinstance(summary, Failed):
            return _refused(notices.not_done(summary))
        return alert(act.done, summary, "teal", "✔"), None, time.time(), _closed(address)


def _refused(why: Part) -> tuple[Any, ...]:
    """Keep the typed input; the page beneath shows the present state."""
    return no_update, why, time.time(), no_update


def _why(error: LaglossError, zone: Zone) -> Part:
    if isinstance(error, NotConfirmed):
        return alert("Dry run", str(error), "orange", "?")
    if isinstance(error, AlreadyAcknowledged):
        at_s = parse_time_s(str(error.facts["at"]))
        when = f"{zone.clock(at_s, seconds=True)} {zone.label(at_s)} ({utc(at_s, seconds=True)})"
        return alert("Already acknowledged", f"{error.facts['by']} acknowledged it at {when}.", "orange", "!")
    return alert("Action failed", str(error), "red", "✖")


def _closed(address: Address) -> str:
    return address.asking(do=None, of=None).href
