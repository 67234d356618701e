"""Pages of long lists: which rows an address asks for, and the links to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, aria
from dashboard.request.links import Address
from lagloss_server.base import format as fmt

T = TypeVar("T")
PAGE_SIZE: Final = 100
_MAX_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class PageOf:
    """A page of `PAGE_SIZE` of the `matching` rows; beyond the last one, that."""

    asked: int
    matching: int

    @property
    def last(self) -> int:
        return max(1, -(-self.matching // PAGE_SIZE))

    @property
    def number(self) -> int:
        return min(max(self.asked, 1), self.last)

    def rows(self, chosen: Sequence[T]) -> Sequence[T]:
        return chosen[(self.number - 1) * PAGE_SIZE : self.number * PAGE_SIZE]


def chosen_page(address: Address) -> int:
    """Return the page that the address asks for, counted from 1."""
    number = address.query.get("page", "")
    return int(number) if number.isdecimal() and len(number) < _MAX_DIGITS else 1


def pager(page: PageOf, what: str, address: Address, place: str) -> Part:
    """Return which of the matching rows are shown, `1–100 of 10,000 pipelines`, and links to the other pages; None
    if all are. `what`: a row in one word; `place`: of the two on the page, the one at its top or at its foot."""
    if page.last == 1:
        return None
    first = (page.number - 1) * PAGE_SIZE
    rows = f"{fmt.count(first + 1)}–{fmt.count(min(first + PAGE_SIZE, page.matching))}"
    shown = dmc.Text(f"{rows} of {fmt.counted(page.matching, what)}", size="sm")
    ways = {"first": 1, "previous": page.number - 1, "next": page.number + 1, "last": page.last}
    links_ = [
        dmc.Anchor(way, href=address.asking(page=str(number) if number > 1 else None).href, size="sm")
        for way, number in ways.items()
        if 1 <= number <= page.last and number != page.number
    ]
    return html.Nav(dmc.Group([shown, *links_], gap="sm", mt="sm"), **aria(label=f"pages of {what}s, {place}"))
