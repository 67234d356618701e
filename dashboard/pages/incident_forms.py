"""Forms in which operators acknowledge an incident, silence some, or end a silence.

The address says which is open (`do`, `of`), so that a link can lead to it. They stand beside what is redrawn at each
refresh: what somebody is typing stays.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboard import acts
from dashboard.links import Address
from dashboard.pages import notices
from dashboard.pages.act_links import Do
from dashboard.pages.band import at
from dashboard.pages.base import Part, alert, live
from dashboard.reads.alerts import read_incident
from dashboard.services import Services
from dashboard.shell import Shell
from dashboard.who import LOCAL, asking
from dashboard.zones import Zone, utc
from lagloss.errors import AlreadyAcknowledged, LaglossError
from lagloss.incident_actions import Silence
from lagloss.incidents import Incident
from lagloss.store import Store
from lagloss.times import parse_time_s

DURATIONS_S: Final = {
    "30 minutes": 1_800,
    "1 hour": 3_600,
    "2 hours": 7_200,
    "4 hours": 14_400,
    "8 hours": 28_800,
    "24 hours": 86_400,
}


class Form(StrEnum):
    """Ids of the forms; `DONE` changes when something was done, `TOLD` says what."""

    DONE = "act-done"
    TOLD = "act-told"
    SHOWN = "act-shown"
    NAME = "act-name"
    ACKNOWLEDGE = "acknowledge-form"
    NOTE = "acknowledge-note"
    ACKNOWLEDGE_IT = "acknowledge-it"
    ACKNOWLEDGE_WRONG = "acknowledge-wrong"
    SILENCE = "silence-form"
    MATCHERS = "silence-matchers"
    DURATION = "silence-duration"
    REASON = "silence-reason"
    SILENCE_IT = "silence-it"
    SILENCE_WRONG = "silence-wrong"
    END = "end-silence-form"
    END_IT = "end-silence-it"
    END_WRONG = "end-silence-wrong"


_WINDOWS: Final = {Do.ACKNOWLEDGE: Form.ACKNOWLEDGE, Do.SILENCE: Form.SILENCE, Do.END_SILENCE: Form.END}
_WRONG: Final = (Form.ACKNOWLEDGE_WRONG, Form.SILENCE_WRONG, Form.END_WRONG)


@dataclass(frozen=True, slots=True)
class Asked:
    """What an address asks to be done, and of what: an incident's id or a silence's."""

    do: Do
    of: str

    @classmethod
    def of_address(cls, here: Address) -> Asked | None:
        do, of = here.query.get("do"), here.query.get("of")
        of = of or here.path.removeprefix("/incidents/")
        return cls(Do(do), of) if do in list(Do) else None


def forms() -> Part:
    """To be put on a page once, outside of what is redrawn."""
    return html.Div(
        [
            dcc.Store(id=Form.DONE),
            dcc.Store(id=Form.SHOWN),
            live(Form.TOLD),
            _acknowledge(),
            _silence(),
            _end(),
        ]
    )


def _acknowledge() -> Part:
    fields = [
        dmc.Text("It is not escalated any further, and no reminders of it are sent.", size="sm"),
        _name(Do.ACKNOWLEDGE),
        dmc.Textarea(
            id=Form.NOTE,
            label="Note (optional)",
            description="what you know or are going to do",
            autosize=True,
            minRows=3,
        ),
    ]
    return _window("Acknowledge the incident", Form.ACKNOWLEDGE, fields, Form.ACKNOWLEDGE_WRONG, Form.ACKNOWLEDGE_IT)


def _silence() -> Part:
    fields = [
        dmc.Text("Nobody is told of incidents that match all of these. They are recorded all the same.", size="sm"),
        dmc.Textarea(
            id=Form.MATCHERS,
            label="Matchers",
            description="one a line: label=value, !=, =~ or !~",
            autosize=True,
            minRows=3,
            classNames={"input": "mono"},
        ),
        dmc.Select(
            id=Form.DURATION,
            label="For",
            data=[{"label": name, "value": str(for_s)} for name, for_s in DURATIONS_S.items()],
            value="7200",
            allowDeselect=False,
        ),
        _name(Do.SILENCE),
        dmc.Textarea(
            id=Form.REASON, label="Reason", description="everybody sees it", required=True, autosize=True, minRows=2
        ),
    ]
    return _window("Silence", Form.SILENCE, fields, Form.SILENCE_WRONG, Form.SILENCE_IT)


def _end() -> Part:
    fields = [
        dmc.Text("Receivers are told of what is still open, and of what comes.", size="sm"),
        _name(Do.END_SILENCE),
    ]
    return _window("End the silence", Form.END, fields, Form.END_WRONG, Form.END_IT)


def _window(title: str, id_: Form, fields: list[Part], wrong: Form, button: Form) -> Part:
    inside = [*fields, live(wrong), dmc.Button(title, id=button)]
    return dmc.Modal(
        dmc.Stack(inside, gap="sm"), id=id_, title=title, opened=False, closeButtonProps={"aria-label": "close"}
    )


def _name(do: Do) -> Part:
    field = dmc.TextInput(id=f"{Form.NAME}-{do}", label="Your name", placeholder=LOCAL.name)
    return html.Div(field, id=f"{Form.NAME}-{do}-box")


def register(app: Dash, services: Services) -> None:
    """Once for all pages that have the forms."""
    _register_opening(app, services)
    _register_acknowledging(app, services)
    _register_silencing(app, services)
    _register_ending(app, services)


def _register_opening(app: Dash, services: Services) -> None:
    @app.callback(
        *(Output(form, "opened") for form in _WINDOWS.values()),
        *(Output(wrong, "children") for wrong in _WRONG),
        *(Output(f"{Form.NAME}-{do}-box", "style") for do in Do),
        *(Output(field, "value") for field in (Form.NOTE, Form.REASON, Form.MATCHERS)),
        Output(Form.SHOWN, "data"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        State(Form.SHOWN, "data"),
    )
    async def follow_address(pathname: str | None, search: str | None, shown: str | None) -> Any:
        asked = Asked.of_address(Address.parse(pathname, search))
        key = "" if asked is None else f"{asked.do}/{asked.of}"
        if key == (shown or ""):
            raise PreventUpdate
        may = asking().role == "operator"
        opened = [may and asked is not None and asked.do == do for do in _WINDOWS]
        box = {} if asking() is LOCAL else {"display": "none"}
        typed: tuple[Any, ...] = (no_update, no_update, no_update)
        if asked is not None:
            matchers = await services.threads.read(notices.or_nothing, _matchers_of, services.store, asked.of)
            typed = ("", "", matchers or "")
        return *opened, *(None for _ in _WRONG), *(box for _ in Do), *typed, key

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        *(Input(form, "opened") for form in _WINDOWS.values()),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def close(*given: Any) -> str:
        *opened, pathname, search = given
        here = Address.parse(pathname, search)
        if any(opened) or "do" not in here.query or asking().role != "operator":
            raise PreventUpdate
        return _closed(here)


def _register_acknowledging(app: Dash, services: Services) -> None:
    @app.callback(
        _outputs(Form.ACKNOWLEDGE_WRONG),
        Input(Form.ACKNOWLEDGE_IT, "n_clicks"),
        State(Form.NOTE, "value"),
        State(f"{Form.NAME}-{Do.ACKNOWLEDGE}", "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        running=[(Output(Form.ACKNOWLEDGE_IT, "disabled"), True, False)],
        prevent_initial_call=True,
    )
    async def acknowledge(
        clicks: int | None, note: str | None, name: str | None, pathname: str | None, search: str | None
    ) -> Any:
        here, asked = _submitted(clicks, pathname, search)
        try:
            await services.threads.act(acts.acknowledge, services.store, asked.of, note, name)
        except LaglossError as error:
            return _refused(error, here.zone)
        return _done(here, "Acknowledged", "It is yours: its receivers are told who has it.")


def _register_silencing(app: Dash, services: Services) -> None:
    @app.callback(
        _outputs(Form.SILENCE_WRONG),
        Input(Form.SILENCE_IT, "n_clicks"),
        State(Form.MATCHERS, "value"),
        State(Form.DURATION, "value"),
        State(Form.REASON, "value"),
        State(f"{Form.NAME}-{Do.SILENCE}", "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        running=[(Output(Form.SILENCE_IT, "disabled"), True, False)],
        prevent_initial_call=True,
    )
    async def silence(
        clicks: int | None,
        matchers: str | None,
        for_s: str | None,
        reason: str | None,
        name: str | None,
        pathname: str | None,
        search: str | None,
    ) -> Any:
        here, _ = _submitted(clicks, pathname, search)
        try:
            made, about = await services.threads.act(
                acts.silence,
                services.store,
                (matchers or "").splitlines(),
                reason=reason or "",
                for_s=float(for_s or 0),
                author=name,
            )
        except LaglossError as error:
            return _refused(error, here.zone)
        return _done(here, "Silenced", _silenced(made, len(about), here.zone))


def _register_ending(app: Dash, services: Services) -> None:
    @app.callback(
        _outputs(Form.END_WRONG),
        Input(Form.END_IT, "n_clicks"),
        State(f"{Form.NAME}-{Do.END_SILENCE}", "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        running=[(Output(Form.END_IT, "disabled"), True, False)],
        prevent_initial_call=True,
    )
    async def end(clicks: int | None, name: str | None, pathname: str | None, search: str | None) -> Any:
        here, asked = _submitted(clicks, pathname, search)
        try:
            await services.threads.act(acts.end_silence, services.store, asked.of, name)
        except LaglossError as error:
            return _refused(error, here.zone)
        return _done(here, "Silence ended", "Receivers are told of what is still open.")


def _outputs(wrong: Form) -> list[Output]:
    return [
        Output(Form.TOLD, "children", allow_duplicate=True),
        Output(wrong, "children", allow_duplicate=True),
        Output(Form.DONE, "data", allow_duplicate=True),
        Output(Shell.URL, "href", allow_duplicate=True),
    ]


def _submitted(clicks: int | None, pathname: str | None, search: str | None) -> tuple[Address, Asked]:
    here = Address.parse(pathname, search)
    asked = Asked.of_address(here)
    if not clicks or asked is None:
        raise PreventUpdate
    return here, asked


def _done(here: Address, title: str, told: Any) -> tuple[Any, ...]:
    return alert(title, told, "teal", "✔"), None, time.time(), _closed(here)


def _refused(error: LaglossError, zone: Zone) -> tuple[Any, ...]:
    """What was typed stays; the page beneath shows how things stand now."""
    if isinstance(error, AlreadyAcknowledged):
        at_s = parse_time_s(str(error.facts["at"]))
        when = f"{zone.clock(at_s, seconds=True)} {zone.label(at_s)} ({utc(at_s, seconds=True)})"
        told = alert("Already acknowledged", f"{error.facts['by']} was faster, at {when}.", "orange", "!")
    else:
        told = alert("Not done", str(error), "red", "✖")
    return no_update, told, time.time(), no_update


def _closed(here: Address) -> str:
    return here.asking(do=None, of=None).href


def _silenced(made: Silence, about: int, zone: Zone) -> list[Any]:
    number = f"{about} open incident{'' if about == 1 else 's'}" if about else "no incident that is open now"
    return ["Until ", at(made.ends_at, zone), f"; it matches {number}."]


def _matchers_of(store: Store, incident_id: str) -> str:
    """What chooses just this incident's rule in its pipeline; nothing where there is no such incident."""
    try:
        found: Incident = read_incident(store, incident_id).incident
    except LaglossError:
        return ""
    return f"pipeline={found.pipeline}\nrule={found.rule}"
