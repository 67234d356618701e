"""Fates of messages: each one's is in its id, so that every process that meets it treats it alike, however often."""

from __future__ import annotations

from random import Random
from typing import Final

PASS: Final = "pass"
FILTERED: Final = "filtered"
LOST_ON_SRC_MID: Final = "lost-on-src-mid"
LOST_AT_MID: Final = "lost-at-mid"
LOST_ON_MID_SNK: Final = "lost-on-mid-snk"
LOST_AT_SNK: Final = "lost-at-snk"

UNSURE_AFTER_A_CRASH_OF_MID: Final = (LOST_ON_SRC_MID, LOST_AT_MID)
"""Losses that the evidence of mid tells of (rule 6)."""
_WEIGHTS: Final = {PASS: 84, FILTERED: 4, LOST_ON_SRC_MID: 3, LOST_AT_MID: 3, LOST_ON_MID_SNK: 3, LOST_AT_SNK: 3}

PRODUCER: Final = {"topic.metadata.propagation.max.ms": 300_000}
"""A busy broker may not know a new topic for longer than the client waits by default, 30 s: what was produced until
then would be lost indeed, and named as lost at its node, against its fate."""


def draw_id(random: Random, number: int) -> str:
    """Return the id of a message with a fate drawn at random."""
    return f"{number}.{random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]}"


def fate_of(message_id: str) -> str:
    """Return the fate of the message with this id."""
    return message_id.partition(".")[2]


def is_lost(message_id: str) -> bool:
    """Return whether the message with this id is to be lost."""
    return fate_of(message_id) not in (PASS, FILTERED)
