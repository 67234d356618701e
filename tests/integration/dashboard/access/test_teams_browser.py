"""Teams and the audit trail in a real browser: what a member sees, and where operators see who did what."""

from __future__ import annotations

import httpx2
from playwright.sync_api import Browser, expect

from tests.support.dashboards import Watched, address, serious_faults, sticks_out, until
from tests.support.teams_world import HUSHED, OURS, THEIRS, TeamsWorld, ids, known_as, user


def test_a_viewer_of_a_team_walks_through_all_pages_and_sees_their_pipelines_alone(
    url: str, world: TeamsWorld, browser: Browser
) -> None:
    with Watched(browser, headers=known_as("rob", "red")) as page:
        page.goto(f"{url}/?zone=UTC")
        expect(page.locator("#overview-rows tbody tr")).to_have_count(1)
        expect(page.locator("#overview-rows")).to_contain_text(OURS)
        expect(page.locator("#nav")).not_to_contain_text("Audit")
        page.locator("#pipeline").click()
        expect(page.get_by_role("option")).to_have_count(1)
        page.goto(f"{url}/pipelines/{THEIRS}?zone=UTC")
        expect(page.locator("#pipeline-notice")).to_contain_text(f"There is no pipeline named {THEIRS}.")
        expect(page.locator("#pipeline-notice")).not_to_contain_text(HUSHED)
        page.goto(f"{url}/pipelines/{OURS}/windows/{world.start}?zone=UTC&a=src.in&b=snk.in")
        expect(page.locator("#window-verdict")).to_contain_text("certainly lost")
        expect(page.locator("#window-matrix")).to_contain_text(f"rob is not allowed to see message ids of {OURS}")
        expect(page.locator("#window-text")).to_be_hidden()
        expect(page.locator("#window-difference")).to_contain_text("not allowed to see")
        expect(page.get_by_role("link", name="Messages", exact=True)).to_have_count(0)
        page.goto(f"{url}/incidents/{world.incidents[OURS]}?zone=UTC")
        expect(page.locator("#incident-content")).to_contain_text("Examples are not shown")
        expect(page.locator("#incident-content")).not_to_contain_text(ids(OURS)[3])
        expect(page.get_by_role("button", name="Acknowledge")).to_be_disabled()
        page.goto(f"{url}/incidents/{world.incidents[THEIRS]}?zone=UTC")
        expect(page.locator("#incident-notice")).to_contain_text("No such incident")
        page.goto(f"{url}/audit")
        expect(page.locator("#audit-notice")).to_contain_text("rob has the read-only role viewer")


def test_an_operator_of_a_team_takes_an_incident_and_silences_no_more_than_their_own(
    url: str, world: TeamsWorld, browser: Browser
) -> None:
    with Watched(browser, headers=known_as("rhea", "red-ops")) as page:
        page.goto(f"{url}/incidents/{world.incidents[OURS]}?zone=UTC")
        page.get_by_role("link", name="Silence", exact=True).click()
        page.locator("#silence-matchers").fill("severity=critical")
        page.locator("#silence-reason").fill("a change of disks")
        page.get_by_role("button", name="Silence").click()
        expect(page.locator("#act-told")).to_contain_text("it matches 1 open incident")
        page.goto(f"{url}/alerts?zone=UTC&tab=silences")
        expect(page.locator("#alerts-content")).to_contain_text(f"severity=critical pipeline=~{OURS}")
        expect(page.locator("#alerts-content")).to_contain_text("pipelines of your teams and of other teams")
        page.goto(f"{url}/pipelines/{OURS}/windows/{world.start}?zone=UTC")
        expect(page.locator("#window-matrix")).to_contain_text(ids(OURS)[0])


def test_the_audit_page_shows_who_did_what_and_is_filtered_by_its_address(
    url: str, world: TeamsWorld, browser: Browser
) -> None:
    with user(url, "bill", "blue") as bill, user(url, "rhea", "red-ops") as rhea:
        window = f"/api/v1/pipelines/{THEIRS}/windows/{world.start}/matrix"
        assert bill.get(window).status_code == 200
        assert rhea.get(window.replace(THEIRS, OURS)).status_code == 200
        assert bill.post(f"/api/v1/incidents/{world.incidents[THEIRS]}/acknowledge").status_code == 200
    with Watched(browser, headers=known_as("olga", "sre")) as page:
        page.goto(f"{url}/audit?zone=UTC&range=1h")
        rows = page.locator("#audit-content tbody tr")
        taken = rows.filter(has_text="acknowledged an incident")
        expect(taken).to_contain_text("bill, proxy")
        expect(taken).to_contain_text("127.0.0.1")
        expect(taken.get_by_role("link", name=THEIRS)).to_be_visible()
        expect(page.get_by_role("link", name="Audit")).to_have_attribute("aria-current", "page")
        assert serious_faults(page) == []
        page.locator("#audit-actor").fill("rhe")
        page.keyboard.press("Enter")
        until(lambda: "actor=rhe" in address(page), "the filter in the address")
        expect(rows.filter(has_text="bill")).to_have_count(0)
        expect(rows.filter(has_text="rhea").first).to_contain_text("viewed message ids of a window")
        page.locator("#audit-action").click()
        page.get_by_role("option", name="ended a silence").click()
        expect(page.locator("#audit-notice")).to_contain_text("No matching entries")
        page.go_back()
        expect(rows.first).to_be_visible()
    with Watched(browser, headers=known_as("rhea", "red-ops"), width=390, dark=True) as page:
        page.goto(f"{url}/audit?zone=UTC&range=1h")
        rows = page.locator("#audit-content tbody tr")
        expect(rows.first).to_be_visible()
        expect(page.locator("#audit-content")).not_to_contain_text(THEIRS)
        assert serious_faults(page) == []
        assert not sticks_out(page)


def test_a_hostile_name_stays_text_on_the_audit_page(url: str, world: TeamsWorld, browser: Browser) -> None:
    name = "<img src=x onerror=alert(1)>"
    headers = {"x-forwarded-user": name, "x-forwarded-groups": "sre", "origin": url}
    silence = {"matchers": ["kind=<b>lag</b>"], "duration": "1h", "reason": "x"}
    assert httpx2.post(f"{url}/api/v1/silences", json=silence, headers=headers).status_code == 201
    with Watched(browser, headers=known_as("olga", "sre")) as page:
        page.goto(f"{url}/audit?zone=UTC&range=1h")
        row = page.locator("#audit-content tbody tr").filter(has_text="onerror")
        expect(row).to_contain_text(name)
        expect(row).to_contain_text("kind=<b>lag</b>")
        expect(row.locator("img, b").filter(has_text="lag")).to_have_count(0)
