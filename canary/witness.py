"""The witness: compares what results say of a minute with its plan.

It reads what everybody reads (windows, names of missing messages, incidents, notifications) and knows nothing of how
that was found out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, select

from canary.plan import CORRUPTING, MESSAGES, MINUTE_S, MinutePlan
from lagloss_server.model.canary import ALERTING_PLACES, CANARY, alerting_rule
from lagloss_server.model.window import Window
from lagloss_server.store.schema.alerting import IncidentRow
from lagloss_server.store.schema.core import MissingMessageRow, WindowRow, table_of

NOTIFIED_WITHIN_S: Final = 5 * MINUTE_S
"""A minute is notified by a message about it, or about one this much later, since reminders are of the newest."""
SHOWN_IDS: Final = 3
"""Ids that a problem names, of more."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A message that a result names as missing: lost, perhaps, overdue or pending, at these places."""

    id: str | None
    kind: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a minute, and the messages that it names."""

    revision: int
    window: Window
    missing: tuple[Missing, ...]


@dataclass(frozen=True, slots=True)
class Breaches:
    """The minutes of an incident of a rule: ranges of first and last."""

    rule: str
    ranges: tuple[tuple[int, int], ...]

    def has(self, start_s: int) -> bool:
        return any(first <= start_s <= last for first, last in self.ranges)


@dataclass(frozen=True, slots=True)
class Notice:
    """What a notification said of a minute; `examples`: ids that it named as lost."""

    rule: str
    messages: int | None
    lost: int | None
    examples: tuple[str, ...]

    @classmethod
    def of_body(cls, body: Mapping[str, Any]) -> Notice:
        """Read a webhook's body. Raises KeyError, TypeError or AttributeError if it is none."""
        breach, lost = body["breach"], body["breach"].get("lost")
        examples = [example for example in body["examples"] if example["kind"] == "lost"]
        return cls(
            str(body["incident"]["rule"]),
            breach.get("messages"),
            None if lost is None else lost["min"],
            tuple(str(example["message_id"]) for example in examples),
        )

    def document(self) -> dict[str, Any]:
        """Return what `of_document` reads."""
        return {"rule": self.rule, "messages": self.messages, "lost": self.lost, "examples": list(self.examples)}

    @classmethod
    def of_document(cls, stored: Mapping[str, Any]) -> Notice:
        return cls(stored["rule"], stored["messages"], stored["lost"], tuple(stored["examples"]))


def window_start_of(body: Mapping[str, Any]) -> int:
    """Return the start (epoch s) of the newest minute that a webhook's body is about. Raises as `Notice.of_body`, and
    ValueError."""
    return int(datetime.fromisoformat(body["breach"]["window_start"]).timestamp())


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is wrong with a minute; nothing if it is right. `named` of the `shown` losses; `invented`: further ones."""

    problems: tuple[str, ...]
    shown: int
    named: int
    invented: int

    @property
    def is_right(self) -> bool:
        return not self.problems


def judge(
    plan: MinutePlan, result: Result | None, breaches: Sequence[Breaches], notices: Mapping[int, Notice]
) -> Judgement:
    """Compare a minute with its plan. `breaches`: of the canary's incidents; `notices`: by the minute they are
    about."""
    if result is None:
        return Judgement(("no result",), len(plan.lost), 0, 0)
    named = _named(plan, result.missing)
    invented = [message for message in result.missing if message.kind == "lost" and message.id not in plan.lost]
    problems = [
        *_wrong_names(plan, named, invented),
        *_wrong_counts(plan, result.window),
        *_wrong_alerts(plan, breaches, notices),
    ]
    return Judgement(tuple(problems), len(plan.lost), len(named), max(len(invented), _too_many(plan, result.window)))


def _named(plan: MinutePlan, missing: Sequence[Missing]) -> set[str]:
    """Return the lost messages that are named as lost at their place, and nowhere else."""
    return {
        message.id
        for message in missing
        if message.id is not None and message.kind == "lost" and (plan.lost.get(message.id),) == message.places
    }


def _too_many(plan: MinutePlan, window: Window) -> int:
    """Return by how many the certain losses exceed the true ones: not every one has to be named."""
    return max(0, window.lost_min - len(plan.lost))


def _wrong_names(plan: MinutePlan, named: Collection[str], invented: Sequence[Missing]) -> Iterator[str]:
    unnamed = [f"{message} at {place}" for message, place in plan.lost.items() if message not in named]
    if unnamed:
        yield f"{len(unnamed)} of {len(plan.lost)} lost messages not named: {_some(unnamed)}"
    if invented:
        yield f"{len(invented)} messages named that are not lost: {_some([str(message.id) for message in invented])}"


def _wrong_counts(plan: MinutePlan, window: Window) -> Iterator[str]:
    """Yield each number of a result that is not the plan's."""
    yield from _unequal("verdict", window.verdict, "loss")
    yield from _unequal("messages", window.messages, MESSAGES)
    yield from _unequal("delivered", window.delivered, plan.delivered)
    yield from _unequal("dead", window.dead, plan.dead)
    for name in ("filtered", "pending", "unexplained"):
        yield from _unequal(name, getattr(window, name), 0)
    lost = None if window.lost is None else (window.lost.min, window.lost.max)
    yield from _unequal("lost", lost, (len(plan.lost),) * 2)
    places = [(place.label, place.lost) for place in window.nodes]
    places += [(place.label, place.lost) for place in window.links]
    for label, at_place in places:
        bounds = None if at_place is None else (at_place.min, at_place.max)
        yield from _unequal(f"lost at {label}", bounds, (plan.lost_at[label],) * 2)
    for checkpoint in window.checkpoints:
        yield from _unequal(f"duplicates at {checkpoint.name}", checkpoint.duplicates, plan.doubled_at[checkpoint.name])
    for link in window.links:
        if link.label == CORRUPTING:
            yield from _unequal("corrupted", link.corrupted, plan.corrupted)
    total = MESSAGES - plan.dead
    yield from _unequal("messages that could be on time", window.on_time_of, total)
    if window.on_time_share is not None:
        yield from _unequal("on time", round(window.on_time_share * total), plan.delivered - plan.late)


def _wrong_alerts(plan: MinutePlan, breaches: Sequence[Breaches], notices: Mapping[int, Notice]) -> Iterator[str]:
    """Yield what incidents and notifications miss, or have too much."""
    expected = alerting_rule(plan.breaching_place)
    for rule in map(alerting_rule, ALERTING_PLACES):
        has_incident = any(incident.rule == rule and incident.has(plan.start_s) for incident in breaches)
        if has_incident != (rule == expected):
            yield f"no incident of {rule}" if rule == expected else f"an incident of {rule} that is none"
    # The first minutes of an hour open an incident. Later ones are in the next reminder, at the latest in that of the
    # next hour's first minutes.
    later = [start_s for start_s in notices if 0 <= start_s - plan.start_s <= NOTIFIED_WITHIN_S]
    if not later:
        yield "no notification"
    notice = notices.get(plan.start_s)
    if notice is not None:
        yield from _unequal("notified rule", notice.rule, expected)
        yield from _unequal("notified messages", notice.messages, MESSAGES)
        yield from _unequal("notified losses", notice.lost, len(plan.lost))
        invented = [message for message in notice.examples if message not in plan.lost]
        if invented:
            yield f"notified of messages that are not lost: {_some(invented)}"


def _unequal(name: str, reported: object, true: object) -> Iterator[str]:
    if reported != true:
        yield f"{name}: {_text(reported)} reported, {_text(true)} in truth"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        first, last = value
        return str(first) if first == last else f"{first} to {last}"
    return "nothing" if value is None else str(value)


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - SHOWN_IDS
    return ", ".join(texts[:SHOWN_IDS]) + (f" and {more} more" if more > 0 else "")


# -- reading ----------------------------------------------------------------------------------------------------------


def read_revisions(connection: Connection, first_s: int) -> dict[int, int]:
    """Return the revision of the result of each minute from `first_s` (epoch s) on."""
    row = table_of(WindowRow).c
    query = select(row.window_start, row.revision).where(row.pipeline == CANARY, row.window_start >= first_s)
    return {row.window_start: row.revision for row in connection.execute(query)}


def read_results(connection: Connection, minutes: Collection[int]) -> dict[int, Result]:
    """Return the results of these minutes that are there."""
    window, missing = table_of(WindowRow).c, table_of(MissingMessageRow).c
    rows = connection.execute(
        select(window.window_start, window.revision, window.document).where(
            window.pipeline == CANARY, window.window_start.in_(minutes)
        )
    ).all()
    names: dict[int, list[Missing]] = {}
    for name in connection.execute(
        select(missing.window_start, missing.message_id, missing.kind, missing.places).where(
            missing.pipeline == CANARY, missing.window_start.in_(minutes)
        )
    ):
        names.setdefault(name.window_start, []).append(Missing(name.message_id, name.kind, tuple(name.places)))
    return {
        row.window_start: Result(row.revision, Window.unpack(row.document), tuple(names.get(row.window_start, ())))
        for row in rows
    }


def read_breaches(connection: Connection, first_s: int) -> list[Breaches]:
    """Return the canary's incidents with minutes from `first_s` (epoch s) on."""
    row = table_of(IncidentRow).c
    query = select(row.rule, row.detail).where(row.pipeline == CANARY, row.last_window >= first_s)
    return [
        Breaches(incident.rule, tuple((first, last) for first, last in incident.detail["breaches"]))
        for incident in connection.execute(query)
    ]
