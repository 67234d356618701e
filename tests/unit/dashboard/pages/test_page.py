"""Pages as lists of panels: one read for all of them, the same content for Dash and for the first answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from dash import Input, html, no_update
from dash.development.base_component import Component

from dashboard.pages import directory
from dashboard.pages.page import LIGHT, Control, Instead, Page, Panel, Visit, next_address
from dashboard.pages.printing import html_of
from dashboard.queries.services import Services
from dashboard.request.current_user import LOCAL, answer_for
from dashboard.request.links import Address
from lagloss_server.base.settings import Settings

PARAMS = {"pipeline": "chain", "start": "2026-11-21T08:00:00Z", "incident": "0a1b"}
HERE = Address("/pipelines/chain", {})


@pytest.fixture
def services() -> Iterator[Services]:
    created = Services(cast("Any", None), Settings())
    yield created
    created.threads.close()


def visit(services: Services, **changes: Any) -> Visit:
    return replace(Visit(services, HERE, PARAMS, 0.0), **changes)


def page(**changes: Any) -> Page[list[int]]:
    made: Page[list[int]] = Page(
        name="numbers",
        pattern=re.compile("/numbers"),
        title=lambda _params: "Numbers",
        frame=lambda _params, _address: html.Div([html.H1("Numbers"), html.Div(id="note"), html.Ul(id="list")]),
        notice=Panel("note", lambda numbers, _visit: f"{len(numbers)} of them"),
        read=lambda _visit: [1, 2],
        panels=(
            Panel("list", lambda numbers, _visit: [html.Li(str(number)) for number in numbers]),
            Panel("sum", lambda numbers, _visit: sum(numbers), "data", blank=0, is_steady=True),
            Panel("chart", lambda numbers, _visit: max(numbers), "figure", blank=no_update, once="seen"),
        ),
    )
    return replace(made, **changes)


def test_a_page_reads_once_for_all_its_panels(services: Services) -> None:
    reads = []

    def read(_visit: Visit) -> list[int]:
        reads.append(1)
        return [3, 4]

    notice, _, total, chart = page(read=read).draw(visit(services))
    assert (notice, total, chart, len(reads)) == ("2 of them", 7, 4, 1)


def test_readers_of_an_address_share_a_read_until_the_stamp_changes(services: Services) -> None:
    reads: list[float] = []

    def read(visit: Visit) -> list[int]:
        reads.append(visit.now_s)
        return [1]

    shared = page(read=read, stamp=lambda visit: visit.now_s // 10)
    shared.first(services, PARAMS, HERE, 1.0)
    shared.draw(visit(services, now_s=2.0), ["seen"])
    shared.draw(visit(services, now_s=3.0, dark=True))
    assert reads == [1.0]
    shared.draw(visit(services, now_s=11.0))
    assert reads == [1.0, 11.0]


def test_what_readers_share_depends_on_nothing_but_the_address() -> None:
    for more in ({"also": (Input("here", "data"),)}, {"glance": lambda _services: None}):
        with pytest.raises(ValueError, match="depends on nothing but the address"):
            page(stamp=lambda visit: visit.now_s // 10, **more)


def test_nested_lists_are_printed_once_for_all_readers(services: Services) -> None:
    panel: Panel[list[int]] = Panel("list", lambda numbers, _visit: html.Ul([html.Li(numbers[0])]), LIGHT)
    shared = page(panels=(panel,), stamp=lambda visit: visit.now_s // 10)
    first = html_of(shared.first(services, PARAMS, HERE, 1.0))
    drawn = [shared.draw(visit(services, now_s=now_s))[1] for now_s in (2.0, 3.0)]
    assert drawn[0] is drawn[1]
    assert panel.sent(drawn[0]) == {"into": "list", "tree": ["ul", {}, ["li", {}, "1"]]}
    assert panel.sent(panel.blank) == {"into": "list", "tree": None}
    assert "<ul><li>1</li></ul>" in first


def test_a_notice_stands_in_the_place_of_all_panels(services: Services) -> None:
    def read(_visit: Visit) -> list[int]:
        raise Instead("there are none")

    empty = page(read=read)
    assert empty.draw(visit(services)) == ["there are none", None, 0, no_update]
    assert html_of(empty.first(services, PARAMS, HERE, 0.0)) == (
        "<div><h1>Numbers</h1><div>there are none</div><ul></ul></div>"
    )


def test_a_refresh_leaves_steady_panels_and_late_ones_wait_for_their_store(services: Services) -> None:
    drawn = page().draw(visit(services, is_refresh=True), ["seen"])
    assert drawn[2:] == [no_update, no_update]
    assert page().draw(visit(services, is_refresh=True))[3] == 2


def test_the_first_answer_is_the_frame_with_what_the_panels_say(services: Services) -> None:
    first = html_of(page().first(services, PARAMS, HERE, 0.0))
    assert first == "<div><h1>Numbers</h1><div>2 of them</div><ul><li>1</li><li>2</li></ul></div>"


def test_a_control_leads_on_by_a_new_value_only() -> None:
    find = Control("find", lambda address: address.query.get("q", ""), lambda address, text: address.asking(q=text))
    span = Control("show", leads=lambda address, _clicks, to: address.asking(to=to), given=("to",))
    here = HERE.asking(q="a")
    assert next_address(here, {find: "a"}, {}) == here
    assert next_address(HERE, {find: None}, {}) == HERE
    assert next_address(here, {span: None}, {"to": "now"}) == here  # a button that was only mounted
    assert next_address(here, {find: "b", span: 1}, {"to": "now"}).query == {"q": "b", "to": "now"}


@pytest.mark.parametrize("shown", directory.PAGES, ids=lambda shown: shown.name)
def test_every_panel_and_control_has_its_place_in_the_frame(shown: Page[Any]) -> None:
    answer_for(LOCAL)
    frame = html.Div(shown.layout(PARAMS, Address("/pipelines/chain/report", {})))
    there = {str(part.id) for part in frame._traverse() if isinstance(part, Component) and getattr(part, "id", None)}
    panels = [shown.notice_panel, *shown.panels] if shown.read else []
    wanted = {panel.store if panel.prop == LIGHT else panel.id for panel in panels}
    wanted |= {panel.once for panel in panels if panel.once}
    wanted |= {id_ for control in shown.controls for id_ in (control.id, *control.given)}
    wanted |= {trigger.component_id for trigger in shown.also if isinstance(trigger, Input)}
    assert {str(id_) for id_ in wanted} <= there
