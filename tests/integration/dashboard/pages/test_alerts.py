"""The alerts page and the page of an incident in a real browser: what is shown, what operators do there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import delete, insert, select, text

from lagloss_server.incidents import actions as incident_actions
from lagloss_server.incidents import incident as incidents
from lagloss_server.store.partitions import DAY_S, make_days_ahead
from lagloss_server.store.schema.alerting import IncidentChangeRow, IncidentRow, PendingBreachRow, SilenceRow
from lagloss_server.store.store import Store
from tests.support.alerting_world import START, alerter, close_windows, only_loss, somebody
from tests.support.dashboards import Watched, address, serious_faults, serving, sticks_out, until
from tests.support.incident_rows import EXAMPLE, store_delivery, store_incident, store_leader, store_receiver

HTML = "<b>bold</b><img src=x>"


@dataclass(frozen=True)
class Served:
    """A dashboard over a database with incidents of every kind."""

    url: str
    store: Store
    firing: UUID

    def opened(self, rule: str) -> UUID:
        """Another open incident, of a test's own rule; what an earlier try of the test left is removed."""
        left = select(IncidentRow.id).where(IncidentRow.rule == rule)
        with self.store.engine.begin() as connection:
            connection.execute(delete(SilenceRow))
            connection.execute(delete(IncidentChangeRow).where(IncidentChangeRow.incident_id.in_(left)))
            connection.execute(delete(IncidentRow).where(IncidentRow.rule == rule))
            return store_incident(connection, rule=rule, kind="loss", opened_at=datetime.now(UTC))


@pytest.fixture(scope="module")
def served(module_database_url: str) -> Iterator[Served]:
    store, now = Store(module_database_url), datetime.now(UTC)
    store.apply(only_loss(), (START - DAY_S) * 1_000)
    make_days_ahead(store.engine, START)
    close_windows(store, "ollooo")
    hour = timedelta(hours=1)
    with store.engine.begin() as connection:
        firing = store_incident(connection, opened_at=now - hour / 4, detail={"notes": [HTML]})
        why = {"withheld_kind": "rule", "withheld_ref": "lag"}
        store_incident(connection, rule="on-time", kind="on-time", severity="warning", opened_at=now, **why)
        for number in range(60):
            opened = now - hour * (2 + number / 10)
            store_incident(connection, opened_at=opened, resolved_at=opened + hour / 6, because="recovered")
        store_delivery(connection, firing, "on-call", at=now - hour / 4)
        store_delivery(connection, firing, "hook", "failed", at=now - hour / 4, error=f"HTTP 410 {HTML}")
        store_delivery(connection, firing, "chat", None, at=now)
        store_receiver(connection, "hook")
        store_leader(connection, "host-a", now - hour)
        at_s = int(now.timestamp()) // 60 * 60 - 120
        connection.execute(
            insert(PendingBreachRow).values(
                pipeline="chain", rule="lag", kind="lag", severity="critical", breaches=1, needed=2, of=3,
                first_window=at_s, last_window=at_s, text="end-to-end lag p95 9 s, target 5 s",
            )
        )  # fmt: skip
    with serving(module_database_url) as url:
        yield Served(url, store, firing)
    store.close()


def test_each_tab_shows_what_it_counts_and_stands_in_the_address(served: Served, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{served.url}/alerts?zone=UTC&range=24h")
        expect(page.locator(".incident").first).to_contain_text("3.20% of messages lost, target 1.00%")
        expect(page.get_by_text("No active alerter")).to_be_visible()
        for tab, shown in (
            ("Pending", "1 of the last 3; 2 open an incident"),
            ("Silenced", "notifications withheld: inhibited: lag is open"),
            ("History", "page 1 of 2, 60 in total"),
            ("Deliveries", "HTTP 410 <b>bold</b><img src=x>"),
            ("Silences", "No silence is active"),
            ("Backtest", "Run the backtest"),
        ):
            page.locator(".alert-tab", has_text=tab).click()
            expect(page.locator("#page")).to_contain_text(shown)
            assert f"tab={tab.lower()}" in address(page)
        page.go_back()
        expect(page.locator("#page")).to_contain_text("No silence is active")


def test_history_is_paged_and_filtered_and_a_link_shows_the_same(served: Served, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{served.url}/alerts?zone=Europe/Berlin&range=24h&tab=history")
        rows = page.locator(".facts tbody tr")
        expect(rows).to_have_count(50)
        page.get_by_role("link", name="older").click()
        expect(rows).to_have_count(10)
        assert "page=2" in address(page)
        page.locator("#alerts-severity").click()
        page.get_by_role("option", name="warning").click()
        expect(page.get_by_text("No resolved incidents")).to_be_visible()
        assert "severity=warning" in address(page)
        assert "page=" not in address(page)
    with Watched(browser) as page:
        page.goto(f"{served.url}/alerts?zone=UTC&range=24h&tab=history&severity=warning&page=-1&kind=none")
        expect(page.locator("#alerts-severity")).to_have_value("warning")
        expect(page.get_by_text("No resolved incidents")).to_be_visible()


def test_an_incident_tells_all_of_it_and_html_in_it_stays_text(served: Served, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{served.url}/incidents/{served.firing}?zone=UTC")
        for part in ("link src->mid: 94 lost", HTML, "opened (then 3.2 %, at worst 5 %)", "hook", "HTTP 410"):
            expect(page.locator("#incident-content")).to_contain_text(part)
        expect(page.locator("#incident-content img")).to_have_count(0)
        links = {
            name: page.get_by_role("link", name=name).get_attribute("href") for name in ("m-1", "trace", "Runbook")
        }
        assert links == {
            "m-1": "/pipelines/chain/messages?zone=UTC&id=m-1",
            "trace": EXAMPLE["trace_url"],
            "Runbook": "/runbooks/loss",
        }
        around = page.get_by_role("link", name="The pipeline at that time").get_attribute("href")
        assert around is not None
        assert around.startswith("/pipelines/chain?zone=UTC&from=")


def test_an_incident_that_is_none_says_so(served: Served, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{served.url}/incidents/ffffffff?zone=UTC")
        expect(page.get_by_text("No such incident")).to_be_visible()


def test_acknowledging_shows_at_once_who_has_it_and_typed_text_outlives_refreshes(
    served: Served, browser: Browser
) -> None:
    incident = served.opened("loss/ack")
    with Watched(browser) as page:
        page.goto(f"{served.url}/alerts?zone=UTC")
        card = page.locator(".incident", has_text="loss/ack")
        card.get_by_role("link", name="Acknowledge").click()
        form = page.get_by_role("dialog")
        expect(form).to_contain_text("chain: loss/ack, 3.20% of messages lost, target 1.00%")
        expect(form.get_by_label("Note")).to_be_focused()
        form.get_by_label("Your name").fill("ann")
        form.get_by_label("Note").fill(HTML)
        with page.expect_response(lambda answer: "_dash-update-component" in answer.url, timeout=10_000):
            pass  # a refresh, which leaves what is typed
        expect(form.get_by_label("Note")).to_have_value(HTML)
        form.get_by_role("button", name="Acknowledge the incident").click()
        expect(card).to_contain_text("acknowledged by ann")
        expect(form).to_be_hidden()
        assert "do=" not in address(page)
        page.goto(f"{served.url}/incidents/{incident}?zone=UTC")
        expect(page.locator(".timeline")).to_contain_text(f"acknowledged by ann: {HTML}")
    assert incidents.incident(served.store, str(incident)).acknowledged_by == "ann"


def test_whoever_is_late_is_told_who_was_faster(served: Served, browser: Browser) -> None:
    incident = served.opened("loss/late")
    with Watched(browser) as page:
        page.goto(f"{served.url}/incidents/{incident}?zone=UTC&do=acknowledge")
        form = page.get_by_role("dialog")
        expect(form).to_be_visible()
        incident_actions.acknowledge(served.store, str(incident), "bob")
        form.get_by_role("button", name="Acknowledge the incident").click()
        expect(form).to_contain_text("bob acknowledged it at")
        page.keyboard.press("Escape")
        expect(form).to_be_hidden()
        expect(page.locator("#incident-content")).to_contain_text("acknowledged by bob")


def test_a_silence_withholds_at_once_and_ends_on_demand(served: Served, browser: Browser) -> None:
    incident = served.opened("loss/silence")
    with Watched(browser) as page:
        page.goto(f"{served.url}/alerts?zone=UTC&do=silence&of={incident}")
        form = page.get_by_role("dialog")
        expect(form.get_by_label("Matchers")).to_have_value("pipeline=chain\nrule=loss/silence")
        button = form.get_by_role("button", name="Silence", exact=True)
        button.click()
        expect(form).to_contain_text("needs a reason")
        form.get_by_label("Reason").fill(HTML)
        button.click()
        expect(page.locator("#act-told")).to_contain_text("it matches 1 open incident")
        expect(page.locator(".incident", has_text="loss/silence")).to_have_count(0)
        page.locator(".alert-tab", has_text="Silenced").click()
        expect(page.locator(".incident", has_text="loss/silence")).to_contain_text(f"by local: {HTML}, until")
        page.get_by_role("link", name="End the silence").click()
        expect(form).to_contain_text(f"rule=loss/silence, by local: {HTML}")
        page.keyboard.press("Escape")
        page.locator(".alert-tab", has_text="Silences").click()
        page.get_by_role("link", name="End", exact=True).click()
        page.get_by_role("button", name="End the silence").click()
        expect(page.get_by_text("No silence is active")).to_be_visible()
        page.locator(".alert-tab", has_text="Firing").click()
        expect(page.locator(".incident", has_text="loss/silence")).to_be_visible()
    assert incident_actions.silences(served.store) == []


def test_what_the_database_did_not_take_is_told_and_what_is_typed_stays(served: Served, browser: Browser) -> None:
    def rename(table: str, to: str) -> None:
        with served.store.engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {table} RENAME TO {to}"))

    with Watched(browser) as page:
        page.goto(f"{served.url}/alerts?zone=UTC&do=silence&of={served.firing}")
        form = page.get_by_role("dialog")
        form.get_by_label("Reason").fill("known")
        rename("silence", "silence_away")
        try:
            form.get_by_role("button", name="Silence", exact=True).click()
            expect(form).to_contain_text("PostgreSQL rejected the query")
        finally:
            rename("silence_away", "silence")
        expect(form.get_by_label("Reason")).to_have_value("known")


def test_a_backtest_says_what_would_have_been_told(served: Served, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{served.url}/alerts?zone=UTC&tab=backtest&pipeline=chain&range=3h")
        page.get_by_role("button", name="Run the backtest").click()
        expect(page.locator("#backtest-found")).to_contain_text("1 incident of chain")
        expect(page.locator("#backtest-found tbody tr")).to_contain_text("4 % of messages lost, target 1 %")
        page.goto(f"{served.url}/alerts?zone=UTC&tab=backtest&pipeline=chain&range=15m")
        page.get_by_role("button", name="Run the backtest").click()
        expect(page.locator("#backtest-found")).to_contain_text("has no closed window in this range")


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_people_who_see_little_or_use_a_phone_are_not_kept_out(
    served: Served, browser: Browser, width: int, dark: bool
) -> None:
    paths = ["/alerts?zone=UTC&range=24h", f"/incidents/{served.firing}?zone=UTC&do=acknowledge"]
    paths += [f"/alerts?zone=UTC&range=24h&tab={tab}" for tab in ("history", "deliveries")]
    with Watched(browser, width=width, dark=dark) as page:
        for path in paths:
            page.goto(f"{served.url}{path}")
            expect(page.locator(".alert-tabs, .timeline").first).to_be_visible()
            if "do=" in path:
                expect(page.get_by_role("dialog")).to_be_visible()
                settled(page)
            assert serious_faults(page) == [], path
            assert not sticks_out(page), path


def settled(page: Page) -> None:
    """Waits until what fades in has done so: half of it has too little contrast."""
    until(lambda: page.evaluate("document.getAnimations().length") == 0, "the end of animations")
    opacity = "getComputedStyle(document.querySelector('[role=dialog]')).opacity"
    until(lambda: page.evaluate(opacity) == "1", "the form to be there")


def test_the_api_tells_the_same_and_does_the_same(served: Served) -> None:
    incident = served.opened("loss/api")
    with httpx2.Client(base_url=f"{served.url}/api/v1") as api:
        told = api.get("/incidents", params={"pipeline": "chain", "severity": "critical"}).json()
        assert str(incident) in [found["id"] for found in told["incidents"]]
        assert [found["rule"] for found in told["pending"]] == ["lag"]
        over = api.get("/incidents", params={"state": "resolved", "range": "24h", "size": 7, "page": 2}).json()
        assert (len(over["incidents"]), over["total"], over["page"]) == (7, 60, 2)
        assert over["times"]["mean_to_resolve_s"] == 600
        assert api.get(f"/incidents/{served.firing}").json()["examples"][0]["message_id"] == "m-1"
        sent = api.get("/deliveries", params={"range": "24h"}).json()
        assert sent["outcomes"] == {"failed": 1, "waiting": 1, "sent": 1}
        assert [each["outcome"] for each in sent["deliveries"]] == ["failed", "waiting", "sent"]
        assert api.get("/receivers").json() == {
            "receivers": [{"name": "hook", "kind": "webhook", "is_fallback": False}]
        }
        taken = api.post(f"/incidents/{incident}/acknowledge", json={"author": "ann", "note": "mine"})
        assert (taken.status_code, taken.json()["acknowledged_by"]) == (200, "ann")
        asked = {"matchers": ["rule=loss/api"], "duration": "1h", "reason": "known", "author": "ann"}
        made = api.post("/silences", json=asked)
        assert (made.status_code, made.json()["open_incidents"]) == (201, [str(incident)])
        assert [each["id"] for each in api.get("/silences").json()["silences"]] == [made.json()["id"]]
        assert api.delete(f"/silences/{made.json()['id']}").status_code == 204
        assert api.get("/silences").json() == {"silences": []}


def test_the_api_says_what_is_wrong_as_problems(served: Served) -> None:
    incident, silence = served.opened("loss/problems"), {"matchers": ["a=b"], "duration": "2h", "reason": "known"}
    incident_actions.acknowledge(served.store, str(incident), "bob")
    with httpx2.Client(base_url=f"{served.url}/api/v1") as api:
        for answer, status, title in (
            (api.post(f"/incidents/{incident}/acknowledge"), 409, "Already acknowledged"),
            (api.get(f"/incidents/{UUID(int=0)}"), 404, "Unknown incident"),
            (api.get("/incidents/0a"), 422, "Bad parameter"),
            (api.get("/incidents?page=0"), 422, "Bad parameter"),
            (api.get("/incidents?state=resolved&range=9y"), 422, "Bad request"),
            (api.post("/silences", json={**silence, "duration": "25h"}), 422, "Bad request"),
            (api.post("/silences", json={**silence, "duration": "soon"}), 422, "Bad parameter"),
            (api.post("/silences", json={**silence, "reason": " "}), 422, "Bad request"),
            (api.post("/silences", json={**silence, "matchers": ["chain"]}), 422, "Bad request"),
            (api.delete("/silences/none"), 404, "Unknown silence"),
            (api.post("/receivers/sms/test"), 404, "Unknown receiver"),
        ):
            assert (answer.status_code, answer.json()["title"]) == (status, title), answer.text
            assert answer.headers["content-type"] == "application/problem+json"


def test_a_receiver_is_tested_by_way_of_a_running_alerter(database_url: str, browser: Browser) -> None:
    store = Store(database_url)
    with somebody() as receiver, alerter(database_url, receiver.url), serving(database_url) as url:
        until(lambda: httpx2.get(f"{url}/api/v1/receivers").json()["receivers"], "an alerter to lead")
        with Watched(browser) as page:
            page.goto(f"{url}/alerts?zone=UTC&tab=deliveries")
            page.locator("#test-receiver").click()
            page.get_by_role("option", name="webhook").click()
            page.get_by_role("button", name="Send a test").click()
            expect(page.locator("#test-outcome")).to_contain_text("webhook accepted the test")
            expect(page.locator(".facts tbody tr")).to_contain_text("a test")
            receiver.answers = [410]
            page.get_by_role("button", name="Send a test").click()
            expect(page.locator("#test-outcome")).to_contain_text("webhook refused the test: HTTP 410")
            expect(page.get_by_text("No active alerter")).to_have_count(0)
        assert receiver.types == ["test", "test"]
        store.apply(only_loss(), (START - DAY_S) * 1_000)
        make_days_ahead(store.engine, START)
        close_windows(store, "oll")
        until(lambda: receiver.types[2:] == ["opened"], "the alerter to tell of an incident")
        [opened] = incidents.incidents(store)
        assert httpx2.post(f"{url}/api/v1/incidents/{opened.id}/acknowledge").status_code == 200
        until(lambda: receiver.types[2:] == ["opened", "acknowledged"], "its receiver to be told who has it")
    store.close()
