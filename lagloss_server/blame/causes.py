"""Blame: what messages that were lost, late, dead or corrupted have in common that the others have not.

Each trait is compared by itself: the share of the bad that have it (support) with the share of the others (base). One
is a cause only if it is far from what chance would do, whatever number of traits was tried, and if the shares are far
apart; else nothing stands out, and that is the answer. docs/blame.md has the thresholds and how they were tried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss_server.blame.traits import F64, Bools, Codes, EmitterFacts, Of, Population, Trait, TraitKind

LEAST_BAD: Final = 5
"""Bad messages below which nothing is said of what they have in common."""
CHANCE: Final = 0.001
"""How probable it may be that chance alone makes any of all the traits tried look like the one that is named."""
LEAST_SUPPORT: Final = 0.5
LEAST_GAP: Final = 0.25
LEAST_LIFT: Final = 1.5
"""Of support and base: a cause explains at least half, and the others have it much more seldom."""
NEARLY_ALL: Final = 0.9
"""Support from which on single messages are counted; below it, bursts are: what one process lost within a second may be
one event, and chance can put a few events into one place."""
SAME: Final = 0.97
"""Share of messages, bad and others each, on which two traits must agree to be one and the same."""
WEIGHTS: Final[Mapping[TraitKind, float]] = {"time": 0.7, "second": 0.7, "prefix": 0.9, "age": 0.9}
"""Of the information a trait carries: a process that lost messages for five seconds is named, not the five seconds."""
ORDER: Final[tuple[TraitKind, ...]] = (
    *("process", "input", "host", "label", "age", "destination", "second", "time", "prefix"),
)
"""Which of two equal ones is named."""
WHO: Final[frozenset[TraitKind]] = frozenset({"process", "input", "host", "label"})
WHEN: Final[frozenset[TraitKind]] = frozenset({"age", "time", "second"})
ALMOST: Final = 0.9
"""Of the support of a time: who has so much of it is named, and the time with it."""
Z: Final = 2.576
"""Two-sided 99 % quantile of the normal distribution, for the base, which is known from a sample."""
MAX_FINDINGS: Final = 3
LEAST_REST: Final = 0.1
"""Share of the bad that the findings so far must leave unexplained for another to be looked for."""


@dataclass(frozen=True)
class Finding:
    """A trait that the bad have much more often.

    `value` of `kind`, at `node`; `name` of a label. `support`, `base`: shares of the bad and of the others; `count` bad
    messages have it, seen there from `first_ms` to `last_ms` (epoch ms), and most of them nowhere later where
    `is_last_seen`. `destination`: only messages that are due there are meant, and the shares are those of messages that
    are both. `emitter`: what is known of a process. `same`: traits that the same messages have. `within`: what sets
    those apart from others that have it, too.
    """

    kind: TraitKind
    node: str | None
    name: str
    value: str
    support: float
    base: float
    count: int
    first_ms: float | None = None
    last_ms: float | None = None
    is_last_seen: bool = False
    destination: str | None = None
    emitter: EmitterFacts | None = None
    same: tuple[Finding, ...] = ()
    within: tuple[Finding, ...] = ()

    @property
    def lift(self) -> float | None:
        """How many times as often the bad have it; None if no other has."""
        return self.support / self.base if self.base else None


@dataclass(frozen=True)
class Blame:
    """What some bad messages have in common. `bad`: messages that were looked at; `others` with which they were
    compared; `places`: where they are missing, were held, died or were corrupted, with their shares, most first."""

    of: Of
    bad: int
    others: int
    places: tuple[tuple[str, float], ...]
    findings: tuple[Finding, ...]

    @property
    def is_enough(self) -> bool:
        return self.bad >= LEAST_BAD


def blame(population: Population) -> Blame:
    """Find out what the bad messages of a population have in common."""
    bad = int(population.bad.sum())
    others = int((~population.bad).sum())
    places = Counter(
        place for places, is_bad in zip(population.places, population.bad, strict=True) if is_bad for place in places
    )
    ranked = tuple(
        (place, count / bad) for place, count in sorted(places.items(), key=lambda item: (-item[1], item[0]))
    )
    findings: list[Finding] = []
    if bad >= LEAST_BAD and others:
        is_unexplained = np.ones(population.bad.size, bool)
        while len(findings) < MAX_FINDINGS:
            search = _Search(population, is_unexplained)
            best = search.best()
            if best is None:
                break
            findings.append(search.finding(best))
            is_unexplained &= ~best.has
            if (population.bad & is_unexplained).sum() < LEAST_REST * bad:
                break
    return Blame(population.of, bad, others, ranked, tuple(findings))


@dataclass(frozen=True)
class _Candidate:
    """A value of a trait, or a stretch of them, and which messages have it."""

    trait: Trait
    value: str
    has: Bools
    support: float
    base: float
    score: float
    destination: str | None = None


def _rank(candidate: _Candidate) -> tuple[float, int]:
    return candidate.score, -ORDER.index(candidate.trait.kind)


class _Search:
    """Looks for the trait that tells the bad best from the others, among some of the messages."""

    def __init__(self, population: Population, among: Bools) -> None:
        self._population = population
        self._among = among
        self._bad = population.bad & among
        self._others = ~population.bad & among
        self._weights = population.weights

    @property
    def _is_possible(self) -> bool:
        return int(self._bad.sum()) >= LEAST_BAD and bool(self._others.any())

    def best(self) -> _Candidate | None:
        """Return the best of the traits that chance did not make; None if there is none. Who comes before when, and who
        or when at a destination before the destination."""
        best = max(self._candidates, key=_rank, default=None)
        if best is not None and best.trait.kind in WHEN:
            who = [candidate for candidate in self._candidates if candidate.trait.kind in WHO]
            best = max((member for member in who if member.support >= ALMOST * best.support), key=_rank, default=best)
        if best is not None and best.trait.kind == "destination":
            inner = _Search(self._population, self._among & best.has).best()
            if inner is not None and inner.support >= ALMOST:
                has = inner.has & best.has
                support, base = self._share(self._bad & has, self._bad), self._share(self._others & has, self._others)
                return replace(inner, has=has, support=support, base=base, destination=best.value)
        return best

    def _share(self, some: Bools, is_bad: Bools) -> float:
        return float(self._weights[some].sum() / self._weights[is_bad].sum())

    @cached_property
    def _candidates(self) -> tuple[_Candidate, ...]:
        if not self._is_possible:
            return ()
        looks = [_Look.at(trait, self) for trait in self._population.traits]
        tried = max(1, sum(look.tried for look in looks))
        return tuple(candidate for look in looks for candidate in look.candidates(CHANCE / tried))

    def finding(self, best: _Candidate) -> Finding:
        """Describe the best candidate: with what goes along with it, and what sets its messages apart."""
        same = [candidate for candidate in self._candidates if candidate is not best and self._is_same(candidate, best)]
        kinds: dict[TraitKind, _Candidate] = {}
        for member in sorted(same, key=lambda candidate: (ORDER.index(candidate.trait.kind), -candidate.score)):
            if member.trait.node == best.trait.node:
                kinds.setdefault(member.trait.kind, member)
        inner = _Search(self._population, self._among & best.has)
        within = inner.best()
        if best.trait.kind == "age" and (young := self._process_of(best)) is not None:
            kinds["process"] = young
        return self._described(
            best,
            same=tuple(self._described(candidate) for kind, candidate in kinds.items() if kind in WHO),
            within=() if within is None else (inner._described(within),),
        )

    def _process_of(self, best: _Candidate) -> _Candidate | None:
        """Return the process that met nearly all of the bad messages which have this, if one did."""
        traits = self._population.traits
        (process,) = (trait for trait in traits if trait.kind == "process" and trait.node == best.trait.node)
        mine = self._bad & best.has
        counts = np.bincount(process.codes[mine & (process.codes >= 0)], minlength=1)
        index = int(np.argmax(counts))
        if counts[index] < NEARLY_ALL * mine.sum():
            return None
        has = best.has & (process.codes == index)
        support, base = self._share(self._bad & has, self._bad), self._share(self._others & has, self._others)
        return _Candidate(process, process.values[index], has, support, base, best.score)

    def _is_same(self, candidate: _Candidate, other: _Candidate) -> bool:
        agree = candidate.has == other.has
        return all(
            float(self._weights[rows & agree].sum()) >= SAME * float(self._weights[rows].sum())
            for rows in (self._bad, self._others)
        )

    def _described(
        self, candidate: _Candidate, same: tuple[Finding, ...] = (), within: tuple[Finding, ...] = ()
    ) -> Finding:
        population, node = self._population, candidate.trait.node
        mine = self._bad & candidate.has
        seen_ms = population.seen_ms[node][mine] if node is not None and node in population.seen_ms else np.empty(0)
        seen_ms = seen_ms[~np.isnan(seen_ms)]
        last = population.last[mine] == population.nodes.index(node) if node in population.nodes else np.zeros(1, bool)
        return Finding(
            kind=candidate.trait.kind,
            node=node,
            name=candidate.trait.name,
            value=candidate.value,
            support=candidate.support,
            base=candidate.base,
            count=int(mine.sum()),
            first_ms=float(seen_ms.min()) if seen_ms.size else None,
            last_ms=float(seen_ms.max()) if seen_ms.size else None,
            is_last_seen=bool(last.mean() >= NEARLY_ALL),
            destination=candidate.destination,
            emitter=population.facts.get(bytes.fromhex(candidate.value)) if candidate.trait.kind == "process" else None,
            same=same,
            within=within,
        )


@dataclass(frozen=True)
class _Look:
    """One trait among some messages: by value, how many of the bad and what weight of the others have it."""

    trait: Trait
    search: _Search
    codes: Codes
    bad: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64] | F64
    bad_known: int
    others_known: F64
    """Weights of the others of which it is known."""

    @classmethod
    def at(cls, trait: Trait, search: _Search) -> _Look:
        codes, size = trait.codes, len(trait.values)
        is_known = codes != -1
        bad, others = search._bad & is_known, search._others & is_known
        return cls(
            trait,
            search,
            codes,
            np.bincount(codes[bad & (codes >= 0)], minlength=size),
            np.bincount(codes[others & (codes >= 0)], search._weights[others & (codes >= 0)], minlength=size),
            int(bad.sum()),
            search._weights[others],
        )

    @property
    def is_stretch(self) -> bool:
        return self.trait.kind in ("time", "second")

    @property
    def tried(self) -> int:
        """Number of values that are tried."""
        some = int((self.bad > 0).sum())
        return some * (some + 1) // 2 if self.is_stretch else some

    def candidates(self, chance: float) -> Iterator[_Candidate]:
        """Yield values that chance makes stand out so far with at most this probability."""
        if not self.others_known.size or self.bad_known < LEAST_SUPPORT * self.search._bad.sum():
            return
        spans = (
            self._stretches()
            if self.is_stretch
            else ((index, index + 1) for index in np.flatnonzero(self.bad).tolist())
        )
        for start, end in spans:
            candidate = self._candidate(start, end, chance)
            if candidate is not None:
                yield candidate

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Yield the stretch of seconds that tells most."""
        bad, others = (np.concatenate([[0.0], np.cumsum(counts)]) for counts in (self.bad, self.others))
        starts, ends = np.triu_indices(bad.size, 1)
        support = (bad[ends] - bad[starts]) / max(1, self.bad_known)
        base = (others[ends] - others[starts]) / self.others_known.sum()
        worth = np.where(
            (support >= LEAST_SUPPORT) & (support > base), _information(support, self._floored(base)), -1.0
        )
        if worth.size and worth.max() > 0:
            best = int(np.argmax(worth))
            yield int(starts[best]), int(ends[best])

    def _floored(self, base: Any) -> Any:
        """Return the bases, those of nothing as ones that were not seen in so many."""
        return np.maximum(base, 0.5 / (self._effective + 1))

    @cached_property
    def _effective(self) -> float:
        """How many equally weighted messages the others are worth (Kish)."""
        return float(self.others_known.sum() ** 2 / (self.others_known**2).sum())

    def _candidate(self, start: int, end: int, chance: float) -> _Candidate | None:
        search, count = self.search, int(self.bad[start:end].sum())
        weight = float(self.others[start:end].sum())
        all_bad, all_others = int(search._bad.sum()), float(search._weights[search._others].sum())
        support_here, base_here = count / self.bad_known, weight / float(self.others_known.sum())
        support, base = count / all_bad, weight / all_others
        if support < LEAST_SUPPORT or support_here - base_here < LEAST_GAP or support_here < LEAST_LIFT * base_here:
            return None
        highest = _upper(base_here, self._effective)
        if _tail(count, self.bad_known, highest) > chance:
            return None
        has = (self.codes >= start) & (self.codes < end)
        if support_here < NEARLY_ALL:
            bursts, mine = self._bursts(has)
            if _tail(mine, bursts, highest) > chance:
                return None
        score = WEIGHTS.get(self.trait.kind, 1.0) * float(_information(support, self._floored(base)))
        return _Candidate(self.trait, self._named(start, end), has, support, base, score)

    def _bursts(self, has: Bools) -> tuple[int, int]:
        """Count bursts of bad messages: last seen by one process within one second; and those of which most have it."""
        population = self.search._population
        rows = np.flatnonzero(self.search._bad & (self.codes != -1))
        counts: Counter[tuple[int, int]] = Counter()
        mine: Counter[tuple[int, int]] = Counter()
        for row in rows.tolist():
            node = population.nodes[population.last[row]]
            seen_ms = population.seen_ms[node][row]
            burst = int(population.emitter[node][row]), int(seen_ms // 1000) if seen_ms == seen_ms else -1
            counts[burst] += 1
            mine[burst] += bool(has[row])
        return len(counts), sum(2 * mine[burst] > counts[burst] for burst in counts)

    def _named(self, start: int, end: int) -> str:
        values = self.trait.values
        if not self.is_stretch:
            return values[start]
        step = int(self.trait.name or 1)
        return f"{values[start]}-{int(values[end - 1]) + step - 1}"


def _information(support: Any, base: Any) -> Any:
    """Return how much (bits a message) having the trait tells the bad from the others: relative entropy."""
    low, high = 1e-9, 1 - 1e-9
    support, base = np.clip(support, low, high), np.clip(base, low, high)
    return support * np.log2(support / base) + (1 - support) * np.log2((1 - support) / (1 - base))


def _upper(share: float, n: float) -> float:
    """Return the upper end of a share's Wilson interval, of n messages."""
    z2 = Z * Z
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    spread = Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return min(1.0, centre + spread)


def _tail(count: int, n: int, share: float) -> float:
    """Return the probability that at least so many of n have what each has with this probability."""
    if count <= 0 or share >= 1:
        return 1.0
    if share <= 0:
        return 0.0
    logs = [
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(share)
        + (n - k) * math.log1p(-share)
        for k in range(count, n + 1)
    ]
    most = max(logs)
    return min(1.0, math.exp(most) * sum(math.exp(value - most) for value in logs))
