"""Reasons on the page of a pipeline, without a server."""

from __future__ import annotations

import dash_mantine_components as dmc

from dashboard.pages.pipeline.tables import reasons_box
from dashboard.queries.buckets import of_rollup, of_window
from lagloss.wire.sketch import Sketch
from lagloss_server.sums.rollup import CheckpointSums, Rollup
from tests.support.window_documents import chain, document, window_of

START_S = 1_795_250_400
REASONS = {"mid": {"filtered": {"no consent": 20}}}


def test_the_reasons_of_a_span_are_shown_with_those_that_are_not_known() -> None:
    sums = CheckpointSums(Sketch(), beacons=25, distinct=25)
    total = of_rollup(Rollup(checkpoints={"mid.filtered": sums}, reasons=REASONS), START_S, 3_600, chain().graph)
    cells = [each.children for each in reasons_box(total)._traverse() if isinstance(each, dmc.TableTd)]
    assert cells == ["mid", "filtered", "no consent", "20", "mid", "filtered", "unknown", "5"]
    assert total.document()["reasons_by_node"] == REASONS


def test_a_minute_has_the_reasons_of_its_window_and_nothing_is_shown_where_there_is_none() -> None:
    window = document(chain(), START_S) | {"reasons_by_node": REASONS}
    assert of_window(window_of(window), chain().graph).reasons == REASONS
    assert of_window(window_of(document(chain(), START_S)), chain().graph).reasons == {}
    assert reasons_box(of_window(window_of(document(chain(), START_S)), chain().graph)) is None
    assert reasons_box(None) is None
