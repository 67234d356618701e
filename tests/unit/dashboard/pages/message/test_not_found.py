"""Where a search that found nothing leads to, without a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import dash_mantine_components as dmc

from dashboard.pages.message.parts import message_part
from dashboard.queries.message import MessageRead, Where
from dashboard.request.links import Address
from lagloss_server.base.trace_links import NO_LINKS
from lagloss_server.incidents.lost_afterwards import LostAfterwardsMessage
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.message_trace import Search

START_S = 1_795_250_400
CUT = Search(None, START_S, START_S + 600, START_S - 6_000, is_cut=True)


def links(where: Where, search: Search = CUT) -> list[dict[str, str]]:
    """The queries that the links of the part ask for."""
    read = MessageRead("chain", "a", where, (), search, None, None, False)
    given = {name.removesuffix("_s"): rfc3339(at) for name, at in dataclasses.asdict(where).items() if at is not None}
    part = message_part(read, Address("/pipelines/chain/messages", {"id": "a", **given}), NO_LINKS, dark=False)
    anchors = (one for one in part._traverse() if isinstance(one, dmc.Anchor))
    return [dict(Address.parse(*_split(anchor.href)).query) for anchor in anchors]


def _split(href: str) -> Iterator[Any]:
    path, _, query = href.partition("?")
    yield from (path, query)


def test_a_search_through_the_newest_goes_on_with_earlier_ones() -> None:
    assert links(Where()) == [{"id": "a", "before": rfc3339(START_S)}]
    assert links(Where(before_s=START_S + 600)) == [{"id": "a", "before": rfc3339(START_S)}]


def test_a_search_around_a_time_goes_on_at_both_its_sides() -> None:
    around = {"id": "a", "around": rfc3339(START_S + 300)}
    on = [{**around, "before": rfc3339(START_S)}, {**around, "after": rfc3339(START_S + 600)}]
    assert links(Where(around_s=START_S + 300)) == on
    assert links(Where(around_s=START_S + 300, after_s=START_S - 60)) == on


def test_a_search_that_has_seen_all_goes_nowhere() -> None:
    assert links(Where(), dataclasses.replace(CUT, is_cut=False)) == []


def test_a_row_that_is_gone_is_said_whether_the_message_was_found_or_not() -> None:
    at_ms = 1_000 * START_S
    lost = LostAfterwardsMessage(
        *("chain", "a", 7, START_S, "snk", "snk.out", at_ms, 5, at_ms + 1_000, at_ms + 2_000),
        *("recreated", "table public.orders of shop"),
    )
    read = MessageRead("chain", "a", Where(), (), CUT, None, None, False, (lost,))
    text = str(message_part(read, Address("/pipelines/chain/messages", {"id": "a"}), NO_LINKS, dark=False))
    assert "Its row in table public.orders of shop is gone since the table was created again" in text
    assert read.document()["lost_afterwards"][0]["table"] == "table public.orders of shop"
