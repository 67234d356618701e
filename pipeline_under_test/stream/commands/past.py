"""Commands that send something of the past: an hour made up, events again, dead letters."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from lagloss.errors import EXIT_USAGE
from lagloss.wire.format import name_fits
from lagloss_server.base.settings import Settings as LaglossSettings
from lagloss_server.model.window import rfc3339
from pipeline_under_test.harness.commands import fail, say
from pipeline_under_test.stream.commands.options import DataDir, Rate, time_s
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import ALL_CONSUMERS, PIPELINE
from pipeline_under_test.stream.traffic.redrive import Busy, Wanted, redriven
from pipeline_under_test.stream.traffic.replay import REPLAY_RATE, replayed

app = typer.Typer()


@app.command()
def history(
    data_dir: DataDir,
    bootstrap: Annotated[str, typer.Option(help="Kafka's HOST:PORT (default: that of `lagloss up`)")] = "",
    pipeline: Annotated[str, typer.Option(help="name of the pipeline")] = PIPELINE,
    minutes: Annotated[int, typer.Option(min=1, help="minutes to send")] = 60,
    rate: Rate = 15.0,
    seed: Annotated[int, typer.Option(help="random seed of the traffic")] = 0,
) -> None:
    """Send an hour of past beacons, as the nodes would have sent them."""
    from pipeline_under_test.stream.traffic.history import SyntheticHistory

    bootstrap = bootstrap or LaglossSettings.load().require_kafka()
    settings = ReferenceSettings(data_dir=data_dir.absolute(), bootstrap=bootstrap, pipeline=pipeline, seed=seed)
    for sent, beacons in SyntheticHistory(settings, rate).send(minutes):
        say({"minutes": sent, "of": minutes, "beacons": beacons})


@app.command()
def replay(
    data_dir: DataDir,
    from_: Annotated[
        float, typer.Option("--from", parser=time_s, metavar="T", help="start: RFC 3339 or relative (-2h)")
    ],
    to: Annotated[
        float | None, typer.Option(parser=time_s, metavar="T", help="end: RFC 3339 or relative (default: now)")
    ] = None,
    name: Annotated[str, typer.Option(help="name of the replay in beacons (default: the current time)")] = "",
    rate: Annotated[float, typer.Option(min=1, help="maximum events per second")] = REPLAY_RATE,
) -> None:
    """Replay past events through the pipeline; prints progress as JSON lines."""
    until = time.time() if to is None else to
    if from_ >= until:
        fail("expected --from to be before --to", EXIT_USAGE)
    if not name_fits(name):
        fail("expected --name of up to 500 bytes", EXIT_USAGE)
    for progress in replayed(ReferenceSettings.load(data_dir), name or _name("replay"), from_, until, rate):
        say(progress)


@app.command()
def redrive(
    data_dir: DataDir,
    node: Annotated[str | None, typer.Option(help="only messages dead-lettered by this node")] = None,
    reason: Annotated[str, typer.Option(help="only messages whose dead-letter reason contains this text")] = "",
    most: Annotated[int | None, typer.Option("--max", min=1, help="maximum number of messages")] = None,
) -> None:
    """Send dead letters back to their nodes; prints progress as JSON lines."""
    if node is not None and node not in ALL_CONSUMERS:
        fail(f"expected one of {', '.join(ALL_CONSUMERS)}, found {node!r}", EXIT_USAGE)
    try:
        for progress in redriven(ReferenceSettings.load(data_dir), _name("redrive"), Wanted(node, reason, most)):
            say(progress)
    except Busy as problem:
        fail(str(problem), EXIT_USAGE)


def _name(kind: str) -> str:
    return f"{kind}-{rfc3339(int(time.time()))}"
