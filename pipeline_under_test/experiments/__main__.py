"""`python -m pipeline_under_test.experiments NAME --out FILE.svg`: runs an experiment and draws its chart."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)

Out = Annotated[Path, typer.Option(dir_okay=False, help="the chart, SVG")]


@app.callback()
def experiments() -> None:
    """Each starts a broker of its own, measures, writes its chart, and prints the figures as JSON."""


@app.command(name="cpu-misleads")
def cpu_misleads(
    out: Out, seconds: Annotated[float, typer.Option(min=60, help="of load, for each policy")] = 150
) -> None:
    """Scale a node that waits by its CPU, then by its queue lag (6 minutes)."""
    from pipeline_under_test.experiments import cpu_misleads

    runs = cpu_misleads.measure(seconds, partial(typer.echo, err=True))
    out.write_text(cpu_misleads.chart(runs).svg())
    typer.echo(json.dumps(cpu_misleads.figures(runs), indent=1))


if __name__ == "__main__":
    app()
