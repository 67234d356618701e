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
from lagloss_server.model.canary import ALERTING_PLACES, APP, CANARY, RELAY, STORE, TARGET_LAG_MS, alerting_rule
from lagloss_server.model.window import Lags, LinkCounts, NodeCounts, Percentiles, Window
from lagloss_server.store.schema.alerting import IncidentRow
from lagloss_server.store.schema.core import MissingMessageRow, WindowRow, table_of

NOTIFIED_WITHIN_S: Final = 5 * MINUTE_S
"""A minute is notified by a message about it, or about one this much later, since reminders are of the newest."""
NOT_NOTIFIED: Final = "no notification"
PLACES: Final = (f"link {APP}->{RELAY}", f"link {RELAY}->{STORE}", f"node {APP}", f"node {RELAY}", f"node {STORE}")
SLACK: Final = 0.05
"""Lags are known to 2 %."""
ROUNDING_MS: Final = 1.0
"""A record's timestamp is in whole ms, rounded down, so that a tap can see a message before its node took it in."""
SHOWN_IDS: Final = 3
"""Ids that a problem names, of more."""


@dataclass(frozen=True, slots=True)
class MissingName:
    """A message that a result names as missing: lost, perhaps, overdue or pending, at these places."""

    id: str | None
    kind: str
    places: tuple[str, ...]
    last_checkpoint: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a minute, and the messages that it names."""

    revision: int
    window: Window
    missing: tuple[MissingName, ...]


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
    plan: MinutePlan,
    result: Result | None,
    breaches: Sequence[Breaches],
    notices: Mapping[int, Notice],
    *,
    is_notified: bool = True,
) -> Judgement:
    """Compare a minute with its plan. `breaches`: of the canary's incidents; `notices`: by the minute they are about;
    `is_notified`: there has to be a notification of it."""
    if result is None:
        return Judgement(("no result",), len(plan.lost), 0, 0)
    named = _named(plan, result.missing)
    invented = [message for message in result.missing if message.kind == "lost" and message.id not in plan.lost]
    problems = [
        *_wrong_names(plan, named, invented, result.missing),
        *_wrong_counts(plan, result.window),
        *_wrong_places(plan, result.window),
        *_wrong_lags(plan, result.window),
        *_wrong_alerts(plan, breaches, notices, is_notified=is_notified),
    ]
    return Judgement(tuple(problems), len(plan.lost), len(named), max(len(invented), _too_many(plan, result.window)))


def _named(plan: MinutePlan, missing: Sequence[MissingName]) -> set[str]:
    """Return the lost messages that are named as lost at their place, and nowhere else."""
    return {
        message.id
        for message in missing
        if message.id is not None
        and message.kind == "lost"
        and (place := plan.lost.get(message.id)) is not None
        and (message.places, message.last_checkpoint) == ((place,), _last_checkpoint(place))
    }


def _last_checkpoint(place: str) -> str:
    """Return the checkpoint that sees a message last which is lost at a place."""
    kind, _, name = place.partition(" ")
    return f"{name}.in" if kind == "node" else f"{name.partition('->')[0]}.out"


def _too_many(plan: MinutePlan, window: Window) -> int:
    """Return by how many the certain losses exceed the true ones: not every one has to be named."""
    return max(0, window.lost_min - len(plan.lost))


def _wrong_names(
    plan: MinutePlan, named: Collection[str], invented: Sequence[MissingName], missing: Sequence[MissingName]
) -> Iterator[str]:
    unnamed = [f"{message} at {place}" for message, place in plan.lost.items() if message not in named]
    if unnamed:
        yield f"{len(unnamed)} of {len(plan.lost)} lost messages not named: {_some(unnamed)}"
    others = {message.kind for message in missing if message.kind != "lost"}
    if others:
        yield f"messages named as {', '.join(sorted(others))}"
    if invented:
        yield f"{len(invented)} messages named that are not lost: {_some([str(message.id) for message in invented])}"


def _wrong_counts(plan: MinutePlan, window: Window) -> Iterator[str]:
    """Yield each number of a minute that is not the plan's."""
    yield from _unequal("verdict", window.verdict, "loss")
    yield from _unequal("reasons", window.reasons, ())
    yield from _unequal("proof", window.proof, "beacons")
    yield from _unequal("sample", window.sample, 1.0)
    yield from _unequal("messages", window.messages, MESSAGES)
    yield from _unequal("delivered", window.delivered, plan.delivered)
    yield from _unequal("dead", window.dead, plan.dead)
    for name in ("filtered", "pending", "unexplained"):
        yield from _unequal(name, getattr(window, name), 0)
    yield from _unequal("lost", _bounds(window.lost), (len(plan.lost),) * 2)
    share = len(plan.lost) / MESSAGES
    yield from _unequal("share of losses", _bounds(window.loss_ratio), (share, share))
    total = MESSAGES - plan.dead
    yield from _unequal("messages that could be on time", window.on_time_of, total)
    yield from _unequal("on time", _rounded(window.on_time_share, total), plan.delivered - plan.late)
    yield from _unequal("destinations", tuple(destination.name for destination in window.destinations), (STORE,))
    for destination in window.destinations:
        numbers = (destination.messages, destination.delivered, destination.filtered, destination.dead)
        yield from _unequal(f"messages of {STORE}", numbers, (MESSAGES, plan.delivered, 0, plan.dead))
        others = (destination.pending, _bounds(destination.lost), destination.on_time_share, destination.e2e_lag_ms)
        those = (window.pending, _bounds(window.lost), window.on_time_share, window.e2e_lag_ms)
        yield from _unequal(f"rest of {STORE}", others, those)
    reasons = {RELAY: {"dead": {"canary": plan.dead}}} if plan.dead else {}
    yield from _unequal("reasons of dead letters", window.reasons_by_node or {}, reasons)
    yield from _unequal("crashes", window.crashes, ())
    yield from _unequal("unknown checkpoints", window.unknown_checkpoints, ())


def _wrong_places(plan: MinutePlan, window: Window) -> Iterator[str]:
    """Yield each number of a checkpoint, node or link that is not the plan's."""
    seen = {checkpoint.name: checkpoint.distinct for checkpoint in window.checkpoints if checkpoint.beacons}
    yield from _unequal("messages at checkpoints", seen, plan.seen_at)
    for checkpoint in window.checkpoints:
        doubled = plan.doubled_at[checkpoint.name]
        yield from _unequal(f"duplicates at {checkpoint.name}", checkpoint.duplicates, doubled)
        beacons = plan.seen_at.get(checkpoint.name, 0) + doubled
        yield from _unequal(f"beacons at {checkpoint.name}", checkpoint.beacons, beacons)
        rest = checkpoint.replayed, checkpoint.out_of_order
        yield from _unequal(f"replayed and out of order at {checkpoint.name}", rest, (0, 0))
    places: tuple[NodeCounts | LinkCounts, ...] = (*window.nodes, *window.links)
    yield from _unequal("places", tuple(sorted(place.label for place in places)), PLACES)
    for place in places:
        yield from _unequal(f"lost at {place.label}", _bounds(place.lost), (plan.lost_at[place.label],) * 2)
    for node in window.nodes:
        yield from _unequal(f"complete evidence of {node.name}", node.complete, True)
    for link in window.links:
        is_checked = link.label == CORRUPTING
        numbers = (link.checked or 0, link.corrupted or 0)
        checked = MESSAGES - plan.lost_at[link.label]
        yield from _unequal(f"checksums of {link.label}", numbers, (checked, plan.corrupted) if is_checked else (0, 0))


def _wrong_lags(plan: MinutePlan, window: Window) -> Iterator[str]:
    """Yield what cannot be, of the lags of messages that were held back as planned, and else arrived in time."""
    by_name = {checkpoint.name: checkpoint.lag_ms for checkpoint in window.checkpoints}
    for name, lags in by_name.items():
        yield from _impossible(f"lag at {name}", lags, plan.delays_ms if name == f"{STORE}.out" else [0])
    yield from _impossible("E2E lag", window.e2e_lag_ms, plan.delays_ms)
    longest = [0, plan.delays_ms[-1]]
    for node in window.nodes:
        ends = [by_name.get(f"{node.name}.{side}", Percentiles(None, None, None)).p95 for side in ("in", "out")]
        yield from _unequal(f"lags of {node.name}", (node.lag_in_p95_ms, node.lag_out_p95_ms), tuple(ends))
        yield from _impossible(f"process duration of {node.name}", node.process_duration_ms, longest, is_known=False)
        yield from _not_between(f"process duration of {node.name}", node.process_duration_p95_ms, ends)
    for link in window.links:
        names = f"{link.source}.out", f"{link.target}.in"
        ends = [by_name.get(name, Percentiles(None, None, None)).p95 for name in names]
        yield from _impossible(f"queue time of {link.label}", link.queue_time_ms, [0], is_known=False)
        yield from _not_between(f"queue time of {link.label}", link.queue_time_p95_ms, ends)


def _impossible(
    name: str, reported: Percentiles | Lags, delays_ms: Sequence[int], *, is_known: bool = True
) -> Iterator[str]:
    """Yield each quantile that messages with these delays, or some of them, cannot have."""
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99} | ({"max": 1.0} if isinstance(reported, Lags) else {})
    for quantile, share in shares.items():
        lag_ms, last = getattr(reported, quantile), len(delays_ms) - 1
        if lag_ms is None and not is_known:
            continue
        at = share * last if is_known else last
        least = delays_ms[int(at)] * (1 - SLACK) if is_known else -ROUNDING_MS
        most = (delays_ms[-int(-at // 1)] + TARGET_LAG_MS) * (1 + SLACK)
        if lag_ms is None or not least <= lag_ms <= most:
            yield f"{name}, {quantile}: {_text(lag_ms)} ms reported, {least:.0f} to {most:.0f} possible"
    values = [value for quantile in shares if (value := getattr(reported, quantile)) is not None]
    if values != sorted(values):
        yield f"{name}: {values} ms reported, which does not grow"


def _not_between(name: str, reported: float | None, ends: Sequence[float | None]) -> Iterator[str]:
    """Yield a difference that is not that of two lags."""
    first, last = ends
    true = None if first is None or last is None else last - first
    if (reported is None) != (true is None) or (reported is not None and abs(reported - (true or 0.0)) > 0.001):
        yield f"{name}, p95: {_text(reported)} ms reported, {_text(true)} in truth"


def _bounds(interval: Any) -> tuple[float, float] | None:
    return None if interval is None else (interval.min, interval.max)


def _rounded(share: float | None, total: int) -> int | None:
    return None if share is None else round(share * total)


def _wrong_alerts(
    plan: MinutePlan, breaches: Sequence[Breaches], notices: Mapping[int, Notice], *, is_notified: bool
) -> Iterator[str]:
    """Yield what incidents and notifications miss, or have too much."""
    expected = alerting_rule(plan.breaching_place)
    for rule in map(alerting_rule, ALERTING_PLACES):
        has_incident = any(incident.rule == rule and incident.has(plan.start_s) for incident in breaches)
        if has_incident != (rule == expected):
            yield f"no incident of {rule}" if rule == expected else f"an incident of {rule} without a breach"
    # The first minutes of an hour open an incident. Later ones are in the next reminder, at the latest in that of the
    # next hour's first minutes.
    later = [start_s for start_s in notices if 0 <= start_s - plan.start_s <= NOTIFIED_WITHIN_S]
    if is_notified and not later:
        yield NOT_NOTIFIED
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
    match value:
        case int() | float() as first, int() | float() as last:
            return str(first) if first == last else f"{first} to {last}"
        case None | ():
            return "nothing"
    return str(value)


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
    names: dict[int, list[MissingName]] = {}
    for name in connection.execute(
        select(missing.window_start, missing.message_id, missing.kind, missing.places, missing.last_checkpoint).where(
            missing.pipeline == CANARY, missing.window_start.in_(minutes)
        )
    ):
        names.setdefault(name.window_start, []).append(
            MissingName(name.message_id, name.kind, tuple(name.places), name.last_checkpoint)
        )
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
