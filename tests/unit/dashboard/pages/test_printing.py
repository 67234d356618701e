"""Components without Dash, as nested lists and as HTML: text stays text, and nothing runs or asks for a script."""

from __future__ import annotations

import dash_mantine_components as dmc
import pytest
from dash import dcc, html

from dashboard.pages.base import SCRIPTED, Part, alert, badge
from dashboard.pages.printing import element, html_of, inside_link, nodes_of


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("<b>", "&lt;b&gt;"),
        (None, ""),
        ([1, None, "x"], "1x"),
        (html.P(["a", html.Br(), "b"], id="p", className="c"), '<p class="c">a<br>b</p>'),
        (html.Time("9", title="noon", dateTime="z"), '<time datetime="z" title="noon">9</time>'),
        (dmc.Title("T", order=2), '<h2 class="plain-title">T</h2>'),
        (dmc.Anchor("a", href="/x?y=1&z=2"), '<a class="plain-anchor" href="/x?y=1&amp;z=2">a</a>'),
        (dmc.Text("t", fw=700), '<div class="plain-text plain-bold">t</div>'),
        (
            dmc.TableTh("h", attributes={"root": {"scope": "row"}}),
            '<th class="plain-tableth" scope="row">h</th>',
        ),
        (inside_link("x", "/x"), '<a href="/x">x</a>'),
        (html.Div([html.P("a"), html.Section(html.Div())]), "<div><p>a</p></div>"),
    ],
)
def test_what_is_read_is_there_as_html(part: Part, expected: str) -> None:
    assert html_of(part) == expected


@pytest.mark.parametrize(
    "part",
    [
        dcc.Graph(id="g"),
        dcc.Store(id="s", data="x"),
        dmc.Button("Acknowledge"),
        dmc.Select(id="s", data=["x"]),
        html.Form(html.Button("Log out"), action="/logout"),
        html.Div("for callbacks", hidden=True),
        html.Div("on another tab", style={"display": "none"}),
        html.Div("a chart's head", className=SCRIPTED),
        html.Div(html.Nav(dmc.Button("Acknowledge"))),
    ],
)
def test_what_needs_a_script_is_left_out(part: Part) -> None:
    assert html_of(part) == ""


def test_no_address_and_no_attribute_runs_a_script() -> None:
    said = html_of(
        [html.A("a", href="javascript:alert(1)"), html.Img(src="javascript:x"), html.P("p", style={"x": "y"})]
    )
    assert said == "<a>a</a><img><p>p</p>"
    assert html_of(html.P('"><script>', title='"><script>')) == (
        '<p title="&quot;&gt;&lt;script&gt;">&quot;&gt;&lt;script&gt;</p>'
    )


def test_the_browser_gets_the_same_elements_as_nested_lists() -> None:
    row = html.Tr([html.Td(["1 s", None], className="bad"), html.Td(inside_link("<b>", "/x"))], **{"data-key": "a"})
    assert list(nodes_of(row)) == [
        [
            "tr",
            {"data-key": "a"},
            ["td", {"class": "bad"}, "1 s"],
            ["td", {}, ["a", {"data-inside": "", "href": "/x"}, "<b>"]],
        ]
    ]


def test_an_element_is_what_the_component_is_printed_as() -> None:
    properties = {"role": "cell", "className": None, "style": {"x": "y"}, "data-label": "Lag"}
    children = ["1 s", html.Br(), None, "<b>"]
    assert nodes_of(element("td", children, **properties)) == nodes_of(html.Td(children, **properties))
    assert html_of(html.Tr([element("td", 1), element("div")])) == "<tr><td>1</td></tr>"
    assert nodes_of(element("a", "x", href="javascript:x", onclick="x")) == [["a", {}, "x"]]


def test_a_verdict_and_a_notice_keep_their_words() -> None:
    assert "Loss" in html_of(badge("Loss", "✖", "red"))
    said = html_of(alert("Stale", "since 9:00", "orange", "!"))
    assert "Stale" in said
    assert "since 9:00" in said
