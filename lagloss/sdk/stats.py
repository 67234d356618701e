"""Counts of an emitter's beacons and errors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EmitterStats:
    """Counts of an emitter since its start, of beacons or of errors, and its last error."""

    buffered: int
    """Waiting in memory."""
    spooled_bytes: int
    """Size of the spool's files, which hold flushes that wait for the broker. Its unit is bytes, not beacons."""
    sent: int
    """Acknowledged by the broker."""
    sampled_out: int
    """Left out because the pipeline is sampled."""
    dropped: int
    """Not sent, of a known window; counted in tallies, too. Updated by the flushing thread."""
    refused: int
    """At the first node, with an event time out of bounds; and any after `close`."""
    unplaced: int
    """Without a usable event time or checkpoint, so that no tally can name them."""
    errors: int
    """Errors that the emitter survived."""
    last_error: str | None
