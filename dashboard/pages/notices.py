"""Empty states and staleness banners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import dash_mantine_components as dmc
from dash import html
from sqlalchemy.exc import SQLAlchemyError

from dashboard.pages.base import Part, alert
from dashboard.queries.condition import Condition, Freshness
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import Zone
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import IdsHidden, UnreadableDefinition
from lagloss_server.model.definition import Definition
from lagloss_server.store.engine import AWAY
from lagloss_server.store.unreadable import UnreadableRow, some_of

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Failed:
    """A read that PostgreSQL did not answer, or refused, or that came to a row that is set aside."""

    detail: str


def attempt(read: Callable[..., _T], *args: Any) -> _T | Failed:
    """Return the result of `read`, or the failure of the database: a state to show, not an error to raise."""
    try:
        return read(*args)
    except SQLAlchemyError as error:
        detail = str(getattr(error, "orig", None) or error).strip().splitlines()
        what = "did not respond" if isinstance(error, AWAY) else "rejected the query"
        return Failed(f"PostgreSQL {what}: {detail[0] if detail else type(error).__name__}.")
    except UnreadableDefinition as error:
        return Failed(str(error))


def or_nothing(read: Callable[..., _T], *args: Any) -> _T | None:
    """Read as `attempt`, for content that a page can do without."""
    value = attempt(read, *args)
    return None if isinstance(value, Failed) else value


def query_failed(failed: Failed, zone: Zone, now_s: float) -> Part:
    tried = f"Tried at {zone.clock(now_s, seconds=True)} {zone.label(now_s)}; retrying automatically."
    summary = f"{failed.detail} Any data below was read "
    # how long before only the browser knows: assets/watchdog.js says it here, and no screen reader at each second
    before = html.Span("before", className="read-before", role="timer")
    return alert("Query failed", [summary, before, ".", html.Br(), tried], "red", "✖")


def not_done(failed: Failed) -> Part:
    """Draw the notice that an action was not stored."""
    return alert("Action failed", f"{failed.detail} Try again.", "red", "✖")


def set_aside(rows: Sequence[UnreadableRow], address: Address) -> Part | None:
    """Draw which definitions are set aside; None if none is."""
    if not rows:
        return None
    summary = f"A pipeline is not evaluated until its definition can be read: {some_of([str(row) for row in rows])}. "
    link = dmc.Anchor("Health", href=address.to(links.HEALTH).href)
    return alert("Unreadable definitions", [summary, link, " has details."], "orange", "!")


def ids_hidden(error: IdsHidden) -> Part:
    return alert("Message ids are hidden", str(error), "gray", "○")


def no_pipeline_of_teams() -> Part:
    """Draw the empty overview of who sees only some pipelines: there may be others."""
    summary = "None of the pipelines that your teams can see exists yet. Ask an operator about your teams' access."
    return alert("No pipelines for your teams", summary, "blue", "∅")


def unknown_pipeline(name: str, names: list[str], address: Address) -> Part:
    summary: list[Any] = [f"There is no pipeline named {name}. "]
    if names:
        summary.append("Existing pipelines: ")
        for index, existing in enumerate(names[:20]):
            summary += [", " if index else "", dmc.Anchor(existing, href=address.to(links.pipeline(existing)).href)]
    return alert("Unknown pipeline", summary, "orange", "?")


def no_such_page(address: Address) -> Part:
    summary = [
        "There is no page at this address. ",
        dmc.Anchor("Go to the overview", href=address.to(links.OVERVIEW).href),
    ]
    return alert("No such page", summary, "orange", "?")


def of_condition(
    condition_: Condition, fresh: Freshness, definition: Definition, address: Address, now_s: float
) -> Part | None:
    """Return the notice over a pipeline's page; None where all is well."""
    zone, name = address.zone, definition.name
    match condition_:
        case Condition.NOT_CLOSED:
            return alert("Not closed yet", _not_closed(fresh, definition), "blue", "…")
        case Condition.BLIND:
            return alert("Blind", _blind(fresh, name, zone, now_s), "red", "✖")
        case Condition.IDLE:
            summary = f"{name} receives no messages, confirmed by its emitters: nothing is lost."
            return alert("Idle", summary, "gray", "○")
        case Condition.NOTHING_IN_RANGE:
            newest = zone.minute(fresh.newest_s) if fresh.newest_s is not None else fmt.NOTHING
            summary = f"{name} has no windows in this range. Its newest closed minute is {newest}."
            return alert("No data in this range", summary, "orange", "∅")
        case Condition.STALE:
            return alert("Stale", _stale(fresh, definition, now_s), "orange", "!")
    return None


def _blind(fresh: Freshness, name: str, zone: Zone, now_s: float) -> str:
    if fresh.reported_s is None:
        return (
            f"{name} is declared, but none of its emitters has ever reported, so its state is unknown. "
            "Check that its nodes are instrumented (docs/instrument.md), reach this Kafka, and name this pipeline."
        )
    return (
        f"No emitter of {name} has reported since {zone.moment(fresh.reported_s)}, "
        f"{fmt.ago(now_s - fresh.reported_s)}; its state since then is unknown. Check that its nodes run and "
        "reach Kafka."
    )


def _not_closed(fresh: Freshness, definition: Definition) -> str:
    if fresh.live_s is None:
        return (
            f"Emitters of {definition.name} report, but none has sent a beacon yet. The first minute closes "
            f"{fmt.duration(definition.spec.grace)} after it ends."
        )
    return (
        f"Beacons of {definition.name} are arriving. The first minute closes {fmt.duration(definition.spec.grace)} "
        "after it ends; until then, only live numbers are available."
    )


def _stale(fresh: Freshness, definition: Definition, now_s: float) -> str:
    if fresh.newest_s is None:
        return "Beacons are arriving, but no minute has closed although some are due: check Health and the aggregator."
    age_s = now_s - fresh.newest_s - WINDOW_S
    return (
        f"The newest closed minute ended {fmt.ago(age_s)}; with a grace of {fmt.duration(definition.spec.grace)} a "
        "newer one is due. Later minutes have no verdict: check Health and the aggregator."
    )
