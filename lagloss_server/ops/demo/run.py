"""The demo: service, pipeline and its past hour, shown live; at the end injected losses against measured ones."""

from __future__ import annotations

import fcntl
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from lagloss.errors import EXIT_BREACHED, EXIT_OK
from lagloss_server.base.errors import AlreadyRunning, NotEnoughData
from lagloss_server.base.settings import Settings
from lagloss_server.judging.freshness import due_ms
from lagloss_server.model.definition import load_definition
from lagloss_server.ops.demo.pipeline import (
    ACTS,
    DEFINITION,
    FAULTS,
    LONGEST_ACT_S,
    MODULE,
    NAME,
    RATE,
    PipelineProcess,
    ledger,
    play,
    verdict,
)
from lagloss_server.ops.demo.view import DemoView, LiveView, Picture, PlainView, table_of
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.processes import python
from lagloss_server.ops.up import ServiceStack, end_leftovers_in, signals_interrupt
from lagloss_server.store.store import Store

HISTORY_S: Final = 3_700
REFRESH_EVERY_S: Final = 1.0
SETTLE_S: Final = 90.0
"""Longest time a window takes after its grace: pending overtaken, tallies at rest, Spark on a busy machine."""
MAX_SHOWN_DIFFERENCES: Final = 20
PLAIN_WIDTH: Final = 160


def run(minutes: float | None = None, as_json: bool = False, settings: Settings | None = None) -> int:
    """Run the demo; for `minutes` of load, or until Ctrl-C.

    With `minutes`: wait until every window is closed for good and compare. `as_json`: one document on stdout, the
    progress on stderr.

    Returns:
        0; 1 if injected and measured differ.

    Raises:
        LaglossError: if something does not start; its message has advice.
    """
    settings = settings or Settings()
    # without a canary: nothing of it would be due within a demo
    settings = settings.model_copy(update={"data_dir": settings.data_dir.absolute() / "demo", "canary": "off"})
    make_empty(settings.data_dir)
    picture = Picture()
    is_live = sys.stdout.isatty() and not as_json
    view: DemoView = LiveView(picture) if is_live else PlainView(picture, to_stderr=as_json)
    with signals_interrupt(), view:
        try:
            with ServiceStack(settings, view.say) as stack, Demo(stack, picture, view) as demo:
                demo.go(minutes)
                if minutes is None:
                    return EXIT_OK
                document = demo.verdict()
        except KeyboardInterrupt:
            view.say("stopped")
            return EXIT_OK if minutes is None else EXIT_BREACHED  # interrupted before the comparison
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        console = Console(width=None if is_live else PLAIN_WIDTH)
        show_verdict(console, picture, document, with_table=not is_live)
    return EXIT_OK if document["agree"] else EXIT_BREACHED


def make_empty(data_dir: Path) -> None:
    """Remove the data of the last demo: each begins with empty servers of its own.

    Raises:
        AlreadyRunning: if another demo uses it.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise AlreadyRunning(what="lagloss demo", path=data_dir, pid=lock.read().strip() or "unknown") from error
        end_leftovers_in(data_dir)
        EmbeddedPostgres.remove(data_dir / "postgres")
        for path in data_dir.iterdir():
            if path.is_dir():
                shutil.rmtree(path)


class Demo:
    """The pipeline and its past on a running stack, and their state so far."""

    def __init__(self, stack: ServiceStack, picture: Picture, view: DemoView) -> None:
        self._stack = stack
        self._picture = picture
        self._view = view
        self._data_dir = stack.settings.data_dir / "pipeline"
        self._store = Store(stack.endpoints["database"])
        self._definition = load_definition(DEFINITION)
        self._grace_ms = self._definition.spec.grace
        self._began_s = time.time()
        self._beacons = (time.monotonic(), 0)
        self._phase = "starting the pipeline"
        self._load_began: float | None = None
        """Monotonic seconds."""
        self._processes: dict[str, PipelineProcess] = {}
        picture.dashboard = stack.endpoints["dashboard"]
        picture.live_from_s = int(self._began_s) // 60 * 60

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *failure: object) -> None:
        for process in self._processes.values():
            process.stop()

    def go(self, minutes: float | None) -> None:
        """Send the past and run the pipeline until its load has ended and everything is through."""
        self._store.apply(self._definition)
        lagloss_dir = self._stack.settings.data_dir
        self._view.say(f"page: {self._picture.dashboard}")
        self._view.say("sending an hour of past beacons")
        # The past has the lower priority: it takes a core for some seconds.
        self._processes["history"] = PipelineProcess("history", self._data_dir, lagloss_dir, nice=10)
        options = ["--rate", str(RATE), *(word for fault in FAULTS for word in ("--fault", fault))]
        options += ["--minutes", str(minutes)] if minutes is not None else []
        self._processes["run"] = PipelineProcess("run", self._data_dir, lagloss_dir, *options)
        self._view.say(f"starting the pipeline, {RATE:.0f} events/s, with {', '.join(FAULTS)}")
        load_s = math.inf if minutes is None else minutes * 60
        acts = [act for act in ACTS if act[0] + LONGEST_ACT_S <= load_s]
        while sum(process.running for process in self._processes.values()):  # not `any`: each that failed raises
            self._refresh()
            if acts and self._load_began is not None and time.monotonic() >= self._load_began + acts[0][0]:
                self._play(acts.pop(0)[1])

    def _play(self, scenario: str) -> None:
        self._view.say(f"playing {scenario}: {play(self._data_dir, scenario)}")

    def verdict(self) -> dict[str, Any]:
        """Wait until every window of lagloss is settled, and return the comparison with the ledger.

        Raises:
            NotEnoughData: no window was closed in time.
        """
        truths = ledger(self._data_dir)
        self._picture.truths = dict(truths)
        windows = self._picture.windows
        deadline = due_ms(max(truths, default=0), self._grace_ms) / 1000 + SETTLE_S
        while True:
            self._phase = f"waiting up to {max(0, deadline - time.time()):.0f} s for the last windows to close"
            self._refresh()
            is_late = time.time() > deadline
            if is_late or all(start in windows and windows[start].is_settled for start in truths):
                document = verdict(self._data_dir, self._stack.settings.data_dir)
                agree = document is not None and document["agree"] and not document["waiting"]
                if document is not None and (agree or is_late):
                    return {**document, "agree": agree}
                if is_late:
                    raise NotEnoughData(
                        detail="No window was closed, although all are overdue; see the aggregator's log."
                    )

    def _refresh(self) -> None:
        """Pause for a second, then check and show everything once."""
        time.sleep(REFRESH_EVERY_S)
        self._stack.tend()
        for progress in self._processes["history"].progress():
            if progress["minutes"] == progress["of"]:
                self._view.say(f"sent {progress['beacons']:,} past beacons")
        for progress in self._processes["run"].progress():
            self._take(progress)
        for window in self._store.windows(NAME, int(self._began_s) - HISTORY_S, int(time.time()) + 60):
            self._picture.windows[window.start_s] = window
        self._picture.line = self._status()
        self._view.show()

    def _take(self, progress: Mapping[str, Any]) -> None:
        for truth in progress["windows"]:
            self._picture.truths[truth["window_start_s"]] = truth
        if progress["phase"] == "load" and self._load_began is None:
            self._load_began = time.monotonic()
            command = " ".join(python(MODULE, "play"))
            self._view.say(
                f"inject faults: `{command} {ACTS[0][1]} --data-dir {self._data_dir}`, or `{command} --help`"
            )
        rate = f", {progress['events_per_s']:.0f} events/s" if progress["phase"] == "load" else ""
        restarts = f", {progress['restarts']} restarts" if progress["restarts"] else ""
        self._phase = f"pipeline: {progress['phase']}{rate}{restarts}"

    def _status(self) -> str:
        now, beacons = time.monotonic(), _beacons(self._picture.windows.values())
        since, before = self._beacons
        self._beacons = (now, beacons)
        per_s = max(0.0, (beacons - before) / max(now - since, 0.001))
        parts = [self._phase, f"{per_s:,.0f} beacons/s"]
        waiting = [
            place
            for place in self._picture.live()
            if (window := self._picture.windows.get(place)) is None or window.state == "open"
        ]
        if waiting:
            left_s = due_ms(min(waiting), self._grace_ms) / 1000 - time.time()
            parts.append(f"next window closes in {left_s:.0f} s" if left_s > 0 else "closing a window")
        return "   ".join(parts)


def _beacons(windows: Any) -> int:
    return sum(checkpoint.beacons for window in windows for checkpoint in window.checkpoints)


def show_verdict(console: Console, picture: Picture, document: Mapping[str, Any], *, with_table: bool) -> None:
    """Print the table of windows, unless it is on the screen already, and the result of the comparison."""
    if with_table:
        console.print(table_of(picture))
    lost = document["measured"]["lost"]
    console.print(f"injected losses: {document['injected']['lost']}, measured: {lost['min']} to {lost['max']}")
    if document["agree"]:
        console.print(f"measured = injected in all {len(document['windows'])} windows, id by id", style="bold green")
        return
    table = Table(
        "window", "what", "injected", "measured", "ids", title="measured losses differ from injected ones", style="red"
    )
    differences = document["differences"]
    for difference in differences[:MAX_SHOWN_DIFFERENCES]:
        minute = f"{datetime.fromtimestamp(difference['window_start_s'], UTC):%H:%M}"
        cells = [str(difference[name]) for name in ("what", "injected", "measured")]
        table.add_row(minute, *cells, ", ".join(difference["ids"]))
    console.print(table)
    if len(differences) > MAX_SHOWN_DIFFERENCES:
        console.print(f"and {len(differences) - MAX_SHOWN_DIFFERENCES} more; use --json for all")
    if document["waiting"]:
        console.print(f"not settled: {', '.join(document['waiting'])}", style="red")
