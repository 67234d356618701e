"""What a history has to come to: pure functions of the ledger, of looks at the store, and of what faults excuse.

`false_losses` holds at any look; everything else once all is healed and had its time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.histories.ledger import Ledger
from tests.histories.receiver import Page
from tests.histories.traffic import HTTP, JSON, NODES, WINDOW_S

SILENT_S: Final = 60.0
"""Time after its last report from which on a process counts as dead (rule 7)."""
DISTURBED_S: Final = 120.0
"""A death may disturb windows whose tallies changed in the minute before: of that minute, and of the one before."""
IN_DOUBT_S: Final = 15.0
"""What a node did in so many seconds before its death may be in no report and no commit."""
CRASH: Final = "crash:"
EVIDENCE: Final = "evidence:"
SURE, UNSURE = "lost", "perhaps"


@dataclass(frozen=True)
class WindowSeen:
    """A closed window as the store has it at a look."""

    verdict: str
    messages: int
    lost_min: int
    lost_max: int
    pending: int
    reasons: tuple[str, ...] = ()


@dataclass
class Seen:
    """What looks at one pipeline showed. `windows` and `missing` are of the last look, `missing` by id; `said_lost`
    when an id was first said to be lost for certain (epoch s)."""

    windows: dict[int, WindowSeen] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    said_lost: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class IncidentSeen:
    """An incident as the store has it. While it is withheld, receivers are told no more of it."""

    is_resolved: bool
    is_withheld: bool = False


@dataclass(frozen=True)
class Excuses:
    """What the faults of a history excuse. `deaths`: when processes of a node were killed (epoch s).

    `forgotten`: the database lost its last commits between these times (epoch s): actions of users then may be gone.
    `away`: evidence of what was sent between these times is away for good, and windows of then may be unknown.
    """

    deaths: Mapping[str, Sequence[float]] = field(default_factory=dict)
    forgotten: Sequence[tuple[float, float]] = ()
    away: Sequence[tuple[float, float]] = ()

    def crash_reaches(self, node: str, start_s: int) -> bool:
        """Return whether a death of the node can leave its evidence in a window incomplete for good."""
        return any(
            start_s - SILENT_S <= death + 1 and death - DISTURBED_S <= start_s + WINDOW_S
            for death in self.deaths.get(node, ())
        )

    def is_in_doubt(self, sent_s: float, nodes: Iterable[str]) -> bool:
        """Return whether a message sent then may have been with a node that died."""
        return any(
            sent_s <= death + 1 and death - sent_s <= IN_DOUBT_S
            for node in nodes
            for death in self.deaths.get(node, ())
        )

    def is_forgotten(self, at_s: float) -> bool:
        return any(begin <= at_s <= end for begin, end in self.forgotten)

    def is_away(self, start_s: int) -> bool:
        return any(begin - DISTURBED_S <= start_s + WINDOW_S and start_s <= end for begin, end in self.away)


NO_EXCUSES: Final = Excuses()


def nodes_of(pipeline: str) -> tuple[str, ...]:
    """Return the nodes of a pipeline that a death can reach. Both nodes of `http` are in one process."""
    own = tuple(role.node for role in NODES if role.pipeline == pipeline)
    return (*own, "mail") if pipeline == HTTP else own


def false_losses(ledger: Ledger, seen: Seen) -> Iterator[str]:
    """Yield messages that were said to be lost at any look, and reached their end, before or after."""
    for name, at_s in seen.said_lost.items():
        if name in ledger.ended:
            yield f"false loss: {name} was lost at {at_s:.1f}, and ended at {ledger.ended[name]:.1f}"
        elif name not in ledger.sent:
            yield f"false loss: {name} was lost at {at_s:.1f}, and was never sent"


def wrong_windows(
    pipeline: str, ledger: Ledger, seen: Seen, starts: Iterable[int], excuses: Excuses = NO_EXCUSES
) -> Iterator[str]:
    """Yield what is wrong, after the end of a history, in the windows with these starts."""
    for start_s in starts:
        window = seen.windows.get(start_s)
        if window is None:
            yield f"{pipeline} {start_s}: not closed"
        elif excuses.is_away(start_s):
            yield from (f"{pipeline} {start_s}: {problem}" for problem in _hidden_losses(ledger, start_s, window))
        elif pipeline == JSON:
            yield from (
                f"{pipeline} {start_s}: {problem}" for problem in _wrong_count(ledger, start_s, window, excuses)
            )
        else:
            problems = (
                *_wrong_count(ledger, start_s, window, excuses, nodes_of(pipeline)),
                *_wrong_losses(pipeline, ledger, seen, start_s, window, excuses),
                *_wrong_reasons(pipeline, start_s, window, excuses),
            )
            yield from (f"{pipeline} {start_s}: {problem}" for problem in problems)


def _wrong_count(
    ledger: Ledger, start_s: int, window: WindowSeen, excuses: Excuses, nodes: Collection[str] = ()
) -> Iterator[str]:
    names = ledger.of_window(start_s)
    sure = sum(name in ledger.acked and not excuses.is_in_doubt(ledger.sent_s[name], nodes) for name in names)
    if not sure <= window.messages <= len(names):
        yield f"{window.messages} messages of {sure} to {len(names)}"


def _wrong_losses(
    pipeline: str, ledger: Ledger, seen: Seen, start_s: int, window: WindowSeen, excuses: Excuses
) -> Iterator[str]:
    nodes = nodes_of(pipeline)
    names = ledger.of_window(start_s)
    doubtful = {name for name in names if excuses.is_in_doubt(ledger.sent_s[name], nodes)}
    doubtful |= {name for name in names if name not in ledger.acked}
    lost = ledger.lost() & set(names)
    crashed = [node for node in nodes if f"{CRASH}{node}" in window.reasons and excuses.crash_reaches(node, start_s)]
    for name in sorted(lost - doubtful):
        kind = seen.missing.get(name)
        if kind != SURE and not (crashed and kind == UNSURE):
            yield f"{name} is lost, and said to be {kind}"
    for name in sorted(name for name in names if name in seen.missing and name not in lost | doubtful):
        if not (crashed and seen.missing[name] == UNSURE):
            yield f"{name} reached its end, and is said to be {seen.missing[name]}"
    sure = len(lost - doubtful) if not crashed else 0
    if not sure <= window.lost_min <= len(lost | doubtful):
        yield f"lost.min {window.lost_min} of {sure} to {len(lost | doubtful)}"
    if window.lost_max < len(lost - doubtful):
        yield f"lost.max {window.lost_max} of {len(lost - doubtful)}"
    if not crashed and window.lost_max > len(lost | doubtful):
        yield f"lost.max {window.lost_max} of {len(lost | doubtful)}"
    named = sum(seen.missing.get(name) == SURE for name in names)
    if named != window.lost_min:
        yield f"lost.min {window.lost_min}, of which {named} are named"
    if window.pending:
        yield f"{window.pending} pending"
    expected = "loss" if lost - doubtful else "ok" if not doubtful else ""
    if expected and not crashed and window.verdict != expected and (names or window.verdict != "idle"):
        yield f"{window.verdict} in place of {expected}; {window.reasons}"
    if lost - doubtful and window.verdict in ("ok", "idle"):
        yield f"{window.verdict}, with {len(lost - doubtful)} lost"


def _hidden_losses(ledger: Ledger, start_s: int, window: WindowSeen) -> Iterator[str]:
    lost = ledger.lost() & set(ledger.of_window(start_s))
    if lost and window.verdict in ("ok", "idle"):
        yield f"{window.verdict}, with {len(lost)} lost"


def _wrong_reasons(pipeline: str, start_s: int, window: WindowSeen, excuses: Excuses) -> Iterator[str]:
    """Yield reasons for doubt where no evidence was really away for good."""
    for reason in window.reasons:
        node = reason.partition(":")[2]
        if not (reason.startswith((CRASH, EVIDENCE)) and excuses.crash_reaches(node, start_s)):
            yield f"{window.verdict} for {reason}"


def wrong_pages(
    incidents: Mapping[str, IncidentSeen],
    pages: Sequence[Page],
    excuses: Excuses,
    *,
    may_repeat: bool,
    repeated: Collection[str] = (),
) -> Iterator[str]:
    """Yield what is wrong with pages. `incidents`: by id, read after `pages`: each page is of one that is there.

    `may_repeat`: an alerter or its way to receiver or database was disturbed: a message can come again, with its own
    id, since delivery is at least once. `repeated`: ids of messages that did so in an earlier history.
    """
    of_incident: defaultdict[str, list[Page]] = defaultdict(list)
    messages: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for page in pages:
        of_incident[page.incident].append(page)
        messages[page.id].add((page.incident, page.kind))
    yield from (f"id {its} came with {len(them)} messages" for its, them in messages.items() if len(them) > 1)
    for incident, seen in incidents.items():
        kinds = Counter(kind for _, kind in {(page.id, page.kind) for page in of_incident[incident]})
        if kinds["opened"] > 1 or (kinds["opened"] == 0 and not seen.is_withheld):
            yield f"incident {incident} was paged {kinds['opened']} times"
        if seen.is_resolved and not seen.is_withheld and kinds["resolved"] == 0:
            yield f"incident {incident} is resolved, and nobody was told"
    for page, times in Counter((page.incident, page.kind, page.id) for page in pages).items():
        if times > 1 and not may_repeat and page[2] not in repeated:
            yield f"{page[1]} of incident {page[0]} came {times} times"
    for incident, received in of_incident.items():
        if incident not in incidents and not excuses.is_forgotten(received[0].at_s):
            yield f"incident {incident} was paged, and is gone"


def forgotten_actions(acknowledged: Mapping[str, float], stored: Collection[str], excuses: Excuses) -> Iterator[str]:
    """Yield actions of users that were acknowledged (epoch s) and are not stored."""
    for action, at_s in acknowledged.items():
        if action not in stored and not excuses.is_forgotten(at_s):
            yield f"{action} was acknowledged at {at_s:.1f}, and is gone"
