"""What operators and newcomers read names what is there: metrics, settings, reasons, commands, targets, files."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest
import typer.main

from aggregator.metrics import Metrics as AggregatorMetrics
from collector.metrics import Metrics as CollectorMetrics
from lagloss.cli import app
from lagloss.definition import parse_definition
from lagloss.settings import ENV_PREFIX, Settings
from lagloss.wire import BadReason

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("decisions/*.md")])
PACKAGES = ("lagloss", "collector", "aggregator", "alerting", "dashboard", "pipeline_under_test")
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")


def page(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def table_rows(text: str) -> set[str]:
    """What stands as code in the first column of the page's tables."""
    return {
        name for cell in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    }


def exposed_metrics() -> set[str]:
    """The names as /metrics shows them."""
    registries = (AggregatorMetrics().registry, CollectorMetrics().registry)
    families = [family for registry in registries for family in registry.collect()]
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def environment_variables() -> set[str]:
    """Every setting, and what else the code reads."""
    fields = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields}
    texts = [path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return fields | {name for text in texts for name in re.findall(r"LAGLOSS_[A-Z]+(?:_[A-Z]+)*\b", text)}


def defined_names(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


def anchors(path: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_operations_tells_every_metric_and_no_other() -> None:
    told = {name for name in table_rows(page("docs/operations.md")) if name.startswith("lagloss_")}
    assert told == exposed_metrics()


def test_operations_tells_every_setting_and_no_other() -> None:
    told = {name for name in table_rows(page("docs/operations.md")) if name.startswith(ENV_PREFIX)}
    assert told == environment_variables()


def test_closing_tells_every_reason_for_a_bad_record_and_no_other() -> None:
    assert table_rows(page("docs/closing.md").split("## Bad records")[1]) == set(get_args(BadReason))


def test_readme_tells_every_command_and_no_other() -> None:
    told = {row.split()[1] for row in table_rows(page("README.md")) if row.startswith("lagloss ")}
    assert told == set(getattr(typer.main.get_command(app), "commands"))  # noqa: B009 (untyped)


def test_readme_shows_a_definition_that_is_one() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", page("README.md"), re.MULTILINE | re.DOTALL)
    assert parse_definition(text, "README.md").name == "orders"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_names_make_targets_that_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", page("Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text("utf-8"), re.MULTILINE)) <= targets


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(path: Path) -> None:
    for text, link in LINK.findall(path.read_text("utf-8")):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), link
        assert found.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(found), link
        if found.suffix == ".py" and re.fullmatch(r"`\w+`", text):
            assert text.strip("`") in defined_names(found), f"{text} in {link}"
