"""The frame around the pages: addresses, navigation, zones, what is served to whom."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from lagloss_server.base.times import parse_time_s
from lagloss_server.store import users
from lagloss_server.store.store import Store
from tests.fakes.prometheus import complaints
from tests.support.dashboards import Watched, address, serving, serving_clicks, until


@pytest.fixture(scope="module")
def url(module_database_url: str) -> Iterator[str]:
    with serving_clicks(module_database_url) as url:
        yield url


def query(page: Page) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address(page)).query))


def test_the_address_names_the_readers_zone_without_a_step_in_their_history(url: str, browser: Browser) -> None:
    with Watched(browser, zone="Asia/Tokyo") as page:
        page.goto(f"{url}/health")
        until(lambda: "zone=Asia/Tokyo" in address(page), "the zone in the address")
        expect(page.locator("#zone")).to_have_value("Asia/Tokyo")
        page.go_back()
        until(lambda: address(page) == "about:blank", "the page before")


def test_a_page_that_is_none_says_so_and_leads_to_the_overview(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/nowhere")
        expect(page.get_by_text("No such page")).to_be_visible()
        page.get_by_role("link", name="Go to the overview").click()
        until(lambda: address(page).startswith(f"{url}/?"), "the overview")


def test_machines_need_no_login_and_requests_are_counted_by_route(module_database_url: str) -> None:
    with serving(module_database_url, LAGLOSS_LOGIN="local") as url:
        assert httpx2.get(f"{url}/api/v1/pipelines/no-such-name/windows").status_code == 401
        assert [httpx2.get(url + path).json() for path in ("/healthz", "/readyz", "/livez")] == [{"status": "ok"}] * 3
        text = httpx2.get(f"{url}/metrics").text
        assert 'lagloss_dashboard_requests_total{route="/readyz",status="200"}' in text
        assert "process_resident_memory_bytes" in text
        assert "no-such-name" not in text
        assert complaints(text) == ""
        other = httpx2.get(f"{url}/metrics", headers={"accept": "application/openmetrics-text"}).text
        assert other.endswith("# EOF\n")
        assert httpx2.get(f"{url}/api/v1/overview").status_code == 401


def test_back_and_forward_lead_through_ranges(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/clicks?range=3h&zone=UTC")
        expect(page.locator("#range input[value='3h']")).to_be_checked()
        page.locator("#range").get_by_text("24h", exact=True).click()
        until(lambda: "range=24h" in address(page), "the range in the address")
        page.go_back()
        expect(page.locator("#range input[value='3h']")).to_be_checked()
        page.go_forward()
        expect(page.locator("#range input[value='24h']")).to_be_checked()
        page.get_by_role("button", name="From … to …").click()
        page.get_by_role("button", name="Show", exact=True).click()
        until(lambda: {"from", "to"} <= query(page).keys(), "two moments in the address")
        asked = query(page)
        assert "range" not in asked
        assert parse_time_s(asked["to"]) - parse_time_s(asked["from"]) == 86_400  # filled from the range before
        expect(page.locator("#range input[value='24h']")).not_to_be_checked()
        page.go_back()
        expect(page.locator("#range input[value='24h']")).to_be_checked()
        assert "from" not in query(page)


def test_whoever_has_logged_in_is_named_and_can_log_out(database_url: str, store: Store, browser: Browser) -> None:
    users.add(store, "ann", "viewer", "correct horse battery")
    with serving(database_url, LAGLOSS_LOGIN="local") as url, Watched(browser) as page:
        page.goto(f"{url}/health?zone=UTC")
        page.get_by_label("Name").fill("ann")
        page.get_by_label("Password").fill("correct horse battery")
        page.keyboard.press("Enter")
        expect(page.get_by_text("ann (viewer)")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Password")).to_be_visible()
