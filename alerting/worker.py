"""The alerter: waits for the lead, and then evaluates pipelines as their windows close while its senders send."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

import structlog
from sqlalchemy import Engine, delete, func, insert, select

from alerting import outbox
from alerting.evaluating import Evaluator
from alerting.lead import AWAY, Lead, leading
from alerting.metrics import Metrics
from alerting.sending import HeldLead, Sender
from lagloss.alert_tables import Incident, Receiver
from lagloss.store import StoredPipeline
from lagloss.tables import table_of

POLL_S: Final = 10.0
"""Every pipeline is evaluated this often even if nobody notifies: silences end, nodes fall silent, hours pass."""
LONGEST_WAIT_S: Final = 10.0
TIDY_S: Final = 600.0
READ_ALONG_S: Final = 0.5
READ_AGAIN_S: Final = 30.0
"""While another alerter leads, each pipeline is read about this often, for this long at a time."""
_SLICE_S: Final = 0.5
"""How long it listens before it looks at the time."""

_log = structlog.get_logger("lagloss.alerting")


class Alerter:
    """`run` returns when `stop` is called. `receivers`: rows of the table of that name."""

    def __init__(
        self,
        database_url: str,
        evaluator: Evaluator,
        senders: Sequence[Sender],
        lead: HeldLead,
        receivers: Sequence[dict[str, object]],
        metrics: Metrics,
    ) -> None:
        self._database_url = database_url
        self._evaluator = evaluator
        self._senders = senders
        self._lead = lead
        self._receivers = receivers
        self._metrics = metrics
        self._stop = threading.Event()
        self._tidied_s = float("-inf")
        self._read_at_s: dict[str, float] = {}
        self._definitions: tuple[int, list[StoredPipeline]] = (-1, [])
        self.trouble: str | None = "starting"
        """Why it neither leads nor stands by, for /healthz; None when all is well."""

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        for sender in self._senders:
            sender.start()
        try:
            self._lead_again_and_again()
        finally:
            for sender in self._senders:
                sender.stop()
            for sender in self._senders:
                sender.join()

    def _lead_again_and_again(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                with leading(self._database_url, self._stop, self._stand_by) as lead:
                    failures = 0
                    if lead is not None:
                        self._lead_on(lead)
            except AWAY as error:
                failures += 1
                self.trouble = f"PostgreSQL is away: {type(error).__name__}"
                wait_s = min(0.5 * 2.0 ** min(failures - 1, 10), LONGEST_WAIT_S)
                _log.warning("database_away", error=type(error).__name__, again_in_s=wait_s)
                self._stop.wait(wait_s)
            finally:
                self._follow_lead(None)

    def _stand_by(self) -> None:
        """The database answers. Reads along, a little at a time, so that not all is to be read when it takes over."""
        self.trouble = None
        until_s = time.monotonic() + READ_ALONG_S
        for pipeline in sorted(self._watched(), key=lambda each: self._read_at_s.get(each.name, float("-inf"))):
            now_s = time.monotonic()
            if now_s > until_s or now_s - self._read_at_s.get(pipeline.name, float("-inf")) < READ_AGAIN_S:
                return
            self._evaluator.read_along(pipeline)
            self._read_at_s[pipeline.name] = now_s

    def _follow_lead(self, backend: int | None) -> None:
        self._lead.backend = backend
        self._metrics.leading.set(backend is not None)

    def _lead_on(self, lead: Lead) -> None:
        """Until told to stop. Raises when the database goes away or the lead is lost."""
        self._name_receivers(self._evaluator.store.engine)
        self._follow_lead(lead.backend)
        self._wake()
        evaluated_s = float("-inf")
        while not self._stop.is_set():
            lead.beat()
            if time.monotonic() - evaluated_s > POLL_S:
                evaluated_s = time.monotonic()
                self._evaluate_all(lead)
            heard = lead.heard(_SLICE_S)
            if "" in heard:  # somebody acknowledged, silenced, or asked for a test
                self._wake()
                self._evaluate_all(lead)
            elif heard:
                self._evaluate(lead, [pipeline for pipeline in self._watched() if pipeline.name in heard])

    def _evaluate_all(self, lead: Lead) -> None:
        pipelines = self._watched()
        self._evaluate(lead, pipelines)
        changes = self._evaluator.end_incidents_of_deleted(pipelines)
        self._metrics.changed(changes)
        self._metrics.evaluated_at.set_to_current_time()
        self._count_open()
        self._wake()
        if time.monotonic() - self._tidied_s > TIDY_S:
            outbox.tidy(self._evaluator.store.engine)
            self._tidied_s = time.monotonic()

    def _watched(self) -> list[StoredPipeline]:
        """The newest version of every pipeline, read again only when a definition has changed."""
        changes = self._evaluator.store.count_changes()
        if changes != self._definitions[0]:
            self._definitions = (changes, self._evaluator.store.pipelines())
        return self._definitions[1]

    def _evaluate(self, lead: Lead, pipelines: Sequence[StoredPipeline]) -> None:
        """One that cannot be evaluated does not keep the others from it."""
        for pipeline in pipelines:
            if self._stop.is_set():
                return
            lead.beat()
            began_s = time.monotonic()
            try:
                changes = self._evaluator.evaluate(pipeline)
            except AWAY:
                raise
            except Exception:
                self._metrics.failed_evaluations.labels(pipeline.name).inc()
                _log.exception("evaluation_failed", pipeline=pipeline.name)
                continue
            self._metrics.evaluation.observe(time.monotonic() - began_s)
            if changes:
                self._metrics.changed(changes)
                self._wake()

    def _wake(self) -> None:
        for sender in self._senders:
            sender.wake()

    def _name_receivers(self, engine: Engine) -> None:
        """So that people can be told which there are."""
        with engine.begin() as connection:
            connection.execute(delete(table_of(Receiver)))
            if self._receivers:
                connection.execute(insert(Receiver), list(self._receivers))

    def _count_open(self) -> None:
        table = table_of(Incident)
        columns = (table.c.pipeline, table.c.kind, table.c.severity)
        with self._evaluator.store.engine.connect() as connection:
            rows = connection.execute(
                select(*columns, func.count()).where(table.c.state == "open").group_by(*columns)
            ).all()
        self._metrics.incidents.clear()
        for pipeline, kind, severity, count in rows:
            self._metrics.incidents.labels(pipeline, kind, severity).set(count)
