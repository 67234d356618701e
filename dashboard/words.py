"""Numbers, times and verdicts as a person reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

NOTHING: Final = "–"
"""What stands where nothing is known; never a zero."""

Document = dict[str, Any]
"""One window as `windows --json` prints it, and whether it is `history`."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a verdict is shown: never by colour alone. `colour` is a Mantine colour name, `hex` for charts."""

    word: str
    icon: str
    colour: str
    hex: str
    symbol: str
    meaning: str


VERDICTS: Final[dict[str, Look]] = {
    "ok": Look("OK", "✔", "teal", "#12a07c", "circle", "what was lost or is late is within the target"),
    "loss": Look("LOSS", "✖", "red", "#e03131", "x", "more was lost for certain than the target allows"),
    "unknown": Look("UNKNOWN", "?", "orange", "#e8890c", "diamond", "the evidence does not allow a verdict yet"),
    "idle": Look("IDLE", "○", "gray", "#868e96", "circle-open", "no messages, and every emitter says so"),
    "open": Look("OPEN", "…", "blue", "#4a90d9", "line-ew-open", "not closed yet: live numbers, no verdict"),
}


def verdict_of(window: Document) -> str:
    """A key of VERDICTS: the verdict, or `open` where there is none yet."""
    return window["verdict"] or "open"


def start_s(window: Document) -> int:
    return parse_utc_s(window["window_start"])


def parse_utc_s(text: str) -> int:
    """Epoch seconds of an RFC 3339 time."""
    return int(datetime.fromisoformat(text).timestamp())


def clock(epoch_s: float, *, seconds: bool = False, date: bool = False) -> str:
    """`08:40`, `08:40:07` or `2026-11-21 08:40`, in UTC; the caller says that it is UTC."""
    form = ("%Y-%m-%d " if date else "") + ("%H:%M:%S" if seconds else "%H:%M")
    return datetime.fromtimestamp(epoch_s, UTC).strftime(form)


def minute(window_start_s: int) -> str:
    """`2026-11-21 08:40–08:41 UTC`."""
    return f"{clock(window_start_s, date=True)}–{clock(window_start_s + 60)} UTC"


def lag(ms: float | None) -> str:
    """A signed lag or duration with its unit: `0.42 ms`, `340 ms`, `1.2 s`, `3.5 min`."""
    if ms is None:
        return NOTHING
    size = abs(ms)
    if size < 1_000:
        digits = 0 if size >= 99.95 or size == 0 else 1 if size >= 1 else 2
        return f"{_number(ms, digits)} ms"
    for limit, unit_ms, unit in ((60_000, 1_000, "s"), (3_600_000, 60_000, "min"), (172_800_000, 3_600_000, "h")):
        if size < limit:
            return f"{_number(ms / unit_ms, 1 if size < 100 * unit_ms else 0)} {unit}"
    return f"{_number(ms / 86_400_000, 1)} d"


def amount(value: float, unit: str) -> str:
    """A number of a rule in its unit: `ratio`, `ms`, `s` or `times`."""
    match unit:
        case "ratio":
            return share(value)
        case "ms" | "s":
            return lag(value if unit == "ms" else 1_000 * value)
    return f"{_number(value, 1)} times"


def share(ratio: float | None) -> str:
    """A ratio in per cent with about three digits: `0.34 %`, `12.3 %`, `< 0.001 %`."""
    if ratio is None:
        return NOTHING
    percent = 100 * ratio
    if 0 < percent < 0.001:
        return "< 0.001 %"
    if 99.995 <= percent < 100:
        return "> 99.99 %"
    digits = 0 if percent in (0, 100) else 1 if percent >= 10 else 2 if percent >= 0.1 else 3
    return f"{_number(percent, digits)} %"


def count(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def interval(bounds: dict[str, Any] | None) -> str:
    """`3`, or `1–3` where the truth lies between."""
    if bounds is None or bounds["min"] is None:
        return NOTHING
    low, high = bounds["min"], bounds["max"]
    return count(low) if low == high else f"{count(low)}–{count(high)}"


def share_interval(bounds: dict[str, Any] | None) -> str:
    if bounds is None or bounds["min"] is None:
        return NOTHING
    low, high = bounds["min"], bounds["max"]
    return share(low) if low == high else f"{share(low)} – {share(high)}"


def messages(number: int) -> str:
    return f"{count(number)} message{'' if number == 1 else 's'}"


def ago(seconds: float) -> str:
    """`just now`, `12 s ago`, `3.5 min ago`."""
    return "just now" if seconds < 2 else f"{lag(1_000 * round(seconds) if seconds < 60 else 1_000 * seconds)} ago"


def size(number: int) -> str:
    """Bytes: `512 B`, `8.2 kB`, `1.4 GB`."""
    shown, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if shown < 1_000:
            break
        shown, unit = shown / 1_000, larger
    return f"{_number(shown, 0 if unit == 'B' or shown >= 100 else 1)} {unit}"


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def verdict_sentence(window: Document, max_loss_ratio: float) -> str:
    """The verdict with its numbers and places, in one or two sentences."""
    verdict = verdict_of(window)
    total = window["messages"]
    if verdict == "open":
        return f"Not closed yet: {messages(total)} so far by live counts; lag is live, loss is judged when it closes."
    if verdict == "idle":
        return "No messages in this minute, and every emitter of the first node says so."
    if not total:
        return "Nobody has told whether any message came in: that is not enough to call it idle."
    lost = window["lost"]
    parts = [_certain(window, lost["min"], total, max_loss_ratio)]
    if lost["max"] > lost["min"]:
        parts.append(f"{count(lost['max'] - lost['min'])} more perhaps{_where(window, 'perhaps')}.")
    if window["pending"]:
        parts.append(f"{count(window['pending'])} pending: late, not lost.")
    if verdict == "unknown":
        parts.append("That is not enough to call it ok or loss.")
    return " ".join(parts)


def _certain(window: Document, lost: int, total: int, max_loss_ratio: float) -> str:
    if not lost:
        return f"0 of {messages(total)} lost for certain."
    ratio = lost / total if total else None
    side = "above" if ratio is not None and ratio > max_loss_ratio else "within"
    return (
        f"{count(lost)} of {messages(total)} ({share(ratio)}) lost for certain, {side} the target of "
        f"{share(max_loss_ratio)}{_where(window, 'certain')}."
    )


def _where(window: Document, which: str) -> str:
    """`: 2 at node mid, 1 on link src → mid`, most first."""
    found = []
    for name, lost in places(window):
        number = lost["min"] if which == "certain" else lost["max"] - lost["min"]
        if number:
            found.append((number, name))
    found.sort(key=lambda item: -item[0])
    if not found:
        return ""
    shown = ", ".join(f"{count(number)} {name}" for number, name in found[:5])
    return f": {shown}" + (f" and at {len(found) - 5} more places" if len(found) > 5 else "")


def places(window: Document) -> list[tuple[str, dict[str, int]]]:
    """Every node and link with what was lost there: (`at node mid`, {min, max})."""
    nodes = [(f"at node {node['name']}", node["lost"]) for node in window["nodes"]]
    links = [(f"on link {link['from']} → {link['to']}", link["lost"]) for link in window["links"]]
    return [(name, lost) for name, lost in nodes + links if lost]


_REASONS: Final[dict[str, str]] = {
    "pending": "some messages are late and not overtaken yet",
    "overdue": "some messages have been pending longer than maxWait",
    "unexplained": "some messages were seen later but not at the first checkpoint: an id or event time was changed",
    "version": "the definition changed in this minute",
    "sample": "only a sample of the messages was looked at: counts are scaled, the loss interval is widened",
}


def reason(code: str) -> str:
    """A reason code of rule 10 in words."""
    if code.startswith("evidence:"):
        return f"the evidence of node {code.removeprefix('evidence:')} is incomplete"
    return _REASONS.get(code, code)


FATES: Final = {
    "lost": "lost for certain",
    "perhaps": "perhaps lost",
    "overdue": "overdue: pending longer than maxWait",
    "pending": "pending: late, not lost",
}
"""What a closing says of a message that something is missing of."""


def place_label(place: str) -> str:
    """A place as it is read: `link src → mid`, `node mid`, `retrier again`."""
    return place.replace("->", " → ")
