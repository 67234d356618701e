"""Health: what is wrong with lagloss is found in what its services wrote, and said with what to do."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from aggregator.reports.batch import ReportRecord
from aggregator.set_aside import Item, SetAside
from dashboard.pages.health.parts import sections, verdict
from dashboard.queries import health_pipelines
from dashboard.queries.health import Health, read_health
from dashboard.queries.reports_topic import Ends, ReportsTopic
from dashboard.request.links import Address
from dashboard.request.zones import Zone
from lagloss.broker.topics import REPORTS, create_topics
from lagloss.wire.format import EmitterReport, encode_report
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.store import recompute_requests
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.store import Store
from tests.support.dashboards import Watched, address, serious_faults, serving, sticks_out, until
from tests.support.incident_rows import store_leader, store_receiver
from tests.support.stored_windows import KNOWN, Stored
from tests.support.window_documents import clicks

MARKUP = "<img src=x onerror=alert(1)>"
NOT_ASKED = Ends(None, "not asked")


def now_ms() -> int:
    return int(time.time() * 1_000)


def newest_due_s() -> int:
    """Start of a minute that is over, and closed in time."""
    return int(time.time()) // 60 * 60 - 60


def lead(store: Store) -> None:
    with store.engine.begin() as connection:
        store_leader(connection, "here", datetime.now(UTC))
        store_receiver(connection, "hook")


def report_from(stored: Stored, host: str, skew_ms: int, pipeline: str = "chain") -> None:
    """A report of a node `snk` whose clock is so far behind."""
    at_ms = now_ms()
    told = EmitterReport(
        pipeline, "snk", b"skewed".ljust(16), host, 1, at_ms - 1_000, at_ms - skew_ms, False, at_ms // 1_000, (), ()
    )  # fmt: skip
    known = {**KNOWN, "clicks": frozenset({"conn-ga.out"})}
    stored.follower.follow([ReportRecord(1, 10_000, at_ms, encode_report(told))], known)


def whats(health: Health) -> list[str]:
    return [problem.what for problem in health.problems]


@pytest.fixture
def stored(store: Store) -> Stored:
    """A pipeline that is well, and an alerter that is."""
    found = Stored(store=store)
    lead(store)
    found.close(newest_due_s(), now_ms=now_ms())
    found.report("alive", now_ms())
    return found


def test_where_all_is_well_nothing_is_to_be_done(stored: Stored) -> None:
    assert read_health(stored.store, Ends({0: 1}), time.time()).problems == []


def test_an_emitter_that_fell_silent_is_told_from_one_that_closed(stored: Stored) -> None:
    stored.report("ended", now_ms() - 300_000, node="src", closed=True)
    assert read_health(stored.store, NOT_ASKED, time.time()).problems == []
    stored.report("died", now_ms() - 300_000)
    stored.report("died long ago", now_ms() - 2 * DAY_S * 1_000)
    health = read_health(stored.store, NOT_ASKED, time.time())
    assert whats(health) == ["1 node has emitters that stopped reporting without closing; first: snk of chain."]
    snk, src = health.nodes
    assert (snk.node, snk.reporting, snk.silent, snk.awaited, snk.long_dead, snk.closed) == ("snk", 1, 1, 1, 1, 0)
    assert (src.node, src.reporting, src.silent, src.closed, src.is_bad) == ("src", 0, 0, 1, False)


def test_a_dead_emitter_that_no_window_waits_for_is_no_trouble_while_another_works(stored: Stored) -> None:
    silent_ms = now_ms() - 3_600_000
    stored.report("replaced", silent_ms)
    health = read_health(stored.store, NOT_ASKED, time.time())
    assert health.problems == []
    assert "1 emitter stopped reporting within the last day" in str(verdict(health))
    later_s = time.time() + 120
    assert "1 node has emitters that stopped reporting" in whats(read_health(stored.store, NOT_ASKED, later_s))[-1]


def test_an_emitter_that_fell_silent_stays_named_for_a_day_with_its_last_report(stored: Stored) -> None:
    at_ms = now_ms()
    ages_s = {"awaited": 300, "given up": 3_600, "yesterday": DAY_S - 60, "too old": DAY_S + 60}
    for name, age_s in ages_s.items():
        stored.report(name, at_ms - 1_000 * age_s)
    stored.report("ended", at_ms - 600_000, closed=True)
    health = read_health(stored.store, NOT_ASKED, at_ms / 1_000)
    found = [(bytes.fromhex(one.emitter).decode().strip(), one.host, one.is_awaited) for one in health.silent_emitters]
    assert found == [("awaited", "host", True), ("given up", "host", False), ("yesterday", "host", False)]
    assert [at_ms / 1_000 - one.reported_s for one in health.silent_emitters] == [300, 3_600, DAY_S - 60]
    shown = str(sections(health, Address("/health", {"zone": "Europe/Berlin"})))
    assert Zone.named("Europe/Berlin").moment(health.silent_emitters[2].reported_s, seconds=True) in shown
    assert health.document()["silent_emitters"][1]["awaited"] is False


def test_of_very_many_silent_emitters_the_last_are_named_and_all_are_counted(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_pipelines, "SILENT_LISTED", 2)
    for age_s in (300, 400, 500):
        stored.report(f"at {age_s}", now_ms() - 1_000 * age_s)
    health = read_health(stored.store, NOT_ASKED, time.time())
    assert [bytes.fromhex(one.emitter).decode().strip() for one in health.silent_emitters] == ["at 300", "at 400"]
    assert [node.silent for node in health.nodes] == [3]


def test_minutes_that_are_due_and_not_closed_are_counted_gaps_too(stored: Stored) -> None:
    newest_s = newest_due_s()
    stored.close(newest_s - 600, now_ms=now_ms())
    health = read_health(stored.store, NOT_ASKED, time.time())
    (chain,) = health.closings
    assert chain.due == 9
    assert chain.oldest_due_s == newest_s - 540
    assert "longest delay: chain," in whats(health)[0]


def test_a_pipeline_without_a_window_waits_from_its_first_tally(store: Store) -> None:
    stored = Stored(store=store)
    first_s = newest_due_s() - 600
    stored.report("one", now_ms(), [first_s])
    (chain,) = read_health(store, NOT_ASKED, time.time()).closings
    assert (chain.newest_s, chain.oldest_due_s) == (None, first_s)
    assert chain.is_late(time.time())


def test_a_pipeline_that_was_only_declared_has_nothing_due(store: Store) -> None:
    Stored(store=store)
    (chain,) = read_health(store, NOT_ASKED, time.time()).closings
    assert (chain.due, chain.is_late(time.time())) == (0, False)


def test_reports_that_wait_are_trouble_once_nobody_follows(stored: Stored) -> None:
    waiting = Ends({0: 5, 1: 2})
    assert read_health(stored.store, waiting, time.time()).reports.behind == 6
    assert not any("not processed yet" in what for what in whats(read_health(stored.store, waiting, time.time())))
    (first, *_) = read_health(stored.store, waiting, time.time() + 61).problems
    assert first.what.startswith("6 reports are not processed yet; the newest processed one arrived")


def test_a_clock_that_is_off_is_named_with_its_host(stored: Stored) -> None:
    report_from(stored, MARKUP, 7_000)
    health = read_health(stored.store, NOT_ASKED, time.time())
    assert [(host.host, host.skew_ms) for host in health.hosts] == [(MARKUP, 7_000), ("host", 0)]
    assert f"{MARKUP}, 7 s" in whats(health)[0]


def test_bad_records_and_names_that_nobody_declared_are_counted(stored: Stored) -> None:
    stored.follower.follow([ReportRecord(2, at, now_ms(), b"\x00\xffnone of ours") for at in range(3)], KNOWN)
    stored.report("lost", now_ms(), [newest_due_s()], pipeline="undeclared")
    health = read_health(stored.store, NOT_ASKED, time.time())
    bad, undeclared = health.bad_records
    assert (bad.topic, bad.count, (bad.first_bytes or "")[:5]) == ("reports", 3, "00 ff")
    assert undeclared.count == 1
    assert [(found.kind, found.pipeline) for found in health.strangers] == [("pipeline", "undeclared")]
    assert whats(health) == [
        "4 records were quarantined in the last 24 hours.",
        "Reports name 1 pipeline or checkpoint that no definition declares.",
    ]


def test_work_that_was_set_aside_is_listed_with_its_error_and_when_it_was_tried(stored: Stored) -> None:
    failures = SetAside(stored.store.engine)
    for pipeline in ("chain", "another"):
        failures.put(Item("window", pipeline, "2026-05-28T20:27:00Z"), IndexError(MARKUP))
    health = read_health(stored.store, NOT_ASKED, time.time())
    assert whats(health) == ["1 work item failed; first: window 2026-05-28T20:27:00Z of chain."]
    (item,) = health.document()["set_aside"]
    assert (item.pipeline, item.error, item.tries) == ("chain", f"IndexError: {MARKUP}", 1)
    shown = str(sections(health, Address("/health", {"zone": "UTC"})))
    assert "2026-05-28T20:27:00Z" in shown
    assert f"IndexError: {MARKUP}" in shown


def test_an_alerter_that_is_gone_is_said(stored: Stored) -> None:
    assert whats(read_health(stored.store, NOT_ASKED, time.time() + 20))[0].startswith("No alerter is active: last")


def test_sizes_are_of_whole_tables_with_their_days(stored: Stored) -> None:
    sizes = {size.table: size for size in read_health(stored.store, NOT_ASKED, time.time()).sizes}
    assert sizes["window"].partitions >= 1
    assert sizes["window"].bytes > 0
    assert sizes["pipeline"].partitions == 0


def test_one_pipeline_alone_can_be_asked_for(stored: Stored) -> None:
    stored.store.apply(clicks(), 0)
    report_from(stored, "another", 0, pipeline="clicks")
    assert {node.pipeline for node in read_health(stored.store, NOT_ASKED, time.time()).nodes} == {"chain", "clicks"}
    health = read_health(stored.store, NOT_ASKED, time.time(), "chain")
    assert [closing.pipeline for closing in health.closings] == [node.pipeline for node in health.nodes] == ["chain"]
    with pytest.raises(UnknownPipeline):
        read_health(stored.store, NOT_ASKED, time.time(), "nosuch")


def test_a_recompute_is_shown_until_it_is_answered(stored: Stored) -> None:
    recompute_requests.add(stored.store, "chain", 600, 1_200)
    (asked,) = read_health(stored.store, NOT_ASKED, time.time()).recomputes
    assert (asked.from_s, asked.to_s, asked.of) == (600, 1_200, None)


def test_where_the_topic_ends_is_asked_of_kafka(kafka_bootstrap: str) -> None:
    create_topics(kafka_bootstrap)
    ends = ReportsTopic(kafka_bootstrap).ends()
    assert (set(ends.offsets or {}), ends.why) == ({0, 1, 2, 3}, ""), REPORTS


def test_a_kafka_that_does_not_answer_is_not_waited_for(free_port: int) -> None:
    began = time.monotonic()
    ends = ReportsTopic(f"127.0.0.1:{free_port}").ends()
    assert ends.offsets is None
    assert "did not respond" in ends.why
    assert time.monotonic() - began < 5
    assert ReportsTopic("").ends().offsets is None


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def url(module_database_url: str) -> Iterator[str]:
    store = Store(module_database_url)
    stored = Stored(store=store)
    stored.close(newest_due_s(), now_ms=now_ms())
    stored.report("silent", now_ms() - 300_000)
    stored.report("undeclared", now_ms(), [newest_due_s()], pipeline="undeclared")
    report_from(stored, MARKUP, -3_000)
    stored.follower.follow([ReportRecord(2, 0, now_ms(), b"\x00\xff")], KNOWN)
    with serving(module_database_url, LAGLOSS_KAFKA_BOOTSTRAP="") as url:
        yield url
    store.close()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_keeps_nobody_out_and_takes_host_names_as_text(
    url: str, browser: Browser, width: int, dark: bool
) -> None:
    with Watched(browser, width=width, dark=dark) as page:
        page.goto(f"{url}/health?zone=UTC")
        expect(page.get_by_role("cell", name=MARKUP)).to_be_visible()
        assert page.locator("main img").count() == 0
        expect(page.get_by_text("issues")).to_be_visible()
        expect(page.get_by_role("cell", name="00 ff")).to_be_visible()
        expect(page.get_by_role("cell", name="windows are waiting for it")).to_be_visible()
        assert serious_faults(page) == []
        assert not sticks_out(page)


def test_problems_lead_to_their_runbooks(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/health?zone=UTC")
        link = page.get_by_role("link", name="Runbook").first
        assert link.get_attribute("href") == "/runbooks/blind"


def test_a_pipeline_is_chosen_in_the_address_and_back_shows_all(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/health?zone=UTC")
        page.get_by_role("link", name="chain").nth(1).click()  # the one of its emitters
        until(lambda: "pipeline=chain" in address(page), "the pipeline in the address")
        expect(page.get_by_text("for chain")).to_be_visible()
        expect(page.locator("#health-only")).to_have_value("chain")
        page.go_back()
        expect(page.get_by_text("for chain")).to_be_hidden()


def test_a_pipeline_that_is_none_is_said(url: str, browser: Browser) -> None:
    """The field for pipelines has it as a choice all the same: it would empty itself, and the address with it."""
    with Watched(browser) as page:
        page.goto(f"{url}/health?zone=UTC&pipeline=nosuch")
        page.locator("#health-only").click()
        expect(page.get_by_role("option", name="chain")).to_be_visible()  # it is filled
        page.keyboard.press("Escape")
        expect(page.get_by_text("There is no pipeline named nosuch")).to_be_visible()
        assert "pipeline=nosuch" in address(page)


def test_the_api_prints_what_the_page_shows(url: str) -> None:
    found = httpx2.get(f"{url}/api/v1/health").json()
    assert found["reports"]["behind"] is None
    assert {problem["runbook"] for problem in found["problems"]} >= {"/runbooks/blind", "/runbooks/negative-lag"}
    assert httpx2.get(f"{url}/api/v1/health", params={"pipeline": "nosuch"}).status_code == 404
