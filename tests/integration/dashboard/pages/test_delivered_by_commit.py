"""A destination whose deliveries are its group's commits says so: on the page, in its first answer, and in reports."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from lagloss_server.model.definition import parse_definition
from lagloss_server.store.store import Store
from tests.support.dashboards import Watched, serious_faults, serving
from tests.support.window_documents import document, store_window

LINE = "mail: delivered once the consumer group orders.<b>mail</b> has committed"
TAPPED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: tapped}
spec:
  nodes:
    - {name: shop, to: [mail, store], copy: all, taps: {out: {topic: orders, id: $.id, eventTime: $.at}}}
    - {name: mail, taps: {in: {group: "orders.<b>mail</b>"}}}
    - {name: store, taps: {in: {group: orders.store}, out: beacons}}
"""


@pytest.fixture(scope="module")
def url(module_database_url: str) -> Iterator[str]:
    store, now_s, definition = Store(module_database_url), time.time(), parse_definition(TAPPED)
    store.apply(definition, now_ms=int(1_000 * (now_s - 7_200)))
    with store.engine.begin() as connection:
        for start_s in range(int(now_s) // 60 * 60 - 3_600, int(now_s) // 60 * 60 - 120, 60):
            store_window(connection, document(definition, start_s), start_s)
    store.close()
    with serving(module_database_url) as url:
        yield url


def test_the_page_says_which_destination_delivers_by_its_commits(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/tapped?range=1h&zone=UTC")
        expect(page.locator("#pipeline-headline")).to_contain_text(LINE)
        assert page.locator("#pipeline-headline").inner_text().count("has committed") == 1
        assert serious_faults(page) == []
    first = httpx2.get(f"{url}/pipelines/tapped").text
    assert LINE.replace("<", "&lt;").replace(">", "&gt;") in first
    taps = httpx2.get(f"{url}/api/v1/pipelines/tapped/taps").json()
    assert {tap["group"]: tap["delivered_by_commit"] for tap in taps} == {
        None: False,
        "orders.<b>mail</b>": True,
        "orders.store": False,
    }


def test_the_report_says_it_on_its_page_and_in_its_forms(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/tapped/report?range=24h&zone=UTC")
        expect(page.get_by_text(f"{LINE}.")).to_be_visible()
        assert page.get_by_text("has committed").count() == 1
    api = f"{url}/api/v1/pipelines/tapped/report"
    document = httpx2.get(api, params={"range": "24h", "format": "json"}).json()
    assert document["committed_by"] == {"mail": "orders.<b>mail</b>"}
    html = httpx2.get(api, params={"range": "24h", "format": "html"}).text
    assert LINE.replace("<", "&lt;").replace(">", "&gt;") in html
