"""What an emitter did and what it swallowed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EmitterStats:
    """What an emitter did and what it swallowed, since it began. All but the last are counts of beacons, or of
    errors."""

    buffered: int
    """Waiting in memory."""
    spooled_bytes: int
    """Size of the spool's files, which hold what waits for the broker. Its unit is bytes, not beacons."""
    sent: int
    """Acknowledged by the broker."""
    sampled_out: int
    """Left out since the pipeline is sampled."""
    dropped: int
    """Of a known window, and could not be sent; the tallies say so, too. Counted when the flushing thread comes by."""
    refused: int
    """At the first node, with an event time out of bounds; and any after `close`."""
    unplaced: int
    """Without a usable event time or checkpoint, so that no tally can name them."""
    errors: int
    """Errors that the emitter went on after."""
    last_error: str | None
