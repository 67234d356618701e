"""Commands that are one process of a running pipeline; `run` starts them."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from lagloss.errors import EXIT_USAGE
from pipeline_under_test.harness.commands import ENDING, fail, on_end
from pipeline_under_test.stream.commands.options import DataDir, Fd, Port, Rate
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import COL_SERVICE, CONSUMERS

app = typer.Typer()


@app.command()
def node(node: Annotated[str, typer.Argument(help=", ".join(CONSUMERS))], data_dir: DataDir) -> None:
    """Run one process of a consuming node in a running pipeline."""
    from pipeline_under_test.stream.nodes.process import PROCESSES

    if node not in PROCESSES:
        fail(f"expected one of {', '.join(PROCESSES)}, found {node!r}", EXIT_USAGE)
    loop, outlet = PROCESSES[node](ReferenceSettings.load(data_dir))
    on_end(loop.stop)
    loop.run(outlet)


@app.command(name=COL_SERVICE)
def col_service(data_dir: DataDir, port: Port = 0, fd: Fd = None) -> None:
    """Run the first node, which receives events over HTTP."""
    from pipeline_under_test.stream.nodes import col_service
    from pipeline_under_test.stream.nodes.serving import listening_socket, serve

    serve(col_service.create_app(ReferenceSettings.load(data_dir)), listening_socket(port, inherited=fd))


@app.command()
def receiver(data_dir: DataDir, port: Port = 0, fd: Fd = None) -> None:
    """Run the simulated vendors."""
    from pipeline_under_test.stream.nodes import receiver
    from pipeline_under_test.stream.nodes.serving import listening_socket, serve

    serve(receiver.create_app(ReferenceSettings.load(data_dir)), listening_socket(port, inherited=fd))


@app.command()
def load(data_dir: DataDir, rate: Rate = 100.0) -> None:
    """Send events to col-service until stopped."""
    from pipeline_under_test.stream.traffic.load import Load, Mix

    async def send() -> None:
        load = Load(ReferenceSettings.load(data_dir), rate, Mix())
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, load.stop)
        await load.run()

    asyncio.run(send())
