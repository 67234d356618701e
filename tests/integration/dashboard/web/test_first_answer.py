"""The first answer: each page's verdict, numbers and tables are read before a script has run, and without any."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, expect

from dashboard.pages import directory
from dashboard.request import links
from lagloss_server.groups.cluster_groups import NamedBy, keep_cluster_groups
from lagloss_server.groups.coverage import keep_cluster_topics
from lagloss_server.store.store import Store
from tests.support.dashboards import Watched, serving, until
from tests.support.group_rows import group
from tests.support.incident_rows import store_incident
from tests.support.runs import store_failed_run
from tests.support.stored_windows import Stored
from tests.support.window_documents import store_named


@dataclass
class World:
    url: str
    start_s: int
    incident: str


@pytest.fixture(scope="module")
def world(module_database_url: str) -> Iterator[World]:
    """A pipeline `chain` that lost 30 of 100 messages in its newest minute, with an incident of that."""
    start_s = int(time.time()) // 60 * 60 - 60
    store = Store(module_database_url)
    stored = Stored(store=store)
    for at in range(5):
        stored.close(start_s - 60 * at, lost=30 if at == 0 else 0, now_ms=int(time.time() * 1000))
    store_failed_run(store, "chain", start_s)
    with store.engine.begin() as connection:
        incident = store_incident(connection, pipeline="chain")
        store_named(connection, "chain", start_s, "gone", kind="lost", place="link src->mid", last="src.out")
        keep_cluster_topics(connection, "", int(time.time() * 1_000), ["unnoticed"])
        keep_cluster_groups(connection, int(time.time() * 1_000), [group("mailer", [NamedBy("chain", "snk")])])
    store.close()
    with serving(module_database_url) as url:
        yield World(url, start_s, str(incident))


def addresses(world: World) -> dict[str, tuple[str, str]]:
    """By page where it is, and words that it says first."""
    return {
        "overview": ("/?zone=UTC", "1 pipeline loses messages"),
        "portfolio": ("/portfolio?zone=UTC&range=24h", "1 pipeline: 1 missed."),
        "pipeline": ("/pipelines/chain?zone=UTC&range=1h", "30 %"),
        "window": (f"{links.window('chain', world.start_s)}?zone=UTC", "30 %"),
        "message": ("/pipelines/chain/messages?zone=UTC", "Messages of chain"),
        "messages": ("/messages?zone=UTC", "1 certainly lost"),
        "report": ("/pipelines/chain/report?zone=UTC", "so far, since"),
        "runs": ("/pipelines/chain/runs?zone=UTC", "publish failed after 2 tries although spark succeeded"),
        "alerts": ("/alerts?zone=UTC", "chain"),
        "incident": (f"/incidents/{world.incident}?zone=UTC", "chain"),
        "groups": ("/groups?zone=UTC", "mailer"),
        "coverage": ("/coverage?zone=UTC", "unnoticed"),
        "health": ("/health?zone=UTC", "Health of lagloss"),
        "audit": ("/audit?zone=UTC", "Audit"),
    }


def test_without_scripts_each_page_says_what_it_says_with_them(world: World, browser: Browser) -> None:
    plain = browser.new_context(java_script_enabled=False).new_page()
    tried = set()
    for name, (at, words) in addresses(world).items():
        plain.goto(world.url + at)
        first = plain.locator("#first-answer")
        expect(first).to_contain_text(words)
        if name == "pipeline":
            expect(first.get_by_role("heading", name="Data quality")).to_be_visible()
        expect(first.get_by_role("navigation", name="pages", exact=True)).to_be_visible()
        tried.add(name)
        with Watched(browser) as page:
            page.goto(world.url + at)
            expect(page.locator("#page")).to_contain_text(words)
            expect(page.locator("#first-answer")).to_have_count(0)
            expect(page.locator("#page")).to_be_visible()
    plain.context.close()
    assert tried == {page.name for page in directory.PAGES if page.read is not None}


def test_links_lead_on_without_scripts(world: World, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{world.url}/?zone=UTC")
    page.get_by_role("link", name="chain").first.click()
    expect(page.locator("#first-answer h1")).to_have_text("chain")
    page.locator("#first-answer .said").get_by_role("link").first.click()
    until(lambda: "/windows/" in page.url, "the window's page")
    context.close()


def test_the_verdict_is_painted_while_scripts_are_on_their_way(world: World, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("**/*.js*", lambda _route: None)  # they never come
    page.goto(f"{world.url}/pipelines/chain?zone=UTC", wait_until="commit")
    until(lambda: page.evaluate("performance.getEntriesByName('first-contentful-paint').length"), "the first paint")
    expect(page.locator("#first-answer")).to_contain_text("30 %")
    context.close()
