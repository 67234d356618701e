"""The page of one minute, and its API, over real blocks in a real log."""

from __future__ import annotations

import csv
import functools
import io
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import update

from dashboard.pages.window.verdict import gap_words
from dashboard.queries.evidence import Gap, read_gaps
from dashboard.request.zones import Zone
from lagloss.broker.topics import BEACONS, create_topics
from lagloss.wire.format import OffsetRange
from lagloss.wire.traces import TraceContext
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.judging.facts import Pattern, WindowFacts
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.difference import difference
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.support.dashboards import Watched, address, serious_faults, serving, sticks_out, until
from tests.support.logged_blocks import Logged
from tests.support.window_documents import chain, document, result_of, store_missing, store_window, window_of

EVIL = "<img src=x onerror=alert(1)>"
FORMULA = "=1+1"
IDS = [EVIL, FORMULA, *"cdefghij"]
SEEN = {
    "src.in": IDS,
    "src.out": IDS,
    "mid.in": IDS[:9],
    "mid.out": IDS[:7],
    "mid.filtered": [IDS[7]],
    "snk.in": IDS[:6],
    "snk.out": IDS[:6],
}
LOSSES = {"src->mid": (1, 1), "mid": (1, 1), "mid->snk": (1, 1)}
COUNTS = {point: len(ids) for point, ids in SEEN.items()}
TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
TRACES = TraceLinks("https://traces.example/trace/{trace_id}?span={span_id}")
TRACE_URL = f"https://traces.example/trace/{TRACE.trace_id}?span={TRACE.span_id}"
SILENT = bytes([0xAB]) * 16


@functools.cache
def now() -> int:
    return int(time.time()) // 60 * 60


def closed() -> int:
    return now() - 600


def sealed() -> int:
    return now() - 540


def opened() -> int:
    return now() - 120


def idle() -> int:
    return now() - 480


@pytest.fixture(scope="module")
def store(module_database_url: str, kafka_bootstrap: str) -> Iterator[Store]:
    """The worked case of the design, in a closed minute with three revisions; beside it a sealed, an idle and an open
    one."""
    create_topics(kafka_bootstrap)
    store = Store(module_database_url)
    store.apply(chain(), 0)
    minute = Logged("chain", closed(), kafka_bootstrap, BEACONS, store, 8)
    for at, (checkpoint, ids) in enumerate(SEEN.items()):
        placed = minute.put(checkpoint, ids, 10.0 * (at + 1), traces={"j": "".join(TRACE)})
        minute.tell(checkpoint, placed, beacons=len(ids))
    minute.put("snk.in", IDS[:1], 900)  # of the same minute, told of by the tally below
    minute.tell_of_everything()
    live = Logged("chain", opened(), kafka_bootstrap, BEACONS, store, 8)
    live.tell("src.in", live.put("src.in", IDS[:3], 5), beacons=3)
    write_windows(store)
    yield store
    store.close()


def patterns() -> WindowFacts:
    """What the closer would keep of the closed minute."""
    bit = chain().graph.bit
    masks = Counter(sum(1 << bit[point] for point, ids in SEEN.items() if name in ids) for name in IDS)
    return WindowFacts(
        patterns=tuple(Pattern(mask, count) for mask, count in masks.items()),
        read={(bytes(16), point, None): len(ids) for point, ids in SEEN.items()},
    )


def write_windows(store: Store) -> None:
    reasons = ("evidence:snk",)
    window = document(
        chain(), closed(), verdict="loss", messages=10, lost=LOSSES, counts=COUNTS, reasons=reasons, revision=3
    )
    with store.engine.begin() as connection:
        store_window(connection, window, closed(), notify=False)
        connection.execute(update(tables.table_of(tables.WindowRow)).values(facts=patterns().pack()))
        gone = document(chain(), sealed(), verdict="loss", messages=50, lost={"mid": (1, 1)}, counts={"src.in": 50})
        store_window(connection, {**gone, "state": "sealed"}, sealed(), notify=False)
        store_window(connection, document(chain(), idle(), verdict="idle", messages=0), idle(), notify=False)
        lost = {"kind": "lost", "place": "link src->mid", "last": "src.out", "trace": TRACE}
        for start_s, name in ((closed(), IDS[9]), (sealed(), EVIL)):
            store_missing(connection, "chain", start_s, name, **lost)
        for revision, pending in ((1, 3), (2, 1)):
            before = document(chain(), closed(), verdict="unknown", messages=10, pending=pending)
            connection.execute(
                tables.table_of(tables.WindowRevisionRow)
                .insert()
                .values(
                    pipeline="chain",
                    window_start=closed(),
                    revision=revision,
                    closed_at=1_000 * (closed() + 121 + revision),
                    document=result_of(window_of(before)).pack(),
                )
            )
        silent = {"seq": 1, "started_at": 0, "sent_at": 0, "appended_at": 1_000 * (closed() + 30), "final_through": 0}
        who = {"pipeline": "chain", "emitter": SILENT, "node": "snk", "host": "web-1", "closed": False}
        connection.execute(tables.table_of(tables.EmitterRow).insert().values(**who, **silent))


@pytest.fixture(scope="module")
def url(module_database_url: str, store: Store, kafka_bootstrap: str) -> Iterator[str]:
    settings = {"LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap, "LAGLOSS_TRACE_URL": TRACES.template}
    with serving(module_database_url, **settings) as url:
        yield url


def path(start_s: int, query: str = "") -> str:
    return f"/pipelines/chain/windows/{rfc3339(start_s)}?zone=UTC{query}"


def api(url: str, part: str = "", **query: str) -> httpx2.Response:
    return httpx2.get(f"{url}/api/v1/pipelines/chain/windows/{rfc3339(closed())}{part}", params=query, timeout=30)


def names(page: Page) -> list[str]:
    return page.locator(".ag-pinned-left-cols-container .ag-cell").all_inner_texts()


def test_the_verdict_names_who_is_missing(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(url + path(closed()))
        verdict = page.locator("#window-verdict")
        expect(verdict).to_contain_text("3 of 10 messages (30 %) certainly lost")
        expect(verdict).to_contain_text("1 on link src → mid")
        expect(verdict).to_contain_text("the evidence of node snk is incomplete: ")
        expect(verdict).to_contain_text("emitter abababab on web-1 did not report after")
        rows = page.locator("#window-revisions tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(0)).to_contain_text("verdict unknown → loss; delivered 9 → 7; pending 1 → 0; lost 0 → 3")
        expect(page.locator("#window-table tfoot")).to_contain_text("30 %")


def test_lost_reports_are_named_where_nothing_else_is_missing(store: Store) -> None:
    whole_from = {"topic_partition": 0, "next_offset": 9, "topic_id": "", "whole_from": 1000 * (closed() + 720)}
    with store.engine.begin() as connection:
        connection.execute(tables.table_of(tables.ReportsPositionRow).insert().values(whole_from))
    try:
        # the one emitter is silent in the first, and expected no more in the second
        silent, lost = (read_gaps(store, "chain", start_s, time.time()) for start_s in (closed(), closed() + 720))
    finally:
        with store.engine.begin() as connection:
            connection.execute(tables.table_of(tables.ReportsPositionRow).delete())
    assert {gap.kind for gap in silent if gap.node == "snk"} == {"silent"}
    assert lost == (Gap("snk", "reports lost"),)
    assert gap_words(lost[0], Zone.named(None)) == "Kafka has lost reports, which may have been about this minute"


def test_the_matrix_has_every_message_and_footers_as_in_the_talk(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(url + path(closed()))
        expect(page.locator(".ag-center-cols-container .ag-row")).to_have_count(10)
        assert sorted(names(page)) == sorted(IDS)  # HTML in an id stays text
        footer = page.locator(".ag-floating-bottom")
        for row, told in ((0, "10 messages"), (2, "3"), (3, "30 %")):
            expect(footer.locator(f"[row-id='b-{row}'] [col-id='missing']")).to_have_text(told)
        counts = [footer.locator(f"[row-id='b-0'] [col-id='c{at}']").inner_text() for at in range(3)]
        assert counts == ["10", "10", "9"]
        expect(footer.locator("[row-id='b-1'] [col-id='c2']")).to_have_text("1")
        first = page.locator(".ag-center-cols-container .ag-row").first
        expect(first.locator("[col-id='c0']")).to_have_text("● 10 ms")
        expect(page.locator(".cell-missing").first).to_have_text("✖ missing")
        traces = page.locator(".ag-center-cols-container [col-id='trace'] a")
        expect(traces).to_have_text([TRACE.trace_id])
        for name, value in (("href", TRACE_URL), ("target", "_blank"), ("rel", "noopener noreferrer")):
            expect(traces).to_have_attribute(name, value)
        colours = {
            kind: page.locator(f".cell-{kind}").first.evaluate("cell => getComputedStyle(cell).color")
            for kind in ("there", "missing", "absent")
        }
        assert len(set(colours.values())) == 3


def test_filters_stand_in_the_address_and_back_undoes_them(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(url + path(closed()))
        rows = page.locator(".ag-center-cols-container .ag-row")
        expect(rows).to_have_count(10)
        page.locator("#window-only").get_by_text("missing", exact=True).click()
        until(lambda: "only=missing" in address(page), "the filter in the address")
        expect(rows).to_have_count(3)
        assert sorted(names(page)) == ["g", "i", "j"]
        page.locator("#window-only").get_by_text("duplicate", exact=True).click()
        expect(rows).to_have_count(1)
        assert names(page) == [EVIL]
        expect(page.locator(".ag-center-cols-container").get_by_text("×2")).to_have_count(1)
        page.go_back()
        expect(rows).to_have_count(3)
        page.goto(url + path(closed(), "&where=node mid"))
        expect(rows).to_have_count(1)
        assert names(page) == ["i"]
        page.goto(url + path(closed(), "&text=mg"))
        expect(rows).to_have_count(1)


def test_a_difference_is_that_of_the_command_line(
    url: str, browser: Browser, store: Store, kafka_bootstrap: str
) -> None:
    with closing(BeaconLog(kafka_bootstrap, BEACONS)) as log:
        told = difference(store, log, "chain", closed(), "src.in", "mid.out")
    assert told.message_ids == ("h", "i", "j")
    assert api(url, "/difference", **{"from": "src.in", "to": "mid.out"}).json() == told.document(TRACES)
    assert told.document(TRACES)["traces"]["j"]["trace_url"] == TRACE_URL
    with Watched(browser) as page:
        page.goto(url + path(closed(), "&a=src.in"))
        expect(page.locator(".ag-center-cols-container .ag-row")).to_have_count(10)
        page.locator("#window-grid .ag-root").evaluate("grid => grid.dataset.drawn = 'once'")
        page.locator("#window-b").click()
        page.get_by_role("option", name="mid.out", exact=True).click()
        expect(page.locator("#window-difference")).to_contain_text("3 messages at src.in but not at mid.out.")
        expect(page.locator("#window-grid [data-drawn]")).to_have_count(1)  # where it was scrolled to
        assert page.locator("#window-difference li").all_inner_texts() == ["h", "i", "j trace"]
        expect(page.locator("#window-difference").get_by_role("link", name="trace")).to_have_attribute(
            "href", TRACE_URL
        )
        expect(page.locator("#window-a")).to_have_value("src.in")
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV of all names").click()
        assert download.value.suggested_filename == f"chain-{rfc3339(closed()).replace(':', '')}-src.in-not-mid.out.csv"


def test_csv_holds_what_the_matrix_holds_and_no_formula(url: str) -> None:
    answer = api(url, "/matrix", format="csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["message_id"] for row in rows] == [EVIL, f"'{FORMULA}", *IDS[2:]]
    assert rows[9] == {
        **dict.fromkeys(rows[9], ""),
        "message_id": "j",
        "event_time": rfc3339(closed() + 9),
        "src.in ms": "10.0",
        "src.out ms": "20.0",
        "missing_at": "link src->mid",
        "trace_id": TRACE.trace_id,
    }
    assert rows[0]["duplicates"] == "snk.in 1"
    assert answer.text.endswith("\r\n")


def test_an_export_has_the_missing_with_kind_place_and_emitter(url: str) -> None:
    answer = api(url, "/export", what="lost")
    assert answer.headers["content-disposition"].endswith('-lost.csv"')
    rows = {row["message_id"]: row for row in csv.DictReader(io.StringIO(answer.text, newline=""))}
    assert rows.keys() == {"g", "i", "j"}
    assert (rows["j"]["kind"], rows["j"]["places"], rows["j"]["trace_id"]) == ("lost", "link src->mid", TRACE.trace_id)
    assert rows["j"]["last_checkpoint"] == "src.out"
    found = api(url, "/export", format="json").json()
    assert (found["source"], found["truncated"]) == ("log", False)
    assert {message["message_id"] for message in found["messages"]} == {"g", "i", "j"}


def test_an_export_of_a_sealed_minute_has_what_its_result_kept(url: str) -> None:
    answer = httpx2.get(f"{url}/api/v1/pipelines/chain/windows/{rfc3339(sealed())}/export?format=json", timeout=30)
    found = answer.json()
    assert (found["source"], [message["message_id"] for message in found["messages"]]) == ("closing", [EVIL])
    parquet = httpx2.get(f"{url}/api/v1/pipelines/chain/windows/{rfc3339(sealed())}/export?format=parquet", timeout=30)
    assert (parquet.headers["content-type"], parquet.content[:4]) == ("application/vnd.apache.parquet", b"PAR1")


def test_the_export_menu_leads_to_files(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(url + path(closed()))
        page.locator("summary", has_text="Export").click()
        link = page.get_by_role("link", name="JSON").first
        expect(link).to_be_visible()
        expect(link).to_have_attribute(
            "href", f"/api/v1{path(closed()).partition('?')[0]}/export?what=lost&format=json"
        )


def test_the_api_tells_the_window_its_gaps_and_its_revisions(url: str) -> None:
    window = api(url).json()
    assert (window["verdict"], window["revision"], window["lost"]) == ("loss", 3, {"min": 3, "max": 3})
    (gap,) = (gap for gap in window["gaps"] if gap["kind"] == "silent")
    assert (gap["node"], gap["host"], gap["emitter"]) == ("snk", "web-1", SILENT.hex())
    assert [revision["number"] for revision in api(url, "/revisions").json()] == [3, 2, 1]
    found = api(url, "/matrix", only="missing", limit="2").json()
    assert (found["count"], len(found["messages"]), found["truncated"]) == (3, 2, True)


@pytest.mark.parametrize(
    ("what", "query", "status"),
    [
        ("chain/windows/2001-01-01T00:00:00Z", {}, 404),
        ("nobody/windows/2001-01-01T00:00:00Z/matrix", {}, 404),
        ("chain/windows/yesterday", {}, 422),
        ("chain/windows/2001-01-01T00:00:00Z/difference", {"from": "src.in", "to": "nowhere"}, 422),
        ("chain/windows/2001-01-01T00:00:00Z/matrix", {}, 409),
        ("chain/windows/2001-01-01T00:00:00Z/matrix", {"limit": "0"}, 422),
        ("chain/windows/2001-01-01T00:00:00Z/export", {}, 404),
        ("chain/windows/2001-01-01T00:00:00Z/export", {"what": "odd"}, 422),
    ],
)
def test_what_cannot_be_answered_is_a_problem_document(url: str, what: str, query: dict[str, str], status: int) -> None:
    answer = httpx2.get(f"{url}/api/v1/pipelines/{what}", params=query, timeout=30)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_a_sealed_minute_shows_the_missing_messages_that_its_result_kept(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(url + path(sealed()))
        expect(page.locator("#window-verdict")).to_contain_text("sealed: the log no longer holds its beacons")
        expect(page.locator("#window-matrix")).to_contain_text("its beacons cannot be read")
        expect(page.locator(".ag-row")).to_have_count(1)
        expect(page.locator(".ag-cell").first).to_have_text(EVIL)
        expect(page.locator(".ag-cell[col-id='trace'] a")).to_have_attribute("href", TRACE_URL)


@pytest.mark.parametrize(
    ("start_s", "title"),
    [
        (opened, "Not closed yet"),
        (idle, "Idle"),
        (lambda: now() + 6_000, "No such window yet"),
        (lambda: now() - 86_400, "No such window"),
    ],
)
def test_every_minute_without_a_verdict_says_why(url: str, browser: Browser, start_s: object, title: str) -> None:
    assert callable(start_s)
    with Watched(browser) as page:
        page.goto(url + path(start_s()))
        expect(page.locator("#window-notice").get_by_text(title, exact=True)).to_be_visible()


def test_the_neighbouring_minutes_are_a_step_away(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(url + path(closed()))
        page.get_by_role("link", name="next minute").click()
        until(lambda: rfc3339(sealed()) in address(page), "the next minute")
        expect(page.locator("#window-verdict")).to_contain_text("sealed")


def test_without_kafka_the_stored_result_is_shown_and_the_reason(
    module_database_url: str, store: Store, browser: Browser
) -> None:
    with serving(module_database_url, LAGLOSS_DATA_DIR="/nowhere") as url, Watched(browser) as page:
        assert api(url, "/matrix").status_code == 503
        page.goto(url + path(closed(), "&a=src.in&b=mid.out"))
        expect(page.locator("#window-matrix")).to_contain_text("The address of Kafka is unknown")
        expect(page.locator(".ag-row")).to_have_count(1)
        counted = "3 messages at src.in but not at mid.out, according to the window's result."
        expect(page.locator("#window-difference")).to_contain_text(counted)


def test_a_minute_that_is_too_large_is_not_read_and_says_so(url: str, store: Store, browser: Browser) -> None:
    start_s = now() - 420
    with store.engine.begin() as connection:
        window = document(chain(), start_s, verdict="ok", messages=5_000_000, counts={"src.in": 5_000_000})
        store_window(connection, window, start_s, notify=False)
    Logged("chain", start_s, "", "", store).tell("src.in", [OffsetRange(0, 0, 0)], beacons=5_000_000)
    answer = httpx2.get(f"{url}/api/v1/pipelines/chain/windows/{rfc3339(start_s)}/matrix", timeout=30)
    assert (answer.status_code, answer.json()["title"]) == (409, "Window too large")
    with Watched(browser) as page:
        page.goto(url + path(start_s))
        expect(page.locator("#window-matrix")).to_contain_text("5,000,000 beacons")


def test_what_is_not_a_window_of_anything_says_so(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/nobody/windows/{rfc3339(closed())}")
        expect(page.get_by_text("There is no pipeline named nobody.")).to_be_visible()
        page.goto(f"{url}/pipelines/chain/windows/T-T")
        expect(page.get_by_text("T-T is not a time")).to_be_visible()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_usable_at_every_width_by_everybody(url: str, browser: Browser, width: int, dark: bool) -> None:
    with Watched(browser, width=width, dark=dark) as page:
        page.goto(url + path(closed(), "&a=src.in&b=mid.out"))
        expect(page.locator("#window-difference li")).to_have_count(3)
        expect(page.locator(".ag-center-cols-container .ag-row")).to_have_count(10)
        assert serious_faults(page) == []
        assert not sticks_out(page)
