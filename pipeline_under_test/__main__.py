"""`python -m pipeline_under_test COMMAND`: the pipeline as a whole, or one process of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from pipeline_under_test import col_service, receiver
from pipeline_under_test.connector import connector
from pipeline_under_test.faults import BadFault, Fault, parse
from pipeline_under_test.history import History
from pipeline_under_test.ledger import LedgerReader
from pipeline_under_test.load import Load, Mix
from pipeline_under_test.relay import DECIDE, relay
from pipeline_under_test.runner import SETTLE_S, NotStarted, Runner
from pipeline_under_test.settings import Settings
from pipeline_under_test.topology import COL_SERVICE, CONSUMERS, PIPELINE
from pipeline_under_test.truth import Truth

EXIT_OK, EXIT_FAILED, EXIT_UNREACHABLE = 0, 1, 3


def _fault(text: str) -> Fault:
    try:
        return parse(text)
    except BadFault as problem:
        raise argparse.ArgumentTypeError(str(problem)) from problem


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--bootstrap", default="", metavar="HOST:PORT", help="the Kafka broker")
    common.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="for the ledger and logs")
    common.add_argument("--pipeline", default=PIPELINE, metavar="NAME", help="topics and groups begin with it")
    common.add_argument("--fault", type=_fault, action="append", default=[], metavar="FAULT", help="see faults.py")
    common.add_argument("--seed", type=int, default=0, help="of faults and traffic")
    common.add_argument("--receiver-url", default="", metavar="URL")
    common.add_argument("--collector-url", default="", metavar="URL")
    parser = argparse.ArgumentParser(prog="python -m pipeline_under_test", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, parents=[common], help=about, description=about)
        if name in ("run", "load", "history"):
            command.add_argument(
                "--rate", type=float, default=15.0 if name == "history" else 100.0, help="events a second"
            )
        if name == "run":
            command.add_argument("--minutes", type=float, help="of load; without it, until SIGTERM or Ctrl-C")
            command.add_argument(
                "--settle", type=float, default=SETTLE_S, help="seconds that the nodes stay at the end"
            )
        if name == "history":
            command.add_argument("--minutes", type=int, default=60, help="of the past")
        if name == "node":
            command.add_argument("node", choices=CONSUMERS)
        if name in (COL_SERVICE, receiver.RECEIVER):
            command.add_argument("--port", type=int, required=True)
    return parser


COMMANDS = {
    "run": "starts everything, loads it, ends it; prints progress as JSON lines",
    "node": "one process of a consuming node",
    COL_SERVICE: "the first node, over HTTP",
    receiver.RECEIVER: "the fake vendor",
    "load": "sends events to col-service",
    "history": "sends an hour of the past",
    "ledger": "prints what the ledger adds up to, as one JSON document",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if not options.bootstrap and options.command not in ("ledger", receiver.RECEIVER):
        _parser().error(f"{options.command} needs --bootstrap")
    settings = Settings(
        bootstrap=options.bootstrap,
        data_dir=options.data_dir,
        pipeline=options.pipeline,
        faults=tuple(options.fault),
        seed=options.seed,
        receiver_url=options.receiver_url,
        collector_url=options.collector_url,
    )
    match options.command:
        case "run":
            return _run(Runner(settings, options.rate, options.minutes, options.settle))
        case "node":
            return _node(options.node, settings)
        case "load":
            return asyncio.run(_load(Load(settings, options.rate, Mix())))
        case "history":
            for minutes, beacons in History(settings, options.rate).send(options.minutes):
                _say({"minutes": minutes, "of": options.minutes, "beacons": beacons})
        case "ledger":
            truth = Truth()
            truth.add(LedgerReader(settings.ledger_dir).new_entries())
            _say({"windows": truth.documents()})
        case "col-service":
            _serve(col_service.create_app(settings), options.port)
        case _:
            _serve(receiver.create_app(settings), options.port)
    return EXIT_OK


def _say(document: object) -> None:
    print(json.dumps(document, separators=(",", ":")), flush=True)  # noqa: T201 (it is the output)


def _on_end(call: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: call())


def _run(runner: Runner) -> int:
    _on_end(runner.stop)
    try:
        for progress in runner.steps():
            _say(progress)
    except NotStarted as problem:
        logging.getLogger(__name__).error("%s", problem)  # noqa: TRY400 (the sentence says it all)
        return EXIT_UNREACHABLE
    return EXIT_OK


def _node(name: str, settings: Settings) -> int:
    if name in DECIDE:
        loop, topics = relay(name, settings)
        _on_end(loop.stop)
        loop.run(topics)
    else:
        loop, vendor = connector(name, settings)
        _on_end(loop.stop)
        loop.run(vendor)
    return EXIT_OK


async def _load(load: Load) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, load.stop)
    await load.run()
    return EXIT_OK


def _serve(app: FastAPI, port: int) -> None:
    _on_end(lambda: None)  # uvicorn raises the signal again once it has ended, and the exit code should be 0
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    sys.exit(main())
