"""The page of one message, and its API, over real blocks in a real log."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator
from contextlib import closing

import httpx2
import pytest
from playwright.sync_api import Browser, Route, expect

from lagloss.broker.topics import BEACONS, create_topics
from lagloss.wire.format import hash_id
from lagloss.wire.traces import TraceContext
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import rfc3339
from lagloss_server.store.store import Store
from tests.support.dashboards import WAIT_S, Watched, address, serious_faults, serving, sticks_out, until
from tests.support.logged_blocks import Logged
from tests.support.window_documents import store_missing, store_named

RETRIED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: retried}
spec:
  nodes:
    - {name: src, to: [snk]}
    - {name: snk, retries: again}
    - {name: again}
"""
EVIL = "<b>bold</b> & co"
TWICE = "tried-twice"
LOST = "lost-on-the-way"
TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
OLD_TRACE = TraceContext("ab" * 16, "cd" * 8)
TRACES = "https://traces.example"


@functools.cache
def start() -> int:
    return int(time.time()) // 60 * 60 - 600


@pytest.fixture(scope="module")
def url(module_database_url: str, kafka_bootstrap: str) -> Iterator[str]:
    create_topics(kafka_bootstrap)
    store = Store(module_database_url)
    store.apply(parse_definition(RETRIED), 0)
    minute = Logged("retried", start(), kafka_bootstrap, BEACONS, store, 8)
    for checkpoint, lag_ms in (("src.in", 5), ("src.out", 25)):
        placed = minute.put(checkpoint, [EVIL, TWICE, LOST], lag_ms, traces={LOST: "".join(TRACE)})
        minute.tell(checkpoint, placed, beacons=3)
    path = (("snk.in", 100), ("snk.out:again", 120), ("again.in", 300), ("again.out:snk", 800), ("snk.in", 900))
    told = {}
    for checkpoint, lag_ms in (*path, ("snk.out", 950)):
        told.setdefault(checkpoint, []).extend(minute.put(checkpoint, [TWICE], lag_ms))
    told["snk.in"] += minute.put("snk.in", [EVIL], 60)
    told["snk.out"] += minute.put("snk.out", [EVIL], 70)
    for checkpoint, ranges in told.items():
        minute.tell(checkpoint, ranges, beacons=len(ranges))
    again = Logged("retried", start() + 60, kafka_bootstrap, BEACONS, store, 8)
    for checkpoint in ("src.in", "src.out", "snk.in", "snk.out"):
        again.tell(checkpoint, again.put(checkpoint, [LOST], 10), beacons=1)
    with store.engine.begin() as connection:
        for start_s in (start(), start() - 86_400):
            store_named(connection, "retried", start_s, LOST, kind="lost", place="link src->snk", last="src.out")
        gone = start() - 86_400
        perhaps = {"kind": "perhaps", "place": "node snk", "last": "snk.in", "trace": OLD_TRACE}
        store_missing(connection, "retried", gone, "long gone", **perhaps)
    store.close()
    settings = {"LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap, "LAGLOSS_TRACE_URL": f"{TRACES}/{{trace_id}}"}
    with serving(module_database_url, **settings) as url:
        yield url


def ask(url: str, asked: str, **query: str) -> dict[str, object]:
    answer = httpx2.get(f"{url}/api/v1/pipelines/retried/messages", params={"id": asked, **query}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_an_id_with_any_characters_is_found_by_itself_and_by_its_hash(url: str) -> None:
    for asked in (EVIL, f"{hash_id(EVIL):016x}"):
        trail = ask(url, asked)["trail"]
        assert isinstance(trail, dict)
        assert trail["message_id"] == EVIL
        assert [beacon["checkpoint"] for beacon in trail["beacons"]] == ["src.in", "src.out", "snk.in", "snk.out"]


def test_turns_of_a_retry_are_stays_of_their_own(url: str) -> None:
    stays = ask(url, TWICE)["stays"]
    assert isinstance(stays, list)
    assert [(stay["place"], stay["turn"], stay["length_ms"]) for stay in stays] == [
        ("node src", 1, 20.0),
        ("link src->snk", 1, 75.0),
        ("node snk", 1, 20.0),
        ("node snk", 2, 50.0),
        ("link snk->again", 1, 180.0),
        ("link again->snk", 1, 100.0),
        ("node again", 1, 500.0),
    ]


def test_a_time_to_look_around_finds_the_minute_where_an_id_was_used_again(url: str) -> None:
    for around_s, start_s, missing_at in (
        (start() + 30, start(), ["link src->snk"]),
        (start() + 90, start() + 60, []),
    ):
        found = ask(url, LOST, around=rfc3339(around_s))
        trail = found["trail"]
        assert isinstance(trail, dict)
        assert (trail["window_start"], found["missing_at"]) == (rfc3339(start_s), missing_at)


def test_the_trace_is_that_of_the_trail_and_of_what_the_result_kept(url: str) -> None:
    trail, kept, neither = ask(url, LOST, around=rfc3339(start() + 30)), ask(url, "long gone"), ask(url, TWICE)
    expected = {**TRACE._asdict(), "trace_url": f"{TRACES}/{TRACE.trace_id}"}
    assert isinstance(trail["trail"], dict)
    assert {name: trail["trail"][name] for name in expected} == expected
    (missing,) = kept["missing"] if isinstance(kept["missing"], list) else ()
    assert (missing["trace_id"], missing["trace_url"]) == (OLD_TRACE.trace_id, f"{TRACES}/{OLD_TRACE.trace_id}")
    assert isinstance(neither["trail"], dict)
    assert "trace_id" not in neither["trail"]


def test_what_is_typed_while_the_page_is_still_loading_stays(url: str, browser: Browser) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "message-id.value" in str(route.request.post_data_json["output"]):
            held.append(route)
        else:
            route.continue_()

    with Watched(browser) as page:
        page.route(re.compile("_dash-update-component"), hold)
        page.goto(f"{url}/pipelines/retried/messages?zone=UTC")
        until(lambda: address(page) and held, "the page to ask what to fill in")
        page.locator("#message-id").fill(LOST)
        with page.expect_response(lambda answer: "message-id.value" in (answer.request.post_data or "")):
            for route in held:
                route.continue_()
        page.unroute_all()
        page.locator("#message-search").click()
        until(lambda: f"id={LOST}" in address(page), "the id in the address")


def test_a_lost_message_says_where_and_why_and_leads_to_its_minute(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/retried/messages?zone=UTC")
        page.locator("#message-id").fill(LOST)
        page.locator("#message-search").click()
        until(lambda: f"id={LOST}" in address(page), "the id in the address")
        found = page.locator("#message-found")
        expect(found).to_contain_text("Missing at link src → snk: later messages have passed this place")
        expect(found).to_contain_text("Also missing in")
        trace = found.get_by_role("link", name=TRACE.trace_id)
        expect(trace).to_have_attribute("href", f"{TRACES}/{TRACE.trace_id}")
        expect(page.locator("#message-gantt .barlayer .point")).to_have_count(1)
        expect(found.locator("tbody tr")).to_have_count(2)
        found.get_by_role("link", name="window").first.click()
        until(lambda: f"/pipelines/retried/windows/{rfc3339(start())}" in address(page), "the window")
        page.go_back()
        expect(page.locator("#message-id")).to_have_value(LOST)


def test_markup_in_an_id_stays_text(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/retried/messages?zone=UTC&id=%3Cb%3Ebold%3C%2Fb%3E+%26+co")
        expect(page.locator("#message-found .mono").get_by_text(EVIL, exact=True)).to_be_visible()
        expect(page.locator("#message-found").get_by_text("Nothing missing")).to_be_visible()


def test_other_colours_show_what_was_found_and_a_new_look_searches_again(
    url: str, module_database_url: str, browser: Browser
) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/retried/messages?zone=UTC&id=<b>bold</b> %26 co")
        found = page.locator("#message-found")
        expect(found.get_by_text("Nothing missing")).to_be_visible()
        with closing(Store(module_database_url)) as store, store.engine.begin() as connection:
            store_missing(connection, "retried", start() - 86_400, EVIL, kind="lost", place="node snk", last="snk.in")
        with page.expect_response(lambda answer: "message-answer" in (answer.request.post_data or "")):
            page.locator("#scheme-toggle").click()
        expect(found.get_by_text("Nothing missing")).to_be_visible()
        page.reload()
        expect(found).to_contain_text("The log cannot be read")


def test_a_message_whose_beacons_are_gone_is_known_by_what_its_result_kept(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/retried/messages?zone=UTC&id=long gone")
        found = page.locator("#message-found")
        expect(found).to_contain_text("The log cannot be read")
        expect(found).to_contain_text("Possibly lost")
        expect(found).to_contain_text("Missing at node snk")
        expect(found.get_by_role("link", name=OLD_TRACE.trace_id)).to_be_visible()


def test_the_newest_are_listed_by_what_is_certain_each_a_click_from_its_trail(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/messages?zone=UTC")
        listing = page.locator("#messages-content")
        expect(listing).to_contain_text(re.compile(r"[23] certainly lost, 1 possibly lost"))  # a test adds another
        assert serious_faults(page) == []
        listing.get_by_role("link", name="retried").first.click()
        listing = page.locator("#message-listing")
        listing.get_by_role("link", name="? Possibly lost 1").click()
        expect(listing.get_by_role("row")).to_have_count(1 + 1)
        expect(listing).to_contain_text("Possibly lost")
        listing.get_by_role("link", name="long gone").click()
        expect(page.locator("#message-found")).to_contain_text("Missing at node snk")


def test_an_id_that_nobody_sent_is_not_found_and_the_reach_is_told(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/retried/messages?zone=UTC&id=nobody")
        expect(page.locator("#message-found")).to_contain_text("No beacon found for nobody: searched")
        expect(page.locator("#message-found")).to_contain_text("The log goes back to")


def test_bad_questions_are_problem_documents(url: str) -> None:
    answers = [
        httpx2.get(f"{url}/api/v1/pipelines/{what}", timeout=30).status_code
        for what in ("nobody/messages?id=a", "retried/messages", "retried/messages?id=a&around=yesterday")
    ]
    assert answers == [404, 422, 422]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_usable_at_every_width_by_everybody(url: str, browser: Browser, width: int, dark: bool) -> None:
    with Watched(browser, width=width, dark=dark) as page:
        asked = LOST if dark else TWICE
        page.goto(f"{url}/pipelines/retried/messages?zone=UTC&id={asked}")
        # Plotly's 4 MB come last
        expect(page.locator("#message-gantt .main-svg").first).to_be_visible(timeout=1_000 * WAIT_S)
        assert serious_faults(page) == []
        assert not sticks_out(page)
