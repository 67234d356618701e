"""Lifecycle of incidents: the next change, from a rule's assessment and the known incidents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, Literal
from uuid import UUID, uuid5

from alerting.rules import Rule
from alerting.rules.assessment import Assessment

REOPEN_S: Final = 900
"""A breach this soon after an incident was resolved belongs to that one."""
CHANGES_AT_MOST: Final = 4
"""Maximum changes of a rule's incidents in one turn; stops open/resolve loops."""
_IDS: Final = UUID("6f3c1f0e-5c0b-4c57-9b6a-2f1f0d8f7a55")


@dataclass(frozen=True, slots=True)
class KnownIncident:
    """Part of an incident, stored or replayed, that its lifecycle depends on.

    `breaches`: starts (epoch s) of its windows as of now. `pages`: whether it is a page by now, or a ticket.
    """

    id: UUID
    worst: float
    breaches: frozenset[int]
    resolved_at_s: float | None = None
    pages: bool = True


@dataclass(frozen=True, slots=True)
class Transition:
    """Change of an incident to write.

    `breaches`: value by window start of all windows that are breaches of the incident after the change; None where the
    value is no longer known; none at all once the last was revised away. `worst` and `value` (of the last window, or
    the worst where that is not known) in the rule's unit. `why`: of a resolved one, `recovered`, `expired` (what it was
    of is too old to be known) or `revised` (none of its windows is a breach any more). `revised`: windows that stopped
    being breaches. `incident` None: a new one. `pages`: whether it is a page by now; it is `raised` when a ticket
    becomes one, and stays one.
    """

    kind: Literal["opened", "updated", "raised", "reopened", "resolved"]
    breaches: Mapping[int, float | None]
    worst: float
    value: float
    why: Literal["", "recovered", "expired", "revised"] = ""
    revised: tuple[int, ...] = ()
    incident: UUID | None = None
    pages: bool = True

    def after(self, incident: UUID, now_s: float) -> KnownIncident:
        """Return the incident as it is after the change."""
        resolved_at_s = now_s if self.kind == "resolved" else None
        return KnownIncident(incident, self.worst, frozenset(self.breaches), resolved_at_s, self.pages)


def transitions(
    origin: str, rule: Rule, assessment: Assessment, incidents: Iterable[KnownIncident], now_s: float
) -> tuple[list[Transition], bool]:
    """Return the changes of a rule's incidents, in order, and whether more are left to the next turn. A new incident
    has its id. `origin`: what no other pipeline's rules have, in this installation or another."""
    changes: list[Transition] = []
    current = list(incidents)
    while (change := next_change(rule, assessment, current, now_s)) is not None:
        if len(changes) == CHANGES_AT_MOST:
            return changes, True
        incident = change.incident or _new_id(f"{origin}/{rule.name}/{min(change.breaches)}", current)
        changes.append(replace(change, incident=incident))
        current = [change.after(incident, now_s), *(other for other in current if other.id != incident)]
    return changes, False


def _new_id(breach: str, known: Iterable[KnownIncident]) -> UUID:
    """Return the id of an incident that begins with this breach. A failover may lose its commit: then the next
    evaluation gives the same, so that receivers which were notified take it for the same incident."""
    taken = {incident.id for incident in known}
    return next(name for name in (uuid5(_IDS, f"{breach}/{number}") for number in count()) if name not in taken)


def next_change(
    rule: Rule, assessment: Assessment, incidents: Iterable[KnownIncident], now_s: float
) -> Transition | None:
    """Return the next change of a rule's incidents, or None; see `judge`."""
    incidents = list(incidents)
    unresolved = next((incident for incident in incidents if incident.resolved_at_s is None), None)
    resolved = [incident for incident in incidents if incident.resolved_at_s is not None]
    may_page = rule.severity == "critical"
    return judge(rule.higher_is_worse, assessment, unresolved, resolved, now_s, may_page=may_page)


def judge(
    higher_is_worse: bool,
    assessment: Assessment,
    open_incident: KnownIncident | None,
    resolved: Sequence[KnownIncident],
    now_s: float,
    *,
    may_page: bool = True,
) -> Transition | None:
    """Return the next change, or None. Call it again after each change until None: a breach that is over before the
    first evaluation opens and then resolves, so that receivers are notified of it.

    Breaches of `resolved` incidents are handled and open nothing a second time; one that was resolved as revised holds
    none. `may_page`: whether the rule's breaches page at all. A breach that is worth a ticket reopens no page: it opens
    a ticket.
    """
    handled = {start for incident in resolved for start in incident.breaches}
    if open_incident is None:
        fresh = {start: value for start, value in assessment.breaches.items() if start not in handled}
        if not fresh:
            return None
        pages = may_page and _has_page(assessment, fresh)
        before = _resolved_just_now(resolved, now_s, pages)
        if before is None:
            return _change("opened", higher_is_worse, fresh, None, (), pages)
        breaches, revised = _brought_up(assessment, before, handled)
        return _change("reopened", higher_is_worse, breaches, before, revised, pages)
    breaches, revised = _brought_up(assessment, open_incident, handled)
    pages = open_incident.pages or (may_page and _has_page(assessment, breaches))
    if not breaches:
        worst = open_incident.worst
        return Transition("resolved", {}, worst, worst, "revised", revised, open_incident.id, pages)
    if pages and not open_incident.pages:  # first, so that a page which is over by now is one all the same
        return _change("raised", higher_is_worse, breaches, open_incident, revised, pages)
    first, last = min(breaches), max(breaches)
    are_good = sum(start > last for start in assessment.good) >= assessment.resolve_after
    if are_good and first >= assessment.held_before_s:
        why: Literal["recovered", "expired"] = "expired" if first < assessment.expired_before_s else "recovered"
        return _change("resolved", higher_is_worse, breaches, open_incident, revised, pages, why)
    if breaches.keys() != open_incident.breaches:
        return _change("updated", higher_is_worse, breaches, open_incident, revised, pages)
    return None


def text_of(rule: Rule, change: Transition, assessment: Assessment) -> str:
    """Say what an incident's value means after a change: the newest one's, of a resolved incident the worst."""
    value = change.worst if change.kind == "resolved" else change.value
    windows = [
        start for start, breach_value in change.breaches.items() if breach_value == value and start in assessment.texts
    ]
    return assessment.texts[windows[-1]] if windows else rule.text(value)


def _has_page(assessment: Assessment, breaches: Iterable[int]) -> bool:
    return any(start in assessment.breaches and start not in assessment.tickets for start in breaches)


def _resolved_just_now(resolved: Iterable[KnownIncident], now_s: float, pages: bool) -> KnownIncident | None:
    """Return the incident resolved last, if a breach now, which may be a page, still belongs to it."""
    lately = [
        (incident.resolved_at_s, incident)
        for incident in resolved
        if incident.resolved_at_s is not None
        and now_s - incident.resolved_at_s <= REOPEN_S
        and (pages or not incident.pages)
    ]
    return max(lately, key=lambda pair: pair[0])[1] if lately else None


def _brought_up(
    assessment: Assessment, incident: KnownIncident, handled: Iterable[int]
) -> tuple[dict[int, float | None], tuple[int, ...]]:
    """Return the incident's breaches as of now, by window in order, and the windows that stopped being breaches."""
    others = set(handled) - incident.breaches
    unseen = {start: assessment.breaches.get(start) for start in incident.breaches if start not in assessment.seen}
    current = {start: value for start, value in assessment.breaches.items() if start not in others}
    breaches = dict(sorted({**unseen, **current}.items()))
    return breaches, tuple(sorted(incident.breaches - breaches.keys()))


def _change(
    kind: Literal["opened", "updated", "raised", "reopened", "resolved"],
    higher_is_worse: bool,
    breaches: Mapping[int, float | None],
    incident: KnownIncident | None,
    revised: tuple[int, ...],
    pages: bool,
    why: Literal["", "recovered", "expired"] = "",
) -> Transition:
    values = [value for value in breaches.values() if value is not None]
    if incident is not None and len(values) < len(breaches):
        values.append(incident.worst)  # of windows whose value is no longer known, it is the worst reported so far
    worst = max(values) if higher_is_worse else min(values)
    value = breaches[max(breaches)]
    return Transition(
        kind,
        dict(sorted(breaches.items())),
        worst,
        worst if value is None else value,
        why,
        revised,
        None if incident is None else incident.id,
        pages,
    )
