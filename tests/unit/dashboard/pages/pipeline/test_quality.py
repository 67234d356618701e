"""The panel of qualities on the page of a pipeline, as components and as the plain HTML of the first answer."""

from __future__ import annotations

import re

from dashboard.pages.pipeline.tables import quality_panel
from dashboard.pages.printing import html_of
from dashboard.request.links import Address
from lagloss_server.sums.quality import QualityRow, quality_rows
from lagloss_server.sums.rollup import CheckpointSums, LinkSums, Rollup
from tests.support.window_documents import chain

START_S = 1_795_250_400
HERE = Address("/pipelines/chain", {"range": "24h"})


def rows() -> tuple[QualityRow, ...]:
    total = Rollup(
        windows=60,
        messages=1_000,
        checkpoints={
            "src.out": CheckpointSums(beacons=1_000, distinct=1_000),
            "mid.in": CheckpointSums(beacons=1_020, distinct=1_000, duplicates=20, counted=1_020),
        },
        checksums={"src->mid": LinkSums(3, 900)},
        staleness_ms={"snk.out": 360_000.0, "mid.in": 4_000.0},
        worst={"staleness node snk": (360_000.0, START_S), "corruption link src->mid": (3, START_S + 60)},
    )
    return quality_rows(total, chain())


def cells(page: str, stage: str) -> list[str]:
    (row,) = re.findall(rf"<tr[^>]*><th[^>]*>{stage}</th>(.*?)</tr>", page)
    return [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]


def test_each_stage_has_its_four_qualities_beside_their_targets() -> None:
    page = html_of(quality_panel(rows(), "chain", HERE))
    assert cells(page, "link src → mid") == [
        "✔ 0 % ≤ 1 %",
        "✖ 3 of 900 ≤ 0 per minute",
        "✖ 1.96 % ≤ 1 %",
        "○ 4 s no target",
    ]
    assert cells(page, "node snk") == ["? unknown ≤ 1 %", "–", "? unknown ≤ 1 %", "✖ 6 min ≤ 5 min"]


def test_a_value_leads_to_the_minute_in_which_it_was_worst() -> None:
    page = html_of(quality_panel(rows(), "chain", HERE))
    for minute, value in (("08:40", "6 min"), ("08:41", "3 of 900")):
        href = rf'href="/pipelines/chain/windows/2026-11-21T{minute}:00Z\?range=24h"'
        assert re.search(rf"<a [^>]*{href}[^>]*><span[^>]*>{value}</span></a>", page)


def test_without_a_closed_minute_there_is_no_panel() -> None:
    assert quality_panel((), "chain", HERE) is None
