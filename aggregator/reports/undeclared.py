"""Strangers: names in reports that no definition has, kept up to a limit, so that a broken emitter cannot fill tables.

They are kept at all because reports may come before `lagloss apply`, and the first version of a definition holds for
earlier windows, too. Lanes and replays stand in no definition, so theirs are strangers always. Pure; `following` stores
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from aggregator.reports.packed_reports import PackedTally
from lagloss.wire.format import Progress
from lagloss_server.model.graph import node_of

Kind = Literal["pipeline", "checkpoint", "replay", "lane"]


@dataclass(frozen=True, slots=True)
class NameLimit:
    """How many names of a kind are kept; beyond `in_all` a pipeline has room still up to its share of it."""

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
EMITTERS_IN_ALL = 200_000
"""Those of all pipelines; beyond, a pipeline has room still up to its share of it."""


@dataclass
class FairRoom:
    """Room for `in_all` things, taken by whoever comes first; once it is full, for those that have less than an equal
    share of it. So none can take all of it from the others, and at most twice as many are kept."""

    in_all: int
    taken: int = 0
    by_payer: Counter[str] = field(default_factory=Counter)

    def has_room(self, payer: str, payers: int) -> bool:
        """Return whether there is room for one more of this payer. `payers`: how many there can be."""
        return self.taken < self.in_all or self.by_payer[payer] < self.in_all // payers

    def take(self, payer: str, count: int = 1) -> None:
        self.taken += count
        self.by_payer[payer] += count


class Name(NamedTuple):
    """Reported name; `checkpoint` and `name` (of a replay or lane) are empty where they do not apply."""

    kind: Kind
    pipeline: str
    checkpoint: str = ""
    name: str = ""


@dataclass
class UndeclaredNames:
    """The names kept so far; each counts against the emitter that named it first, and against its pipeline. All
    pipelines that are in no definition count as one."""

    kept: dict[Name, bytes] = field(default_factory=dict)
    fresh: dict[Name, tuple[bytes, int]] = field(default_factory=dict)
    """Those that are not stored yet: the emitter, and when its report was appended (epoch ms)."""
    emitters: InitVar[Mapping[str, int]] = MappingProxyType({})
    """How many of each pipeline reported lately."""
    declared: AbstractSet[str] = frozenset()
    """The pipelines that have a definition."""
    _by_emitter: Counter[tuple[Kind, bytes]] = field(init=False)
    _rooms: dict[Kind, FairRoom] = field(init=False)
    _emitters: FairRoom = field(init=False)

    def __post_init__(self, emitters: Mapping[str, int]) -> None:
        self._by_emitter = Counter((name.kind, emitter) for name, emitter in self.kept.items())
        self._rooms = {kind: FairRoom(limit.in_all) for kind, limit in LIMITS.items()}
        self._emitters = FairRoom(EMITTERS_IN_ALL)
        for name in self.kept:
            self._rooms[name.kind].take(self._payer(name.pipeline))
        for pipeline, count in emitters.items():
            self._emitters.take(self._payer(pipeline), count)

    def admit(self, name: Name, emitter: bytes, appended_ms: int) -> bool:
        """Return whether this name is kept: it was before, or there is room for it."""
        if name in self.kept:
            return True
        room, payer, mine = self._rooms[name.kind], self._payer(name.pipeline), (name.kind, emitter)
        if self._by_emitter[mine] >= LIMITS[name.kind].an_emitter or not room.has_room(payer, self._payers):
            return False
        self.kept[name] = emitter
        self.fresh[name] = (emitter, appended_ms)
        self._by_emitter[mine] += 1
        room.take(payer)
        return True

    def admit_emitter(self, pipeline: str) -> bool:
        """Return whether reports of one more emitter of this pipeline are followed."""
        payer = self._payer(pipeline)
        if self._emitters.by_payer[payer] >= EMITTERS_A_PIPELINE or not self._emitters.has_room(payer, self._payers):
            return False
        self._emitters.take(payer)
        return True

    @property
    def _payers(self) -> int:
        return len(self.declared) + 1

    def _payer(self, pipeline: str) -> str:
        return pipeline if pipeline in self.declared else ""


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
