"""The loss panel: certain loss, what cannot be ruled out, the target, and below it each bucket's verdict."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from dashboard import words
from dashboard.figures import stack
from dashboard.figures.frame import Frame, Step, add_target, carrier, merged
from dashboard.figures.look import CERTAIN, numbers
from dashboard.reads.buckets import Bucket
from dashboard.reads.terms import Term
from dashboard.words import VERDICTS


def add_loss(figure: go.Figure, frame: Frame) -> float:
    """Certain loss as solid bars, what cannot be ruled out as hatched ones on them; the top of the axis, in per cent.

    A bucket without a bar is told as ok, idle, open or unknown by the strip below.
    """
    found = frame.series.buckets
    targets = [Step(term.from_s, term.to_s, 100 * term.sla.loss.max, _target(term)) for term in frame.terms.parts]
    drawn = [drawn_loss(bucket) for bucket in found]
    shared = {"x": frame.middles, "width": 1_000 * frame.series.bucket_s * 0.87, "yaxis": "y3", "hoverinfo": "skip"}
    figure.add_trace(
        go.Bar(
            y=numbers(None if loss is None else 100 * loss[0] for loss in drawn),
            name="lost for certain", uid="certain", marker={"color": CERTAIN, "line": {"width": 0}}, **shared,
        )
    )  # fmt: skip
    pattern = {"shape": "/", "fgcolor": CERTAIN, "size": 5}
    figure.add_trace(
        go.Bar(
            y=numbers(None if loss is None or loss[1] <= loss[0] else 100 * (loss[1] - loss[0]) for loss in drawn),
            name="perhaps lost", uid="perhaps",
            marker={"color": "rgba(224,49,49,.22)", "line": {"width": 0}, "pattern": pattern}, **shared,
        )
    )  # fmt: skip
    figure.add_trace(carrier(frame, [(bucket, 0.0, _loss_told(bucket)) for bucket in found], "y3"))
    add_target(figure, frame, merged(targets), "y3")
    return max([*(1.6 * step.at for step in targets), 0.01, *(115 * loss[1] for loss in drawn if loss is not None)])


def _target(term: Term) -> str:
    return f"SLA loss ≤ {words.share(term.sla.loss.max)}"


def drawn_loss(bucket: Bucket) -> tuple[float, float] | None:
    """(min, max) of the loss ratio; None where it is not known: open, no messages, or unknown with nothing to show.

    An unknown minute whose interval starts at 0 draws the interval only, and one without any loss draws nothing: its 0
    is not a finding.
    """
    ratio = bucket.loss_ratio
    if ratio is None or (set(bucket.verdicts) <= {"unknown", "idle"} and not ratio[1]):
        return None
    return ratio


def _loss_told(bucket: Bucket) -> str:
    """Its verdicts, and what was lost of how many."""
    many = len(bucket.verdicts) > 1 or bucket.minutes > 1
    verdicts = ", ".join(
        f"{f'{number} × ' if many else ''}{VERDICTS[verdict].icon} {VERDICTS[verdict].word}"
        for verdict, number in bucket.verdicts.items()
    )
    return f"<b>loss {_loss_words(bucket)}</b> · {verdicts}"


def _loss_words(bucket: Bucket) -> str:
    if bucket.lost is None:
        return "not judged yet"
    if bucket.messages is None:
        return "not known"
    ratio = bucket.loss_ratio
    lost = words.interval({"min": bucket.lost.min, "max": bucket.lost.max})
    share = words.share_interval(None if ratio is None else {"min": ratio[0], "max": ratio[1]})
    return f"{share} ({lost} of {words.count(bucket.messages)})"


def add_verdicts(figure: go.Figure, frame: Frame) -> None:
    """A mark a bucket: its worst verdict."""
    size = 8 if len(frame.series.buckets) <= stack.MAX_BARS else 5
    for verdict, look in VERDICTS.items():
        of_this = [bucket for bucket in frame.series.buckets if bucket.verdict == verdict]
        if not of_this:
            continue
        border = 1.5 if look.symbol.endswith("-open") else 0
        figure.add_trace(
            go.Scatter(
                x=[frame.middle(bucket) for bucket in of_this],
                y=np.zeros(len(of_this)),
                name=look.word.lower(), uid=f"verdict-{verdict}", mode="markers", yaxis="y4", hoverinfo="skip",
                marker={"color": look.hex, "symbol": look.symbol, "size": size,
                        "line": {"color": look.hex, "width": border}},
            )
        )  # fmt: skip
