"""The listener: what Airflow says of its runs and tasks, as reports. No failure of its own reaches Airflow."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Final

import pluggy

from lagloss.airflow.facts import run_report, task_report
from lagloss.airflow.sender import Collector, ReportSender
from lagloss.errors import LaglossError
from lagloss.sdk.outlets.choice import COLLECTOR_VARIABLE

log = logging.getLogger("lagloss.airflow")
hookimpl: Final = pluggy.HookimplMarker("airflow")


def harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """Let a hook raise nothing, and log its first failure."""
    has_failed = False

    @functools.wraps(hook)
    def guarded(*args: Any, **named: Any) -> None:
        nonlocal has_failed
        try:
            hook(*args, **named)
        except Exception:
            if not has_failed:
                log.exception("cannot report a run or task")
            has_failed = True

    return guarded


class RunListener:
    """Reports each try of a task from the process that runs it, and each DAG run from the scheduler."""

    def __init__(self, sender: ReportSender | None = None) -> None:
        self._sender = sender or _sender_of_environment()

    @hookimpl
    @harmless
    def on_task_instance_running(self, previous_state: Any, task_instance: Any) -> None:
        self._put(task_report, task_instance, "running")

    @hookimpl
    @harmless
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        self._end(task_instance, "success")

    @hookimpl
    @harmless
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: Any) -> None:
        self._end(task_instance, "failed")

    @hookimpl
    @harmless
    def on_task_instance_skipped(self, previous_state: Any, task_instance: Any) -> None:
        self._end(task_instance, "skipped")

    @hookimpl
    @harmless
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:
        self._put(run_report, dag_run, "running")

    @hookimpl
    @harmless
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None:
        self._put(run_report, dag_run, "success")

    @hookimpl
    @harmless
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        self._put(run_report, dag_run, "failed")

    @hookimpl
    @harmless
    def before_stopping(self, component: Any) -> None:
        if self._sender is not None:
            self._sender.flush()

    def _end(self, task_instance: Any, state: str) -> None:
        self._put(task_report, task_instance, state)
        # a task's own process ends with it; the scheduler, whose objects know their run, is not to wait
        if self._sender is not None and not hasattr(task_instance, "dag_run"):
            self._sender.flush()

    def _put(self, report: Callable[[Any, str], dict[str, Any]], task_instance: Any, state: str) -> None:
        if self._sender is not None:
            self._sender.put(report(task_instance, state))


def _sender_of_environment() -> ReportSender | None:
    """Return None, and say so, where no collector is named or its token cannot be read."""
    try:
        collector = Collector.of_environment()
    except LaglossError as error:
        log.warning("not reporting runs: %s", error)
        return None
    if collector is None:
        log.warning("not reporting runs: %s is not set", COLLECTOR_VARIABLE)
        return None
    return ReportSender(collector)
