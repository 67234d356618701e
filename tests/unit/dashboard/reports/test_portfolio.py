"""The portfolio: worst first, against the range before, in each form."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from msgspec import structs

from dashboard.pages.page import Visit
from dashboard.pages.portfolio import page
from dashboard.pages.printing import html_of
from dashboard.queries.services import Services
from dashboard.reports import file_name, render
from dashboard.reports.charts import burn_strip
from dashboard.reports.model import Figures
from dashboard.reports.portfolio import Portfolio, PortfolioLine, burn_rate
from dashboard.reports.portfolio_sections import headline, summary
from dashboard.request.links import Address
from lagloss_server.base.errors import BadMatchers
from lagloss_server.model.matchers import parse_matchers
from lagloss_server.sums.rollup import Rollup
from tests.support.report_figures import figures, report, rollup

EVIL = "<script>alert(1)</script>"
MADE = report()


def of_range(lost: int = 0) -> Figures:
    whole = structs.replace(
        rollup(7_000, (lost, lost)), windows=7 * 1_440, verdicts={"ok": 7 * 1_440}, proofs={}, delivered=7_000 - lost
    )
    return figures(MADE.span.from_s, MADE.span.to_s, structs.replace(whole, on_time=7_000 - lost))


def line(pipeline: str, lost: int = 0, before: int = 0, critical: int = 0, description: str = "") -> PortfolioLine:
    previous = MADE.previous_span
    then = replace(of_range(before), from_s=previous.from_s, to_s=previous.to_s)
    return PortfolioLine(
        pipeline, description, {"team": "web"}, MADE.targets, of_range(lost), then, MADE.days, critical
    )


def portfolio(*lines: PortfolioLine, match: str = "team=web") -> Portfolio:
    matchers = parse_matchers([match])
    return Portfolio(matchers, MADE.span, MADE.previous_span, MADE.made_at_s, lines)


BAD, GOOD = line("clicks", 350, 7, 2), line("orders", 7, 70)


def test_a_table_says_how_each_pipeline_did_and_where_it_goes() -> None:
    text = render(portfolio(BAD, GOOD), "md", "https://l.example").decode()
    assert "2 pipelines match team=web: 1 missed, 1 met." in text.replace("\\", "")
    clicks, orders = ([cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if "/report?" in row)
    assert clicks[0].startswith("[clicks](https://l.example/pipelines/clicks/report?zone=Europe/Berlin&from=")
    assert clicks[1:3] == ["✖ MISSED", "[2 critical](https://l.example/alerts?pipeline=clicks)"]
    assert clicks[3] == "≤ 1 % lost, ≥ 95 % in 5 s"
    assert clicks[4].startswith("[5 %](https://l.example/pipelines/clicks?")
    assert clicks[5:7] == ["▼ worse", "none, 500 % used"]
    assert clicks[-1] == "0 of 6 above 1"
    assert (orders[1], orders[2], orders[5]) == ("✔ MET", "none", "▲ better")


def test_a_summary_names_those_that_kept_not_all() -> None:
    first, second = summary(portfolio(BAD, GOOD))
    assert first == "2 pipelines match team=web: 1 missed, 1 met."
    loss, on_time = (
        "loss 5 % (worse, budget left none, 500 % used)",
        "on time 95 % (worse, budget left none, 100 % used)",
    )
    assert second == f"clicks MISSED: {loss}, {on_time}."
    many = summary(portfolio(*[line(f"p{at}", 350) for at in range(8)]))
    assert (len(many), many[-1]) == (7, "3 more pipelines not proven to meet the targets.")
    assert headline(portfolio(match="")) == "No pipeline exists."
    assert headline(portfolio()) == "No pipeline matches team=web."
    assert headline(portfolio(GOOD, match="")) == "1 pipeline: 1 met."


def test_json_and_csv_have_every_pipeline_with_links_to_its_windows() -> None:
    made = portfolio(BAD, GOOD)
    document = json.loads(render(made, "json", "https://l.example"))
    assert (document["status"], document["statuses"]) == ("missed", {"missed": 1, "met": 1})
    first = document["pipelines"][0]
    assert (first["trend"]["loss"], first["open_incidents"]) == ("worse", {"critical": 2, "warning": 0})
    assert first["whole"]["links"]["sums"].startswith("https://l.example/api/v1/pipelines/clicks/panels?from=")
    assert [step["burn_rate"] for step in first["steps"]] == [0.76, 0.76, 0.76, None, 0.76, 0.76, 0.76]
    rows = list(csv.DictReader(io.StringIO(render(made, "csv").decode())))
    assert [(row["pipeline"], row["what"], row["lost_min"]) for row in rows] == [
        ("clicks", "whole", "350"), ("clicks", "previous", "7"), ("orders", "whole", "7"), ("orders", "previous", "70"),
    ]  # fmt: skip
    assert {row["dead"] for row in rows} == {""}  # counts alone do not tell
    assert file_name(made, "pdf") == "lagloss-portfolio-team-web-2026-W46.pdf"


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)


def test_what_people_typed_stays_text() -> None:
    found = portfolio(line("clicks", description=EVIL), match=f'team="{EVIL}"')
    names = Tags(render(found, "html").decode()).names
    assert "script" not in names
    assert "svg" in names


def test_bars_are_capped_and_gaps_are_gaps() -> None:
    drawn = burn_strip([0.0, None, 1.0, 50.0])
    assert drawn.count("<rect") == 3
    assert 'height="24.0"' in drawn
    assert burn_strip([0.5] * 92).startswith('<svg xmlns="http://www.w3.org/2000/svg" width="155"')


def test_of_two_budgets_the_one_that_burns_faster_counts() -> None:
    assert burn_rate(figures(0, 3_600, rollup(1_000, (5, 7)))) == pytest.approx(0.76)
    assert burn_rate(figures(0, 3_600, Rollup())) is None


def test_matchers_are_parted_by_blanks_and_quoted_where_they_hold_some() -> None:
    found = parse_matchers(['team=web tier=~"a b|c"', "pipeline!=x", ""])
    assert list(map(str, found)) == ["team=web", "tier=~a b|c", "pipeline!=x"]
    assert str(parse_matchers([r"name=~a\d{1,2}"])[0]) == r"name=~a\d{1,2}"
    for text in ("team", 'team="web', "severity=critical", "team=~("):
        with pytest.raises(BadMatchers, match="labels of their definitions"):
            parse_matchers([text])


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Services:
    made = portfolio(BAD, GOOD)
    monkeypatch.setattr(page, "make_portfolio", lambda *_: made)
    found = object.__new__(Services)
    object.__setattr__(found, "store", None)
    return found


def test_the_page_says_it_before_a_script_has_run(services: Services) -> None:
    said = html_of(page.PAGE.first(services, {}, Address("/portfolio", {"match": "team=web", "range": "7d"}), 0.0))
    assert "2 pipelines match team=web: 1 missed, 1 met." in said
    assert '<img alt="burn rate 0 of 6 above 1, at most 0.8"' in said
    assert 'href="/api/v1/portfolio?match=team%3Dweb&amp;range=7d&amp;format=pdf"' in said


def test_the_page_says_what_is_wrong_with_a_matcher(services: Services) -> None:
    notice, drawn = page.PAGE.draw(Visit(services, Address("/portfolio", {"match": "team"}), {}, 0.0))
    assert drawn is None
    assert "expected a matcher such as" in html_of(notice)
