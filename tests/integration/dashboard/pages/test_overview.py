"""The overview: what is read of many pipelines at once, and the page in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import text

from aggregator.maintenance import rollups
from aggregator.maintenance.rollups import SETTLE_MS
from aggregator.set_aside import SetAside
from dashboard.queries.condition import read_freshness, read_freshness_of
from dashboard.queries.overview import Overview, detailed, read_overview
from dashboard.queries.pipeline_status import PipelineStatus, State
from dashboard.reports.making import make_report
from dashboard.reports.ranges import CalendarRange
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.store import Store
from tests.support.dashboards import WAIT_S, Watched, address, serious_faults, serving, sticks_out, until
from tests.support.incident_rows import store_incident
from tests.support.stored_windows import Stored
from tests.support.window_documents import document, store_window

MARKUP = "<b onmouseover=alert(1)>bold</b> & co"


def defined(name: str, description: str = "") -> Definition:
    found = parse_definition(
        f"apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {{name: {name}}}\n"
        "spec: {nodes: [{name: src, to: [snk]}, {name: snk}]}"
    )
    return found.model_copy(update={"metadata": found.metadata.model_copy(update={"description": description})})


@dataclass
class World:
    """`chain` loses messages, `paged` has incidents, `silent` is blind, `calm` is well, `quiet` is idle. `newest_s`:
    the start of their newest closed window."""

    url: str
    store: Store
    newest_s: int


def fill(store: Store) -> int:
    newest_s = int(time.time()) // 60 * 60 - 60
    stored = Stored(store=store)
    for at in range(5):
        stored.close(newest_s - 60 * at, lost=30 if at < 2 else 0, now_ms=int(time.time() * 1000))
    later_ms = int(time.time() * 1000)
    for _ in ("hours", "days"):
        later_ms += SETTLE_MS
        rollups.roll_up(store.engine, later_ms, SetAside(store.engine))
    others = {"paged": "ok", "calm": "ok", "quiet": "idle"}
    for name in (*others, "silent"):
        store.apply(defined(name, MARKUP if name == "calm" else ""), 0)
    with store.engine.begin() as connection:
        for name, verdict in others.items():
            messages = 0 if verdict == "idle" else 1_000
            of = document(defined(name), newest_s, verdict=verdict, messages=messages, lags_ms={"snk.out": 900.0})
            store_window(connection, of, newest_s, notify=False)
        store_incident(connection, pipeline="paged", rule="loss")
        store_incident(connection, pipeline="paged", rule="staleness", severity="warning")
    for name in ("chain", *others):
        stored.report(f"emitter-{name}", int(time.time() * 1_000), pipeline=name)
    return newest_s


@pytest.fixture(scope="module")
def world(module_database_url: str) -> Iterator[World]:
    store = Store(module_database_url)
    newest_s = fill(store)
    with serving(module_database_url) as url:
        yield World(url, store, newest_s)
    store.close()


def read(world: World) -> Overview:
    return read_overview(world.store, world.newest_s + 70)


def row(world: World) -> PipelineStatus:
    """Return what the row of `chain` shows."""
    [found] = detailed(world.store, read(world).standings[:1], world.newest_s + 70)
    return found


def test_pipelines_stand_worst_first_with_what_is_worst_about_them(world: World) -> None:
    found = [(standing.pipeline, standing.state) for standing in read(world).standings]
    assert found == [
        ("chain", State.LOSS),
        ("paged", State.CRITICAL),
        ("silent", State.BLIND),
        ("calm", State.OK),
        ("quiet", State.IDLE),
    ]


def test_a_verdict_is_since_the_first_minute_that_had_it(world: World) -> None:
    chain = row(world)
    assert chain.newest is not None
    assert (chain.newest.since_s, chain.newest.loss_ratio.min) == (world.newest_s - 60, 0.3)


@pytest.mark.parametrize("percentile", [50, 95, 99, 90])
def test_lag_is_that_of_the_percentile_of_the_sla_or_the_share_that_was_on_time(store: Store, percentile: int) -> None:
    of = defined("one").model_dump(mode="json", by_alias=True)
    of["spec"]["sla"]["lag"]["percentile"] = percentile
    one = Definition.model_validate(of)
    store.apply(one, 0)
    found = document(one, 600, lags_ms={"snk.out": 900.0})
    with store.engine.begin() as connection:
        store_window(connection, found, 600, notify=False)
    minute = read_overview(store, 700).standings[0].newest
    assert minute is not None
    assert minute.lag_ms == found["e2e_lag_ms"].get(f"p{percentile}")
    assert minute.on_time_share == found["on_time_share"]


def test_budgets_and_hours_are_what_the_roll_ups_say(world: World) -> None:
    chain = row(world)
    # of 500 messages 60 were lost, where 1 % may be; and as many were not on time, where 5 % may not be
    loss, on_time = chain.budgets["loss"], chain.budgets["on-time"]
    assert loss is not None
    assert on_time is not None
    assert loss.left is not None
    assert (loss.left.min, loss.left.max) == pytest.approx((1 - 60 / 5, 1 - 60 / 5))
    assert on_time.left is not None
    assert on_time.left.max == pytest.approx(1 - 60 / 25)
    assert len(chain.hours) == 24
    assert sum(hour.lag_ms is not None for hour in chain.hours) in (1, 2)  # a full hour may lie among the minutes
    assert max(hour.loss_ratio or 0 for hour in chain.hours) >= 60 / 500


def test_budgets_are_what_a_report_of_the_same_days_says(store: Store) -> None:
    """Minutes that are not known, lag that may have been in time, and the version in force, all as there."""
    now_s = time.time()
    newest_s = int(now_s) // 60 * 60 - 180  # the newest that is due by now
    strict = defined("strict").model_dump(mode="json", by_alias=True)
    strict["spec"]["sla"]["loss"]["max"] = 0.001
    first, begin_s = defined("strict"), newest_s - 100 * 60
    store.apply(first, begin_s * 1_000)
    store.apply(Definition.model_validate(strict), (newest_s - 30 * 60) * 1_000)
    store.apply(defined("even"), begin_s * 1_000)
    with store.engine.begin() as connection:
        for at, start_s in enumerate(range(begin_s, newest_s + 60, 60)):
            verdict = "unknown" if at % 10 == 0 else "ok"
            lost = {"snk": (at % 2, at % 3 + 1)}
            if at % 7:  # the others are missing
                of = document(first, start_s, verdict=verdict, lost=lost, pending=at % 4)
                store_window(connection, of, start_s, notify=False)
            store_window(connection, document(defined("even"), start_s), start_s, notify=False)
    budgets = {one.pipeline: one.budgets for one in read_overview(store, now_s).standings}
    ends_s = (int(now_s) // DAY_S + 1) * DAY_S
    span = CalendarRange(ends_s - 30 * DAY_S, ends_s, "UTC")
    for name in ("strict", "even"):
        made = make_report(store, name, span, now_s)
        for one, burnt_down_to in zip(made.whole.attainments, made.burn_down[-1].left, strict=True):
            assert one.budget is not None
            assert budgets[name][one.objective] == one.budget
            assert one.budget.left == pytest.approx(burnt_down_to)
            assert (one.unseen > 0) == (name == "strict")
    assert make_report(store, "strict", span, now_s).whole.attainments[0].allowed == pytest.approx(
        sum(1_000 * (0.01 if at < 70 else 0.001) for at in range(101) if at % 7)
    )


def test_freshness_of_many_is_that_of_each(world: World) -> None:
    names = [*world.store.names(), "unknown"]
    together = read_freshness_of(world.store, names, world.newest_s + 70)
    assert together == {name: read_freshness(world.store, name, world.newest_s + 70) for name in names}
    assert (together["chain"].newest_s, together["chain"].emitters) == (world.newest_s, 1)
    assert together["silent"].newest_s is together["silent"].reported_s is None


def test_a_longer_pipeline_name_than_postgresqls_own_names_is_found(store: Store) -> None:
    long = "p" * 90
    store.apply(defined(long), 0)
    with store.engine.begin() as connection:
        store_window(connection, document(defined(long), 600), 600, notify=False)
    assert read_freshness(store, long, 700).newest_s == 600


def test_a_pipeline_that_is_deleted_stands_nowhere(store: Store) -> None:
    store.apply(defined("gone"), 0)
    store.delete("gone")
    assert read_overview(store, time.time()).standings == ()


def test_the_api_prints_what_the_page_shows(world: World) -> None:
    found = httpx2.get(f"{world.url}/api/v1/overview").json()
    assert [one["pipeline"] for one in found["pipelines"]] == ["chain", "paged", "silent", "calm", "quiet"]
    assert found["states"] == {"loss": 1, "critical": 1, "blind": 1, "ok": 1, "idle": 1}
    chosen = httpx2.get(f"{world.url}/api/v1/overview", params={"q": "BOLD", "state": "ok"}).json()
    assert ([one["pipeline"] for one in chosen["pipelines"]], chosen["total"]) == (["calm"], 5)
    part = httpx2.get(f"{world.url}/api/v1/overview", params={"sort": "name", "offset": 1, "limit": 2}).json()
    assert [one["pipeline"] for one in part["pipelines"]] == ["chain", "paged"]
    assert (part["matching"], part["total"]) == (5, 5)
    for wrong in ({"state": "bad"}, {"sort": "bad"}, {"limit": 0}, {"offset": -1}):
        assert httpx2.get(f"{world.url}/api/v1/overview", params=wrong).status_code == 422


def shown(page: Page) -> list[str]:
    return page.locator(".overview tbody th a").all_inner_texts()


def opened(page: Page, world: World, query: str = "") -> None:
    page.goto(f"{world.url}/?zone=UTC{query}")
    page.locator(".overview tbody tr").first.wait_for()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_keeps_nobody_out(world: World, browser: Browser, width: int, dark: bool) -> None:
    with Watched(browser, width=width, dark=dark) as page:
        opened(page, world)
        expect(page.get_by_text("1 of 5 pipelines loses messages; 1 has a critical incident open;")).to_be_visible()
        assert shown(page) == ["chain", "paged", "silent", "calm", "quiet"]
        assert serious_faults(page) == []
        assert not sticks_out(page)


def test_what_is_chosen_stands_in_the_address_and_back_undoes_it(world: World, browser: Browser) -> None:
    with Watched(browser) as page:
        opened(page, world)
        find = page.get_by_label("Find a pipeline")
        find.fill("c")
        find.press("Enter")
        until(lambda: "q=c" in address(page), "the text in the address")
        until(lambda: shown(page) == ["chain", "calm"], "the pipelines that match")  # calm's description has one
        page.get_by_role("link", name="OK 1").click()
        until(lambda: "state=ok" in address(page) and shown(page) == ["calm"], "those that are well")
        page.go_back()
        until(lambda: shown(page) == ["chain", "calm"], "those of before")
        page.go_back()
        until(lambda: len(shown(page)) == 5, "all")
        expect(find).to_have_value("")


def test_heads_of_columns_order_the_rows_and_the_order_stands_in_the_address(world: World, browser: Browser) -> None:
    with Watched(browser) as page:
        opened(page, world)
        page.get_by_role("columnheader", name="Pipeline").get_by_role("link").focus()
        page.keyboard.press("Enter")
        until(lambda: shown(page) == ["calm", "chain", "paged", "quiet", "silent"], "their names in order")
        assert "sort=name" in address(page)
        assert page.locator("th[aria-sort=ascending]").inner_text() == "Pipeline"
        page.get_by_role("columnheader", name="Status").get_by_role("link").click()
        until(lambda: shown(page)[0] == "chain" and "sort" not in address(page), "the worst first")


def test_nothing_that_matches_is_said_and_leads_to_all(world: World, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{world.url}/?zone=UTC&q=zebra")
        expect(page.get_by_text("contains “zebra”")).to_be_visible()
        page.get_by_role("link", name="Show all pipelines").click()
        until(lambda: len(shown(page)) == 5, "all")


def test_a_row_leads_to_its_pipeline_by_keyboard_without_a_load(world: World, browser: Browser) -> None:
    with Watched(browser) as page:
        opened(page, world, "&range=6h")
        page.evaluate("window.notLoadedAnew = true")
        page.locator(".overview tbody th a").nth(1).focus()
        page.keyboard.press("Enter")
        until(lambda: "/pipelines/paged?" in address(page), "the pipeline's page")
        assert "range=6h" in address(page)
        assert page.evaluate("window.notLoadedAnew") is True


def test_incidents_lead_to_the_alerts_of_their_pipeline(world: World, browser: Browser) -> None:
    with Watched(browser) as page:
        opened(page, world)
        link = page.get_by_role("link", name="1 critical, △ 1 warning")
        assert link.get_attribute("href") == "/alerts?zone=UTC&pipeline=paged"


def test_html_in_a_description_stays_text(world: World, browser: Browser) -> None:
    with Watched(browser) as page:
        opened(page, world)
        expect(page.get_by_text(MARKUP)).to_be_visible()
        assert page.locator(".overview b").count() == 0


def test_a_refresh_keeps_the_focus_on_the_pipeline_whose_row_moved(world: World, browser: Browser) -> None:
    with Watched(browser) as page:
        opened(page, world)
        page.get_by_role("link", name="calm").focus()
        with world.store.engine.begin() as connection:
            store_incident(connection, pipeline="calm", rule="lag")
        until(lambda: shown(page)[1:3] == ["calm", "paged"] or shown(page)[1:3] == ["paged", "calm"], "its row higher")
        assert page.evaluate("document.activeElement.innerText") == "calm"
        with world.store.engine.begin() as connection:
            connection.execute(text("DELETE FROM incident_change WHERE incident_id IN "
                                    "(SELECT id FROM incident WHERE pipeline = 'calm')"))  # fmt: skip
            connection.execute(text("DELETE FROM incident WHERE pipeline = 'calm'"))


def test_a_query_that_fails_is_said_over_what_was_read_before(world: World, browser: Browser) -> None:
    with Watched(browser) as page:
        opened(page, world)
        try:
            with world.store.engine.begin() as connection:
                connection.execute(text("ALTER TABLE emitter RENAME TO emitter_away"))
            expect(page.get_by_text("Query failed")).to_be_visible(timeout=WAIT_S * 1_000)
            assert len(shown(page)) == 5
        finally:
            with world.store.engine.begin() as connection:
                connection.execute(text("ALTER TABLE emitter_away RENAME TO emitter"))
        expect(page.get_by_text("Query failed")).to_be_hidden(timeout=WAIT_S * 1_000)


def test_where_there_is_no_pipeline_yet_the_page_says_how_to_add_one(world: World, browser: Browser) -> None:
    with world.store.engine.begin() as connection:
        connection.execute(text("UPDATE pipeline SET deleted_at = 1"))
    try:
        with Watched(browser) as page:
            page.goto(f"{world.url}/?zone=UTC")
            expect(page.get_by_text("No pipeline yet")).to_be_visible()
            expect(page.get_by_text("lagloss apply pipeline.yaml")).to_be_visible()
    finally:
        with world.store.engine.begin() as connection:
            connection.execute(text("UPDATE pipeline SET deleted_at = NULL"))
