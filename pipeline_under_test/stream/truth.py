"""What lagloss ought to measure of the stream, by its ledger and the rows of its table: with beacons, and as far as
topics and commits show it.

Where nodes send no beacons, taps show less:

- What never came into the first topic is no message: lost or handed back at col-service.
- A node that says it sent an event, and did not, has lost it: there is nothing on the link.
- Of an event with several routes, a lost one does not show: no topic says how many there should be.
- A connector has delivered what it has committed, whatever became of it there. The warehouse has delivered its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from pipeline_under_test.harness.ledger import (
    Fate,
    LedgerEntry,
    place_of_link,
    place_of_node,
    place_of_table,
    place_of_vendor,
)
from pipeline_under_test.harness.truth import ENDS, TrueWindow, Truth, window_start_s
from pipeline_under_test.stream.topology import (
    ALL_NEXT,
    COL_SERVICE,
    EVENT_NORM,
    EVENT_ROUTER,
    GLOBAL_RETRIER,
    TABLE,
    VENDORS,
    WAREHOUSE,
)

_TABLE: Final = place_of_table(TABLE)
_WAREHOUSE: Final = place_of_node(WAREHOUSE)
_TO_WAREHOUSE: Final = place_of_link(EVENT_ROUTER, WAREHOUSE)
DESTINATIONS: Final = {**{place_of_vendor(vendor): node for vendor, node in VENDORS.items()}, _TABLE: WAREHOUSE}
"""Where events are delivered, and the node that delivers them there."""
CHECKPOINTS: Final = {place: f"{node}.out" for place, node in DESTINATIONS.items()}


class StreamWindow(TrueWindow):
    """One minute of the stream. `commits_first`: what the warehouse does not store, it has lost."""

    commits_first = False

    def add(self, entry: LedgerEntry) -> None:
        super().add(entry)
        if entry.fate == "delivered" and entry.place in CHECKPOINTS:
            self.written[CHECKPOINTS[entry.place]][entry.id] += 1

    def _under_way(self) -> set[str]:
        """Return those that were sent on to a destination's node and have come neither to the destination nor to an end
        there.

        What the global retrier has put into the dead-letter queue is at its end on both ways: the ledger does not say
        them apart.
        """
        under_way: set[str] = set()
        for destination, node in DESTINATIONS.items():
            place = place_of_node(node)
            ends: tuple[tuple[Fate, str], ...] = (
                ("delivered", destination),
                ("dead", place),
                ("filtered", place),
                ("dead", place_of_node(GLOBAL_RETRIER)),
            )
            sent = self.at.get(("routed", place_of_link(EVENT_ROUTER, node)), set())
            under_way |= sent.difference(*(self.at.get(end, set()) for end in ends))
        return under_way

    @property
    def unstored(self) -> set[str]:
        """Return those that a warehouse which commits first has lost: they have come there, and to no end."""
        if not self.commits_first:
            return set()
        ends: tuple[tuple[Fate, str], ...] = (("delivered", _TABLE), ("dead", _WAREHOUSE), ("filtered", _WAREHOUSE))
        came = self.at.get(("routed", _TO_WAREHOUSE), set()) - self.at.get(("lost", _TO_WAREHOUSE), set())
        return came.difference(self.ids["replayed"], *(self.at.get(end, set()) for end in ends))

    @property
    def lost(self) -> set[str]:
        return super().lost | self.unstored

    @property
    def lost_at(self) -> dict[str, set[str]]:
        lost_by_place = super().lost_at
        at_warehouse = lost_by_place.get(_WAREHOUSE, set()) | self.unstored
        return {**lost_by_place, _WAREHOUSE: at_warehouse} if at_warehouse else lost_by_place


class CommitFirstWindow(StreamWindow):
    """One minute of a stream whose warehouse commits first."""

    commits_first = True


class StreamTruth(Truth[StreamWindow]):
    """The stream's ledger summed up."""

    def __init__(self, window: type[StreamWindow] = StreamWindow) -> None:
        super().__init__(window)

    def add_rows(self, rows: Iterable[LedgerEntry]) -> set[int]:
        """Take in rows of the table, as `add` does, but those of another run: of events that this ledger, read after
        them, has not sent there."""
        return self.add(row for row in rows if self._is_sent(row))

    def _is_sent(self, row: LedgerEntry) -> bool:
        window = self.windows.get(window_start_s(row.event_time_ms))
        return window is not None and row.id in window.at.get(("routed", _TO_WAREHOUSE), ())


_AT_SOURCE: Final = frozenset({place_of_node(COL_SERVICE), place_of_link(COL_SERVICE, EVENT_NORM)})
_SENDERS: Final = {place_of_link(node, to): place_of_node(node) for node, nexts in ALL_NEXT.items() for to in nexts}


def tapped_place(place: str) -> str:
    """Return the place at which taps show a loss at this one."""
    return _SENDERS.get(place, place)


def truth_as_tapped(truth: StreamTruth) -> StreamTruth:
    """Return the whole ledger as taps show it."""
    tapped = StreamTruth()
    tapped.entries = truth.entries
    tapped.windows.update((start, as_tapped(window)) for start, window in truth.windows.items())
    return tapped


def as_tapped(truth: StreamWindow) -> StreamWindow:
    """Return one window of the ledger as taps show it."""
    window = type(truth)()
    window.written[CHECKPOINTS[_TABLE]] = truth.times.get(("delivered", _TABLE), Counter())
    for vendor, node in VENDORS.items():
        to, node_place, none = place_of_vendor(vendor), place_of_node(node), Counter[str]()
        committed: list[tuple[Fate, str]] = [("delivered", to), *((fate, node_place) for fate in (*ENDS, "retried"))]
        window.written[CHECKPOINTS[to]] = sum((truth.times.get(key, none) for key in committed), none)
    unseen = _unseen(truth)
    hidden = _hidden_by_other_routes(truth)
    ended = _ended_at_connectors(truth)
    for (fate, place), ids in truth.at.items():
        if place in _AT_SOURCE or fate in ("corrupted", "delayed", "duplicated", "retried"):
            continue
        if fate == "lost":
            _add(window, fate, tapped_place(place), ids - hidden.get(place, set()) - ended.get(place, set()))
        elif fate == "routed":
            _add(window, fate, place, ids - hidden.get(place, set()))
        else:
            _add(window, fate, place, ids)
    for vendor, node in VENDORS.items():
        _add(window, "delivered", place_of_vendor(vendor), ended[place_of_node(node)])
    for fate, ids in truth.ids.items():
        if not any(fate == named for named, _ in truth.at):
            window.ids[fate] |= ids - unseen
    window.ids["duplicated"] |= truth.ids["duplicated"]
    return window


def _add(window: StreamWindow, fate: Fate, place: str, ids: set[str]) -> None:
    if ids:
        window.at[fate, place] |= ids
        window.ids[fate] |= ids


def _unseen(truth: StreamWindow) -> set[str]:
    """Return what never came into the first topic."""
    seen_ids = set().union(*(ids for (_, place), ids in truth.at.items() if place in _AT_SOURCE))
    beyond = set().union(*(ids for (_, place), ids in truth.at.items() if place not in _AT_SOURCE))
    gone: tuple[Fate, ...] = ("lost", "filtered")
    return (seen_ids & set().union(*(truth.ids[fate] for fate in gone))) - beyond


def _hidden_by_other_routes(truth: StreamWindow) -> dict[str, set[str]]:
    """Return by link what is lost there and went another way as well."""
    links = [place_of_link(EVENT_ROUTER, to) for to in ALL_NEXT[EVENT_ROUTER]]
    lost = {link: truth.at.get(("lost", link), set()) for link in links}
    sent = {link: truth.at.get(("routed", link), set()) - lost[link] for link in links}
    return {link: lost[link] & set().union(*(sent[other] for other in links if other != link)) for link in links}


def _ended_at_connectors(truth: StreamWindow) -> dict[str, set[str]]:
    """Return by connector what it committed without delivering it: lost, filtered or set aside there, or handed to the
    global retrier."""
    places = map(place_of_node, VENDORS.values())
    return {
        place: set().union(*(truth.at.get((fate, place), set()) for fate in (*ENDS, "retried"))) for place in places
    }
