"""Tables for a terminal: verdicts and outcomes of scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.table import Column, Table

from lagloss_server import format as fmt
from lagloss_server.cli.options import out
from lagloss_server.model.window import Interval

MAX_DIFFERENCES: Final = 20


def show_verdict(document: Mapping[str, Any]) -> None:
    """Print window by window what was injected and measured, and what they disagree about."""
    console = out()
    right = [Column(title, justify="right") for title in ("messages", "delivered", "dead", "filtered", "pending")]
    table = Table("window", *right, "lost: injected", "measured", box=None)
    for row in document["windows"]:
        injected, measured = row["injected"], row["measured"]
        counts = [str(injected[what]) for what in ("messages", "delivered", "dead", "filtered", "pending")]
        found = fmt.count_interval(measured and Interval(**measured["lost"]))
        table.add_row(row["window_start"], *counts, str(injected["lost"]), found)
    console.print(table)
    for difference in document["differences"][:MAX_DIFFERENCES]:
        injected, measured, ids = difference["injected"], difference["measured"], ", ".join(difference["ids"])
        at = f"{difference['window_start_s']} {difference['what']}"
        console.print(f"{at}: injected {injected}, measured {measured}{ids and f'; {ids}'}", markup=False)
    if len(document["differences"]) > MAX_DIFFERENCES:
        console.print(f"and {len(document['differences']) - MAX_DIFFERENCES} more; --json has them all")
    waiting = document["waiting"]
    if waiting:
        console.print(f"{len(waiting)} windows are not settled yet: {', '.join(waiting)}")
    compared = len(document["windows"]) - len(waiting)
    console.print(f"{compared} windows compared: {'measured = injected' if document['agree'] else 'they differ'}")


def show_outcomes(documents: Iterable[Mapping[str, Any]]) -> None:
    """Print a row for each scenario, and what was not as expected below."""
    console = out()
    titles = ("messages", "lost: injected", "measured", "duplicates", "false loss", "max lag")
    table = Table("scenario", *(Column(title, justify="right") for title in titles), "result", box=None)
    found = list(documents)
    for outcome in found:
        injected, measured = outcome["injected"], outcome["measured"]
        counts = ("", "", "", "")
        if injected is not None and measured is not None:
            lost = (str(injected["lost"]), fmt.count_interval(Interval(**measured["lost"])))
            counts = (str(injected["messages"]), *lost, str(measured["duplicates"]))
        result = "as expected" if outcome["ok"] else f"{len(outcome['problems'])} problems"
        lag = fmt.duration(outcome["max_lag_ms"])
        table.add_row(outcome["scenario"], *counts, str(outcome["false_losses"]), lag, result)
    console.print(table)
    for outcome in found:
        for problem in outcome["problems"]:
            console.print(f"{outcome['scenario']}: {problem}", markup=False)
