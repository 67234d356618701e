"""Expected results from the stream's ledger: the ways to the vendors, and how often each vendor got an event."""

from __future__ import annotations

from typing import Final

from pipeline_under_test.harness.ledger import Fate, LedgerEntry, place_of_link, place_of_node, place_of_vendor
from pipeline_under_test.harness.truth import TrueWindow, Truth
from pipeline_under_test.stream.topology import EVENT_ROUTER, GLOBAL_RETRIER, VENDORS

CHECKPOINTS: Final = {place_of_vendor(vendor): f"{node}.out" for vendor, node in VENDORS.items()}


class StreamWindow(TrueWindow):
    """One minute of the stream."""

    def add(self, entry: LedgerEntry) -> None:
        super().add(entry)
        if entry.fate == "delivered" and entry.place in CHECKPOINTS:
            self.written[CHECKPOINTS[entry.place]][entry.id] += 1

    def _under_way(self) -> set[str]:
        """Return those that were sent on to a vendor's connector and have come neither to the vendor nor to an end
        there.

        What the global retrier has put into the dead-letter queue is at its end on both ways: the ledger does not say
        them apart.
        """
        found: set[str] = set()
        for vendor, node in VENDORS.items():
            here = place_of_node(node)
            ends: tuple[tuple[Fate, str], ...] = (
                ("delivered", place_of_vendor(vendor)),
                ("dead", here),
                ("filtered", here),
                ("dead", place_of_node(GLOBAL_RETRIER)),
            )
            sent = self.at.get(("routed", place_of_link(EVENT_ROUTER, node)), set())
            found |= sent.difference(*(self.at.get(end, set()) for end in ends))
        return found


class StreamTruth(Truth[StreamWindow]):
    """The stream's ledger summed up."""

    def __init__(self) -> None:
        super().__init__(StreamWindow)
