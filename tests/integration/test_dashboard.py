"""The page in a real browser, over real rows in a real PostgreSQL, served by `python -m dashboard`."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from sqlalchemy import Connection, delete, update

from docs.make_screenshot import CHROMIUM_ARGS, chromium_path
from lagloss import tables
from lagloss.alert_tables import Incident, IncidentChange, OutboxMessage
from lagloss.processes import choose_port
from lagloss.runbooks import KINDS
from lagloss.store import Store
from tests.incident_rows import store_delivery, store_incident
from tests.window_documents import clicks, document, store_missing, store_window

pytestmark = pytest.mark.skipif(not Path(chromium_path()).exists(), reason="no chromium: apt-get install chromium")


@functools.cache
def now() -> int:
    """The minute in which the first test of this module began: the module is imported long before, in a whole run."""
    return int(time.time()) // 60 * 60


def lossy() -> int:
    return now() - 600


def newest() -> int:
    return now() - 180


LAGS = {"col-service.in": 10.0, "col-service.out": 20.0, "event-norm.in": 50.0, "event-norm.out": 60.0}
LAGS |= {"event-router.in": 100.0, "event-router.out:conn-ga": 110.0, "event-router.out:conn-fb": 110.0}
LAGS |= {"conn-ga.in": 200.0, "conn-ga.out": 900.0, "conn-fb.in": 150.0, "conn-fb.out": 300.0}


@pytest.fixture(scope="module")
def store(module_database_url: str) -> Iterator[Store]:
    store = Store(module_database_url)
    yield store
    store.engine.dispose()


@pytest.fixture(scope="module")
def url(module_database_url: str, store: Store) -> Iterator[str]:
    """A served page; before there is any pipeline."""
    port = choose_port("the dashboard under test")
    environment = {**os.environ, "LAGLOSS_DATABASE_URL": module_database_url, "LAGLOSS_DASHBOARD_PORT": str(port)}
    process = subprocess.Popen([sys.executable, "-m", "dashboard"], env=environment)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/healthz").json() == {"status": "ok"}:
                break
        except httpx.HTTPError:
            time.sleep(0.2)
    yield url
    process.terminate()
    assert process.wait(20) in (0, -15)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_ARGS)
        yield browser
        browser.close()


class Watched:
    """A page, every host it asked and whatever its console complained about."""

    def __init__(self, browser: Browser, width: int = 1280) -> None:
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
        self.hosts: set[str] = set()
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname or request.url[:40]))
        self.page.on("websocket", lambda socket: self.hosts.add(urlsplit(socket.url).hostname or ""))
        self.page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    watched = Watched(browser)
    yield watched
    watched.page.close()
    own = {"127.0.0.1"}
    assert {host for host in watched.hosts if not host.startswith(("data:", "blob:"))} <= own
    assert watched.complaints == []


def seed(store: Store) -> None:
    store.apply(clicks())
    with store.engine.begin() as connection:
        for table in (tables.Window, tables.MissingMessage):
            connection.execute(delete(table))
        for start_s in range(now() - 3_000, newest() + 60, 60):
            loss = {"event-norm->event-router": (30, 30), "conn-ga": (5, 7)} if start_s == lossy() else None
            window = document(
                clicks(),
                start_s,
                verdict="loss" if loss else "ok",
                lags_ms=LAGS,
                lost=loss,
                reasons=("evidence:conn-ga",) if loss else (),
                history=start_s < now() - 1_800,
            )
            store_window(connection, window, start_s)
        for number in range(30):
            name = f"<b>evt</b>-{number:03d}"
            store_missing(
                connection,
                "clicks",
                lossy(),
                name,
                kind="lost",
                place="link event-norm->event-router",
                last="event-norm.out",
            )


def bar_of(page: Page, window_start_s: int) -> tuple[float, float]:
    """Where in the loss chart a minute is drawn, in pixels of the page."""
    spot = page.evaluate(
        """start_s => {
            const chart = document.querySelector('#loss .js-plotly-plot'), axis = chart._fullLayout.xaxis;
            const box = chart.querySelector('.nsewdrag').getBoundingClientRect();
            return [box.left + axis.d2p(new Date((start_s + 30) * 1000).toISOString().slice(0, 19)),
                    box.top + box.height / 2];
        }""",
        window_start_s,
    )
    return spot[0], spot[1]


def click_minute(page: Page, window_start_s: int) -> None:
    """Hovers over a minute of the loss chart until its values show, as a reader does, and clicks."""
    page.locator("#loss .nsewdrag").first.wait_for()
    page.locator("#loss .js-plotly-plot").scroll_into_view_if_needed()
    for attempt in range(100):
        x, y = bar_of(page, window_start_s)
        page.mouse.move(x + attempt % 2, y)
        page.wait_for_timeout(100)
        if page.locator("#loss .hoverlayer .legend").count():
            page.mouse.click(x + attempt % 2, y)
            return
    pytest.fail("the loss chart shows nothing under the mouse")


def test_1_before_there_is_anything_the_page_says_so_and_finds_the_first_pipeline_by_itself(
    url: str, store: Store, watched: Watched
) -> None:
    page = watched.page
    page.goto(url)
    expect(page.get_by_text("No pipeline yet")).to_be_visible(timeout=20_000)
    store.apply(clicks())
    expect(page.get_by_text("No window yet")).to_be_visible(timeout=15_000)
    seed(store)
    expect(page.get_by_role("heading", name="Lag by hop")).to_be_visible(timeout=15_000)
    expect(page.locator("#notice")).to_be_empty()


def test_2_a_click_on_a_minute_opens_its_table_and_lost_ids_and_goes_into_the_url(
    url: str, store: Store, watched: Watched
) -> None:
    seed(store)
    page = watched.page
    page.goto(f"{url}/?pipeline=clicks&range=1h")
    expect(page.locator("#window")).to_contain_text("0 of 1,000 messages lost", timeout=20_000)
    expect(page.locator("#missing-box")).to_be_hidden()
    click_minute(page, lossy())
    expect(page.locator("#window")).to_contain_text("35 of 1,000 messages (3.5 %) lost for certain")
    expect(page.locator("#window")).to_contain_text("the evidence of node conn-ga is incomplete")
    row = page.locator("#window tr", has_text="event-router.in")
    expect(row.locator("td").nth(1)).to_have_text("30")
    expect(page.locator("#window tfoot")).to_contain_text("35–37")
    expect(page.locator("#missing")).to_contain_text("<b>evt</b>-000")  # as text, not as HTML
    expect(page.locator("#missing")).to_contain_text("link event-norm → event-router")
    assert f"window={time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(lossy()))}" in page.url
    page.go_back()
    expect(page.locator("#window")).to_contain_text("0 of 1,000 messages lost")


def test_3_a_link_shows_the_same_view_and_following_leaves_it(url: str, store: Store, watched: Watched) -> None:
    seed(store)
    page = watched.page
    page.goto(f"{url}/?pipeline=clicks&range=3h&window={time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(lossy()))}")
    expect(page.locator("#window")).to_contain_text("35 of 1,000", timeout=20_000)
    expect(page.locator("#range input[value='3h']")).to_be_checked()
    page.get_by_role("button", name="Follow the newest minute").click()
    expect(page.locator("#window")).to_contain_text("0 of 1,000 messages lost")
    assert "window=" not in page.url


def test_4_a_refresh_keeps_the_zoom_and_shows_new_minutes(url: str, store: Store, watched: Watched) -> None:
    seed(store)
    page = watched.page
    page.goto(f"{url}/?pipeline=clicks&range=1h")
    page.locator("#loss .nsewdrag").first.wait_for(timeout=20_000)
    page.locator("#loss").scroll_into_view_if_needed()
    axis = "document.querySelector('#loss .js-plotly-plot')._fullLayout.xaxis.range.join()"
    whole = page.evaluate(axis)
    x, y = bar_of(page, lossy())
    page.mouse.move(x - 60, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=5)
    page.mouse.up()
    page.wait_for_function(f"{axis} !== '{whole}'")
    zoomed = page.evaluate(axis)
    with store.engine.begin() as connection:
        store_window(connection, document(clicks(), now() - 120, lags_ms=LAGS, messages=4_321), now() - 120)
    expect(page.locator("#headline")).to_contain_text("4,321", timeout=15_000)
    assert page.evaluate(axis) == zoomed


@pytest.mark.parametrize("width", [1280, 390])
def test_5_nothing_sticks_out_sideways(url: str, store: Store, browser: Browser, width: int) -> None:
    seed(store)
    watched = Watched(browser, width)
    watched.page.goto(f"{url}/?pipeline=clicks&range=1h")
    watched.page.locator("#window table").wait_for(timeout=20_000)
    assert watched.page.evaluate("document.documentElement.scrollWidth") == width
    watched.page.close()


def test_6_unknown_pipelines_empty_ranges_and_failed_queries_are_told_apart(
    url: str, store: Store, watched: Watched
) -> None:
    seed(store)
    page = watched.page
    page.goto(f"{url}/?pipeline=nobody")
    expect(page.get_by_text("Unknown pipeline")).to_be_visible(timeout=20_000)
    page.goto(f"{url}/?pipeline=clicks&range=1h&window=2020-01-01T00:00:00Z")
    expect(page.get_by_text("Nothing in this range")).to_be_visible(timeout=20_000)
    page.goto(f"{url}/?pipeline=clicks&range=1h")
    expect(page.locator("#window table")).to_be_visible(timeout=20_000)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE pipeline RENAME TO pipeline_away")
    try:
        expect(page.get_by_text("Query failed")).to_be_visible(timeout=15_000)
        expect(page.locator("#window table")).to_be_visible()  # what was read before stays
    finally:
        with store.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE pipeline_away RENAME TO pipeline")
    expect(page.get_by_text("Query failed")).to_be_hidden(timeout=15_000)


@pytest.fixture
def incidents(store: Store) -> Iterator[Connection]:
    """A transaction for a test's incidents, which are gone after it."""
    seed(store)
    with store.engine.connect() as connection:
        yield connection
    with store.engine.begin() as connection:
        for table in (IncidentChange, OutboxMessage, Incident):
            connection.execute(delete(table))


def test_7_open_incidents_stand_above_the_charts_and_go_when_they_are_over(
    url: str, incidents: Connection, watched: Watched
) -> None:
    opened_at = datetime.fromtimestamp(now() - 600, UTC)
    critical = store_incident(incidents, pipeline="clicks", opened_at=opened_at)
    detail = {"text": "p95 of conn-ga.out 4.2 s, target 1.2 s", "where": []}
    store_incident(
        incidents, pipeline="clicks", rule="lag/checkpoint/conn-ga.out", kind="lag", severity="warning",
        opened_at=opened_at, acknowledged_at=opened_at, acknowledged_by="<i>ann</i>",
        withheld="silence 3f2a until 23:00", detail=detail,
    )  # fmt: skip
    store_incident(incidents, pipeline="other", opened_at=opened_at)
    incidents.commit()
    page = watched.page
    page.goto(f"{url}/?pipeline=clicks&range=1h")
    band = page.locator("#incidents")
    expect(band.get_by_role("heading", name="2 open incidents")).to_be_visible(timeout=20_000)
    first, second = band.locator(".incident").all()
    for told in (
        "CRITICAL", "loss: 3.20% of messages lost, target 1.00%", "nobody has acknowledged it",
        "where: link src->mid: 94 lost, 98% of the loss", f"lagloss alerts ack {critical}",
    ):  # fmt: skip
        expect(first).to_contain_text(told)
    for told in ("WARNING", "4.2 s, target 1.2 s", "acknowledged by <i>ann</i> at", "nobody is told: silence 3f2a"):
        expect(second).to_contain_text(told)
    assert second.get_by_role("link", name="Runbook").get_attribute("href") == "/runbooks/lag"
    expect(page.locator("#failures")).to_be_empty()
    page.locator("#window table").wait_for()
    top = [page.locator(name).bounding_box() for name in ("#incidents", "#headline", "#lag")]
    assert top == sorted(top, key=lambda box: box["y"] if box else 0)

    incidents.execute(update(Incident).values(state="resolved"))
    incidents.commit()
    expect(band).to_be_empty(timeout=15_000)


def test_8_notifications_that_nobody_got_are_told_whatever_pipeline_is_chosen(
    url: str, incidents: Connection, watched: Watched
) -> None:
    at = datetime.fromtimestamp(now() - 600, UTC)
    about = store_incident(incidents, pipeline="other", opened_at=at)
    store_delivery(incidents, about, "on-call", "failed", at=at, error="HTTP 400: invalid routing key")
    store_delivery(incidents, about, "on-call", "failed", at=at + timedelta(seconds=9), error="HTTP 410")
    incidents.commit()
    page = watched.page
    for pipeline in ("clicks", "nobody"):
        page.goto(f"{url}/?pipeline={pipeline}")
        failures = page.locator("#failures")
        expect(failures).to_contain_text("2 notifications not delivered in the last 7 days", timeout=20_000)
        expect(failures).to_contain_text("on-call: HTTP 410 · other loss (opened)")
    store_delivery(incidents, about, "on-call", "sent", at=at + timedelta(minutes=2))
    incidents.commit()
    expect(failures).to_contain_text("takes others again since", timeout=15_000)


def test_9_each_kind_of_incident_has_a_runbook_that_leads_to_the_others_and_back(url: str, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{url}/runbooks/lag")
    expect(page.get_by_role("heading", name="Lag: messages arrive too late")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="negative lag").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Negative lag: a clock is wrong")
    assert page.url == f"{url}/runbooks/negative-lag"
    for kind in KINDS:
        answer = httpx.get(f"{url}/runbooks/{kind}")
        assert (answer.status_code, answer.text.count("<h2>")) == (200, 8), kind
    for unknown in ("nothing", "loss.md", "..%2F__init__"):
        assert httpx.get(f"{url}/runbooks/{unknown}").status_code == 404
    page.get_by_role("link", name="Dashboard").click()
    expect(page.locator("#pipeline")).to_be_visible(timeout=20_000)


@pytest.mark.parametrize("width", [1400, 390])
def test_10_a_page_full_of_trouble_does_not_stick_out_sideways(
    url: str, incidents: Connection, browser: Browser, width: int
) -> None:
    at = datetime.fromtimestamp(now() - 600, UTC)
    for number in range(12):
        long = {"text": f"p95 of link {'a' * 60}->{'b' * 60} is 4.2 s, target 1.2 s"}
        about = store_incident(incidents, pipeline="clicks", rule=f"lag/link/a->b{number}", opened_at=at, detail=long)
    store_delivery(incidents, about, "on-call", "failed", at=at, error="x" * 200)
    incidents.commit()
    watched = Watched(browser, width)
    watched.page.goto(f"{url}/?pipeline=clicks&range=1h")
    watched.page.locator("#window table").wait_for(timeout=20_000)
    expect(watched.page.locator("#incidents")).to_contain_text("and 2 more: lagloss alerts list --pipeline clicks")
    assert watched.page.evaluate("document.documentElement.scrollWidth") == width
    watched.page.goto(f"{url}/runbooks/loss")
    assert watched.page.evaluate("document.documentElement.scrollWidth") == width
    watched.page.close()
