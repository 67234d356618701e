"""`python -m pipeline_under_test.experiments NAME --out FILE.svg`: runs an experiment and draws its chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline_under_test.experiments.chart import Chart

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)

Out = Annotated[Path, typer.Option(dir_okay=False, help="file of the chart (SVG)")]


@app.callback()
def experiments() -> None:
    """Run experiments: each starts its own broker, measures, writes a chart and prints the figures as JSON."""


@app.command(name="cpu-misleads")
def cpu_misleads(
    out: Out, seconds: Annotated[float, typer.Option(min=60, help="seconds of load per policy")] = 150
) -> None:
    """Scale an I/O-bound node by its CPU, then by its queue lag (6 minutes)."""
    from pipeline_under_test.experiments import cpu_misleads

    runs = cpu_misleads.measure(seconds, _say)
    _write(out, cpu_misleads.chart(runs), cpu_misleads.figures(runs))


@app.command()
def delivery(out: Out, seconds: Annotated[float, typer.Option(min=40, help="seconds of load per mode")] = 90) -> None:
    """Kill a node that delivers at most once, at least once or exactly once, and count with taps (9 minutes)."""
    from pipeline_under_test.experiments import delivery

    runs = delivery.measure(seconds, _say)
    _write(out, delivery.chart(runs), delivery.figures(runs))


@app.command()
def ingest(
    out: Out, seconds: Annotated[float, typer.Option(min=1, help="seconds of load per request size")] = 15
) -> None:
    """Respond once every replica has acknowledged, for requests of 1, 10 and 100 events (3 minutes)."""
    from pipeline_under_test.experiments import ingest

    runs = ingest.measure(seconds, _say)
    _write(out, ingest.chart(runs), ingest.figures(runs))


@app.command()
def expel(out: Out, seconds: Annotated[float, typer.Option(min=1, help="seconds of arrivals per variant")] = 9) -> None:
    """Deliver over a round trip of 50 ms, in batches of 1, 10 and 50 and 1, 4 and 16 parallel requests (6 minutes)."""
    from pipeline_under_test.experiments import expel

    runs = expel.measure(seconds, _say)
    _write(out, expel.chart(runs), expel.figures(runs))


@app.command()
def retry(out: Out, seconds: Annotated[float, typer.Option(min=20, help="seconds of load per policy")] = 60) -> None:
    """Compare retries in place and through the global retrier, also for events that never succeed (6 minutes)."""
    from pipeline_under_test.experiments import retry

    runs = retry.measure(seconds, _say)
    _write(out, retry.chart(runs), retry.figures(runs))


@app.command(name="premature-scale-in")
def premature_scale_in(
    out: Out, files: Annotated[int, typer.Option(min=20, help="files in the queue per policy")] = 200
) -> None:
    """Drain a queue of files with I/O-bound importers, scaled by their CPU, then by the queue (3 minutes)."""
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
