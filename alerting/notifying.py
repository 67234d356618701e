"""Telling: whom an incident goes to and what they are still to hear, written into the outbox in its transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Connection, select

from alerting import incidents, outbox
from alerting.incidents import Written
from alerting.message import Links, incident_body
from alerting.planning import Habits, Standing, Told, plan, seconds_told
from alerting.routing import Route, destinations
from alerting.rules import Rule
from alerting.withholding import ActiveSilence, Circumstances, Maintenance, why_withheld
from lagloss.alert_tables import Incident, Silence
from lagloss.incident_changes import note_change
from lagloss.incidents import Withheld
from lagloss.matchers import Matcher, labels_of
from lagloss.store import StoredPipeline
from lagloss.tables import table_of

BLIND: str = "blind"

_log = structlog.get_logger("lagloss.alerting")


@dataclass(frozen=True, slots=True)
class Teller:
    """What the alerting file says of who is told, and when nobody is."""

    routes: Sequence[Route] = ()
    maintenance: Sequence[Maintenance] = ()
    habits: Habits = field(default_factory=Habits)

    def tell(
        self,
        connection: Connection,
        pipeline: StoredPipeline,
        known: Sequence[Written],
        open_rules: Collection[str],
        rules: Mapping[str, Rule],
        links: Links,
        now: datetime,
    ) -> None:
        """Queues what is due of the pipeline's incidents, in the transaction that changed them. `open_rules`: rules
        with an open incident, besides those of `known`."""
        concerned = self._concerned(connection, known)
        if not concerned:
            return
        labels = pipeline.definition.metadata.labels
        around = Circumstances(
            silences=_silences(connection, now),
            maintenance=self.maintenance,
            open_rules={*open_rules, *(written.facts.rule for written in known if written.is_open)},
            blind_upstream=_blind(connection, pipeline),
        )
        for written, told in concerned:
            rule = rules.get(written.facts.rule)
            inhibited_by = rule.inhibited_by if rule is not None else ()
            matched = labels_of(written.facts, labels)
            withheld = why_withheld(matched, inhibited_by, around, now) if written.is_open else None
            self._note_withheld(connection, written, withheld, now)
            self._queue(connection, written, told, labels, links, withheld, now)

    def tell_of_deleted(self, connection: Connection, known: Sequence[Written], links: Links, now: datetime) -> None:
        """The same of a pipeline that is no more: its incidents are over."""
        for written, told in self._concerned(connection, known):
            self._queue(connection, written, told, {}, links, None, now)

    def _concerned(self, connection: Connection, known: Sequence[Written]) -> list[tuple[Written, list[Told]]]:
        """Incidents that somebody may have to hear of: open ones, and those whose end not all have been told."""
        told = outbox.told_of(connection, [written.facts.id for written in known])
        return [
            (written, told.get(written.facts.id, []))
            for written in known
            if written.is_open or any(row.action != "resolve" for row in told.get(written.facts.id, []))
        ]

    def _note_withheld(
        self, connection: Connection, written: Written, withheld: Withheld | None, now: datetime
    ) -> None:
        if withheld == written.withheld:
            return
        incidents.withhold(connection, written.facts.id, withheld)
        if written.is_open:
            change = "released" if withheld is None else "withheld"
            note_change(connection, written.facts, change, now, note=None if withheld is None else str(withheld))

    def _queue(
        self,
        connection: Connection,
        written: Written,
        told: Sequence[Told],
        labels: Mapping[str, str],
        links: Links,
        withheld: Withheld | None,
        now: datetime,
    ) -> None:
        facts = written.facts
        told_s = seconds_told(told, now)
        unacknowledged_s = None if facts.acknowledged_at else told_s
        goes_to = destinations(self.routes, labels_of(written.facts, labels), unacknowledged_s)
        change = "opened" if written.is_open else "resolved"
        body = incident_body(facts, change, labels, links)
        standing = Standing(written.is_open, facts.acknowledged_at is not None, change, body, withheld)
        orders = plan(standing, told, goes_to, self.habits, now)
        outbox.queue(connection, facts.id, body, orders)
        escalated = [order.receiver for order in orders if order.change == "escalated"]
        if escalated:
            note_change(connection, facts, "escalated", now, note=f"to {', '.join(escalated)}")


def _silences(connection: Connection, now: datetime) -> list[ActiveSilence]:
    table = table_of(Silence)
    rows: Any = connection.execute(select(table).where(table.c.starts_at <= now, table.c.ends_at > now))
    found = []
    for row in rows:
        try:
            matchers = tuple(Matcher.parse(each) for each in row.matchers)
        except (ValueError, TypeError):  # none that we wrote: nobody is kept from being told for its sake
            _log.warning("silence_not_understood", silence=row.id)
            continue
        found.append(ActiveSilence(row.id, matchers, row.author, row.reason))
    return found


def _blind(connection: Connection, pipeline: StoredPipeline) -> set[str]:
    """Which of the pipelines that it follows are blind at the moment, and not kept quiet by this one: of two that
    follow each other, one is heard."""
    upstream = pipeline.definition.spec.alerts.upstream
    if not upstream:
        return set()
    table = table_of(Incident)
    rows = connection.execute(
        select(table.c.pipeline).where(
            table.c.pipeline.in_(upstream),
            table.c.state == "open",
            table.c.kind == BLIND,
            (table.c.withheld_kind.is_distinct_from("upstream")) | (table.c.withheld_ref != pipeline.name),
        )
    )
    return set(rows.scalars())
