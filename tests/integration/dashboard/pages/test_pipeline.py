"""The page of a pipeline and its API, in a real browser over real rows."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import delete, insert

from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import rfc3339
from lagloss_server.ops.processes import choose_port
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.alerting import IncidentChangeRow, IncidentRow
from lagloss_server.store.store import Store
from tests.support.dashboards import Watched, address, serious_faults, serving, sticks_out, until
from tests.support.incident_rows import store_incident
from tests.support.window_documents import CLICKS, chain, clicks, document, store_window

LAGS = {"col-service.in": 10.0, "col-service.out": 20.0, "event-norm.in": 50.0, "event-norm.out": 60.0}
LAGS |= {"event-router.in": 100.0, "event-router.out:conn-ga": 110.0, "event-router.out:conn-fb": 110.0}
LAGS |= {"conn-ga.in": 200.0, "conn-ga.out": 900.0, "conn-fb.in": 150.0, "conn-fb.out": 300.0}
PANELS = "#pipeline-panels .js-plotly-plot"


@functools.cache
def now() -> int:
    """The minute in which the first test of this module began: the module is imported long before, in a whole run."""
    return int(time.time()) // 60 * 60


def lossy() -> int:
    return now() - 600


def destination(name: str, due: int, p95_ms: float) -> dict[str, Any]:
    """A destination of a window's document at which nothing was lost."""
    ends = {"delivered": due, "filtered": 0, "dead": 0, "pending": 0, "lost": {"min": 0, "max": 0}}
    lags = dict.fromkeys(("p50", "p95", "p99", "max"), p95_ms)
    return {"name": name, "due": due, **ends, "on_time_share": 1.0, "e2e_lag_ms": lags}


@pytest.fixture(scope="module")
def store(module_database_url: str) -> Iterator[Store]:
    opened = Store(module_database_url)
    patient = CLICKS.replace("  sla:", "  grace: 30m\n  sla:")  # not stale while these tests run
    grouped = patient.replace("{name: event-norm,", "{name: event-norm, group: clicks.event-norm,")
    opened.apply(parse_definition(grouped), now_ms=(now() - 1_200) * 1_000)
    opened.apply(chain())
    with opened.engine.begin() as connection:
        for start_s in range(now() - 3_000, now() - 120, 60):
            loss = {"event-norm->event-router": (30, 30), "conn-ga": (5, 7)} if start_s == lossy() else None
            verdict = "loss" if loss else "ok"
            window = document(clicks(), start_s, verdict=verdict, lags_ms=LAGS, lost=loss)
            window["destinations"] = [destination("conn-ga", 700, 900.0), destination("conn-fb", 600, 300.0)]
            store_window(connection, window, start_s)
            lag = {"offsets": 10, "offsets_max": 5_210, "behind_ms": 90, "behind_max_ms": 12_000}
            of = {"node": "event-norm", "consumer_group": "clicks.event-norm", "topic": "in", "topic_partition": 0}
            row = {"pipeline": "clicks", "window_start": start_s, "asked_at": 1_000 * start_s, **of, **lag}
            connection.execute(insert(tables.ConsumerLagRow).values(row))
        blame = {"conclusion": CAUSE, "text": CAUSE, "findings": [{}]}
        detail = {"text": "<b>3.2 %</b> lost <img src=x onerror=alert(1)>", "blame": blame}
        opened_at = datetime.fromtimestamp(lossy(), UTC)
        store_incident(connection, pipeline="clicks", opened_at=opened_at, detail=detail)
    yield opened
    opened.close()


CAUSE = "97 % of the lost were last seen at conn-ga-7; 2 % of the others were"


@pytest.fixture(scope="module")
def url(module_database_url: str, store: Store) -> Iterator[str]:
    with serving(module_database_url) as url:
        yield url


def open_page(page: Page, url: str, query: str = "range=1h&zone=Europe/Berlin") -> None:
    page.goto(f"{url}/pipelines/clicks?{query}")
    page.locator("#pipeline-panels .nsewdrag").first.wait_for()
    page.locator("#pipeline-worst table, #pipeline-worst .faint").first.wait_for()
    page.locator("#pipeline-panels").scroll_into_view_if_needed()


def unfold(page: Page, key: str) -> None:
    page.locator(f"details[data-fold={key}] > summary").click()


def of_panels(page: Page, function: str, argument: object = None) -> Any:
    """What a function of JavaScript returns for the drawn panels: while new ones take their place, there are none."""
    script = f"""([selector, argument]) => {{
        const chart = document.querySelector(selector);
        return chart?._fullLayout?.xaxis?.range && ({function})(chart, argument);
    }}"""
    result: Any = None

    def is_drawn() -> bool:
        nonlocal result
        result = page.evaluate(script, [PANELS, argument])
        return result is not None

    until(is_drawn, "panels that are drawn")
    return result


def spot_of(page: Page, window_start_s: int) -> tuple[float, float]:
    """Where a minute is drawn, in pixels of the page, in the lag panel."""
    x, y = of_panels(
        page,
        """(chart, start_s) => {
            const layout = chart._fullLayout;
            const drag = chart.querySelector('.xy2 .nsewdrag, .nsewdrag[data-subplot="xy2"]');
            drag.scrollIntoView({block: 'nearest'});
            const box = drag.getBoundingClientRect();
            const drawn = (start_s + 30 + layout.meta.offset_s) * 1000;
            return [box.left + layout.xaxis.d2p(drawn), box.top + box.height / 3];
        }""",
        window_start_s,
    )
    return x, y


def hover(page: Page, window_start_s: int) -> str:
    """Moves the mouse over a minute until the panels say what they show there."""
    x, y = spot_of(page, window_start_s)
    said = page.locator("#pipeline-panels .hoverlayer")
    moves = iter(range(1_000))

    def says() -> bool:
        page.mouse.move(x + next(moves) % 2, y)
        return "expected" in (said.text_content() or "")

    until(says, "what the panels say under the mouse")
    return said.text_content() or ""


def drawn_range(page: Page) -> list[float]:
    range_: list[float] = of_panels(page, "chart => chart._fullLayout.xaxis.range.map(end => +new Date(end))")
    return range_


def test_a_hover_tells_the_minute_of_all_panels_and_a_click_opens_its_window(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        said = hover(page, lossy())
        for words in ("1,000 messages expected", "E2E p95 900 ms", "process conn-ga 700 ms", "loss 3.5 % – 3.7 %"):
            assert words in said, said
        for words in ("consumer lag", "event-norm 5,210, 12 s behind"):
            assert words in said, said
        assert datetime.fromtimestamp(lossy(), UTC).strftime("%Y-%m-%d %H:%M UTC") in said

        opened = f"/windows/{rfc3339(lossy())}"
        clicks = iter(range(5))
        while opened not in unquote(address(page)):
            # A chart that was just redrawn knows no minute under the mouse until the mouse moves again.
            assert next(clicks, None) is not None, "the click did not open the window"
            hover(page, lossy())
            page.mouse.down()
            page.mouse.up()
            with suppress(AssertionError):
                until(lambda: opened in unquote(address(page)), "the window's address", timeout_s=5)
        page.go_back()
        expect(page.locator("#pipeline-caption")).to_contain_text("1 LOSS")


def test_each_of_two_destinations_has_its_own_numbers(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        rows = page.get_by_role("region", name="Destinations").get_by_role("row")
        expect(rows).to_have_count(3)
        slow, fast = (rows.nth(at).all_inner_texts()[0].split("\t") for at in (1, 2))
        assert (slow[0], slow[1], "p95 900 ms" in slow[3]) == ("conn-ga", "700", True)
        assert (fast[0], fast[1], "p95 300 ms" in fast[3]) == ("conn-fb", "600", True)


def test_a_drag_is_a_zoom_in_the_address_that_a_double_click_and_the_browser_undo(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        whole = drawn_range(page)
        (x, y), (to_x, _) = spot_of(page, lossy() - 300), spot_of(page, lossy() + 300)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(to_x, y, steps=8)
        page.mouse.up()
        until(lambda: "from=" in address(page), "the zoom in the address")
        zoomed = address(page)
        expect(page.locator("#pipeline-caption")).to_contain_text("11 minutes")
        until(lambda: 600_000 <= drawn_range(page)[1] - drawn_range(page)[0] <= 720_000, "the zoomed axis")

        with Watched(browser) as other:
            other.goto(zoomed)
            expect(other.locator("#pipeline-caption")).to_contain_text("11 minutes")

        # a browser this busy tells late of the second half of a double click, which is no click on a minute
        page.evaluate(
            """document.addEventListener("mouseup", () => setTimeout(() => {
                const end = Date.now() + 2000;
                while (Date.now() < end);
            }, 100), true)"""
        )
        hover(page, lossy())  # else there is no minute to click on
        page.mouse.dblclick(*spot_of(page, lossy()))
        until(lambda: "clicks?range=1h" in address(page), "the range before")
        until(lambda: drawn_range(page)[1] - drawn_range(page)[0] == whole[1] - whole[0], "the whole axis")
        page.evaluate("new Promise(resolve => setTimeout(resolve, 2_000))")  # behind the wait for a double click's half
        assert "clicks?range=1h" in address(page)
        page.go_back()
        until(lambda: address(page) == zoomed, "the zoom again")


def test_a_refresh_keeps_zoom_hidden_traces_and_scroll_and_shows_new_minutes(
    url: str, store: Store, browser: Browser
) -> None:
    with Watched(browser) as page:
        query = f"from={rfc3339(now() - 1_800)}&to={rfc3339(now())}&zone=UTC"
        open_page(page, url, query)
        page.locator("#pipeline-panels .legendtoggle").nth(1).click()
        hidden = "at => document.querySelector(at)._fullData.filter(t => t.visible === 'legendonly').map(t => t.name)"
        until(lambda: page.evaluate(hidden, PANELS), "a hidden trace")
        was_hidden, was_drawn = page.evaluate(hidden, PANELS), drawn_range(page)
        page.evaluate("window.scrollTo(0, 300)")
        with store.engine.begin() as connection:
            window = document(clicks(), now() - 120, lags_ms=LAGS, messages=4_321)
            store_window(connection, window, now() - 120)
        expect(page.locator("#pipeline-headline")).to_contain_text("4,321")
        assert page.evaluate(hidden, PANELS) == was_hidden
        assert drawn_range(page) == was_drawn
        assert page.evaluate("window.scrollY") == 300
    with store.engine.begin() as connection:
        connection.execute(delete(tables.WindowRow).where(tables.WindowRow.window_start == now() - 120))


def test_the_worst_minutes_are_links_for_who_does_not_click_on_figures(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        unfold(page, "worst")
        link = page.locator("#pipeline-worst").get_by_role("link").first
        link.focus()
        page.keyboard.press("Enter")
        until(lambda: f"/windows/{rfc3339(lossy())}" in unquote(address(page)), "the window's address")


def test_the_chosen_path_stands_in_the_address(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url, "range=1h&zone=UTC&path=conn-fb")
        expect(page.locator("#pipeline-path")).to_have_value("to conn-fb")
        assert "process conn-fb 150 ms" in hover(page, lossy())
        page.locator("#pipeline-path").click()
        page.get_by_role("option", name="slowest").click()
        until(lambda: "path=" not in address(page), "the path to leave the address")
        until(lambda: "process conn-ga 700 ms" in hover(page, lossy()), "the slowest path")


def test_html_in_what_incidents_say_stays_text(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        expect(page.locator("#pipeline-incidents")).to_contain_text("<b>3.2 %</b> lost <img src=x onerror=alert(1)>")
        assert "<b>3.2 %</b> lost <img" in hover(page, lossy())
        assert page.locator("main img[src=x]").count() == 0


def test_empty_states_are_told_apart(url: str, store: Store, browser: Browser) -> None:
    with Watched(browser) as page:
        notice = page.locator("#pipeline-notice")
        page.goto(f"{url}/pipelines/nobody")
        expect(notice).to_contain_text("Unknown pipeline")
        page.goto(f"{url}/pipelines/chain")
        expect(notice).to_contain_text("Blind")
        page.goto(f"{url}/pipelines/clicks?from=2020-01-01T00:00:00Z&to=2020-01-01T01:00:00Z")
        expect(notice).to_contain_text("No data in this range")
        open_page(page, url)
        expect(notice).to_be_empty()
        with store.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE pipeline RENAME TO pipeline_away")
        try:
            expect(notice).to_contain_text("Query failed")
            expect(page.locator("#pipeline-caption")).to_be_visible()  # what was read before stays
            expect(notice).to_contain_text(re.compile(r"was read (\d+ s|[\d.]+ min) ago"))
        finally:
            with store.engine.begin() as connection:
                connection.exec_driver_sql("ALTER TABLE pipeline_away RENAME TO pipeline")
        expect(notice).to_be_empty()


def test_an_open_page_says_how_old_it_is_while_its_server_is_away(
    module_database_url: str, store: Store, browser: Browser
) -> None:
    port, watched = choose_port("a dashboard that goes away"), Watched(browser)
    watched.expected = ["net::ERR_", "Callback error updating"]
    with watched as page:
        banner, refreshed = page.locator(".stale-banner"), page.locator("#pipeline-headline")
        with serving(module_database_url, port) as url:
            open_page(page, url)
            was_read = re.search(r"read at [\d:]+", refreshed.text_content() or "")
            expect(banner).to_be_hidden()
        expect(banner).to_contain_text("The server does not respond", timeout=40_000)
        expect(banner).to_contain_text(re.compile(r"was read \d+ s ago"))
        expect(page.locator("#pipeline-caption")).to_be_visible()
        assert serious_faults(page) == []
        with serving(module_database_url, port):
            expect(banner).to_be_hidden(timeout=30_000)
            assert was_read is not None
            expect(refreshed).not_to_contain_text(was_read[0])


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_everybody_can_read_it_and_nothing_sticks_out(url: str, browser: Browser, width: int, dark: bool) -> None:
    with Watched(browser, width=width, dark=dark) as page:
        open_page(page, url)
        flow = "#pipeline-flow .annotation" if width > 600 else "#pipeline-flow-list li"
        page.locator(flow).first.wait_for()
        assert serious_faults(page) == []
        assert not sticks_out(page)
        headline = page.locator("#pipeline-headline").bounding_box()
        assert headline is not None
        assert headline["y"] < 450, "the verdict is on the first screen"


def test_what_a_reader_unfolds_stays_open_and_all_else_is_one_line(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        expect(page.locator("details.fold[open]")).to_have_count(0)
        unfold(page, "worst")
        page.reload()
        expect(page.locator("details.fold[open]")).to_have_count(1)
        expect(page.locator("#pipeline-worst table")).to_be_visible()


def test_the_qualities_of_each_stage_lead_to_the_minute_in_which_they_were_worst(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        unfold(page, "quality")
        stage = page.get_by_role("rowheader", name="link event-norm → event-router")
        row = page.locator("#pipeline-quality tr", has=stage)
        expect(row).to_contain_text("unknown")
        row.get_by_role("link").first.click()
        until(lambda: f"/windows/{rfc3339(lossy())}" in unquote(address(page)), "the window's address")


def test_the_api_tells_what_the_page_draws(url: str, store: Store) -> None:
    api = f"{url}/api/v1/pipelines"
    assert [found["name"] for found in httpx2.get(api).json()] == ["chain", "clicks"]
    assert httpx2.get(f"{api}/clicks").json()["definition"]["metadata"]["name"] == "clicks"
    span = {"from": rfc3339(lossy() - 60), "to": rfc3339(lossy() + 60)}
    panels = httpx2.get(f"{api}/clicks/panels", params=span).json()
    assert [bucket["lost"] for bucket in panels["buckets"]] == [{"min": 0, "max": 0}, {"min": 35, "max": 37}]
    assert {"kind": "process", "from": None, "node": "conn-ga", "p95_ms": 700.0} in panels["buckets"][0]["hops"]
    assert panels["incidents"][0]["pipeline"] == "clicks"
    windows = httpx2.get(f"{api}/clicks/windows", params=span).json()
    assert [window["window_start"] for window in windows] == [rfc3339(lossy() - 60), rfc3339(lossy())]
    assert "history" not in windows[0]
    assert "next" in httpx2.get(f"{api}/clicks/windows", params={"range": "7d"}).links
    lag = httpx2.get(f"{api}/clicks/consumer-lag", params={**span, "by": "partition"}).json()
    assert lag["watched"] == {"event-norm": "clicks.event-norm"}
    (series,) = lag["series"]
    assert (series["node"], series["topic"], series["partition"], len(series["buckets"])) == ("event-norm", "in", 0, 2)
    assert series["buckets"][0]["offsets"] == {"last": 10, "max": 5_210}
    assert httpx2.get(f"{api}/clicks/consumer-lag", params={"by": "topic"}).status_code == 422
    (lossy_link,) = [row for row in panels["quality"] if row["name"] == "event-norm->event-router"]
    assert (lossy_link["loss"]["verdict"], lossy_link["loss"]["worst_window"]) == ("bad", rfc3339(lossy()))
    assert lossy_link["corruption"]["value"] is None
    hours = httpx2.get(f"{api}/clicks/panels", params={"range": "7d"}).json()
    assert hours["bucket_seconds"] == 3_600


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("nobody", 404, "nobody"),
        ("clicks/panels?range=1y", 422, "one of 15m"),
        ("clicks/panels?from=yesterday", 422, "yesterday"),
    ],
)
def test_what_the_api_cannot_answer_is_a_problem_in_words(url: str, path: str, status: int, words: str) -> None:
    answer = httpx2.get(f"{url}/api/v1/pipelines/{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert words in answer.text


def test_one_click_leads_from_the_page_to_the_names_and_the_cause(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        card = page.locator("#pipeline-incidents")
        expect(card).to_contain_text(CAUSE)
        unfold(page, "incidents")
        card.get_by_role("link", name="loss", exact=True).click()
        expect(page.locator("#page")).to_contain_text(CAUSE)
        expect(page.get_by_role("link", name="m-1", exact=True)).to_be_visible()


def test_a_hop_under_the_mouse_in_the_graph_stands_out_in_the_stack(url: str, browser: Browser) -> None:
    faded = """at => document.querySelector(at)._fullData.filter(t => t.opacity < 1).map(t => t.uid)"""
    hops_ = """at => document.querySelector(at)._fullData.filter(
        t => /^(arrival|queue|process)-/.test(t.uid)).map(t => t.uid)"""
    with Watched(browser) as page:
        open_page(page, url)
        drawn = page.evaluate(hops_, PANELS)
        node = page.locator("#pipeline-flow .annotation", has_text="event-router").first
        node.scroll_into_view_if_needed()
        box = node.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        until(
            lambda: page.evaluate(faded, PANELS) == [hop for hop in drawn if hop != "process-None-event-router"],
            "all other hops faded",
        )
        page.mouse.move(5, 5)
        until(lambda: page.evaluate(faded, PANELS) == [], "none faded")


def test_each_node_has_a_row_of_its_own(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        rows = page.locator("#pipeline-nodes .annotation", has_text="lag in (dotted)")
        expect(rows).to_have_count(0)
        unfold(page, "nodes")
        page.locator("#pipeline-nodes").scroll_into_view_if_needed()  # drawn only when a reader comes near
        expect(rows).to_have_count(len(clicks().graph.nodes))
        expect(page.locator("#pipeline-nodes-caption")).to_contain_text(
            "distributions need windows whose beacons were read"
        )


def test_incidents_go_when_they_are_over(url: str, store: Store, browser: Browser) -> None:
    with Watched(browser) as page:
        open_page(page, url)
        expect(page.locator("#pipeline-incidents")).to_contain_text("1 open incident")
        with store.engine.begin() as connection:
            for table in (IncidentChangeRow, IncidentRow):
                connection.execute(delete(table))
        expect(page.locator("#pipeline-incidents")).to_be_empty()


def test_the_axis_has_the_times_of_the_zone_in_the_address_wherever_the_browser_is(url: str, browser: Browser) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    until_s = int(time.time()) // 60 * 60
    shown = {datetime.fromtimestamp(until_s - ago_s, berlin).strftime("%H:%M") for ago_s in range(-120, 3_720, 60)}
    with Watched(browser, zone="Asia/Tokyo") as page:
        open_page(page, url)
        ticks = page.locator("#pipeline-panels .xtick text").all_text_contents()
        assert ticks
        assert set(ticks) <= shown
