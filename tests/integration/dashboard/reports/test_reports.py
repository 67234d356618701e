"""SLA reports of a month whose sums are known: from the database, on the command line, through the API, as a page."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import Connection, insert
from typer.testing import CliRunner

from dashboard.reports import make_report
from dashboard.reports.cli import app
from dashboard.reports.ranges import CalendarRange, between, named_range
from lagloss.errors import LaglossError
from lagloss.wire.sketch import Sketch
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import Interval, rfc3339
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import Period, Rollup, period_of
from tests.programs import need
from tests.support.dashboards import WAIT_S, Watched, address, serious_faults, serving, sticks_out, until
from tests.support.incident_rows import store_incident
from tests.support.window_documents import CHAIN, CLICKS, chain, clicks, document, facts, store_window, window_of

HOUR_S = 3_600
GAP_DAY = 4
"""Nothing is kept of this day of the month."""
BAD_HOUR = 130
STRICT_DAY = 14
"""From this day on a tenth of the losses are promised."""


def last_month() -> CalendarRange:
    return named_range("last-month", "UTC", time.time())


def hour(number: int) -> Rollup:
    """6,000 messages, 3 lost, 2 perhaps, and 60 late; 500 lost in the bad hour, which has 5 minutes without proof."""
    lost, unknown = (500, 5) if number == BAD_HOUR else (3, 0)
    return Rollup(
        windows=60,
        verdicts={"ok": 60 - unknown, "unknown": unknown} if unknown else {"ok": 60},
        proofs={"beacons": 60},
        messages=6_000,
        delivered=5_998 - lost,
        lost=Interval(lost, lost + 2),
        on_time=5_938 - lost,
        on_time_of=6_000,
        e2e_lags=Sketch.from_bins({10_250 + number % 9: 6_000 - lost}),
        lost_at={"link src->mid": Interval(lost, lost + 2)},
    )


def store_rollups(connection: Connection, pipeline: str, rows: list[tuple[Period, int, Rollup]]) -> None:
    kept = [
        {"pipeline": pipeline, "period": period, "start": start, "computed_at": 0, "packed": found.pack()}
        | found.headline()
        for period, start, found in rows
    ]
    connection.execute(insert(tables.RollupRow), kept)


def store_month(store: Store, span: CalendarRange) -> int:
    """Roll-ups of a month, two incidents and a stricter version of the definition; how many hours."""
    store.apply(chain(), 0)
    stricter = parse_definition(CHAIN.replace("max: 0.01", "max: 0.001"))
    store.apply(stricter, (span.from_s + STRICT_DAY * DAY_S) * 1_000)
    hours = [
        (start, hour((start - span.from_s) // HOUR_S))
        for start in range(span.from_s, span.to_s, HOUR_S)
        if (start - span.from_s) // DAY_S != GAP_DAY
    ]
    rows: list[tuple[Period, int, Rollup]] = [("hour", start, found) for start, found in hours]
    for day in {start // DAY_S * DAY_S for start, _ in hours}:
        rows.append(("day", day, Rollup.merged(found for start, found in hours if day <= start < day + DAY_S)))
    begun = datetime.fromtimestamp(span.from_s, UTC)
    with store.engine.begin() as connection:
        store_rollups(connection, "chain", rows)
        for opened, lasted in ((-2, 1), (-1, 3), (200, 2), (40 * 24, 1)):
            at = begun + timedelta(hours=opened)
            store_incident(connection, opened_at=at, resolved_at=at + timedelta(hours=lasted), because="recovered")
    return len(hours)


@dataclass(frozen=True)
class Month:
    store: Store
    url: str
    span: CalendarRange
    hours: int


@pytest.fixture(scope="module")
def month(module_database_url: str) -> Iterator[Month]:
    store, span = Store(module_database_url), last_month()
    yield Month(store, module_database_url, span, store_month(store, span))
    store.close()


@pytest.fixture(scope="module")
def url(month: Month) -> Iterator[str]:
    with serving(month.url) as url:
        yield url


def test_a_month_is_judged_by_its_sums_each_version_by_its_own_target(month: Month) -> None:
    made = make_report(month.store, "chain", month.span, time.time())
    lost, messages = 3 * (month.hours - 1) + 500, 6_000 * month.hours
    loss, on_time = made.whole.attainments
    before = 24 * (STRICT_DAY - 1) * 6_000
    assert (loss.of, loss.bad, loss.status) == (messages, Interval(lost, lost + 2 * month.hours), "unproven")
    assert loss.allowed == before / 100 + (messages - before) / 1_000
    late = 60 * month.hours
    assert (on_time.bad, on_time.of) == (Interval(late + lost, late + lost + 2 * month.hours), messages)
    assert [(target.version, target.loss_max) for target in made.targets] == [(1, 0.01), (2, 0.001)]
    assert made.whole.total.lost_at == {"link src->mid": Interval(lost, lost + 2 * month.hours)}
    assert made.whole.minutes_by_verdict["missing"] == 1_440
    assert made.whole.minutes_by_verdict["unknown"] == 5
    assert sum(made.whole.minutes_by_verdict.values()) == (month.span.to_s - month.span.from_s) // 60


def test_days_hours_and_the_budget_of_a_month_add_up_to_it(month: Month) -> None:
    made = make_report(month.store, "chain", month.span, time.time())
    assert sum(day.total.messages for day in made.days) == made.whole.total.messages
    assert [at for at, day in enumerate(made.days) if not day.known.closed] == [GAP_DAY]
    assert made.worst_hours[0].figures.from_s == month.span.from_s + BAD_HOUR * HOUR_S
    assert len(made.worst_hours) == 10
    assert [at for at, point in enumerate(made.burn_down) if point.left[0] is None] == [GAP_DAY + 1]
    for which, one in enumerate(made.whole.attainments):
        assert one.budget is not None
        assert made.burn_down[-1].left[which] == pytest.approx(one.budget.left)
        assert one.unseen > 0


def test_the_line_of_a_budget_begins_where_something_is_known(month: Month) -> None:
    earlier = replace(month.span, from_s=month.span.from_s - 10 * DAY_S)
    made = make_report(month.store, "chain", earlier, time.time())
    unknown = [at for at, point in enumerate(made.burn_down) if point.left[0] is None]
    assert unknown == [*range(1, 10), 10 + GAP_DAY + 1]
    assert made.burn_down[10].at_s == month.span.from_s


def test_incidents_that_overlap_a_range_are_in_its_report_and_no_others(month: Month) -> None:
    found = make_report(month.store, "chain", month.span, time.time()).incidents
    begun = datetime.fromtimestamp(month.span.from_s, UTC)
    assert [(one.opened_at - begun) / timedelta(hours=1) for one in found.listed] == [-1, 200]
    assert (found.times.incidents, found.times.mean_to_resolve_s) == (2, 2.5 * HOUR_S)


def test_days_of_another_zone_begin_at_its_midnight(month: Month) -> None:
    span = between(f"-{40}d", "now", "Asia/Kolkata", time.time())
    made = make_report(month.store, "chain", span, time.time())
    assert all((day.from_s + 19_800) % DAY_S == 0 for day in made.days[1:])
    # half past the hour: what only hours tell cannot be parted
    assert made.whole.total.messages >= sum(day.total.messages for day in made.days)


def test_the_range_before_is_compared(month: Month) -> None:
    now_s = time.time()
    third, second = (
        make_report(month.store, "chain", CalendarRange(at, at + DAY_S, "UTC"), now_s)
        for at in (month.span.from_s + 2 * DAY_S, month.span.from_s + DAY_S)
    )
    assert third.previous.document() == second.whole.document()
    assert make_report(month.store, "chain", month.span, now_s).previous.known.closed == 0


def test_a_report_of_an_unknown_pipeline_says_which_there_are(month: Month) -> None:
    with pytest.raises(UnknownPipeline, match="chain"):
        make_report(month.store, "nobody", month.span, time.time())


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, month: Month) -> None:
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", month.url)
    monkeypatch.setenv("LAGLOSS_DASHBOARD_URL", "http://lagloss")


def run(*words: str) -> tuple[int, str]:
    """A command's exit code, as `main` makes it of an error, and what it says."""
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, LaglossError):
        return done.exception.exit_code, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.usefixtures("environment")
def test_the_command_tells_by_its_exit_code_how_a_pipeline_fared(month: Month, tmp_path: Path) -> None:
    bad_hour = datetime.fromtimestamp(month.span.from_s + BAD_HOUR * HOUR_S, UTC)
    missed = ("chain", "--from", bad_hour.isoformat(), "--to", (bad_hour + timedelta(hours=1)).isoformat())
    assert run(*missed)[0] == 0
    code, said = run(*missed, "--check")
    assert code == 1
    assert "Loss MISSED: 8.33 % – 8.37 % of 6,000 messages lost" in said
    assert run("chain", "--check")[0] == 0
    assert run("nobody")[0] == 2
    assert run("chain", "--range", "someday")[0] == 2
    assert run("chain", "--format", "docx")[0] == 2
    assert run("chain", "--format", "md,html")[0] == 2
    assert run("chain", "--out", str(tmp_path / "no" / "folder.md"))[0] == 2
    assert run("chain", "--from", "-5m") == (4, "chain has no closed window in this range.")


@pytest.mark.usefixtures("environment")
def test_several_formats_are_files_in_a_folder(month: Month, tmp_path: Path) -> None:
    out = tmp_path / "reports"
    assert run("chain", "--format", "md,html,csv,json", "--out", str(out))[0] == 0
    assert {path.name for path in out.iterdir()} == {
        f"lagloss-chain-{month.span.name}.{form}" for form in ("md", "html", "csv", "json")
    }
    document = json.loads((out / f"lagloss-chain-{month.span.name}.json").read_text())
    assert document["whole"]["links"]["page"].startswith("http://lagloss/pipelines/chain?")
    assert run("chain", "--format", "csv", "--out", str(tmp_path / "one.csv"))[0] == 0
    assert (tmp_path / "one.csv").read_bytes().count(b"\r\n") > 30


def test_lagloss_report_is_that_command_and_an_unreachable_database_is_exit_3(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lagloss_server.cli.main", "report", "chain"]
    away = {"LAGLOSS_DATABASE_URL": "postgresql://127.0.0.1:1/x", "LAGLOSS_DATA_DIR": str(tmp_path)}
    done = subprocess.run(words, env={**os.environ, **away}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert "Cannot reach PostgreSQL" in done.stderr


def test_the_api_gives_every_form_as_what_it_is(url: str, month: Month) -> None:
    route = f"{url}/api/v1/pipelines/chain/report"
    found = httpx2.get(route)
    assert found.headers["content-type"] == "application/json"
    assert found.json()["range"]["name"] == month.span.name
    for form, kind in (("md", "text/markdown"), ("html", "text/html"), ("csv", "text/csv")):
        sent = httpx2.get(route, params={"format": form, "range": month.span.name}, timeout=60)
        assert sent.headers["content-type"].startswith(kind)
        assert sent.headers["content-disposition"] == (f'attachment; filename="lagloss-chain-{month.span.name}.{form}"')
        assert sent.content
    zoned = httpx2.get(route, params={"from": "-2d", "to": "now", "zone": "Asia/Tokyo"}).json()
    assert zoned["range"]["zone"] == "Asia/Tokyo"


def test_the_api_gives_a_pdf(url: str, month: Month) -> None:
    need("pango")
    sent = httpx2.get(f"{url}/api/v1/pipelines/chain/report", params={"format": "pdf"}, timeout=60)
    assert sent.headers["content-type"] == "application/pdf"
    assert sent.headers["content-disposition"].endswith('.pdf"')
    assert sent.content.startswith(b"%PDF-")


@pytest.fixture(scope="module")
def minutes(month: Month) -> CalendarRange:
    """25 hours of `clicks`, as when the clocks go back, and the 25 before; every 20th minute has a result."""
    to_s = int(time.time()) // HOUR_S * HOUR_S - HOUR_S
    month.store.apply(clicks(), 0)
    hours: dict[int, list[Rollup]] = {}
    with month.store.engine.begin() as connection:
        for at, start_s in enumerate(range(to_s - 50 * HOUR_S, to_s, 1_200)):
            lost = {"conn-ga": (at % 3, at % 5 + at % 3)}
            window = document(
                clicks(), start_s, messages=1_000 + at, lags_ms={"conn-ga.out": 500.0 + at}, lost=lost, pending=at % 4
            )
            window["on_time_share"] -= at % 7 / (1_000 + at)
            store_window(connection, window, start_s, notify=False)
            hours.setdefault(period_of("hour", start_s), []).append(Rollup.of_window(window_of(window), facts(window)))
        store_rollups(connection, "clicks", [("hour", start, Rollup.merged(parts)) for start, parts in hours.items()])
    return CalendarRange(to_s - 25 * HOUR_S, to_s, "UTC")


def followed(client: httpx2.Client, link: str) -> list[dict[str, Any]]:
    """All windows behind a link."""
    found: list[dict[str, Any]] = []
    following: str | None = link
    while following is not None:
        answer = client.get(following).raise_for_status()
        found += answer.json()
        following = str(answer.url.join(answer.links["next"]["url"])) if "next" in answer.links else None
    return found


def recomputed(windows: list[dict[str, Any]]) -> dict[str, int]:
    """What the CSV tells of these windows."""
    sums = dict.fromkeys(("messages", "delivered", "pending", "lost_min", "lost_max", "on_time"), 0)
    for window in windows:
        for name in ("messages", "delivered", "pending"):
            sums[name] += window[name]
        sums["lost_min"] += window["lost"]["min"]
        sums["lost_max"] += window["lost"]["max"]
        sums["on_time"] += round(window["on_time_share"] * window["messages"])
    late = sums["delivered"] - sums["on_time"]
    sums["loss_bad_max"] = sums["lost_max"] + sums["pending"]
    return sums | {"on_time_bad_min": late + sums["lost_min"], "on_time_bad_max": late + sums["loss_bad_max"]}


def test_every_figure_can_be_recomputed_from_the_windows_it_links_to(url: str, minutes: CalendarRange) -> None:
    span = {"from": rfc3339(minutes.from_s), "to": rfc3339(minutes.to_s), "format": "csv"}
    with httpx2.Client(base_url=url, timeout=WAIT_S) as client:
        text = client.get("/api/v1/pipelines/clicks/report", params=span).text
        rows = list(csv.DictReader(io.StringIO(text)))
        stretches = [row for row in rows if row["status"]]
        assert {row["what"] for row in stretches} == {"whole", "previous", "day", "hour"}
        assert {row["destination"] for row in stretches} == {""}  # windows of before there were any
        assert {"link event-router->conn-ga", "node conn-ga", "destination conn-ga"} <= {row["what"] for row in rows}
        for row in stretches:
            windows = followed(client, urlsplit(row["windows"])._replace(scheme="", netloc="").geturl())
            found = recomputed(windows)
            assert {name: int(row[name]) for name in found} == found, row
            assert sum(int(row[verdict]) for verdict in ("ok", "loss", "unknown", "idle")) == len(windows)
            total = client.get(urlsplit(row["sums"])._replace(scheme="", netloc="").geturl()).json()["total"]
            assert (total["messages"], total["lost"]["max"]) == (found["messages"], found["lost_max"])
            if row["e2e_p95_ms"]:
                assert total["e2e_lag_ms"]["p95"] == pytest.approx(float(row["e2e_p95_ms"]))


def test_figures_of_destinations_and_hops_can_be_recomputed_from_what_they_link_to(url: str, month: Month) -> None:
    fan_out = parse_definition(CLICKS.replace("name: clicks", "name: fan-out"))
    month.store.apply(fan_out, 0)
    to_s = int(time.time()) // HOUR_S * HOUR_S - HOUR_S
    lags = {"col-service.in": 100.0, "conn-ga.out": 500.0, "conn-fb.out": 900.0}
    with month.store.engine.begin() as connection:
        for at, start_s in enumerate(range(to_s - HOUR_S, to_s, 300)):
            window = document(fan_out, start_s, lags_ms=lags, due={"conn-ga": 900 + at, "conn-fb": 700})
            window["destinations"][1] |= {"delivered": 690 - at, "lost": {"min": 10 + at, "max": 10 + at}}
            store_window(connection, window, start_s, notify=False)
    span = {"from": rfc3339(to_s - HOUR_S), "to": rfc3339(to_s), "format": "json"}
    with httpx2.Client(base_url=url, timeout=WAIT_S) as client:
        made = client.get("/api/v1/pipelines/fan-out/report", params=span).json()
        assert [there["name"] for there in made["destinations"]] == ["conn-ga", "conn-fb"]
        for there in made["destinations"]:
            whole, of = there["whole"], there["name"]
            of_windows = [
                next(each for each in window["destinations"] if each["name"] == of)
                for window in followed(
                    client, urlsplit(whole["links"]["windows"])._replace(scheme="", netloc="").geturl()
                )
            ]
            assert len(of_windows) == 12
            assert whole["messages"] == sum(each["due"] for each in of_windows)
            assert whole["lost"]["min"] == sum(each["lost"]["min"] for each in of_windows)
            assert whole["delivered"] == sum(each["delivered"] for each in of_windows)
            sums = urlsplit(whole["links"]["sums"])._replace(scheme="", netloc="").geturl()
            total = client.get(sums).json()["total"]
            same = next(each for each in total["destinations"] if each["name"] == of)
            assert (same["due"], same["lost"], same["e2e_lag_ms"]) == (
                whole["messages"], whole["lost"], whole["e2e_lag_ms"],
            )  # fmt: skip
        known = {(hop["kind"], hop["from"], hop["node"]): hop["p95_ms"] for hop in made["lag_by_hop"]["hops"]}
        assert known == {(hop["kind"], hop["from"], hop["node"]): hop["p95_ms"] for hop in total["hops"]}


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_no_link_of_a_report_leads_nowhere(url: str, minutes: CalendarRange, form: str) -> None:
    span = {"from": rfc3339(minutes.from_s), "to": rfc3339(minutes.to_s), "format": form}
    with httpx2.Client(base_url=url, timeout=WAIT_S) as client:
        text = html.unescape(client.get("/api/v1/pipelines/clicks/report", params=span).text)
        links = set(re.findall(r'(?:https?://[^/"]+)?(/(?:api|pipelines)/[^")\\ ]+)', text))
        assert len(links) > 10
        assert {link: client.get(link).status_code for link in links} == dict.fromkeys(links, 200)


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("nobody", {}, 404),
        ("chain", {"range": "someday"}, 422),
        ("chain", {"from": "soon"}, 422),
        ("chain", {"zone": "../../etc/passwd"}, 422),
        ("chain", {"format": "docx"}, 422),
        ("chain", {"from": "-900d"}, 422),
    ],
)
def test_the_api_says_what_is_wrong_with_a_request(url: str, path: str, query: dict[str, str], status: int) -> None:
    found = httpx2.get(f"{url}/api/v1/pipelines/{path}/report", params=query)
    assert (found.status_code, found.headers["content-type"]) == (status, "application/problem+json")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_shows_the_month_and_keeps_nobody_out(
    url: str, browser: Browser, month: Month, width: int, dark: bool
) -> None:
    with Watched(browser, width=width, dark=dark) as page:
        page.goto(f"{url}/pipelines/chain/report?zone=UTC")
        expect(page.get_by_text("Loss UNPROVEN")).to_be_visible(timeout=1_000 * WAIT_S)
        expect(page.locator(".chart .main-svg").first).to_be_visible()
        expect(page.locator(".days .day")).to_have_count((month.span.to_s - month.span.from_s) // DAY_S)
        expect(page.locator(".days .day").first).to_have_css("width", "26px")
        expect(page.locator(".day-blank")).to_have_count(1)
        assert serious_faults(page) == []
        assert not sticks_out(page)


def test_controls_of_the_page_write_the_address_and_are_filled_from_it(
    url: str, browser: Browser, month: Month
) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/chain/report?zone=UTC&range={month.span.name}")
        expect(page.locator("#report-range")).to_have_value(month.span.name)
        expect(page.get_by_text("Loss UNPROVEN")).to_be_visible(timeout=1_000 * WAIT_S)
        page.get_by_role("button", name="Earlier").click()
        until(lambda: month.span.name not in address(page), "the month before in the address")
        expect(page.get_by_text("No window of this range is closed")).to_be_visible()
        page.go_back()
        expect(page.locator("#report-range")).to_have_value(month.span.name)
        expect(page.get_by_text("Loss UNPROVEN")).to_be_visible(timeout=1_000 * WAIT_S)
        shown = urlencode({"from": rfc3339(month.span.from_s), "to": rfc3339(month.span.to_s)}, safe=":")
        for name in ("Pipeline", "Messages", "Alerts"):
            link = page.get_by_role("link", name=name, exact=True)
            expect(link).to_have_attribute("href", re.compile(f"zone=UTC&{re.escape(shown)}$"))
        with page.expect_download() as got:
            page.get_by_role("link", name="CSV").click()
        assert got.value.suggested_filename == f"lagloss-chain-{month.span.name}.csv"


def test_an_address_that_makes_no_sense_is_told_so(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/chain/report?zone=UTC&range=someday")
        expect(page.get_by_text("No such range")).to_be_visible()
        page.goto(f"{url}/pipelines/nobody/report?zone=UTC")
        expect(page.get_by_text("There is no pipeline named nobody.")).to_be_visible()


def test_a_report_is_drawn_anew_with_the_clock(url: str, browser: Browser, month: Month) -> None:
    fresh = parse_definition(CHAIN.replace("name: chain", "name: fresh"))
    month.store.apply(fresh, 0)
    with Watched(browser) as page:
        page.goto(f"{url}/pipelines/fresh/report?zone=UTC&range=24h")
        nothing = page.get_by_text("No window of this range is closed")
        expect(nothing).to_be_visible()
        start_s = int(time.time()) // 60 * 60 - 600
        with month.store.engine.begin() as connection:
            store_window(connection, document(fresh, start_s), start_s)
        page.evaluate("dash_clientside.set_props('tick', {n_intervals: 99})")  # as a minute later
        expect(nothing).to_have_count(0)
