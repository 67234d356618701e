"""`python -m pipeline_under_test.experiments NAME --out FILE.svg`: runs an experiment and draws its chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline_under_test.experiments.chart import Chart

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)

Out = Annotated[Path, typer.Option(dir_okay=False, help="the chart, SVG")]


@app.callback()
def experiments() -> None:
    """Run experiments: each starts a broker of its own, measures, writes its chart, and prints the figures as JSON."""


@app.command(name="cpu-misleads")
def cpu_misleads(
    out: Out, seconds: Annotated[float, typer.Option(min=60, help="of load, for each policy")] = 150
) -> None:
    """Scale a node that waits by its CPU, then by its queue lag (6 minutes)."""
    from pipeline_under_test.experiments import cpu_misleads

    runs = cpu_misleads.measure(seconds, _say)
    _write(out, cpu_misleads.chart(runs), cpu_misleads.figures(runs))


@app.command()
def delivery(out: Out, seconds: Annotated[float, typer.Option(min=40, help="of load, in each mode")] = 90) -> None:
    """Kill a node that delivers at most once, at least once, exactly once, and count by taps (9 minutes)."""
    from pipeline_under_test.experiments import delivery

    runs = delivery.measure(seconds, _say)
    _write(out, delivery.chart(runs), delivery.figures(runs))


@app.command()
def ingest(
    out: Out, seconds: Annotated[float, typer.Option(min=1, help="of load, for each size of a request")] = 15
) -> None:
    """Answer once every copy is acknowledged, for requests of 1, 10 and 100 events (3 minutes)."""
    from pipeline_under_test.experiments import ingest

    runs = ingest.measure(seconds, _say)
    _write(out, ingest.chart(runs), ingest.figures(runs))


@app.command()
def expel(out: Out, seconds: Annotated[float, typer.Option(min=1, help="of arrivals, for each way")] = 9) -> None:
    """Deliver over a round trip of 50 ms, in batches of 1, 10 and 50, 1, 4 and 16 at a time (6 minutes)."""
    from pipeline_under_test.experiments import expel

    runs = expel.measure(seconds, _say)
    _write(out, expel.chart(runs), expel.figures(runs))


@app.command()
def retry(out: Out, seconds: Annotated[float, typer.Option(min=20, help="of load, for each policy")] = 60) -> None:
    """Try again on the spot, by way of the global retrier, and what can never succeed (6 minutes)."""
    from pipeline_under_test.experiments import retry

    runs = retry.measure(seconds, _say)
    _write(out, retry.chart(runs), retry.figures(runs))


@app.command(name="premature-scale-in")
def premature_scale_in(
    out: Out, files: Annotated[int, typer.Option(min=20, help="in the queue, for each policy")] = 200
) -> None:
    """Drain a queue of files by importers that wait, scaled by their CPU, then by the queue (3 minutes)."""
    from pipeline_under_test.experiments import premature_scale_in

    runs = premature_scale_in.measure(files, _say)
    _write(out, premature_scale_in.chart(runs), premature_scale_in.figures(runs))


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _write(out: Path, chart: Chart, figures: object) -> None:
    out.write_text(chart.svg())
    typer.echo(json.dumps(figures, indent=1))


if __name__ == "__main__":
    app()
