"""`lagloss alerts backtest`: the incidents that a pipeline's rules would have opened on its stored windows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Column, Table

from alerting.backtest.history import judging_by, past_of, read_habits, read_history
from alerting.backtest.replay import UNTRIED, Replay, Replayed
from alerting.rules import Rule, reader_of, rules_of
from alerting.rules.assessment import SHOWN_WINDOWS
from alerting.rules.budget import BurnRate
from alerting.rules.jobs import runs_s
from alerting.rules.lag import OnTime
from lagloss_server.base.errors import BadDefinition, NotEnoughData
from lagloss_server.base.invalid import explain
from lagloss_server.base.settings import Settings
from lagloss_server.base.times import parse_time_s
from lagloss_server.cli.options import AsJson, DataDir, PipelineName, open_store, out
from lagloss_server.groups.progress import NOW_S
from lagloss_server.groups.progress_store import read_partition_minutes
from lagloss_server.model.definition import Definition, as_document, load_definition
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import Window, rfc3339
from lagloss_server.runs.run_store import read_runs_by
from lagloss_server.store.store import Store

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BacktestLimit:
    """Limit of a rule's backtest: data that stored windows lack."""

    rule: str
    tried: bool
    why: str


@dataclass(frozen=True)
class Tried(TimeRange):
    """Result of a backtest over a time range. `windows`, `revisions`: how many results it was tried on, and how many of
    them had been revised later."""

    definition: Definition
    windows: int
    revisions: int
    incidents: list[Replayed]
    limits: list[BacktestLimit]
    documents: Mapping[int, Window]

    def document(self) -> dict[str, Any]:
        return {
            "pipeline": self.definition.name,
            **self.bounds(),
            "windows": self.windows,
            "revisions": self.revisions,
            "incidents": [self._incident(incident) for incident in self.incidents],
            "limits": [asdict(limit) for limit in self.limits],
        }

    def _incident(self, incident: Replayed) -> dict[str, Any]:
        rule, change = incident.rule, incident.change
        starts = sorted(change.breaches)[-SHOWN_WINDOWS:]
        places = incident.places or rule.where([self.documents[start] for start in starts if start in self.documents])
        return {
            "rule": rule.name,
            "kind": rule.kind,
            "severity": incident.severity,
            "opened_at": _moment(incident.opened_at_s),
            "resolved_at": None if incident.resolved_at_s is None else _moment(incident.resolved_at_s),
            "resolved_because": change.why or None,
            "inhibited_by": list(incident.inhibited_by),
            "windows": {
                "first": rfc3339(incident.first_s),
                "last": rfc3339(incident.last_s),
                "count": len(change.breaches),
            },
            "worst": change.worst,
            "target": rule.target,
            "unit": rule.unit,
            "text": incident.text or rule.text(change.worst),
            "where": [asdict(place) for place in places],
        }


def backtest(
    pipeline: PipelineName,
    from_: Annotated[str, typer.Option("--from", help="RFC 3339 or relative (-7d)")] = "-1d",
    to: Annotated[str, typer.Option("--to", help="RFC 3339, relative (-1h) or now")] = "now",
    rules: Annotated[
        Path | None, typer.Option(help="a definition whose spec.alerts and sla to try instead", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Say which incidents the rules would have opened on the stored windows with from <= start < to."""
    from_s, to_s = ceil(parse_time_s(from_)), ceil(parse_time_s(to))
    definition = None if rules is None else load_definition(rules)
    with open_store(Settings.load(data_dir=data_dir)) as store:
        stored = store.pipeline(pipeline).definition
        tried = try_rules(
            store, stored, stored if definition is None else with_rules(stored, definition, rules), from_s, to_s
        )
    if as_json:
        typer.echo(json.dumps(tried.document()))
        return
    console = out()
    console.print(_table(tried))
    console.print(
        f"incidents: {len(tried.incidents)}, on {tried.windows} windows, {tried.revisions} of them revised later"
    )
    for limit in tried.limits:
        console.print(f"{limit.rule}: {'approximated from windows' if limit.tried else 'not tried'}; {limit.why}")


def with_rules(stored: Definition, definition: Definition, source: Path | None) -> Definition:
    """Return the stored definition with the rules and the SLA of another one.

    Raises:
        BadDefinition: its rules name places that this pipeline does not have.
    """
    document, other = as_document(stored), as_document(definition)
    document["spec"] |= {name: other["spec"][name] for name in ("alerts", "sla")}
    try:
        return Definition.model_validate(document)
    except ValidationError as error:
        raise BadDefinition(source=source, line=1, problem=next(explain(error, document, Definition))) from error


def try_rules(store: Store, stored: Definition, tried: Definition, from_s: int, to_s: int) -> Tried:
    """Return the incidents that rules would have opened on the windows with from <= start < to.

    Raises:
        NotEnoughData: there is no closed window.
    """
    most = tried.spec.sla.loss.max
    judged = _as_stored if most == stored.spec.sla.loss.max else judging_by(most, tried.graph.sources)
    with store.engine.execution_options(isolation_level="REPEATABLE READ").begin() as connection:
        history = read_history(connection, reader_of(tried), stored.name, from_s, to_s, judged)
        habits = read_habits(connection, tried, from_s, to_s)
        runs = read_runs_by(connection, stored.name, tried.spec.jobs, from_s - runs_s(tried.spec.jobs), to_s)
        partitions = read_partition_minutes(connection, stored.name, from_s - NOW_S, to_s)
    windows = sum(start >= from_s for start in history.documents)
    if not windows:
        raise NotEnoughData(detail=f"{stored.name} has no closed window in this range.")
    limits = list(_limits(stored, tried))
    left_out = [limit.rule for limit in limits if not limit.tried]
    replay = Replay(tried, from_s, to_s, past_of(tried, history.documents, habits, runs, partitions), left_out)
    replay.run(history.closings, time.time())
    return Tried(from_s, to_s, tried, windows, history.revised, replay.incidents, limits, history.documents)


def _as_stored(window: Window) -> Window:
    return window


def _limits(stored: Definition, tried: Definition) -> Iterator[BacktestLimit]:
    """Yield the rules that stored windows cannot replay fully, with the reason."""
    other_target = stored.spec.sla.lag.target != tried.spec.sla.lag.target
    for rule in rules_of(tried):
        if rule.name in UNTRIED:
            yield BacktestLimit(rule.name, False, "the time of a node's last report is not stored")
        elif rule.kind == "lost-afterwards":
            yield BacktestLimit(rule.name, False, "when rows were there again is not stored")
        elif rule.kind == "staleness":
            yield BacktestLimit(rule.name, True, "a message counts as seen in its own minute, however late it was")
        elif rule.kind == "pending-age":
            yield BacktestLimit(rule.name, True, "a message counts as last seen when its window ended")
        elif other_target and _counts_on_time(rule):
            yield BacktestLimit(rule.name, False, "windows hold the on-time count for the stored sla.lag.target only")


def _counts_on_time(rule: Rule) -> bool:
    return isinstance(rule, OnTime) or (isinstance(rule, BurnRate) and rule.objective == "on-time")


def _moment(epoch_s: float) -> str:
    """Format a time as RFC 3339 in whole seconds, the precision of closings."""
    return rfc3339(int(epoch_s))


def _table(tried: Tried) -> Table:
    names = ("opened (UTC)", "resolved", "rule", "severity", "windows")
    table = Table(*(Column(name, no_wrap=True) for name in names), "worst", "where", box=None)
    for incident in tried.document()["incidents"]:
        over = (
            f"{incident['resolved_at']} ({incident['resolved_because']})"
            if incident["resolved_at"]
            else "open at the end"
        )
        silent = f" (inhibited by {', '.join(incident['inhibited_by'])})" if incident["inhibited_by"] else ""
        where = ", ".join(f"{place['kind']} {place['name']}" for place in incident["where"][:3])
        table.add_row(
            *(incident["opened_at"], over, incident["rule"] + silent, incident["severity"]),
            *(str(incident["windows"]["count"]), incident["text"], where),
        )
    return table
