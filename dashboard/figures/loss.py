"""The loss panel: certain loss, what cannot be ruled out, the target, and below it each bucket's verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from dashboard.design import translucent
from dashboard.figures import stack
from dashboard.figures.drawing import Drawing, Trace, bar, scatter
from dashboard.figures.frame import FigureFrame, Step, add_target, carrier, merged
from dashboard.figures.look import moments, numbers
from dashboard.format import VERDICTS
from dashboard.queries.buckets import Bucket
from dashboard.queries.sla_periods import SlaPeriod
from lagloss_server.base import format as fmt
from lagloss_server.model.window import LossRatio

_MARKS: Final = 240
"""So many marks of 5 px leave no space on the widest page."""


def add_loss(drawing: Drawing, frame: FigureFrame) -> float:
    """Certain loss as solid bars, what cannot be ruled out as hatched ones on them; the top of the axis, in per cent.

    The strip below shows a bucket without a bar as ok, idle, open or unknown.
    """
    buckets = frame.series.buckets
    targets = [
        Step(period.from_s, period.to_s, 100 * period.sla.loss.max, _target(period))
        for period in frame.sla_periods.parts
    ]
    drawn = [(bucket, loss) for bucket in buckets if (loss := drawn_loss(bucket)) is not None]
    certain = [(bucket, loss[0]) for bucket, loss in drawn]
    drawing.add_trace(_bars(frame, certain, "certainly lost", "certain", {"color": frame.colours.loss}))
    hatched = {
        "color": translucent(frame.colours.loss, 0.22),
        "pattern": {"shape": "/", "fgcolor": frame.colours.loss, "size": 5},
    }
    perhaps = [(bucket, loss[1] - loss[0]) for bucket, loss in drawn]
    drawing.add_trace(_bars(frame, perhaps, "possibly lost", "perhaps", hatched))
    drawing.add_trace(carrier(frame, [(bucket, 0.0, _describe_loss(bucket)) for bucket in buckets], "y3"))
    add_target(drawing, frame, merged(targets), "y3")
    return max([*(1.6 * step.at for step in targets), 0.01, *(115 * loss[1] for _, loss in drawn)])


def _bars(
    frame: FigureFrame, shares: Sequence[tuple[Bucket, float]], name: str, uid: str, marker: Mapping[str, Any]
) -> Trace:
    """Only those that can be seen: most buckets lose nothing."""
    lossy = [(bucket, share) for bucket, share in shares if share > 0]
    return bar(
        x=moments(frame.middle(bucket) for bucket, _ in lossy),
        y=numbers(100 * share for _, share in lossy),
        width=1_000 * frame.series.bucket_s * 0.87,
        marker={"line": {"width": 0}, **marker},
        name=name,
        uid=uid,
        yaxis="y3",
        hoverinfo="skip",
    )


def _target(period: SlaPeriod) -> str:
    return f"SLA loss ≤ {fmt.percent(period.sla.loss.max)}"


def drawn_loss(bucket: Bucket) -> tuple[float, float] | None:
    """(min, max) of the loss ratio; None where it is not known: open, no messages, or unknown with nothing to show.

    An unknown minute whose interval starts at 0 draws the interval only, and one without any loss draws nothing: its 0
    is not a finding.
    """
    ratio = bucket.loss_ratio
    if ratio is None or (set(bucket.verdicts) <= {"unknown", "idle"} and not ratio[1]):
        return None
    return ratio


def _describe_loss(bucket: Bucket) -> str:
    """Describe its verdicts, and how many messages were lost of how many."""
    many = len(bucket.verdicts) > 1 or bucket.minutes > 1
    verdicts = ", ".join(
        f"{f'{number} × ' if many else ''}{VERDICTS[verdict].icon} {VERDICTS[verdict].word}"
        for verdict, number in bucket.verdicts.items()
    )
    return f"<b>loss {_loss_words(bucket)}</b> · {verdicts}"


def _loss_words(bucket: Bucket) -> str:
    if bucket.lost is None:
        return "no verdict yet"
    if bucket.messages is None:
        return "unknown"
    ratio = bucket.loss_ratio
    lost = fmt.count_interval(bucket.lost)
    share = fmt.percent_interval(None if ratio is None else LossRatio(*ratio))
    return f"{share} ({lost} of {fmt.count(bucket.messages)})"


def add_verdicts(drawing: Drawing, frame: FigureFrame) -> None:
    """Return a mark a bucket: its worst verdict. Where they would cover each other, not all of a run of the same."""
    buckets = frame.series.buckets
    size = 8 if len(buckets) <= stack.MAX_BARS else 5
    marked = marked_buckets(buckets)
    for verdict, look in VERDICTS.items():
        of_this = [bucket for bucket in marked if bucket.verdict == verdict]
        if not of_this:
            continue
        colour = getattr(frame.colours, look.role)
        border = 1.5 if look.symbol.endswith("-open") else 0
        drawing.add_trace(
            scatter(
                x=[frame.middle(bucket) for bucket in of_this],
                y=np.zeros(len(of_this)),
                name=look.word.lower(), uid=f"verdict-{verdict}", mode="markers", yaxis="y4", hoverinfo="skip",
                marker={"color": colour, "symbol": look.symbol, "size": size,
                        "line": {"color": colour, "width": border}},
            )
        )  # fmt: skip


def marked_buckets(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the first of each run of the same verdict, and of a long one as many as leave no space between their
    marks."""
    step = -(-len(buckets) // _MARKS)
    marked: list[Bucket] = []
    remaining = 0
    for index, bucket in enumerate(buckets):
        if index == 0 or bucket.verdict != buckets[index - 1].verdict or remaining == 0:
            marked.append(bucket)
            remaining = step
        remaining -= 1
    return marked
