"""Backtests of a pipeline's rules, in a process of their own: `lagloss alerts backtest` as people type it."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any, Final

from dashboard.request.current_user import require_operator, require_operator_of
from dashboard.request.shown_range import ShownRange
from lagloss.errors import EXIT_NOT_ENOUGH_DATA
from lagloss_server.base.errors import BacktestBusy, BacktestFailed, NotEnoughData
from lagloss_server.base.settings import ENV_PREFIX, SECRETS, Settings
from lagloss_server.model.window import rfc3339
from lagloss_server.ops.processes import python, run
from lagloss_server.store.store import Store

TIMEOUT_S: Final = 90.0
"""A week of minutes of a pipeline with few nodes takes about ten seconds."""
MAX_BYTES: Final = 8 << 20
_COMMAND: Final = tuple(python("alerting.cli.main", "backtest"))
_running = threading.Lock()

Document = dict[str, Any]


def backtest(
    store: Store,
    settings: Settings,
    pipeline: str,
    span: ShownRange,
    *,
    command: Sequence[str] = _COMMAND,
    timeout_s: float = TIMEOUT_S,
) -> Document:
    """Return the incidents that the pipeline's rules would have opened, as `lagloss alerts backtest --json` prints
    them. Stores nothing, notifies no receiver; one at a time.

    Raises:
        NotAllowed: the user may only look.
        UnknownPipeline: with the names there are.
        NotEnoughData: no window is closed in the span.
        BacktestBusy: another one runs.
        BacktestFailed: it took too long, or ended with an error.
    """
    require_operator()
    store.demand(pipeline)
    require_operator_of(pipeline)
    if not _running.acquire(blocking=False):
        raise BacktestBusy
    try:
        words = [pipeline, "--from", rfc3339(span.from_s), "--to", rfc3339(span.to_s), "--json"]
        return _run([*command, *words], settings, timeout_s)
    finally:
        _running.release()


def _run(argv: Sequence[str], settings: Settings, timeout_s: float) -> Document:
    # the other secrets of the dashboard are not for it
    environment = {f"{ENV_PREFIX}{name}".upper(): "" for name in SECRETS}
    environment[f"{ENV_PREFIX}DATABASE_URL"] = settings.require_database()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            # the thread that starts it is of a pool, and lives as long as this process
            done = run(argv, environment, timeout_s=timeout_s, on_parent_death=signal.SIGKILL, stdout=out, stderr=err)
        except subprocess.TimeoutExpired as error:
            detail = f"it took longer than {timeout_s:g} s. Choose a shorter range."
            raise BacktestFailed(detail=detail) from error
        if done.returncode == EXIT_NOT_ENOUGH_DATA:
            raise NotEnoughData(detail=_last_line(err))
        if done.returncode:
            raise BacktestFailed(detail=_last_line(err) or f"exit code {done.returncode}")
        return _document(out)


def _document(out: IO[bytes]) -> Document:
    text = _beginning(out, MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise BacktestFailed(detail=f"it found more than {MAX_BYTES >> 20} MiB of incidents. Choose a shorter range.")
    try:
        document: Document = json.loads(text)
    except ValueError as error:
        raise BacktestFailed(detail="its output is not JSON") from error
    return document


def _last_line(err: IO[bytes]) -> str:
    """Return the command's error message, without its name."""
    lines = _beginning(err, 100_000).decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("lagloss: ")[:500] if lines else ""


def _beginning(file: IO[bytes], size: int) -> bytes:
    file.seek(0)
    return file.read(size)
