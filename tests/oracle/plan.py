"""What a random world is made of: one small value that hypothesis can shrink.

Every part of a world draws from a random stream of its own (`Plan.rng`), so that taking away one phenomenon or the last
message leaves all the rest as it was: a failure shrinks to the phenomena that it needs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

MINUTE_MS = 60_000
START_S = 1_780_000_020  # the window to judge, a multiple of 60
START_MS = START_S * 1000
END_MS = START_MS + MINUTE_MS

TRAFFIC = (
    "lost_at_link",
    "lost_at_node",
    "filtered",
    "dead",
    "duplicates",
    "holes",
    "replays",
    "huge_lags",
    "crooked_clocks",
    "on_target",
    "unexplained",
    "moved_event_time",
    "restamped",
    "checksums",
    "corrupted",
    "out_of_order",
    "other_windows",
    "no_traffic",
)
LOG = (
    "repeated_blocks",
    "blocks_missing",
    "aged_out",
    "widened",
    "private_ids",
    "no_event_times",
    "sampled",
    "quarantined",
    "ignored_blocks",
    "early_blocks",
    "supplied",
)
EMITTERS = (
    "several_emitters",
    "silent",
    "closed",
    "midway",
    "history",
    "not_final",
    "unreported",
    "dropped",
    "inflated_tallies",
    "stale_tallies",
    "unchanged_tallies",
    "empty_tallies",
    "ahead_tallies",
    "repeated_reports",
    "out_of_order_reports",
    "ignored_reports",
    "clocks_off",
    "scaled",
    "comeback",
    "settled_late",
    "resumes",
    "unfinished",
    "observes",
    "lost_reports",
    "set_back",
)
PROGRESS = (
    "no_progress",
    "stalled_lane",
    "stuck_work",
    "forgotten_lane",
    "lane_handed_over",
    "lane_edge",
    "max_wait_edge",
)
PHENOMENA = (
    *TRAFFIC,
    *LOG,
    *EMITTERS,
    *PROGRESS,
    "changed_definition",
    "left_behind",
    "retapped",
    "judged_late",
    "own_targets",
)

# What has an effect only together.
BUNDLES: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset({"no_traffic", "silent", "several_emitters"}),
    frozenset({"no_traffic", "closed", "midway"}),
    frozenset({"lost_at_link", "lost_at_node", "no_progress", "other_windows", "empty_tallies"}),
    frozenset({"lost_at_link", "lost_at_node", "no_progress", "ahead_tallies", "judged_late"}),
    frozenset({"lost_at_link", "lost_at_node", "silent", "repeated_reports"}),
    frozenset({"lost_at_link", "lost_at_node", "silent", "unchanged_tallies", "judged_late"}),
    frozenset({"lost_at_link", "lost_at_node", "lane_handed_over", "several_emitters"}),
    frozenset({"lost_at_link", "lost_at_node", "stalled_lane", "out_of_order_reports"}),
    frozenset({"lost_at_link", "stuck_work", "closed", "judged_late"}),
    frozenset({"restamped", "no_event_times", "lane_edge"}),
    frozenset({"holes", "lost_at_link", "lost_at_node", "duplicates", "replays"}),
    frozenset({"holes", "stalled_lane", "stuck_work", "crooked_clocks"}),
    frozenset({"sampled", "lost_at_link", "unreported"}),
    frozenset({"history", "blocks_missing", "lost_at_node"}),
    frozenset({"changed_definition", "lost_at_link", "lost_at_node"}),
    frozenset({"left_behind", "lost_at_link", "lost_at_node"}),
    frozenset({"left_behind", "lost_at_link", "lost_at_node", "judged_late"}),
    frozenset({"retapped", "lost_at_link", "lost_at_node", "huge_lags"}),
    frozenset({"retapped", "lost_at_link", "lost_at_node", "no_progress", "other_windows", "judged_late"}),
    frozenset({"clocks_off", "lost_at_link", "lost_at_node", "several_emitters"}),
    frozenset({"clocks_off", "lost_at_link", "stalled_lane", "lane_edge"}),
    frozenset({"scaled", "lost_at_link", "lost_at_node", "lane_handed_over"}),
    frozenset({"comeback", "lost_at_link", "lost_at_node", "several_emitters"}),
    frozenset({"silent", "lost_at_link", "lost_at_node", "several_emitters", "judged_late"}),
    frozenset({"silent", "resumes", "lost_at_node", "several_emitters", "stuck_work"}),
    frozenset({"silent", "no_progress", "lost_at_link", "lost_at_node", "several_emitters", "judged_late"}),
    frozenset({"silent", "observes", "lost_at_link", "several_emitters", "judged_late"}),
    frozenset({"closed", "unfinished", "lost_at_node", "several_emitters", "stuck_work"}),
    frozenset({"closed", "unfinished", "resumes", "lost_at_node", "several_emitters", "stuck_work", "judged_late"}),
    frozenset({"closed", "settled_late", "lost_at_link", "lost_at_node", "judged_late"}),
    frozenset({"supplied", "lost_at_link", "lost_at_node", "stalled_lane"}),
    frozenset({"supplied", "silent", "lost_at_node", "several_emitters", "stuck_work"}),
    frozenset({"set_back", "lost_at_link", "lost_at_node", "stalled_lane"}),
    frozenset({"lost_reports", "no_traffic", "judged_late"}),
    frozenset({"lost_reports", "lost_at_link", "lost_at_node", "several_emitters", "judged_late"}),
    frozenset({"own_targets", "lost_at_link", "lost_at_node", "dead", "filtered", "huge_lags"}),
)

# Alone, none of these changes the judgement of a world in which nothing else happens.
HARMLESS = (
    "other_windows",
    "repeated_blocks",
    "widened",
    "private_ids",
    "ignored_blocks",
    "several_emitters",
    "unchanged_tallies",
    "empty_tallies",
    "ahead_tallies",
    "repeated_reports",
    "ignored_reports",
)


@dataclass(frozen=True)
class Plan:
    topology: str
    messages: int
    partitions: int
    phenomena: frozenset[str]
    seed: int

    def rng(self, *names: object) -> random.Random:
        """The random stream of that name."""
        return random.Random("/".join(str(name) for name in (self.seed, *names)))

    def has(self, phenomenon: str) -> bool:
        if phenomenon not in PHENOMENA:
            raise KeyError(phenomenon)
        return phenomenon in self.phenomena


def chance(rng: random.Random, share: float) -> bool:
    return rng.random() < share
