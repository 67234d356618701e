"""A graph that is cut: each side has its own verdict and numbers."""

from __future__ import annotations

from typing import Any

from dashboard.format import VERDICTS, verdict_sentence
from dashboard.pages.breakdown import sides
from tests.support.window_documents import window_of
from tests.unit.dashboard.pages.test_destinations import rows


def side(name: str, verdict: str, lost: int, messages: int) -> dict[str, Any]:
    return {
        "name": name,
        "verdict": verdict,
        "messages": messages,
        "delivered": messages - lost,
        "pending": 0,
        "lost": {"min": lost, "max": lost},
    }


SIDES = [side("shop", "ok", 0, 1_000), side("sum-new", "loss", 2, 10)]


def test_the_sides_stand_in_the_order_of_the_flow_with_their_own_verdicts() -> None:
    ok, loss = (f"{VERDICTS[verdict].icon} {VERDICTS[verdict].word}" for verdict in ("ok", "loss"))
    assert rows(sides(window_of({"sides": SIDES}))) == [
        ["shop", ok, "1,000", "0 %", "1,000", "0"],
        ["sum-new", loss, "10", "20 %", "8", "0"],
    ]
    assert sides(window_of({})) is None


def test_the_sentence_names_the_side_whose_loss_is_the_verdict() -> None:
    whole = {"state": "closed", "verdict": "loss", "messages": 1_010, "lost": {"min": 2, "max": 2}, "pending": 0}
    said = verdict_sentence(window_of({**whole, "sides": SIDES}), 0.01)
    assert "within the target" in said
    assert "Side sum-new alone lost 2 of 10 messages (20 %): loss." in said
