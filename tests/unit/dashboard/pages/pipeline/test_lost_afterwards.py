"""The panel of what is lost afterwards has counts, causes and shares, and is not there if nothing is."""

from __future__ import annotations

from dataclasses import replace

from dashboard.pages.pipeline.lost_afterwards import lost_afterwards_panel
from dashboard.request.links import Address
from lagloss.wire.format import SAMPLE_ALL
from lagloss_server.incidents.lost_afterwards import LostMinute

HERE = Address("/pipelines/orders", {"zone": "UTC"})
START_S = 1_795_219_200
MINUTE = LostMinute(
    *(START_S, "mart", "mart.out", "table public.orders of shop", 3, 0, None, None, None, 60, SAMPLE_ALL, "deleted"),
    *(1_000 * START_S + 600_000, 1_000 * START_S + 86_400_000),
)


def shown(*minutes: LostMinute) -> str:
    return str(lost_afterwards_panel(minutes, "orders", HERE))


def test_a_pipeline_that_lost_nothing_afterwards_has_no_panel() -> None:
    assert lost_afterwards_panel([], "orders", HERE) is None


def test_a_minute_has_its_count_its_cause_and_links() -> None:
    text = shown(MINUTE)
    for part in (
        *("3 messages lost afterwards at mart: their rows in table public.orders of shop are deleted", "mart.out"),
        *("60 rows", "/pipelines/orders/windows/", "kind=lost-afterwards", "Names of the messages"),
    ):
        assert part in text, part
    assert "sample" not in text


def test_what_is_accepted_has_who_and_why_and_is_no_loss() -> None:
    text = shown(replace(MINUTE, accepted=3, accepted_by="ann", accepted_why="request <17>"))
    assert "by ann: request <17>" in text
    assert "3 messages, 3 accepted" in text
    assert "✖" not in text


def test_a_sample_has_its_share_and_the_newest_minutes_are_listed() -> None:
    minutes = [replace(MINUTE, window_start_s=START_S + 60 * number, sample=SAMPLE_ALL // 50) for number in range(60)]
    text = shown(*minutes)
    assert "a sample of 2 %" in text
    assert "The newest 50 of 60 minutes are listed." in text
