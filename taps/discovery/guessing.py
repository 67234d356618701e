"""Guesses of one topic's ids and event times by a sample, and which topics share ids. Pure.

Of a sample no more is kept than 64 bits of each likely id and 64 of each likely time, so that thousands of topics can
be compared.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from lagloss_server.extraction import Extraction, Extractor
from lagloss_server.extraction.columns import ByteColumn
from lagloss_server.extraction.formats import Schemas, wire_schema_ids
from lagloss_server.extraction.guesses import Guesses, guess
from lagloss_server.model.expressions import POSITION, IdExpression, TimeExpression
from taps.sample import Sample

CANDIDATES: Final = 4
"""Guesses of ids that are compared between topics."""
TIMES: Final = 8
"""Guesses of event times that are compared."""
GUESSED_BY: Final = 2_000
"""Newest records of a sample by which fields are judged; all of its ids are compared."""
LEAST_DISTINCT: Final = 0.5
"""Share of different ids in a sample: an update or a repeated message has the id of an earlier one."""
SAME_TIME_MS: Final = 1.0
SAME_TIMES: Final = 0.95
"""Share of the ids in two samples that have the same event time in both, where a tap can read it in both."""
LEAST_SHARED: Final = 0.3
"""Share of the ids of the topic with fewer that another has to have, to be a hop of the same flow."""
_COMPRESSED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\x82SNAPPY", b"sNaPpY", b"BZh")
"""How values begin that gzip, zstd, LZ4, snappy or bzip2 has made."""

Problem = Literal["compressed values", "unknown schema", "unknown format", "no id found"]
"""Why no part of a topic's records is an id."""


@dataclass(frozen=True, slots=True)
class IdTimes:
    """Ids of a sample, as ascending hashes, and the time (epoch ms) of the first record of each; of shape (ids,)."""

    hashes: npt.NDArray[np.uint64]
    times: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return self.hashes.size

    def common(self, other: IdTimes) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the times here and there of the ids that both have."""
        _, own, others = np.intersect1d(self.hashes, other.hashes, assume_unique=True, return_indices=True)
        return self.times[own], other.times[others]

    def agrees(self, other: IdTimes) -> bool:
        """Return whether nearly all ids that both have are of the same time."""
        own_ms, other_ms = self.common(other)
        same = np.count_nonzero(np.abs(own_ms - other_ms) < SAME_TIME_MS)
        return own_ms.size > 0 and bool(same >= SAME_TIMES * own_ms.size)


_NOTHING: Final = IdTimes(np.empty(0, np.uint64), np.empty(0, np.float64))


@dataclass(frozen=True, slots=True)
class TopicGuess:
    """What ids and event times of a topic could be, and those of its sample.

    Attributes:
        ids: by expression, the rows that have an id, and hashes of these.
        event_ms: by expression, the event time of each row, NaN where it has none.
    """

    topic: str
    guesses: Guesses
    problem: Problem | None = None
    ids: Mapping[str, tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]] = field(default_factory=dict)
    event_ms: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: Sample, registry: Schemas | None = None) -> TopicGuess:
        """Guess ids and event times of a topic.

        Raises:
            RegistryUnreachable: a schema is wanted that the registry cannot be asked for.
        """
        guesses = guess(sample.newest(GUESSED_BY).records, registry=registry)
        problem = _problem(sample, registry)
        candidates = _candidates(guesses)
        if problem != "no id found" and "$" in candidates:
            candidates.remove("$")  # bytes of any kind would be ids, as hex
        return cls(
            sample.topic,
            guesses,
            None if candidates else problem,
            {expression: _ids(sample, expression, registry) for expression in candidates},
            {expression: _times(sample, expression, registry) for expression in _times_of(guesses)},
        )

    @property
    def candidates(self) -> list[str]:
        """Return the likeliest expressions of an id, which is another one in most records."""
        return list(self.ids)

    def distinct(self, id_expression: str) -> float:
        """Return the share of records with an id of their own; 1 of an expression that is no guess."""
        return next((guess.distinct for guess in self.guesses.ids if guess.expression == id_expression), 1.0)

    def times(self, id_expression: str, time_expression: str = "timestamp") -> IdTimes:
        """Return the ids of an expression with the time of their first record: by an expression, or the record's own;
        none of expressions that are no guesses."""
        if id_expression not in self.ids or time_expression not in self.event_ms:
            return _NOTHING
        rows, hashes = self.ids[id_expression]
        times = self.event_ms[time_expression][rows]
        is_known = ~np.isnan(times)
        unique, first = np.unique(hashes[is_known], return_index=True)
        return IdTimes(unique, times[is_known][first])


def _candidates(guesses: Guesses) -> list[str]:
    return [guess.expression for guess in guesses.ids if guess.distinct >= LEAST_DISTINCT][:CANDIDATES]


def _times_of(guesses: Guesses) -> list[str]:
    """Return the likeliest expressions of an event time, the record's timestamp always."""
    likeliest = [guess.expression for guess in guesses.times][:TIMES]
    return list(dict.fromkeys([*likeliest, "timestamp"]))


def _ids(
    sample: Sample, expression: str, registry: Schemas | None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]:
    extraction = Extraction(IdExpression.parse(expression), TimeExpression.parse("timestamp"))
    extracted = Extractor(extraction, registry).extract(sample.records)
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, extracted.ids), np.uint64, len(extracted.ids))
    return extracted.rows, hashes


def _times(sample: Sample, expression: str, registry: Schemas | None) -> npt.NDArray[np.float64]:
    any_id = IdExpression.parse(POSITION)  # which every record has
    extraction = Extraction(any_id, TimeExpression.parse(expression), origins=(sample.topic,))
    extracted = Extractor(extraction, registry).extract(sample.records)
    times = np.full(len(sample), np.nan)
    times[extracted.rows] = extracted.event_ms
    return times


def _problem(sample: Sample, registry: Schemas | None) -> Problem:
    """Return why no part of a sample's records is an id."""
    values = ByteColumn.of(sample.newest(GUESSED_BY).records.values)
    rows = [value for value in values.rows() if value]
    most = len(rows) / 2
    if rows and sum(value.startswith(_COMPRESSED) for value in rows) > most:
        return "compressed values"
    schemas = wire_schema_ids(values)
    if schemas and (registry is None or all(registry.schema(schema) is None for schema in schemas)):
        return "unknown schema"
    return "unknown format" if rows and sum(not _is_text(value) for value in rows) > most else "no id found"


def _is_text(value: bytes) -> bool:
    try:
        return value.decode().isprintable() or value.lstrip()[:1] in (b"{", b"[")
    except UnicodeDecodeError:
        return value[:1] == b"\0"  # Confluent's wire format


@dataclass(frozen=True, slots=True)
class TopicHop:
    """Topic `after` has ids of topic `before`. `shared`: of the ids in the sample with fewer, the share that the other
    has; `later_ms`: by how much they come later, in the median."""

    before: str
    after: str
    before_id: str
    after_id: str
    shared: float
    later_ms: float


def find_hops(topics: Sequence[TopicGuess]) -> list[TopicHop]:
    """Return the pairs of topics that share ids, upstream first, without those that another topic lies between."""
    pairs = (_compare(topics[first], topics[other]) for first, other in _sharing(topics))
    hops = [hop for hop in pairs if hop is not None]
    behind: defaultdict[str, set[str]] = defaultdict(set)
    for hop in hops:
        behind[hop.before].add(hop.after)
    return [hop for hop in hops if not any(hop.after in behind[between] for between in behind[hop.before])]


def _sharing(topics: Sequence[TopicGuess]) -> list[tuple[int, int]]:
    """Return the pairs of topics that have any id in common: of thousands, few do."""
    owned = [
        (np.unique(np.concatenate([hashes for _, hashes in topic.ids.values()])), index)
        for index, topic in enumerate(topics)
        if topic.ids
    ]
    if not owned:
        return []
    hashes = np.concatenate([ids for ids, _ in owned])
    owners = np.concatenate([np.full(ids.size, index, np.int64) for ids, index in owned])
    order = np.argsort(hashes, kind="stable")  # stable: owners of an id ascend
    hashes, owners = hashes[order], owners[order]
    bounds = np.flatnonzero(np.diff(hashes, prepend=hashes[:1] ^ np.uint64(1), append=hashes[-1:] ^ np.uint64(1)) != 0)
    pairs: set[tuple[int, int]] = set()
    for start, size in zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), strict=True):
        if size > 1:
            pairs.update(itertools.combinations(owners[start : start + size].tolist(), 2))
    return sorted(pairs)


def _compare(guess: TopicGuess, other: TopicGuess) -> TopicHop | None:
    best: TopicHop | None = None
    best_score = 0.0
    for first, second in itertools.product(guess.candidates, other.candidates):
        own, others = guess.times(first), other.times(second)
        before_ms, after_ms = own.common(others)
        shared = before_ms.size / max(1, min(len(own), len(others)))
        # ids of customers are in both topics without fail, where some of their orders are lost: but they come again
        score = shared * guess.distinct(first) * other.distinct(second)
        if shared < LEAST_SHARED or score <= best_score:
            continue
        best_score = score
        later_ms = float(np.median(after_ms - before_ms))
        if later_ms >= 0:
            best = TopicHop(guess.topic, other.topic, first, second, shared, later_ms)
        else:
            best = TopicHop(other.topic, guess.topic, second, first, shared, -later_ms)
    return best
