"""Evidence of incidents: where the breach is, examples of its messages, and what these have in common.

It is read once per turn, for all incidents of a pipeline that change, before the transaction that writes them: its lock
is held for milliseconds, and messages have all of it from the first.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any, Final

import structlog
from msgspec import structs

from alerting.incidents.findings import Findings
from alerting.rules import Rule
from alerting.rules.assessment import SHOWN_WINDOWS, BreachPlace
from alerting.rules.lost_afterwards import LostAfterwards
from lagloss_server.base import format as fmt
from lagloss_server.base.times import moment
from lagloss_server.base.trace_links import NO_LINKS, TraceLinks
from lagloss_server.blame.traits import Of
from lagloss_server.blame.window_blame import read_blame
from lagloss_server.incidents.lost_afterwards_store import read_outstanding_messages
from lagloss_server.judging.facts import MAX_NAMES
from lagloss_server.judging.picked import PickedMessages
from lagloss_server.model.place import node_label
from lagloss_server.model.window import ListedWindow, Window
from lagloss_server.queries.named_messages import NamedMessage, PickedKind, of_kind, read_picked
from lagloss_server.store.store import MissingMessage, Store
from lagloss_server.sums.rollup import PartSums

MAX_EXAMPLES: Final = 20
MAX_PLACES: Final = 10
MISSING_OF: Final = {"loss": ("lost", "perhaps"), "uncertain-loss": ("perhaps", "overdue")}
"""Kinds of missing messages that incidents name, by the kind of rule."""
PICKED_OF: Final[Mapping[str, PickedKind]] = {
    "lag": "late",
    "on-time": "late",
    "dead-letters": "dead",
    "corruption": "corrupted",
}
"""Kinds of picked messages that incidents name, by the kind of rule."""
BLAMED: Final[Mapping[str, Of]] = {
    "loss": "loss",
    "lag": "lag",
    "on-time": "lag",
    "dead-letters": "dead",
    "corruption": "corruption",
}
"""What the bad messages of an incident of this kind have suffered, where single messages are known to have."""
_NAMED_WINDOWS: Final = 5
"""The newest of so many breached windows that has picked messages names the examples."""

Document = dict[str, Any]

_log = structlog.get_logger("lagloss.alerting")


def read_evidence(store: Store, findings: Findings, links: TraceLinks = NO_LINKS) -> dict[str, Document]:
    """Return the evidence of the incidents that the findings open or change, as they stand in the snapshot, by rule:
    from the newest breached windows of each."""
    starts_by_rule = {name: sorted(breaches)[-SHOWN_WINDOWS:] for name, breaches in findings.new_breaches().items()}
    reader = _EvidenceReader(store, findings.pipeline.name, starts_by_rule)
    return {
        name: reader.read(findings.rules[name], findings.assessments[name].places).document(links)
        for name in starts_by_rule
    }


class _EvidenceReader:
    """Reader of one pipeline's evidence. What several rules need is read once."""

    def __init__(self, store: Store, pipeline: str, starts_by_rule: Mapping[str, Sequence[int]]) -> None:
        self._store = store
        self._pipeline = pipeline
        self._starts = starts_by_rule
        self._blame = cache(self._read_blame)
        self._picked = cache(self._read_picked)

    @cached_property
    def _windows(self) -> dict[int, ListedWindow]:
        starts = {start for starts in self._starts.values() for start in starts}
        return {window.start_s: window for window in self._store.closed_windows(self._pipeline, sorted(starts))}

    def read(self, rule: Rule, places: Sequence[BreachPlace]) -> IncidentEvidence:
        """Read the evidence of a rule's incident: `places`, if the rule has found them, else those that the windows
        show; and the newest losses."""
        starts = self._starts[rule.name]
        windows = [self._windows[start] for start in starts if start in self._windows]
        newest = windows[-1] if windows else None
        return IncidentEvidence(
            where=places or rule.where(windows),
            destinations=affected_destinations(windows),
            examples=self._missing(rule, starts[-1]) or self._picked_of(rule, starts) or self._lost_afterwards(rule),
            messages=newest.messages if newest else None,
            lost=structs.asdict(newest.lost) if newest and newest.lost else None,
            blame=self._blame(rule.kind, tuple(starts)),
        )

    def _missing(self, rule: Rule, start_s: int) -> list[MissingMessage]:
        """Return messages of a window that are missing where a rule about loss looks, as its kind of incident says."""
        kinds = MISSING_OF.get(rule.kind)
        if kinds is None:
            return []
        within: frozenset[str] | None = getattr(rule, "within", None)
        at_most = MAX_EXAMPLES if within is None else MAX_NAMES
        messages = self._store.missing(self._pipeline, start_s, at_most, kinds=kinds)
        return [message for message in messages if within is None or within.intersection(message.places)][:MAX_EXAMPLES]

    def _picked_of(self, rule: Rule, starts: Sequence[int]) -> list[NamedMessage]:
        """Return late (worst first), dead or corrupted messages of the newest window that has some where the rule
        looks. Like blame, no page waits for them."""
        kind = PICKED_OF.get(rule.kind)
        if kind is None:
            return []
        place, late_ms = getattr(rule, "place", None), getattr(rule, "within_ms", rule.target)
        try:
            graph = self._store.graph_at(self._pipeline, starts[-1])
            for start in sorted(starts, reverse=True)[:_NAMED_WINDOWS]:
                messages = of_kind(start, self._picked(start), kind, graph=graph, place=place, above_ms=late_ms)
                if messages:
                    return messages[:MAX_EXAMPLES]
        except Exception:
            _log.exception("examples_failed", pipeline=self._pipeline)
        return []

    def _lost_afterwards(self, rule: Rule) -> list[MissingMessage]:
        """Return messages whose rows a table has no more, of a rule about these; those that were missed last first."""
        if not isinstance(rule, LostAfterwards):
            return []
        with self._store.engine.connect() as connection:
            lost = read_outstanding_messages(connection, self._pipeline, time.time(), rule.nodes, MAX_EXAMPLES)
        return [
            MissingMessage(
                message.window_start_s,
                message.id_hash,
                message.message_id,
                rule.kind,
                [node_label(message.node)],
                message.checkpoint,
                message.seen_ms,
            )
            for message in lost
        ]

    def _read_picked(self, start_s: int) -> PickedMessages:
        with self._store.engine.connect() as connection:
            return read_picked(connection, self._pipeline, start_s)

    def _read_blame(self, kind: str, starts: Sequence[int]) -> Document | None:
        """Return what the bad messages of these windows have in common; None where it is not known. No page waits for
        a cause that cannot be found out."""
        suffered = BLAMED.get(kind)
        if suffered is None:
            return None
        try:
            causes = read_blame(self._store, self._pipeline, starts, [suffered])
        except Exception:
            _log.exception("blame_failed", pipeline=self._pipeline)
            return None
        return dict(causes[0].document()) if causes else None


@dataclass(frozen=True, slots=True)
class IncidentEvidence:
    """Evidence stored with an incident for its messages, from its newest breached windows. `examples`: lost messages,
    or those that are late, dead or corrupted; `destinations`: see `affected_destinations`; `blame`: what the bad
    messages have in common."""

    where: Sequence[BreachPlace] = ()
    destinations: Sequence[Document] = ()
    examples: Sequence[MissingMessage | NamedMessage] = ()
    messages: int | None = None
    lost: Document | None = None
    blame: Document | None = None

    def document(self, links: TraceLinks = NO_LINKS) -> Document:
        return {
            "where": [_place(place) for place in self.where[:MAX_PLACES]],
            "destinations": list(self.destinations[:MAX_PLACES]),
            "examples": [_example(message, links) for message in self.examples[:MAX_EXAMPLES]],
            "messages": self.messages,
            "lost": self.lost,
            "blame": self.blame,
        }


def affected_destinations(windows: Sequence[Window]) -> list[Document]:
    """Return what became of the messages due at each destination over some windows, those with the most lost, late or
    dead first: `due`, `lost`, `dead`, and the `on_time` of `on_time_of`."""
    parts_by_name: defaultdict[str, list[PartSums]] = defaultdict(list)
    for destination in chain.from_iterable(window.destinations for window in windows):
        parts_by_name[destination.name].append(PartSums.of(destination))
    totals = {name: PartSums.merged(parts) for name, parts in parts_by_name.items()}
    worst = sorted(totals.items(), key=lambda item: (item[1].on_time - item[1].on_time_of - item[1].dead, item[0]))
    return [
        {
            "name": name,
            "due": sums.messages,
            **{count: getattr(sums, count) for count in ("dead", "on_time", "on_time_of")},
            "lost": {"min": sums.lost_min, "max": sums.lost_max},
        }
        for name, sums in worst
    ]


def _place(place: BreachPlace) -> Document:
    document = asdict(place)
    if place.lost is None:
        del document["lost"]
    return document


def _example(message: MissingMessage | NamedMessage, links: TraceLinks) -> Document:
    return {
        "message_id": message.message_id,
        "id_hash": f"{message.id_hash % 2**64:016x}",
        "kind": message.kind,
        "places": list(message.places),
        "last_checkpoint": message.last_checkpoint,
        "last_seen": moment(fmt.datetime_of(message.last_seen_ms / 1_000)),
        **(_more(message) if isinstance(message, NamedMessage) else {}),
        **links.document(message.trace, message.window_start_s),
    }


def _more(message: NamedMessage) -> Document:
    """Return how late a message was and what held it, and why a dead one died; of others nothing."""
    if message.kind == "late":
        return {"lag_ms": message.lag_ms, "hop": message.hop, "hop_ms": message.hop_ms}
    return {"reason": message.reason} if message.kind == "dead" else {}
