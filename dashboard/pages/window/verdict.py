"""The verdict of a window and its reasons, missing evidence, and revisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import dash_mantine_components as dmc
from dash import html

from dashboard import format as words
from dashboard.format import VERDICTS
from dashboard.pages.base import Part, alert, badge, moment, names, table
from dashboard.pages.breakdown import destinations, sides, sources
from dashboard.queries.evidence import Gap
from dashboard.queries.window import Revision, RevisionChange, WindowRead
from dashboard.request.zones import Zone, utc
from lagloss_server.base import format as fmt
from lagloss_server.judging.freshness import due_ms
from lagloss_server.model.window import Interval, ListedWindow

_STATES: Final = {
    "open": "open: no verdict yet",
    "closed": "closed: re-evaluated when anything changes",
    "sealed": "sealed: the log no longer holds its beacons, so this result is final",
}
_PROOFS: Final = {
    "beacons": "proof: its beacons were read",
    "tallies": "proof: the emitters' tallies add up, so no beacons had to be read",
}
_MAX_GAPS: Final = 8


def state_notice(result: WindowRead, zone: Zone, now_s: float) -> Part | None:
    """Over a window that has no verdict, or one about nothing."""
    window = result.window
    if window is not None:
        if window.verdict == "idle":
            summary = "No messages arrived in this minute, confirmed by every emitter of a source: nothing is lost."
            return alert("Idle", summary, "gray", "○")
        return None if window.verdict else alert("Not closed yet", _when_judged(result, zone), "blue", "…")
    if result.start_s > now_s:
        return alert("No such window yet", "This minute is in the future.", "blue", "…")
    if _due_s(result) > now_s:
        summary = f"No beacons have been reported for this minute so far. {_when_judged(result, zone)}"
        return alert("Not closed yet", summary, "blue", "…")
    summary = (
        f"No data is stored for this minute of {result.pipeline}: it is before the pipeline's first beacon, past the "
        "retention of windows, or overdue to be closed (see Health)."
    )
    return alert("No such window", summary, "orange", "∅")


def _when_judged(result: WindowRead, zone: Zone) -> str:
    return (
        f"It is due at about {zone.moment(_due_s(result), seconds=True)}; until then, only live numbers are available."
    )


def _due_s(result: WindowRead) -> float:
    return due_ms(result.start_s, result.definition.spec.grace) / 1_000


def verdict_part(result: WindowRead, zone: Zone) -> Part | None:
    """Return the verdict in a sentence, its reasons with names, and the facts about this result."""
    window = result.window
    if window is None:
        return None
    look = VERDICTS[words.verdict_of(window)]
    reasons = _reasons(result, zone)
    return html.Div(
        [
            badge(look.word, look.icon, look.colour, size="xl"),
            html.Div(
                [
                    dmc.Text(words.verdict_sentence(window, result.definition.spec.sla.loss.max), fw=600),
                    dmc.List(reasons, size="sm", mt=4) if reasons else None,
                    *(dmc.Text(cause.text, size="sm", mt=4, className="breaks") for cause in result.blame),
                    dmc.Text(_facts(window, zone), size="sm", c="dimmed", mt=4),
                    destinations(window, result.definition.spec.sla),
                    sources(window, result.definition.spec.sla),
                    sides(window),
                ],
                className="grows",
            ),
        ],
        className="said",
    )


def _facts(window: ListedWindow, zone: Zone) -> list[Any]:
    facts: list[Any] = [_STATES[window.state]]
    if window.verdict is not None:
        facts += [_PROOFS[window.proof], f"revision {window.revision}"]
    if "sample" in window.reasons:
        facts.append(fmt.sampled(window.sample))
    if window.closed_at:
        at_s = words.parse_utc_s(window.closed_at)
        facts.append(html.Span(["closed ", moment(zone.moment(at_s, seconds=True), utc(at_s, seconds=True))]))
    if window.history:
        facts.append("history: back-filled, no alerts")
    return [part for fact in facts for part in (" · ", fact)][1:]


def _reasons(result: WindowRead, zone: Zone) -> list[Part]:
    """Return each reason in words; the evidence of a node with who keeps it from being complete."""
    assert result.window is not None
    summary = []
    for code in result.window.reasons:
        who = [gap_words(gap, zone) for gap in result.gaps if code == f"evidence:{gap.node}"]
        summary.append(dmc.ListItem([words.reason(code), *([": ", _some(who)] if who else [])]))
    if result.window.verdict is None and result.gaps:
        waiting = [f"{gap.node}: {gap_words(gap, zone)}" for gap in result.gaps]
        summary.append(dmc.ListItem(["waiting for ", _some(waiting)]))
    return summary


def _some(who: Sequence[str]) -> Part:
    """Return the first of them; many emitters fall silent at once."""
    if len(who) == 1:
        return who[0]
    more = [f"and {fmt.count(len(who) - _MAX_GAPS)} more"] if len(who) > _MAX_GAPS else []
    return dmc.List([dmc.ListItem(item) for item in (*who[:_MAX_GAPS], *more)], size="sm", withPadding=True)


def gap_words(gap: Gap, zone: Zone) -> str:
    """`emitter 3f2a9c01 on web-1 has not reported since 08:41:10`."""
    who = f"emitter {gap.emitter[:8]}" if gap.emitter else "an emitter"
    host = f" on {gap.host}" if gap.host else ""
    since = zone.clock(gap.reported_s, seconds=True, date=True) if gap.reported_s is not None else fmt.NOTHING
    match gap.kind:
        case "silent":
            return f"{who}{host} did not report after {since} {zone.label(gap.reported_s or 0)}, and did not close"
        case "not final":
            return f"{who}{host} has not finished its account of this minute; last report at {since}"
        case "dropped":
            return f"{who}{host} could not send {fmt.count(gap.beacons)} beacons"
        case "unread":
            return f"{who}{host} reported {fmt.count(gap.beacons)} beacons that are not in the log"
        case "reports lost":
            return "Kafka has lost reports, which may have been about this minute"
    return "one of its blocks was unreadable and quarantined"


def revisions_part(revisions: tuple[Revision, ...], zone: Zone) -> Part | None:
    """Return every result of the window, the newest first; nothing where there is but one."""
    if len(revisions) < 2:
        return dmc.Text("This is the first result.", size="sm", c="dimmed") if revisions else None
    columns = (names("Revision"), "Closed at", "Verdict", "Changes")
    rows = [_revision_row(revision, zone) for revision in revisions]
    return table("revisions", columns, rows, withTableBorder=True, miw=560, tabularNums=True, verticalSpacing=4)


def _revision_row(revision: Revision, zone: Zone) -> list[Part]:
    at_s, look = words.parse_utc_s(revision.closed_at), VERDICTS[revision.verdict]
    return [
        str(revision.number),
        moment(zone.moment(at_s, seconds=True), utc(at_s, seconds=True)),
        html.Div(badge(look.word, look.icon, look.colour), style={"minWidth": 112}),  # it would be cut off
        "; ".join(_change(change) for change in revision.changes) or fmt.NOTHING,
    ]


def _change(change: RevisionChange) -> str:
    return f"{change.name} {_value(change.before)} → {_value(change.after)}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return fmt.count_interval(Interval(value["min"], value["max"]))
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return fmt.count(value) if isinstance(value, int) else str(value)
