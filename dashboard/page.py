"""The page's components: its frame once, and its changing parts as functions of a reading."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, TypeAlias

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import words
from dashboard.ids import Id
from dashboard.pages.window_table import Row, table_rows
from dashboard.reading import Empty, Reading
from dashboard.view import RANGES_S, WINDOW_S
from dashboard.words import VERDICTS, Document
from lagloss.graph import Graph
from lagloss.presenting import sampled

Part: TypeAlias = Any
"""A Dash component; the component packages carry no types."""
REFRESH_MS: Final = 5_000
_RECENT: Final = 15
"""Closed minutes counted in the headline."""
_STALE_AFTER_GRACE_S: Final = 180
"""A newest closed window whose end is older than grace and this is bannered as stale."""


def frame() -> Part:
    return dmc.MantineProvider(
        id=Id.PROVIDER,
        defaultColorScheme="auto",
        theme={"primaryColor": "indigo", "fontFamily": "system-ui, sans-serif", "defaultRadius": "sm"},
        children=[
            dcc.Location(id=Id.URL, refresh="callback-nav"),
            dcc.Interval(id=Id.TICK, interval=REFRESH_MS),
            dcc.Store(id=Id.VIEW),
            dcc.Store(id=Id.LAG_DRAWN),
            dcc.Store(id=Id.LOSS_DRAWN),
            dcc.Store(id=Id.SCHEME, storage_type="local"),
            dmc.Container(
                [
                    _header(),
                    html.Div(id=Id.NOTICE, role="status", **_aria(live="polite")),
                    html.Div(id=Id.FAILURES, role="alert"),
                    html.Div(id=Id.INCIDENTS, role="status", **_aria(live="polite")),
                    _content(),
                ],
                size=1240,
                px={"base": "xs", "sm": "md"},
                py="sm",
            ),
        ],
    )


def _header() -> Part:
    ranges = [{"label": name, "value": name} for name in RANGES_S]
    return dmc.Group(
        [
            dmc.Title("lagloss", order=1, fz=24, className="wordmark"),
            dmc.Select(
                id=Id.PIPELINE,
                data=[],
                placeholder="pipeline",
                allowDeselect=False,
                searchable=True,
                comboboxProps={"withinPortal": True},
                w={"base": 180, "sm": 260},
                **_aria(label="pipeline"),
            ),
            dmc.SegmentedControl(id=Id.RANGE, data=ranges, value="1h", size="xs", **_aria(label="time range")),
            dmc.Text("times in UTC", size="sm", c="dimmed", visibleFrom="sm"),
            dmc.Button(
                "◐", id=Id.SCHEME_TOGGLE, variant="default", size="xs", ml="auto", **_aria(label="dark or light")
            ),
        ],
        gap="sm",
        mb="sm",
    )


def _content() -> Part:
    return html.Div(
        id=Id.CONTENT,
        style={"display": "none"},
        children=dmc.Stack(
            [
                html.Div(id=Id.HEADLINE),
                dmc.Paper(
                    [
                        dmc.Group(
                            [
                                _chart_title("Lag by hop"),
                                html.Div(
                                    dmc.Group(
                                        [
                                            dmc.Text("path", size="sm", c="dimmed"),
                                            dmc.Select(
                                                id=Id.PATH,
                                                data=[],
                                                allowDeselect=False,
                                                size="xs",
                                                w=230,
                                                **_aria(label="path through the pipeline"),
                                            ),
                                        ],
                                        gap="xs",
                                    ),
                                    id=Id.PATH_BOX,
                                ),
                            ],
                            justify="space-between",
                        ),
                        _graph(Id.LAG, 400),
                    ],
                    p="sm",
                    withBorder=True,
                ),
                dmc.Paper([_chart_title("Loss"), _graph(Id.LOSS, 310)], p="sm", withBorder=True),
                dmc.Paper(_window_part(), p="sm", withBorder=True),
            ],
            gap="sm",
        ),
    )


def _chart_title(title: str) -> Part:
    about = dmc.Text("a minute of event time, UTC · click one to open it", size="sm", c="dimmed", span=True)
    return dmc.Group([dmc.Title(title, order=2, fz=16), about], gap="xs")


def _graph(id_: Id, height: int) -> Part:
    config: Any = {
        "displaylogo": False,
        "responsive": True,
        "showTips": False,
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    }
    return dcc.Graph(id=id_, config=config, style={"height": height}, className=f"chart chart-{id_}")


def _window_part() -> list[Part]:
    columns = [
        {
            "field": "message",
            "headerName": "Message id",
            "flex": 3,
            "minWidth": 190,
            "cellClass": "mono",
            "tooltipField": "message",
        },
        {"field": "kind", "headerName": "What", "flex": 2, "minWidth": 150},
        {"field": "place", "headerName": "Where", "flex": 3, "minWidth": 190, "tooltipField": "place"},
        {"field": "last", "headerName": "Last checkpoint", "flex": 2, "minWidth": 150},
        {"field": "seen", "headerName": "Last seen (UTC)", "flex": 2, "minWidth": 220},
    ]
    grid = dag.AgGrid(
        id=Id.MISSING,
        columnDefs=columns,
        rowData=[],
        getRowId="params.data.key",
        defaultColDef={"sortable": True, "filter": True, "resizable": True},
        dashGridOptions={
            "theme": "themeQuartz",
            "pagination": True,
            "paginationPageSize": 20,
            "paginationPageSizeSelector": [20, 100, 1000],
            "enableCellTextSelection": True,
            "ensureDomOrder": True,
            "rowHeight": 34,
            "headerHeight": 38,
            "domLayout": "autoHeight",
        },
        style={"width": "100%"},
    )
    return [
        dmc.Group(
            [
                dmc.Title(id=Id.WINDOW_TITLE, order=2, fz=16),
                dmc.Button("Follow the newest minute", id=Id.FOLLOW, variant="light", size="xs", display="none"),
            ],
            justify="space-between",
            mb="xs",
        ),
        html.Div(id=Id.WINDOW),
        html.Div([dmc.Title(id=Id.MISSING_TITLE, order=3, fz=14, mt="md", mb="xs"), grid], id=Id.MISSING_BOX),
    ]


def notice(reading: Reading) -> Part | None:
    """The empty state in words, or a banner over stale data; None when all is well."""
    name = reading.view.pipeline or (reading.names[0] if reading.names else "")
    span = f"{words.clock(reading.from_s, date=True)} and {words.clock(reading.to_s, date=True)} UTC"
    match reading.empty:
        case Empty.QUERY_FAILED:
            told = f"PostgreSQL did not answer: {reading.error}. What is shown below, if anything, was read before."
            tried = (
                f"Tried at {words.clock(reading.now_s, seconds=True)} UTC; trying again every {REFRESH_MS // 1000} s."
            )
            return _alert("Query failed", [told, html.Br(), tried], "red", "✖")
        case Empty.NO_PIPELINE:
            steps = "lagloss apply clicks.yaml"
            lines: Any = [
                "Declare one and store it; this page finds it by itself:",
                dmc.Code(steps, block=True, mt="xs"),
            ]
            return _alert("No pipeline yet", lines, "blue", "＋")
        case Empty.UNKNOWN_PIPELINE:
            told = f"There is no pipeline named {name}. Choose one of: {', '.join(reading.names)}."
            return _alert("Unknown pipeline", told, "orange", "?")
        case Empty.NO_WINDOW:
            told = (
                f"{name} is declared, but no beacon of it has been counted yet. The first minute shows live a second "
                "after its first beacons, and is judged a minute after it ends."
            )
            return _alert("No window yet", told, "blue", "…")
        case Empty.NOTHING_IN_RANGE:
            newest = words.minute(words.start_s(reading.newest)) if reading.newest else words.NOTHING
            told = f"{name} has no windows between {span}. Its newest closed minute is {newest}: choose a longer range."
            return _alert("Nothing in this range", told, "orange", "∅")
    return _stale(reading)


def _stale(reading: Reading) -> Part | None:
    if reading.newest is None or reading.pipeline is None:
        return None
    age_s = reading.now_s - words.start_s(reading.newest) - WINDOW_S
    grace_s = reading.pipeline.definition.spec.grace / 1_000
    if age_s <= grace_s + _STALE_AFTER_GRACE_S:
        return None
    told = (
        f"The newest closed minute ended {words.ago(age_s)}; with a grace of {words.lag(1_000 * grace_s)} a newer one "
        "should be there. Nothing after it is judged: look at the aggregator and at the emitters' reports."
    )
    return _alert("Stale", told, "orange", "!")


def _alert(title: str, children: Any, colour: str, icon: str) -> Part:
    return dmc.Alert(children, title=title, color=colour, icon=html.Span(icon, **_aria(hidden="true")), mb="sm")


def headline(reading: Reading) -> Part | None:
    """Verdict of the newest closed minute, how the last ones went, how fresh that is, and its numbers."""
    newest, pipeline = reading.newest, reading.pipeline
    if newest is None or pipeline is None:
        return dmc.Alert("Live numbers only: no minute is closed yet.", color="blue", title="Not closed yet")
    sla = pipeline.definition.spec.sla
    closed = [window for window in reading.windows if window["verdict"] is not None][-_RECENT:]
    closed_ago = words.ago(reading.now_s - words.parse_utc_s(newest["closed_at"]))
    fresh = (
        f"{words.minute(words.start_s(newest))} · closed {closed_ago}"
        f" · read at {words.clock(reading.now_s, seconds=True)} UTC"
    )
    return dmc.Paper(
        [
            dmc.Group(
                [
                    verdict_badge(newest, size="xl"),
                    html.Div(
                        [
                            dmc.Text(words.verdict_sentence(newest, sla.loss.max), fw=600),
                            dmc.Text(fresh, size="sm", c="dimmed"),
                        ],
                        className="grows",
                    ),
                ],
                gap="md",
                wrap="nowrap",
                align="flex-start",
            ),
            _recent(closed),
            dmc.SimpleGrid(
                [_tile(*tile) for tile in _tiles(newest, reading)], cols={"base": 2, "sm": 4}, mt="sm", spacing="sm"
            ),
        ],
        p="sm",
        withBorder=True,
    )


def _recent(closed: list[Document]) -> Part:
    counts = Counter(words.verdict_of(window) for window in closed)
    badges = [
        dmc.Badge(
            f"{VERDICTS[verdict].icon} {counts[verdict]} {VERDICTS[verdict].word}",
            color=VERDICTS[verdict].colour,
            variant="light",
        )
        for verdict in VERDICTS
        if counts[verdict]
    ]
    return dmc.Group(
        [dmc.Text(f"last {len(closed)} closed minutes", size="sm", c="dimmed"), *badges], gap="xs", mt="xs"
    )


def _tiles(newest: Document, reading: Reading) -> list[tuple[str, str, str]]:
    """(title, value, target) of the newest closed minute."""
    assert reading.pipeline is not None
    sla = reading.pipeline.definition.spec.sla
    e2e = newest["e2e_lag_ms"]
    return [
        ("Loss", words.share_interval(newest["loss_ratio"]), f"target ≤ {words.share(sla.loss.max)}"),
        (
            "E2E lag p95",
            words.lag(e2e["p95"]),
            f"SLA p{sla.lag.percentile:g} ≤ {words.lag(sla.lag.target)} · max {words.lag(e2e['max'])}",
        ),
        ("On time", words.share(newest["on_time_share"]), f"delivered within {words.lag(sla.lag.target)}"),
        (
            "Messages",
            words.count(newest["messages"]),
            " · ".join(f"{words.count(newest[kind])} {kind}" for kind in ("delivered", "filtered", "dead", "pending")),
        ),
    ]


def _tile(title: str, value: str, target: str) -> Part:
    return dmc.Paper(
        [
            dmc.Text(title, size="xs", c="dimmed"),
            dmc.Text(value, fz=20, fw=650),
            dmc.Text(target, size="xs", c="dimmed"),
        ],
        p="xs",
        className="tile",
    )


def verdict_badge(window: Document, size: str = "lg") -> Part:
    look = VERDICTS[words.verdict_of(window)]
    return dmc.Badge(
        [html.Span(look.icon, **_aria(hidden="true")), f" {look.word}"],
        color=look.colour,
        size=size,
        variant="filled",
        autoContrast=True,
        className="verdict",
    )


def window_title(reading: Reading) -> str:
    if reading.chosen is not None:
        return f"Minute {words.minute(words.start_s(reading.chosen))}"
    if reading.view.window_s is not None:
        return f"Minute {words.minute(reading.view.window_s)}"
    return "Minute"


def window_detail(reading: Reading) -> Part:
    """Verdict with its reasons, and the talk's table."""
    window, pipeline = reading.chosen, reading.pipeline
    if window is None or pipeline is None:
        return dmc.Text("No window is stored for this minute. Click a minute in a chart above.", c="dimmed")
    sla = pipeline.definition.spec.sla
    reasons = [dmc.ListItem(words.reason(code)) for code in window["reasons"]]
    facts = [f"revision {window['revision']}", window["state"], f"proof: {window['proof']}"]
    if "sample" in window["reasons"]:
        facts.append(sampled(window))
    if window["closed_at"]:
        facts.append(f"closed {words.clock(words.parse_utc_s(window['closed_at']), seconds=True, date=True)} UTC")
    if window.get("history"):
        facts.append("history: sent after the fact, not paged")
    return html.Div(
        [
            dmc.Group(
                [
                    verdict_badge(window),
                    html.Div(
                        [
                            dmc.Text(words.verdict_sentence(window, sla.loss.max)),
                            dmc.List(reasons, size="sm") if reasons else None,
                            dmc.Text(" · ".join(facts), size="sm", c="dimmed"),
                        ],
                        className="grows",
                    ),
                ],
                align="flex-start",
                gap="md",
                mb="sm",
                wrap="nowrap",
            ),
            _talks_table(window, Graph(pipeline.definition)),
        ]
    )


def _talks_table(window: Document, graph: Graph) -> Part:
    live = window["verdict"] is None
    heads = ["Checkpoint", "Count (live beacons)" if live else "Count", "Per-Node Loss", "Duplicates", "Lag p95"]
    return dmc.TableScrollContainer(
        dmc.Table(
            [
                dmc.TableThead(
                    dmc.TableTr([dmc.TableTh(head, className="number" if at else "") for at, head in enumerate(heads)])
                ),
                dmc.TableTbody([_table_row(row) for row in table_rows(window, graph)]),
                dmc.TableTfoot(
                    [
                        _foot("E2E Loss", words.interval(window["lost"])),
                        _foot("E2E Loss %", words.share_interval(window["loss_ratio"])),
                    ]
                ),
            ],
            striped=True,
            withTableBorder=True,
            tabularNums=True,
            verticalSpacing=4,
            className="talk",
        ),
        minWidth=480,
        type="native",
    )


def _table_row(row: Row) -> Part:
    lost = words.interval(row.lost) if row.lost else ""
    bad = bool(row.lost and row.lost["max"])
    return dmc.TableTr(
        [
            dmc.TableTh(row.checkpoint, attributes={"root": {"scope": "row"}}, className="checkpoint"),
            dmc.TableTd(words.count(row.count), className="number"),
            dmc.TableTd(lost, className="number lossy" if bad else "number"),
            dmc.TableTd(words.count(row.duplicates) if row.duplicates else "", className="number"),
            dmc.TableTd(words.lag(row.lag_p95_ms), className="number"),
        ]
    )


def _foot(title: str, value: str) -> Part:
    return dmc.TableTr(
        [
            dmc.TableTh(title, attributes={"root": {"scope": "row"}}),
            dmc.TableTh(""),
            dmc.TableTh(value, className="number"),
            dmc.TableTh(""),
            dmc.TableTh(""),
        ]
    )


def missing_title(reading: Reading) -> str:
    number = len(reading.missing)
    if not number:
        return ""
    return f"{words.messages(number)} lost or late" + (" (the first 1,000)" if number >= 1_000 else "")


def _aria(**attributes: str) -> dict[str, Any]:
    return {f"aria-{name}": value for name, value in attributes.items()}
