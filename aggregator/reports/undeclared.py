"""Strangers: names in reports that no definition has, kept up to a limit, so that a broken emitter cannot fill tables.

They are kept at all because reports may come before `lagloss apply`, and the first version of a definition holds for
earlier windows, too. Lanes and replays stand in no definition, so theirs are strangers always. Pure; `following` stores
them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from aggregator.reports.packed_reports import PackedTally
from lagloss.wire.format import Progress
from lagloss_server.model.graph import node_of

Kind = Literal["pipeline", "checkpoint", "replay", "lane"]


@dataclass(frozen=True, slots=True)
class NameLimit:
    """How many names of a kind are kept."""

    an_emitter: int
    in_all: int


LIMITS: dict[Kind, NameLimit] = {
    "pipeline": NameLimit(100, 10_000),
    "checkpoint": NameLimit(200, 10_000),  # a definition has 200 at most
    "replay": NameLimit(200, 10_000),
    "lane": NameLimit(2_000, 200_000),  # a consumer has one for each partition it reads
}


EMITTERS_A_PIPELINE = 50_000
"""Emitters of one pipeline that reported within about an hour; a row is kept of each for a week."""


class Name(NamedTuple):
    """Reported name; `checkpoint` and `name` (of a replay or lane) are empty where they do not apply."""

    kind: Kind
    pipeline: str
    checkpoint: str = ""
    name: str = ""


@dataclass
class UndeclaredNames:
    """The names kept so far; each counts against the emitter that named it first."""

    kept: dict[Name, bytes] = field(default_factory=dict)
    fresh: dict[Name, tuple[bytes, int]] = field(default_factory=dict)
    """Those that are not stored yet: the emitter, and when its report was appended (epoch ms)."""
    emitters: dict[str, set[bytes]] = field(default_factory=dict)
    """Of each pipeline, those that reported lately."""
    _by_emitter: Counter[tuple[Kind, bytes]] = field(init=False)
    _in_all: Counter[Kind] = field(init=False)

    def __post_init__(self) -> None:
        self._by_emitter = Counter((name.kind, emitter) for name, emitter in self.kept.items())
        self._in_all = Counter(name.kind for name in self.kept)

    def admit(self, name: Name, emitter: bytes, appended_ms: int) -> bool:
        """Return whether this name is kept: it was before, or there is room for it."""
        if name in self.kept:
            return True
        limit, mine = LIMITS[name.kind], (name.kind, emitter)
        if self._by_emitter[mine] >= limit.an_emitter or self._in_all[name.kind] >= limit.in_all:
            return False
        self.kept[name] = emitter
        self.fresh[name] = (emitter, appended_ms)
        self._by_emitter[mine] += 1
        self._in_all[name.kind] += 1
        return True

    def admit_emitter(self, pipeline: str, emitter: bytes) -> bool:
        """Return whether reports of this emitter are followed: it is known, or its pipeline has room for one more."""
        emitters = self.emitters.setdefault(pipeline, set())
        if len(emitters) >= EMITTERS_A_PIPELINE and emitter not in emitters:
            return False
        emitters.add(emitter)
        return True


def strange_names(pipeline: str, part: PackedTally | Progress, checkpoints: frozenset[str]) -> list[Name]:
    """Return the names in a part of a report that its pipeline's definitions (`checkpoints`: their checkpoints) do not
    have."""
    names = [Name("checkpoint", pipeline, part.checkpoint)] if is_strange(part.checkpoint, checkpoints) else []
    if isinstance(part, Progress):
        if part.lane:
            names.append(Name("lane", pipeline, part.checkpoint, part.lane))
    elif part.replay:
        names.append(Name("replay", pipeline, "", part.replay))
    return names


def is_strange(checkpoint: str, checkpoints: frozenset[str]) -> bool:
    """Return whether no definition has the name. A node with several next nodes still reports its work in hand as
    N.out."""
    if checkpoint in checkpoints:
        return False
    node, _, side = checkpoint.partition(".")
    return side != "out" or all(node_of(name) != node for name in checkpoints)
