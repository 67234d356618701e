"""The scheduler: reports that are due are made, mailed and queued, each once, however many dashboards there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError

from dashboard.reports.schedule.file import ReportsFile, ReportSpec
from dashboard.reports.schedule.mail import MadeReport, compose, message_id
from dashboard.reports.schedule.producer import Maker, Producer, unsettled
from dashboard.reports.schedule.receivers import combined, problem_of, queue, read_kinds
from dashboard.reports.schedule.runs import ClaimedRun, RunKey, Runs
from lagloss.errors import LaglossError
from lagloss_server.base.settings import Settings
from lagloss_server.model.window import rfc3339
from lagloss_server.net.mail import MailDelivery, send_mail
from lagloss_server.net.outcome import Outcome, Refused, Sent, TryLater
from lagloss_server.store.store import Store

LOOK_S: Final = 20.0
"""How often it looks whether a report is due."""
WAIT_AT_MOST_S: Final = 6 * 3_600.0
"""For windows to be closed: those that are not by then may never be."""

FORGETS_EVERY_S: Final = 3_600.0
"""How often runs that are older than what reports are made of are deleted."""
SEND_TIMEOUT_S: Final = 180.0
"""For one mail with its documents."""

_log = structlog.get_logger("lagloss.dashboard")


class _GoneError(Exception):
    """The run is not ours to send: the claim ran out, or we are to stop."""


class Scheduler:
    """Sends the reports of a file, from a thread of its own between `start` and `stop`."""

    def __init__(
        self, store: Store, settings: Settings, file: ReportsFile, make: Maker | None = None, runs: Runs | None = None
    ) -> None:
        """`make` and `runs` are for tests. Raises SecretMissing or UnusableReceiver where the file's mail server cannot
        be used."""
        self._store = store
        self._file = file
        self._mailer = None if file.mail is None else (file.mail.server(SEND_TIMEOUT_S), file.mail.from_)
        self._producer = Producer(store, settings.dashboard_url, make)
        self._runs = runs or Runs(store.engine)
        self._keep_days = settings.keep_rollups_days
        self._forgot_s = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report-scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 3.0) -> None:
        """Stop after the current pipeline or mail, waiting at most `timeout_s`. Another dashboard sends the rest."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look(time.time())
            except Exception:  # our bug; the next round looks again
                _log.exception("report_round_failed")
            self._stopping.wait(LOOK_S)

    def look(self, now_s: float) -> None:
        """Run one round over all reports: send those due at that moment (epoch s)."""
        for report in self._file.reports:
            if self._stopping.is_set():
                return
            try:
                self._turn(report, now_s)
            except (OperationalError, InterfaceError) as error:
                _log.warning("report_delayed", report=report.name, error=type(error).__name__)
            except Exception:  # our bug; the others are due nevertheless
                _log.exception("report_failed", report=report.name)
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        if now_s - self._forgot_s < FORGETS_EVERY_S:
            return
        self._forgot_s = now_s
        try:
            deleted = self._runs.forget(self._keep_days)
        except (OperationalError, InterfaceError) as error:
            _log.warning("report_run_pruning_failed", error=type(error).__name__)
            return
        if deleted:
            _log.info("report_runs_pruned", rows=deleted)

    def _turn(self, report: ReportSpec, now_s: float) -> None:
        schedule = report.schedule
        key = RunKey(report.name, str(schedule), schedule.last_until(now_s))
        self._runs.begin(key)
        waited_s = self._runs.waited_s(key)
        if waited_s is None:
            return
        span = report.span(key.due_s)
        waits_for = unsettled(self._store, self._producer.definitions(report), span, now_s)
        if waits_for and waited_s < WAIT_AT_MOST_S:
            return
        claimed = self._runs.claim(key)
        if claimed is None:
            return
        try:
            delivery = self._make_and_send(report, key, claimed, waits_for, now_s)
        except _GoneError:
            self._runs.release(claimed)
            return
        outcome = self._runs.record(claimed, delivery.outcome, delivery.reached)
        _note(key, claimed, outcome)

    def _make_and_send(
        self, report: ReportSpec, key: RunKey, claimed: ClaimedRun, waits_for: Sequence[str], now_s: float
    ) -> MailDelivery:
        def hold() -> None:
            if self._stopping.is_set() or not self._runs.renew(claimed):
                raise _GoneError

        try:
            made_report = self._producer.report(report, report.span(key.due_s), now_s, waits_for, hold)
        except (_GoneError, OperationalError, InterfaceError):
            raise
        except LaglossError as error:
            return MailDelivery(TryLater(f"the report could not be created: {error}"))
        except Exception as error:  # our bug; until it is fixed, the report is tried again
            _log.exception("report_generation_failed", report=key.report)
            return MailDelivery(TryLater(f"the report could not be created ({type(error).__name__})"))
        hold()
        queued = self._queue(report, key, claimed, made_report)
        mailed = self._mail(report, key, claimed, made_report)
        return MailDelivery(combined([*queued, mailed.outcome]), mailed.reached)

    def _queue(self, report: ReportSpec, key: RunKey, claimed: ClaimedRun, made_report: MadeReport) -> list[Outcome]:
        """Queue the report for the receivers that it is not queued for yet, in the commit that records it."""
        unreached = [name for name in report.receivers if _mark(name) not in claimed.reached]
        if not unreached:
            return []
        with self._store.engine.connect() as connection:
            kinds = read_kinds(connection, unreached)
        outcomes = {name: problem_of(name, kinds.get(name)) for name in unreached}
        fit = {name: kinds[name] for name in unreached if isinstance(outcomes[name], Sent)}
        run = (key.report, key.schedule, key.due_s)
        if fit and not self._runs.once(claimed, list(map(_mark, fit)), lambda to: queue(to, made_report, fit, *run)):
            raise _GoneError
        return list(outcomes.values())

    def _mail(self, report: ReportSpec, key: RunKey, claimed: ClaimedRun, made_report: MadeReport) -> MailDelivery:
        if self._mailer is None or not report.to:
            return MailDelivery(Sent())
        server, sender = self._mailer
        name = message_id(sender, key.report, key.schedule, key.due_s)
        return send_mail(server, compose(made_report, sender, report.to, name), report.to, claimed.reached)


def _mark(receiver: str) -> str:
    """Return what `reached` holds of a receiver; no mail address reads like it."""
    return f"receiver:{receiver}"


def _note(key: RunKey, claimed: ClaimedRun, outcome: Outcome) -> None:
    facts = {"report": key.report, "due_at": rfc3339(key.due_s), "attempts": claimed.attempts}
    match outcome:
        case Sent():
            _log.info("report_sent", **facts)
        case Refused(error):
            _log.error("report_abandoned", **facts, error=error)
        case TryLater(error):
            _log.warning("report_retried", **facts, error=error)
