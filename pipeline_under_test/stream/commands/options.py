"""Options that several commands take, and how their text is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagloss_server.base.errors import BadTime
from lagloss_server.base.settings import Settings as LaglossSettings
from lagloss_server.base.times import parse_time_s
from pipeline_under_test.harness.faults import BadFault, Fault
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.processes.process_faults import NoFaketime, library
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import SHADOW, WAREHOUSE


def fault_of(text: str) -> Fault:
    try:
        fault = parse(text)
        if fault.kind == "skew":
            library()
    except (BadFault, NoFaketime) as problem:
        raise typer.BadParameter(str(problem)) from problem
    return fault


def require_target(fault: Fault, settings: ReferenceSettings) -> None:
    """Refuse a fault that can hit nothing of this pipeline."""
    if fault.node == SHADOW and not settings.shadow:
        raise typer.BadParameter(
            f"expected a pipeline that runs with --shadow for {fault.text!r}, found one without it"
        )
    if WAREHOUSE in (fault.node, fault.to) and not settings.database_url:
        raise typer.BadParameter(f"expected a pipeline with a database for {fault.text!r}, found one without it")


def time_s(text: str) -> float:
    try:
        return parse_time_s(text)
    except BadTime as problem:
        raise typer.BadParameter(str(problem)) from problem


def _default_data_dir() -> Path:
    return LaglossSettings().data_dir / "pipeline"


DataDir = Annotated[
    Path,
    typer.Option(
        envvar="PIPELINE_DATA_DIR", default_factory=_default_data_dir, help="directory of its settings, ledger and logs"
    ),
]
FaultOption = Annotated[
    list[Fault],
    typer.Option(parser=fault_of, metavar="FAULT", help="fault to inject from the start (repeatable); see `fault`"),
]
Port = Annotated[int, typer.Option(help="port to listen on (default: any free port)")]
Fd = Annotated[int | None, typer.Option(help="file descriptor of an inherited listening socket, instead of a port")]
Rate = Annotated[float, typer.Option(min=0, help="events per second")]
