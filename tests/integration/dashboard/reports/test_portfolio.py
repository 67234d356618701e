"""The portfolio from a real database: figures of each pipeline's report, in as many statements for one as for many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
import typer
import yaml
from playwright.sync_api import Browser, expect
from sqlalchemy import event
from typer.testing import CliRunner

from dashboard.access.scoped_store import ScopedStore
from dashboard.reports import make_portfolio, make_report
from dashboard.reports.cli import app as report_app
from dashboard.reports.ranges import CalendarRange
from dashboard.reports.schedule.file import ReportSpec
from dashboard.reports.schedule.producer import Producer
from lagloss.errors import LaglossError
from lagloss_server.cli.main import app as lagloss_app
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.matchers import parse_matchers
from lagloss_server.model.window import rfc3339
from lagloss_server.store.store import Store
from tests.support.dashboards import WAIT_S, Watched, address, serious_faults, serving, sticks_out, until
from tests.support.incident_rows import store_incident
from tests.support.teams_world import OURS, asked_by, member
from tests.support.window_documents import CHAIN, document, store_window

HOUR_S = 3_600
NAMES = ("blue-salaries", OURS, "red-stock")


def fill(store: Store, name: str, to_s: int, lost: int) -> None:
    """Two hours, of which the last loses messages."""
    team = name.partition("-")[0]
    definition = parse_definition(CHAIN.replace("{name: chain}", f"{{name: {name}, labels: {{team: {team}}}}}"))
    store.apply(definition, 0)
    with store.engine.begin() as connection:
        for start_s in range(to_s - 2 * HOUR_S, to_s, 60):
            of = lost if start_s >= to_s - HOUR_S else 0
            window = document(definition, start_s, lost={"src->mid": (of, of)}, lags_ms={"snk.out": 200.0})
            store_window(connection, window, start_s, notify=False)


@pytest.fixture(scope="module")
def world(module_database_url: str) -> Iterator[tuple[Store, CalendarRange]]:
    store, to_s = Store(module_database_url), int(time.time()) // HOUR_S * HOUR_S - HOUR_S
    for name, lost in zip(NAMES, (0, 50, 5), strict=True):
        fill(store, name, to_s, lost)
    with store.engine.begin() as connection:
        store_incident(connection, pipeline=OURS)
    yield store, CalendarRange(to_s - HOUR_S, to_s, "UTC")
    store.close()


@pytest.fixture(scope="module")
def url(world: tuple[Store, CalendarRange], module_database_url: str) -> Iterator[str]:
    with serving(module_database_url) as url:
        yield url


def test_figures_are_those_of_each_pipelines_report_worst_first(world: tuple[Store, CalendarRange]) -> None:
    store, span = world
    now_s = time.time()
    made = make_portfolio(store, (), span, now_s)
    assert [(line.pipeline, line.status) for line in made.lines] == [
        (OURS, "missed"), ("red-stock", "met"), ("blue-salaries", "met"),
    ]  # fmt: skip
    assert (made.lines[0].critical, made.lines[0].trends["loss"]) == (1, "worse")
    for line in made.lines:
        report = make_report(store, line.pipeline, span, now_s)
        assert line.whole.document() == report.whole.document()
        assert line.previous.document() == report.previous.document()


@contextmanager
def counted(store: Store) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    yield statements
    event.remove(store.engine, "before_cursor_execute", note)


def test_it_takes_as_many_statements_for_many_pipelines_as_for_one(world: tuple[Store, CalendarRange]) -> None:
    store, span = world
    took = []
    for match in ("pipeline=red-stock", "pipeline=~.*"):
        with counted(store) as statements:
            make_portfolio(store, parse_matchers([match]), span, time.time())
        took.append(len(statements))
    assert took[0] == took[1]


def test_a_member_sees_their_own_pipelines_whatever_they_ask_for(world: tuple[Store, CalendarRange]) -> None:
    store, span = world
    for match in ("", "team=~.*", "team=blue"):
        made = asked_by(member(), make_portfolio, ScopedStore(store), parse_matchers([match]), span, time.time())
        assert [line.pipeline for line in made.lines] == ([] if match == "team=blue" else [OURS])


def test_a_scheduled_portfolio_is_one_part_with_a_link(world: tuple[Store, CalendarRange]) -> None:
    store, span = world
    spec = {"name": "red", "match": ["team=red"], "portfolio": True, "range": "last-week", "rrule": "FREQ=WEEKLY"}
    report = ReportSpec.model_validate({**spec, "formats": ["md", "csv"], "to": ["owners@example.com"]})
    (part,) = Producer(store, "https://l.example").report(report, span, time.time()).parts
    assert (part.title, part.status, part.headline) == ("team=red", "missed", "✖ MISSED")
    assert part.sentences[0] == "2 pipelines match team=red: 1 missed, 1 met."
    assert part.link.startswith("https://l.example/portfolio?zone=UTC&match=team%3Dred&from=")
    assert [each.name.split(".")[-1] for each in part.attachments] == ["md", "csv"]


def test_the_api_gives_the_portfolio_and_says_what_is_wrong(url: str) -> None:
    route = f"{url}/api/v1/portfolio"
    found = httpx2.get(route, params={"range": "24h", "match": "team=red"}, timeout=WAIT_S).json()
    assert [each["pipeline"] for each in found["pipelines"]] == [OURS, "red-stock"]
    sent = httpx2.get(route, params={"range": "24h", "format": "csv"}, timeout=WAIT_S)
    assert sent.headers["content-disposition"].startswith('attachment; filename="lagloss-portfolio-all-pipelines-')
    for wrong in ({"match": "team"}, {"match": "severity=critical"}, {"range": "someday"}, {"format": "docx"}):
        answer = httpx2.get(route, params=wrong)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


def test_the_command_prints_it_and_the_targets(
    world: tuple[Store, CalendarRange], module_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", module_database_url)

    def run(app: typer.Typer, *words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(words))
        if isinstance(done.exception, LaglossError):
            return done.exception.exit_code, str(done.exception)
        return done.exit_code, done.output

    code, said = run(report_app, "--match", "team=red", "--range", "24h", "--check")
    assert (code, "2 pipelines match team\\=red" in said or "2 pipelines match team=red" in said) == (1, True)
    assert run(report_app, "--portfolio", "--range", "24h", "--format", "csv")[1].count("whole") == 3
    assert run(report_app, "--match", "team=nobody", "--range", "24h")[0] == 4
    for wrong in ((), (OURS, "--match", "team=red"), ("--match", "team")):
        assert run(report_app, *wrong)[0] == 2
    code, said = run(lagloss_app, "openslo", "--match", "team=red")
    names = {each["metadata"]["displayName"] for each in yaml.safe_load_all(said) if each["kind"] == "Service"}
    assert (code, names) == (0, {OURS, "red-stock"})
    assert run(lagloss_app, "openslo", OURS)[1].count("kind: SLO") == 2
    assert run(lagloss_app, "openslo", "nobody")[0] == 2


def test_the_api_gives_targets_as_openslo(url: str) -> None:
    found = httpx2.get(f"{url}/api/v1/pipelines/{OURS}/openslo")
    assert found.headers["content-type"] == "application/yaml"
    assert [each["kind"] for each in yaml.safe_load_all(found.text)][:3] == ["Service", "SLI", "SLO"]
    assert httpx2.get(f"{url}/api/v1/pipelines/nobody/openslo").status_code == 404
    assert httpx2.get(f"{url}/api/v1/openslo", params={"match": "team"}).status_code == 422
    several = httpx2.get(f"{url}/api/v1/openslo", params={"match": "team=red"}).text
    assert several.count("kind: Service\n") == 2


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_the_page_shows_the_worst_first_and_keeps_nobody_out(
    world: tuple[Store, CalendarRange], url: str, browser: Browser, width: int, dark: bool
) -> None:
    """The range ends with the windows: later ones, which nobody stored, are unproven."""
    from_, to = (rfc3339(at_s) for at_s in (world[1].to_s - 24 * HOUR_S, world[1].to_s))
    with Watched(browser, width=width, dark=dark) as page:
        page.goto(f"{url}/portfolio?zone=UTC&from={from_}&to={to}")
        expect(page.locator("#page").get_by_text("3 pipelines: 1 missed, 2 met.")).to_be_visible(timeout=1_000 * WAIT_S)
        expect(page.locator("#page tbody tr").first).to_contain_text(OURS)
        assert serious_faults(page) == []
        assert not sticks_out(page)


def test_its_controls_write_the_address(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        page.goto(f"{url}/portfolio?zone=UTC&range=24h")
        box = page.locator("#portfolio-match")
        box.fill("team=red")
        box.press("Enter")
        until(lambda: "match=team%3Dred" in address(page), "the matcher in the address")
        expect(page.locator("#page").get_by_text("2 pipelines match team=red")).to_be_visible(timeout=1_000 * WAIT_S)
        page.locator("#page").get_by_role("link", name=OURS, exact=True).click()
        expect(page.get_by_role("heading", name=f"SLA report: {OURS}")).to_be_visible(timeout=1_000 * WAIT_S)
