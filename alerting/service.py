"""Alerter: waits for leadership, and then evaluates pipelines as their windows close while its senders send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog
from sqlalchemy import Engine, delete, func, insert, select, text

from alerting.catalogue import Catalogue
from alerting.delivery.sender import HeldLead, Sender
from alerting.incidents import outbox
from alerting.incidents.evaluator import Evaluator
from alerting.incidents.repository import NotLeading
from alerting.leader_election import AWAY, Leadership, leading, pause_s
from alerting.metrics import AlertingMetrics
from alerting.rounds import Rounds
from lagloss.errors import LaglossError
from lagloss_server.base.turns import Turns, WatchedLoop
from lagloss_server.incidents.actions import holding_silences
from lagloss_server.model.canary import CANARY, is_listed
from lagloss_server.net.server_watch import postgresql, watching
from lagloss_server.store.migrate import demand_newest
from lagloss_server.store.schema.alerting import IncidentRow, ReceiverRow
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.unreadable import UnreadableRows

STOP_S: Final = 12.0
"""Time that a sending under way has to end when the alerter stops. After that its claim expires, and the next alerter
sends the message again."""
READ_ALONG_S: Final = 0.5
READ_AGAIN_S: Final = 30.0
"""While another alerter leads, each pipeline is read at about this interval, for READ_ALONG_S at a time."""
TIDY_S: Final = 600.0
TABLES_PAUSE_S: Final = 10.0
LEAD_LIMIT_S: Final = 120.0
"""Longest normal time between two pipelines that are evaluated, or a pre-check of all of them."""
_SLICE_S: Final = 0.5
"""Time that it waits for notifications before it checks for the next round."""

_T = TypeVar("_T")
_log = structlog.get_logger("lagloss.alerting")


class Alerter:
    """Alerter of all pipelines; `run` returns when `stop` is called. `receivers`: rows of the table of that name."""

    def __init__(
        self,
        database_url: str,
        evaluator: Evaluator,
        senders: Sequence[Sender],
        lead: HeldLead,
        receivers: Sequence[dict[str, object]],
        metrics: AlertingMetrics,
    ) -> None:
        self._database_url = database_url
        self._evaluator = evaluator
        self._senders = senders
        self._lead = lead
        self._receivers = receivers
        self._metrics = metrics
        self._stop = threading.Event()
        self._catalogue = Catalogue(evaluator.store)
        self._read_at_s: dict[str, float] = {}
        self._tidied_s = float("-inf")
        self.unreadable = UnreadableRows()
        """Definitions and silences that are set aside, as of the last round that this alerter led."""
        metrics.set_aside.counts = self.unreadable.counts
        self.trouble: str | None = "starting"
        """Why it neither leads nor stands by; None when it does."""
        self.turns = Turns()
        self._loop = WatchedLoop("evaluating pipelines", LEAD_LIMIT_S)

    def health_problem(self) -> str | None:
        """Return the reason for a failed /healthz: it neither leads nor stands by, or something hangs."""
        return self.trouble or self.turns.problem()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        for sender in self._senders:
            sender.start()
        loops = [self._loop, *(sender.loop for sender in self._senders)]
        try:
            with watching(self.turns, {"PostgreSQL": postgresql(self._database_url)}), self.turns.running(*loops):
                self._campaign()
        finally:
            for sender in self._senders:
                sender.stop()
            ends_s = time.monotonic() + STOP_S
            for sender in self._senders:
                sender.join(max(ends_s - time.monotonic(), 0))

    def _campaign(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._loop.finished()
            try:
                with leading(self._database_url, self._stop, self._stand_by, self._is_well) as lead:
                    failures = 0
                    if lead is not None:
                        self._lead_until_lost(lead)
            except LaglossError as error:  # the tables are of another version, until somebody migrates
                self.trouble = str(error)
                _log.error("table_version_mismatch", error=self.trouble)
                self._stop.wait(TABLES_PAUSE_S)
            except Exception as error:
                failures += 1
                wait_s = pause_s(failures)
                if isinstance(error, AWAY):
                    self.trouble = f"PostgreSQL is unavailable: {type(error).__name__}"
                    _log.warning("database_unreachable", error=type(error).__name__, again_in_s=wait_s)
                else:  # our bug: another alerter may lead meanwhile
                    self.trouble = f"failed: {type(error).__name__}: {error}"
                    _log.exception("alerter_failed", again_in_s=wait_s)
                self._stop.wait(wait_s)
            finally:
                self._follow_lead(None)

    def _stand_by(self) -> None:
        """Note that the database answers, and fill the caches a little at a time, so that a takeover has less to read.
        Raise when the database goes away."""
        self.trouble = None
        self._loop.finished()
        until_s = time.monotonic() + READ_ALONG_S
        for name in sorted(self._catalogue.versions(), key=lambda name: self._read_at_s.get(name, float("-inf"))):
            now_s = time.monotonic()
            if now_s > until_s or now_s - self._read_at_s.get(name, float("-inf")) < READ_AGAIN_S:
                return
            self._read_at_s[name] = now_s
            try:
                pipeline = self._catalogue.find(name)
                if pipeline is not None:
                    self._evaluator.read_along(pipeline)
            except AWAY:
                raise
            except Exception as error:  # the leader logs the details
                _log.warning("stand_by_read_failed", pipeline=name, error=type(error).__name__)

    def _is_well(self) -> bool:
        """Return whether this alerter can lead: one whose loop hangs leaves that to another."""
        return self._loop.problem is None

    def _follow_lead(self, lead: Leadership | None) -> None:
        self._lead.owner = None if lead is None else lead.session.name
        self._evaluator.lead = None if lead is None else lead.lease
        self._metrics.leading.set(lead is not None)

    def _lead_until_lost(self, lead: Leadership) -> None:
        """Lead until `stop` is called. Raise when the database goes away or leadership is lost."""
        demand_newest(self._evaluator.store.engine)
        self._name_receivers(self._evaluator.store.engine)
        self._follow_lead(lead)
        self._wake()
        self._evaluator.unsettle()
        rounds = Rounds()
        while not self._stop.is_set():
            self._loop.finished()
            if rounds.is_due(time.monotonic()):
                rounds.begin(self._find_due(), time.monotonic())
            heard = lead.heard(0 if rounds.has_more() else _SLICE_S)
            if "" in heard:  # an acknowledgement, a silence, or a request for a test
                self._wake()
            rounds.hear(heard)
            if heard and rounds.is_behind():
                rounds.put_first(self._find_lossy(heard))
            name = rounds.take_one()
            if name is not None:
                self._watch(lead, name, partial(self._evaluate, name))
            elif taken := rounds.take():
                unread = self._evaluate_news(lead, taken)
                rounds.put_first(name for name in unread if taken[name])
                rounds.put_later(name for name in unread if not taken[name])
            if rounds.ends():
                self._watch(lead, "", self._end_round)

    def _find_due(self) -> Collection[str]:
        """Return the pipelines that are due in a round: all, where that cannot be found out."""
        versions = self._catalogue.versions()
        try:
            return self._evaluator.find_due(versions)
        except AWAY:
            raise
        except Exception:
            _log.exception("due_pipelines_read_failed")
            self._evaluator.unsettle()
            return versions

    def _find_lossy(self, closed: Mapping[str, Collection[int]]) -> Collection[str]:
        """Return the pipelines with a lossy window: none, where that cannot be found out, so that they have their
        turn."""
        try:
            return self._evaluator.find_lossy({name: starts for name, starts in closed.items() if name})
        except AWAY:
            raise
        except Exception:
            _log.exception("lossy_windows_read_failed")
            return ()

    def _evaluate_news(self, lead: Leadership, closed: Mapping[str, Collection[int]]) -> Collection[str]:
        """Evaluate the news of these pipelines, and return those that have to be read completely: all, where the news
        of all of them cannot be read together."""
        try:
            current = self._catalogue.current(closed)
            news = self._evaluator.assess_news(current, closed)
        except Exception as error:
            if isinstance(error, AWAY):
                lead.confirm()
            _log.exception("news_assessment_failed", pipelines=len(closed))
            return closed
        for findings in news.findings:
            if self._stop.is_set():
                break
            self._loop.finished()
            name = findings.pipeline.name
            self._watch(lead, name, partial(self._update, name, self._evaluator.apply, findings))
        return [*(closed.keys() - {pipeline.name for pipeline in current}), *news.unread]

    def _watch(self, lead: Leadership, pipeline: str, step: Callable[[], None]) -> None:
        """Run one step; log and count a failure so that other pipelines are still evaluated. Raise only when leadership
        is lost."""
        try:
            step()
        except NotLeading:
            raise
        except Exception as error:
            if isinstance(error, AWAY):
                lead.confirm()  # the database may be there all the same, and have ended this one's connection
            self._metrics.failed_evaluations.labels(pipeline).inc()
            _log.exception("evaluation_failed", pipeline=pipeline or None)

    def _evaluate(self, name: str) -> None:
        pipeline = self._catalogue.find(name)
        if pipeline is not None:  # else set aside, or deleted since: the round's end sees to its incidents
            self._update(name, self._evaluator.evaluate, pipeline)

    def _update(self, pipeline: str, update: Callable[[_T], list[str]], turn: _T) -> None:
        began_s = time.monotonic()
        changes = update(turn)
        self._metrics.evaluation.observe(time.monotonic() - began_s)
        if is_listed(pipeline):
            self._metrics.changed(changes)
        self._wake()

    def _end_round(self) -> None:
        self._metrics.changed(self._evaluator.end_incidents_of_deleted())
        self._note_unreadable()
        self._metrics.evaluated_at.set_to_current_time()
        self._count_open()
        self._wake()
        if time.monotonic() - self._tidied_s > TIDY_S:
            self._tidied_s = time.monotonic()
            outbox.tidy(self._evaluator.store.engine)

    def _note_unreadable(self) -> None:
        with self._evaluator.store.engine.connect() as connection:
            unreadable = holding_silences(connection)
        self.unreadable.replace("silence", unreadable.unreadable)
        self.unreadable.replace("definition", self._catalogue.unreadable.values())

    def _wake(self) -> None:
        for sender in self._senders:
            sender.wake()

    def _name_receivers(self, engine: Engine) -> None:
        """Store the names of the receivers for other programs. Messages for receivers that are gone are dropped: they
        must not go out late if one is added again, which is notified of the incidents open then."""
        with engine.begin() as connection:
            connection.execute(text("LOCK TABLE receiver IN SHARE ROW EXCLUSIVE MODE"))  # two may have led a moment ago
            connection.execute(delete(table_of(ReceiverRow)))
            listed = [receiver for receiver in self._receivers if is_listed(str(receiver["name"]))]
            if listed:
                connection.execute(insert(ReceiverRow), listed)
            outbox.drop_all_but(connection, [str(receiver["name"]) for receiver in self._receivers])

    def _count_open(self) -> None:
        table = table_of(IncidentRow)
        columns = (table.c.pipeline, table.c.kind, table.c.severity)
        with self._evaluator.store.engine.connect() as connection:
            rows = connection.execute(
                select(*columns, func.count())
                .where(table.c.state == "open", table.c.pipeline != CANARY)
                .group_by(*columns)
            ).all()
        self._metrics.incidents.clear()
        for pipeline, kind, severity, count in rows:
            self._metrics.incidents.labels(pipeline, kind, severity).set(count)
