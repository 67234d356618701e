"""The forms of a report: the same figures in each, and what people typed stays text."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest
from markdown_it import MarkdownIt

from dashboard.reports import FORMATS, file_name, render
from dashboard.reports.render.formats import format_of
from dashboard.reports.render.markdown import escape
from dashboard.reports.render.spreadsheet import COLUMNS, spreadsheet
from lagloss.errors import EXIT_UNREACHABLE, UsageError
from lagloss_server.base.errors import PangoMissing
from lagloss_server.ops.processes import LOOPBACK
from tests.programs import need
from tests.support.report_figures import incident, report

EVIL = '<script>alert(1)</script><img src=x onerror="x()">'


class Tags(HTMLParser):
    """What a document would load, run or lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def read(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def test_the_page_needs_nothing_else_and_what_people_typed_stays_text() -> None:
    page = render(report("chain", EVIL, incident(EVIL, EVIL)), "html", "https://lagloss.example").decode()
    tags = read(page)
    assert tags.names.isdisjoint({"script", "img", "iframe", "object", "base", "form"})
    assert tags.handlers == []
    assert {urlsplit(link).scheme for link in tags.links} == {"https", "data"}
    assert "&lt;script&gt;" in page
    assert "url(" not in page
    assert "@import" not in page


def test_markdown_keeps_text_text_and_its_tables_whole() -> None:
    said = render(report("chain", "# | *x* [a](javascript:b)", incident(f"a|b {EVIL}", "x | y\n\n# z")), "md").decode()
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(said)
    tags = read(page)
    assert tags.names.isdisjoint({"script", "img", "em"})
    assert all(link.startswith("/") for link in tags.links)
    assert page.count("<h1>") == 1
    assert "a|b " in page
    assert "x | y # z" in page


@pytest.mark.parametrize("text", ["a\\|b", "`x`", "_x_", "&amp;", "a\nb", "![x](y)", "~~x~~"])
def test_escaped_markdown_reads_as_it_was(text: str) -> None:
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(escape(text))
    shown = re.sub(r"</?p>", "", html).strip()
    assert shown == " ".join(text.split()).replace("&", "&amp;")


def test_csv_has_a_row_a_stretch_and_no_formulas() -> None:
    made = report("=cmd|x")
    text = spreadsheet(made)
    assert text.count("\r\n") == text.count("\n") == 1 + 2 + len(made.days) + 1
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["what"] for row in rows] == ["whole", "previous", *["day"] * 7, "hour"]
    assert {row["pipeline"] for row in rows} == {"'=cmd|x"}
    assert set(rows[0]) == set(COLUMNS)
    whole, days = rows[0], rows[2:9]
    for column in ("messages", "lost_min", "on_time", "on_time_bad_min", "on_time_bad_max", "missing", "minutes"):
        assert int(whole[column]) == sum(int(day[column]) for day in days)
    assert days[3]["status"] == "unproven"
    assert days[3]["e2e_p95_ms"] == ""


@pytest.mark.parametrize("name", ["md", "html", "csv", "json"])
def test_a_destination_that_delivers_by_commits_says_so_in_every_form(name: str) -> None:
    by_commit = replace(report("chain"), committed_by={"snk": "chain.snk"})
    said, other = (render(made, name).decode() for made in (by_commit, report("chain")))  # type: ignore[arg-type]
    line = "snk: delivered once the consumer group chain.snk has committed."
    if name == "json":
        assert [json.loads(text)["committed_by"] for text in (said, other)] == [{"snk": "chain.snk"}, {}]
    elif name == "csv":
        rows = list(csv.DictReader(io.StringIO(said)))
        assert [row["committed_by"] for row in rows] == ["chain.snk"] * 2 + [""] * (len(rows) - 2)
        assert "has committed" not in other
    else:
        assert (said.replace("\\", "").count(line), other.count("has committed")) == (1, 0)


def test_json_holds_every_figure_and_where_its_windows_are() -> None:
    document = json.loads(render(report("chain", "", incident()), "json", "http://lagloss"))
    assert document["range"] == {
        "name": "2026-W46", "from": "2026-11-08T23:00:00Z", "to": "2026-11-15T23:00:00Z", "zone": "Europe/Berlin",
    }  # fmt: skip
    whole = document["whole"]
    assert (whole["messages"], whole["lost"], document["status"]) == (6_000, {"min": 30, "max": 42}, "unproven")
    assert sum(whole["minutes"].values()) == 7 * 1_440
    assert whole["total"]["lost_at"] == {"link src->mid": {"min": 30, "max": 42}}
    for stretch in (whole, document["previous"], *document["days"], *document["worst_hours"]):
        link = urlsplit(stretch["links"]["windows"])
        assert link.netloc == "lagloss"
        assert parse_qs(link.query) == {"from": [stretch["from"]], "to": [stretch["to"]]}
        assert stretch["links"]["sums"] == link._replace(path=link.path.replace("/windows", "/panels")).geturl()
    assert document["incidents"]["times"]["mean_to_resolve_s"] == 540
    assert document["worst_hours"][0]["budget_spent"]["loss"] == {"min": 0.1, "max": 0.14}
    on_time = whole["objectives"][1]
    assert (on_time["bad"], on_time["good_share"]) == ({"min": 228, "max": 240}, {"min": 0.96, "max": 0.962})
    left = document["burn_down"][3]["left"]
    assert left == {"loss": None, "on-time": None}


def test_all_forms_tell_the_same_numbers() -> None:
    made = report("chain", "", incident())
    for form in ("md", "html"):
        text = render(made, form).decode().replace("\\", "")
        for said in (
            "UNPROVEN",
            "6,000",
            "30–42",
            "228–240",
            "96 % – 96.2 %",
            "2026-W46",
            "2026-W45",
            "UNKNOWN",
            "link src",
        ):
            assert said in text, (form, said)


def test_no_line_is_drawn_across_a_day_of_which_nothing_is_known() -> None:
    gap, whole = (render(report(empty_day=empty), "html").decode() for empty in (True, False))
    assert (gap.count("<polyline"), whole.count("<polyline")) == (4, 2)


def test_a_pdf_holds_no_script() -> None:
    need("pango")
    document = render(report("chain", EVIL), "pdf")
    assert document.startswith(b"%PDF-")
    assert b"/JavaScript" not in document


def test_a_pdf_is_made_without_a_request_and_without_a_word() -> None:
    """In a process of its own: in this one, the threads of other tests' clients may write."""
    need("pango")
    with socket.create_server((LOOPBACK, 0)) as server:
        server.setblocking(False)
        page = f'<img src="file:///etc/passwd"><img src="http://{LOOPBACK}:{server.getsockname()[1]}/x"><p>text'
        script = f"from dashboard.reports.render.html import pdf\nassert pdf({page!r}).startswith(b'%PDF-')"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("", "")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_without_pango_the_other_forms_still_work() -> None:
    script = (
        "import ctypes.util, cffi\n"
        "def missing(self, name, *rest): raise OSError(f'cannot load library {name}')\n"
        "cffi.FFI.dlopen = missing\n"
        "from dashboard.reports import render\n"
        "from lagloss_server.base.errors import PangoMissing\n"
        "from tests.support.report_figures import report\n"
        "assert render(report(), 'html')\n"
        "try:\n    render(report(), 'pdf')\n"
        "except PangoMissing as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1  # one message: WeasyPrint's own advice is not printed
    assert "cannot load library" in done.stdout
    assert "apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0" in done.stdout
    assert PangoMissing.exit_code == EXIT_UNREACHABLE


def test_file_names_hold_nothing_that_a_header_or_a_path_could_trip_over() -> None:
    assert file_name(report(), "pdf") == "lagloss-chain-2026-W46.pdf"
    assert file_name(report('../"a\r\nSet-Cookie: x'), "md") == "lagloss-a-Set-Cookie-x-2026-W46.md"


def test_a_form_that_is_none_is_refused() -> None:
    assert set(FORMATS) == {"md", "html", "pdf", "csv", "json"}
    with pytest.raises(UsageError, match="md, html, pdf, csv, json"):
        format_of("docx")
