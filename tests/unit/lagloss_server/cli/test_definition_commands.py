"""`lagloss apply`, `get` and `delete`: what they refuse before they open the database."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lagloss.errors import EXIT_USAGE, LaglossError, UsageError
from lagloss_server.cli.main import app

ORDERS = """apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: orders, labels: {team: web}}
spec: {nodes: [{name: a}]}
"""


@pytest.fixture(autouse=True)
def no_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    (tmp_path / "orders.yaml").write_text(ORDERS)


def refused(*words: str, typed: str = "") -> str:
    done = CliRunner().invoke(app, words, input=typed)
    assert isinstance(done.exception, LaglossError), done.output
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == EXIT_USAGE
    return str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prune",), "--prune needs --label KEY=VALUE"),
        (("--label", "team=web"), "expected --label only with --prune"),
        (("--prune", "--label", "team"), "--label: expected KEY=VALUE, found 'team'"),
        (("--prune", "--label", "=web"), "--label: expected a name of 1 to 100 letters"),
        (("--prune", "--label", "team=a\nb"), "--label: expected one line of text"),
        (
            ("--prune", "--label", "team=shop"),
            "expected the label team=shop, which --prune is limited to, found team=web",
        ),
    ],
)
@pytest.mark.parametrize("mode", [(), ("--plan",), ("--check",)])
def test_pruning_is_refused_without_one_label_that_all_pipelines_have(
    tmp_path: Path, words: tuple[str, ...], message: str, mode: tuple[str, ...]
) -> None:
    assert message in refused("apply", str(tmp_path), *words, *mode)


def test_a_folder_with_one_bad_document_is_refused_before_anything_is_applied(tmp_path: Path) -> None:
    (tmp_path / "z.yaml").write_text("kind: Pipelin\n")
    assert "z.yaml:1: kind: expected 'Pipeline' or 'Defaults'" in refused("apply", str(tmp_path))


def test_standard_input_is_read_and_its_errors_name_it() -> None:
    assert refused("apply", "-", typed=f"{ORDERS}---\nkind: x\n").startswith("stdin:6: document 2: kind: expected")


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "expected a readable UTF-8 file" in refused("apply", str(tmp_path / "none.yaml"))


def test_deletion_without_a_terminal_needs_a_yes() -> None:
    assert "expected --yes" in refused("delete", "orders", typed="y\n")


def test_a_label_to_get_by_is_a_key_and_a_value() -> None:
    assert refused("get", "--label", "team!=web").startswith("--label: expected a name")
