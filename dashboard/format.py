"""Verdicts, reasons, places and qualities as a person reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lagloss_server.base import format as fmt
from lagloss_server.groups.velocity import Status
from lagloss_server.model.window import Interval, LossRatio, SideCounts, Window
from lagloss_server.sums.quality import Quality, QualityCell, QualityVerdict


@dataclass(frozen=True, slots=True)
class VerdictLook:
    """How a verdict is shown: never by colour alone. `colour` is a Mantine colour name, `role` the colour's in
    `design.Palette`."""

    word: str
    icon: str
    colour: str
    role: str
    symbol: str
    meaning: str


VERDICTS: Final[dict[str, VerdictLook]] = {
    "ok": VerdictLook("OK", "✔", "teal", "ok", "circle", "lost and late messages are within the target"),
    "loss": VerdictLook("LOSS", "✖", "red", "loss", "x", "certain loss is above the target"),
    "unknown": VerdictLook("UNKNOWN", "?", "orange", "unknown", "diamond", "not enough evidence for a verdict yet"),
    "idle": VerdictLook("IDLE", "○", "gray", "idle", "circle-open", "no messages, confirmed by every emitter"),
    "open": VerdictLook("OPEN", "…", "blue", "open", "line-ew-open", "not closed yet: live numbers, no verdict"),
}

STATUSES: Final[dict[Status, VerdictLook]] = {
    "ok": VerdictLook("OK", "✔", "teal", "ok", "circle", "keeps up, or has no lag"),
    "warning": VerdictLook("WARNING", "!", "orange", "unknown", "diamond", "commits, but its lag grows"),
    "stalled": VerdictLook("STALLED", "✖", "red", "loss", "x", "has members, but its commits do not advance"),
    "stopped": VerdictLook("STOPPED", "■", "red", "loss", "square", "has no members and does not commit"),
    "not committed": VerdictLook(
        "NOT COMMITTED", "?", "gray", "unknown", "diamond-open", "has not committed an offset: its lag is unknown"
    ),
    "beyond the end": VerdictLook(
        "BEYOND THE END",
        *("?", "gray", "unknown", "diamond-open"),
        "the committed offset was not in the log: the lag is unknown until another offset is committed",
    ),
}
"""Of consumer groups."""


def verdict_of(window: Window) -> str:
    """Return a key of VERDICTS: the verdict, or `open` where there is none yet."""
    return window.verdict or "open"


def parse_utc_s(text: str) -> int:
    """Epoch seconds of an RFC 3339 time."""
    return int(datetime.fromisoformat(text).timestamp())


def verdict_sentence(window: Window, max_loss_ratio: float) -> str:
    """Return the verdict with its numbers and places, in one or two sentences."""
    verdict = verdict_of(window)
    total = window.messages
    if verdict == "open":
        so_far = fmt.counted(total, "message")
        return f"Not closed yet: {so_far} so far by live counts. Lag is live; loss is evaluated when the window closes."
    if verdict == "idle":
        return "No messages in this minute, confirmed by every emitter of a source."
    if not total:
        return "No reports for this minute, so it cannot count as idle."
    parts = [_certain(window, window.lost_min, total, max_loss_ratio)]
    parts += [_side_lost(side) for side in window.sides if side.verdict == "loss"]
    if window.lost_max > window.lost_min:
        parts.append(f"{fmt.count(window.lost_max - window.lost_min)} more possibly lost{_where(window, 'perhaps')}.")
    if window.pending:
        parts.append(f"{fmt.count(window.pending)} pending: late, not lost.")
    if verdict == "unknown":
        parts.append("The evidence is not sufficient for OK or LOSS.")
    return " ".join(parts)


def _side_lost(side: SideCounts) -> str:
    lost, total = side.lost_min, side.messages
    ratio = fmt.percent(lost / total)
    return f"Side {side.name} alone lost {fmt.count(lost)} of {fmt.counted(total, 'message')} ({ratio}): loss."


def _certain(window: Window, lost: int, total: int, max_loss_ratio: float) -> str:
    if not lost:
        return f"0 of {fmt.counted(total, 'message')} certainly lost."
    ratio = lost / total if total else None
    side = "above" if ratio is not None and ratio > max_loss_ratio else "within"
    return (
        f"{fmt.count(lost)} of {fmt.counted(total, 'message')} ({fmt.percent(ratio)}) certainly lost, {side} the "
        f"target of {fmt.percent(max_loss_ratio)}{_where(window, 'certain')}."
    )


def _where(window: Window, which: str) -> str:
    """`: 2 at node mid, 1 on link src → mid`, most first."""
    parts = []
    for name, lost in places(window):
        number = lost.min if which == "certain" else lost.max - lost.min
        if number:
            parts.append((number, name))
    parts.sort(key=lambda item: -item[0])
    if not parts:
        return ""
    shown = ", ".join(f"{fmt.count(number)} {name}" for number, name in parts[:5])
    return f": {shown}" + (f" and at {len(parts) - 5} more places" if len(parts) > 5 else "")


def places(window: Window) -> list[tuple[str, Interval]]:
    """Yield every node and link with its losses: `at node mid`."""
    nodes = [(f"at node {node.name}", node.lost) for node in window.nodes]
    links = [(f"on link {link.source} → {link.target}", link.lost) for link in window.links]
    return [(name, lost) for name, lost in nodes + links if lost]


_REASONS: Final[dict[str, str]] = {
    "pending": "some messages are late but not overtaken yet",
    "overdue": "some messages have been pending longer than maxWait",
    "unexplained": "some messages were seen later but not at any source: an id or event time was changed",
    "version": "the definition changed in this minute",
    "failed": "closing this minute failed and will be retried: it has no counts",
    "sample": "only a sample of the messages was examined: counts are scaled, the loss interval is widened",
}


def reason(code: str) -> str:
    """Return a reason code of rule 10 in words."""
    if code.startswith("evidence:"):
        return f"the evidence of node {code.removeprefix('evidence:')} is incomplete"
    if code.startswith("crash:"):
        return f"a process of node {code.removeprefix('crash:')} died: messages that it had in flight remain uncertain"
    return _REASONS.get(code, code)


FATES: Final = {
    "lost": "certainly lost",
    "perhaps": "possibly lost",
    "overdue": "overdue: pending longer than maxWait",
    "pending": "pending: late, not lost",
}
"""Fates of a message that something is missing of, in words."""


def place_label(place: str) -> str:
    """Return a place as it is read: `link src → mid`, `node mid`, `retrier again`."""
    return place.replace("->", " → ")


QUALITIES: Final[dict[Quality, str]] = {
    "loss": "Lost",
    "corruption": "Corrupted",
    "duplication": "Duplicates",
    "staleness": "Staleness",
}
"""Heads of the columns of a table of qualities."""
QUALITY_NOTE: Final = (
    "Each value is shown with its target and links to its worst minute. Duplicates and corruption are "
    "measured in minutes whose beacons were read, corruption in messages with checksums on both sides of a link; "
    "staleness is the maximum at the end of a minute."
)
QUALITY_VERDICTS: Final[dict[QualityVerdict, VerdictLook]] = {
    "ok": VerdictLook("OK", "✔", "teal", "ok", "circle", "within the target"),
    "bad": VerdictLook("MISSED", "✖", "red", "loss", "x", "worse than the target"),
    "unknown": VerdictLook("UNKNOWN", "?", "orange", "unknown", "diamond", "not enough data for a verdict"),
    "none": VerdictLook("NO TARGET", "○", "gray", "idle", "circle-open", "no target is set"),
}


def quality_value(cell: QualityCell) -> str:
    """Format the value of a quality: `0.2 % – 0.5 %`, `3 of 1,200`, `4.5 min`, or that it is not known."""
    if cell.value is None:
        return "unknown"
    match cell.quality:
        case "loss":
            return fmt.percent_interval(LossRatio(cell.value, cell.most))
        case "corruption":
            return f"{fmt.count(cell.value)} of {fmt.count(cell.of)}"
        case "duplication":
            return fmt.percent(cell.value)
        case "staleness":
            return fmt.duration(cell.value)


def quality_target(cell: QualityCell) -> str:
    """Format the target of a quality: `≤ 1 %`, `≤ 0 per minute`, `≤ 5 min`, or that there is none."""
    if cell.target is None:
        return "no target"
    match cell.quality:
        case "corruption":
            return f"≤ {fmt.count(cell.target)} per minute"
        case "staleness":
            return f"≤ {fmt.duration(cell.target)}"
        case _:
            return f"≤ {fmt.percent(cell.target)}"


def rate(per_s: float | None) -> str:
    """Format records per second: `0/s`, `12.3/s`, `1,200/s`."""
    return fmt.NOTHING if per_s is None else f"{per_s:,.{0 if per_s >= 100 or per_s == 0 else 1}f}/s"
