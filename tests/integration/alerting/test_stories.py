"""Whatever happens, in whatever order: no missed page, none told twice or out of order, no second incident."""

from __future__ import annotations

import os
from random import Random

import pytest

from lagloss_server.store.store import Store
from tests.support.alert_stories import Story

STORIES = int(os.environ.get("LAGLOSS_TEST_STORIES", "5"))
"""More of them for who has the time."""
FIRST = int(os.environ.get("LAGLOSS_TEST_FIRST_STORY", "0"))
EVENTS = 60


@pytest.mark.parametrize("seed", range(FIRST, FIRST + STORIES))
def test_whatever_happens_who_is_routed_ends_up_knowing_what_is_open_and_has_heard_it_in_order(
    store: Store, seed: int
) -> None:
    story = Story(store, Random(seed))
    for _ in range(EVENTS):
        story.happen()
    story.settle()
    story.check_end()
