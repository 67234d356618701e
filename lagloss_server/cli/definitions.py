"""`lagloss apply`, `get` and `delete`: definitions from files and folders into the database, and back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lagloss.errors import EXIT_WOULD_CHANGE, UsageError
from lagloss_server.base.settings import Settings
from lagloss_server.cli.options import AsJson, DataDir, demand, note_set_aside, open_store, out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lagloss_server.model.definition import StoredPipeline
    from lagloss_server.model.definition_plan import ApplyPlan
    from lagloss_server.model.manifests import DeclaredPipeline, Label
    from lagloss_server.store.store import Store

Names = Annotated[list[str], typer.Argument(help="names of pipelines", metavar="PIPELINE")]


def apply(
    paths: Annotated[
        list[Path],
        typer.Argument(help="YAML files, folders of *.yaml and *.yml, or - for standard input", metavar="PATH"),
    ],
    plan: Annotated[bool, typer.Option("--plan", help="show what would change, and change nothing")] = False,
    check: Annotated[bool, typer.Option("--check", help="like --plan; exit 2 if something would change")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="delete the pipelines with the --label that are in none of the paths")
    ] = False,
    label: Annotated[
        str | None, typer.Option(help="with --prune: a label that every pipeline there has", metavar="KEY=VALUE")
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Store the pipeline definitions of files and folders, after all of them have been checked."""
    from lagloss_server.model.manifests import read_manifests

    limit = _prune_limit(prune, label)
    declared = read_manifests(paths, limit)
    with open_store(Settings.load(data_dir=data_dir)) as store:
        planned = _plan(store, declared, limit)
        versions = (
            [] if plan or check else store.change([pipeline.definition for pipeline in declared], planned.deleted)
        )
    if versions:
        planned = planned.applied_as(versions)
    if as_json:
        typer.echo(planned.json())
    else:
        for line in planned.outcome() if planned.applied else planned.lines():
            typer.echo(line)
    if check and planned.would_change:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def get(
    pipelines: Annotated[
        list[str] | None, typer.Argument(help="names of pipelines (default: all)", metavar="PIPELINE")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", help="only pipelines with this label (repeatable)", metavar="KEY=VALUE"),
    ] = None,
    output: Annotated[
        Literal["table", "yaml", "json", "name"],
        typer.Option("--output", "-o", help="yaml: as `lagloss apply -` reads it; json: a list of definitions"),
    ] = "table",
    data_dir: DataDir = None,
) -> None:
    """Print the stored definitions of pipelines."""
    from lagloss_server.base.yaml_files import write_documents
    from lagloss_server.model.definition_diff import written

    labels = [_parse_label(text) for text in label or ()]
    with open_store(Settings.load(data_dir=data_dir)) as store:
        stored = [*map(store.pipeline, dict.fromkeys(pipelines))] if pipelines else _readable(store)
    chosen = [version for version in stored if dict(labels).items() <= version.definition.metadata.labels.items()]
    match output:
        case "table":
            _print_table(chosen)
        case "name":
            for version in chosen:
                typer.echo(version.name)
        case "yaml":
            typer.echo(write_documents(written(version.definition) for version in chosen), nl=False)
        case "json":
            typer.echo(json.dumps([written(version.definition) for version in chosen]))


def delete(
    pipelines: Names,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    data_dir: DataDir = None,
) -> None:
    """Delete pipelines. Their closed windows stay until retention deletes them; `apply` makes the next version."""
    names = list(dict.fromkeys(pipelines))
    if not yes and not sys.stdin.isatty():
        raise UsageError(detail="expected --yes, since standard input is not a terminal for a confirmation")
    with open_store(Settings.load(data_dir=data_dir)) as store:
        for name in names:
            store.demand(name)
        if not yes:
            typer.confirm(f"Delete {', '.join(names)}?", abort=True)
        store.change(deleted=names)
    for name in names:
        typer.echo(f"{name}: deleted")


def _plan(store: Store, declared: Sequence[DeclaredPipeline], limit: Label | None) -> ApplyPlan:
    from lagloss_server.model.definition_plan import plan
    from lagloss_server.store.store import demand_unreserved

    demand_unreserved(pipeline.definition.name for pipeline in declared)
    stored = store.pipelines()
    if limit is not None:  # whether they have its label is unknown: they stay
        note_set_aside(stored.unreadable)
    return plan(declared, stored, {row.pipeline: row.why for row in stored.unreadable}, limit)


def _prune_limit(prune: bool, label: str | None) -> Label | None:
    """Return the label that pruning is limited to; None without pruning.

    Raises:
        UsageError: only one of both is given.
    """
    if prune and label is None:
        raise UsageError(
            detail="--prune needs --label KEY=VALUE: it deletes only pipelines with that label, those that are in none "
            "of the paths"
        )
    if label is not None and not prune:
        raise UsageError(detail="expected --label only with --prune, found it alone")
    return None if label is None else _parse_label(label)


def _parse_label(text: str) -> Label:
    """Parse `team=web`.

    Raises:
        UsageError: for anything else.
    """
    from lagloss_server.model.definition import LabelName, LabelValue

    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(detail=f"--label: expected KEY=VALUE, found {text!r}")
    demand(LabelName, "--label", name)
    demand(LabelValue, "--label", value)
    return name, value


def _readable(store: Store) -> list[StoredPipeline]:
    stored = store.pipelines()
    note_set_aside(stored.unreadable)
    return stored


def _print_table(stored: Sequence[StoredPipeline]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "version", "applied_at", "labels", box=None)
    for version in stored:
        labels = ", ".join(f"{name}={value}" for name, value in version.definition.metadata.labels.items())
        table.add_row(version.name, str(version.version), version.applied_at, Text(labels))  # not markup
    out().print(table)
