"""Picked messages: what is known, one by one, of a window's messages that something is wrong with, and of a sample of
the others.

Presence patterns say how many messages are missing where. Who lost them (`blame`) takes more: which process saw each,
and which processes saw those that came through. That is kept for a bounded number of messages, drawn by their hashes:
of each kind a sample in which every message of the kind had the same chance, whatever its partition.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss.wire.format import SAMPLE_ALL, U64

MISSING: Final = 1
LATE: Final = 2
DEAD: Final = 4
CORRUPTED: Final = 8
GOOD: Final = 16
LATEST: Final = 32
"""Bits of `what`: the samples that a message is in; LATEST: it is kept as one of the latest, whichever it is."""
ROOM: Final[Mapping[int, int]] = {MISSING: 1_000, LATE: 500, DEAD: 500, CORRUPTED: 500, LATEST: 100}
"""Messages of each kind that are kept of a window."""
GOOD_ROOM: Final = 1_000
GOOD_LEAST: Final = 50
"""Of messages that nothing is wrong with: so many of a window in all, but of each pattern at least so many."""
GOOD_PATTERNS: Final = 40
KINDS: Final[Mapping[str, int]] = {"missing": MISSING, "late": LATE, "dead": DEAD, "corrupted": CORRUPTED}
NAME_CHARS: Final = 24
"""Characters that are kept of the name of a message that nothing is wrong with."""
NOWHERE: Final = np.iinfo(np.int32).min
"""Of `seen`: not there."""
SEEN_MS: Final = 100
"""`seen` counts tenths of a second: what that costs in bytes is a third of what milliseconds would."""
SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_NUMBERS: Final[Mapping[str, type[np.generic]]] = {
    "ids": np.uint64,
    "what": np.uint8,
    "event_ms": np.int32,
    "lag_ms": np.float32,
    "hop": np.int16,
    "hop_ms": np.float32,
    "link": np.int16,
    "reason": np.int16,
}
_SIGHTINGS: Final[Mapping[str, type[np.generic]]] = {"emitter": np.int16, "seen": np.int32}


def spread(ids: U64) -> U64:
    """Return a number for each id by which samples are drawn: any id may have any, and the same one always."""
    mixed: U64 = ids * SPREAD
    return mixed ^ (mixed >> np.uint64(32))


@dataclass(frozen=True, eq=False)
class PickedMessages:
    """Some messages of a window, a row each.

    Texts that rows refer to by number (-1: none): `checkpoints` are the columns of `emitter` and `seen`; `hops`
    are the places that may have held a late message, `links` those of corrupted ones, `reasons` those of dead ones.

    `names`, `masks`: of each row its name, None where it is not known, and its presence pattern.
    `numbers`: `ids`; `what` (bits above); `event_ms` (event time - window start, -1 where it is not known); and of a
    late message its `lag_ms`, and how long the hop that held it longest did; by sighting `emitter`, and `seen`
    (observed - window start, in units of `SEEN_MS`; `NOWHERE`).
    `totals`: messages of each kind in the window, `good` those that nothing is wrong with by pattern; of this `sample`.
    """

    checkpoints: tuple[str, ...] = ()
    emitters: tuple[bytes, ...] = ()
    hops: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    names: tuple[str | None, ...] = ()
    masks: tuple[int, ...] = ()
    numbers: Mapping[str, npt.NDArray[Any]] = field(default_factory=lambda: blank(0, 0))
    totals: Mapping[str, int] = field(default_factory=dict)
    good: Mapping[int, int] = field(default_factory=dict)
    sample: int = SAMPLE_ALL

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.numbers[name]

    def rows(self, what: int) -> npt.NDArray[np.intp]:
        """Return the rows that are in any of these samples."""
        return np.flatnonzero(self["what"] & what)

    def last_emitters(self) -> list[bytes | None]:
        """Return for each row the emitter that saw it at the last checkpoint that it reached, in the order of the
        flow."""
        if not len(self):
            return []
        width = len(self.checkpoints)
        last = width - 1 - np.argmax(self["emitter"][:, ::-1] >= 0, axis=1)
        codes = self["emitter"][np.arange(len(self)), last].tolist()
        return [self.emitters[code] if code >= 0 else None for code in codes]

    @classmethod
    def merged(cls, parts: Iterable[PickedMessages]) -> PickedMessages:
        """Return the messages of all parts, whose ids are disjoint, as many as there is room for: the same in whatever
        order the parts come, and the records in them."""
        parts = [part for part in parts if part.totals or part.good]
        if not parts:
            return cls()
        texts = {
            **{
                name: getattr(parts[0], name) for name in ("checkpoints", "hops")
            },  # of the graph: of all parts the same
            **{
                name: tuple(sorted({text for part in parts for text in getattr(part, name)}))
                for name in ("emitters", "links", "reasons")
            },
        }
        totals: Counter[str] = Counter()
        good: Counter[int] = Counter()
        for part in parts:
            totals.update(part.totals)
            good.update(part.good)
        rows = [part._renumbered(texts) for part in parts]
        return cls(
            **texts,
            names=tuple(name for part in parts for name in part.names),
            masks=tuple(mask for part in parts for mask in part.masks),
            numbers={name: np.concatenate([each[name] for each in rows]) for name in rows[0]},
            totals=totals,
            good=good,
            sample=min(part.sample for part in parts),
        ).pruned()

    def _renumbered(self, texts: Mapping[str, Sequence[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the numbers with texts as all parts count them."""
        found = dict(self.numbers)
        for column in ("emitter", "link", "reason"):
            name = f"{column}s"
            places = {text: number for number, text in enumerate(texts[name])}
            codes = np.array([*(places[text] for text in getattr(self, name)), -1], np.int16)
            found[column] = codes[found[column]]
        return found

    def pruned(self) -> PickedMessages:
        """Return as many of each kind as there is room for, and of those that nothing is wrong with only if there is
        anything to compare them with."""
        what, order = self["what"].copy(), np.argsort(spread(self["ids"]), kind="stable")
        for kind, room in ROOM.items():
            mine = order[(what[order] & kind) > 0]
            if kind == LATEST:
                mine = mine[np.argsort(-self["lag_ms"][mine], kind="stable")]
            what[mine[room:]] &= ~np.uint8(kind)
        left = good_rooms(self.good) if any(self.totals.values()) else {}
        for row in order[(what[order] & GOOD) > 0].tolist():
            mask = self.masks[row]
            left[mask] = left.get(mask, 0) - 1
            if left[mask] < 0:
                what[row] &= ~np.uint8(GOOD)
        kept = np.flatnonzero(what)
        kept = kept[np.argsort(self["ids"][kept], kind="stable")]
        return replace(
            self,
            names=tuple(self.names[row] for row in kept.tolist()),
            masks=tuple(self.masks[row] for row in kept.tolist()),
            numbers={**{name: values[kept] for name, values in self.numbers.items()}, "what": what[kept]},
        )

    def pack(self) -> bytes:
        """Return the messages as compressed bytes: a line of JSON, then the numbers; empty for none."""
        if not len(self):
            return b""
        is_good = (self["what"] == GOOD).tolist()
        head = {
            "checkpoints": self.checkpoints,
            "emitters": [emitter.hex() for emitter in self.emitters],
            "hops": self.hops,
            "links": self.links,
            "reasons": self.reasons,
            "names": [
                name[:NAME_CHARS] if good and name else name for name, good in zip(self.names, is_good, strict=True)
            ],
            "masks": [f"{mask:x}" for mask in self.masks],
            "sample": self.sample,
            "totals": dict(sorted(self.totals.items())),
            "good": {f"{mask:x}": count for mask, count in sorted(self.good.items())},
        }
        columns = [
            np.asfortranarray(self[name]).astype(np.dtype(kind).newbyteorder("<"), copy=False)
            for name, kind in {**_NUMBERS, **_SIGHTINGS}.items()
        ]
        text = json.dumps(head, separators=(",", ":")).encode()
        return zlib.compress(text + b"\n" + b"".join(column.tobytes(order="F") for column in columns), 6)

    @classmethod
    def unpack(cls, packed: bytes) -> PickedMessages:
        if not packed:
            return cls()
        text, _, raw = zlib.decompress(packed).partition(b"\n")
        head = json.loads(text)
        rows, width = len(head["masks"]), len(head["checkpoints"])
        numbers, start = {}, 0
        for name, kind in {**_NUMBERS, **_SIGHTINGS}.items():
            count = rows * (width if name in _SIGHTINGS else 1)
            column = np.frombuffer(raw, np.dtype(kind).newbyteorder("<"), count, start)
            start += column.nbytes
            numbers[name] = column.reshape((rows, width), order="F") if name in _SIGHTINGS else column
        return cls(
            checkpoints=tuple(head["checkpoints"]),
            emitters=tuple(bytes.fromhex(emitter) for emitter in head["emitters"]),
            hops=tuple(head["hops"]),
            links=tuple(head["links"]),
            reasons=tuple(head["reasons"]),
            names=tuple(head["names"]),
            masks=tuple(int(mask, 16) for mask in head["masks"]),
            numbers=numbers,
            totals=head["totals"],
            good={int(mask, 16): count for mask, count in head["good"].items()},
            sample=head["sample"],
        )


def good_rooms(counts: Mapping[int, int], room: int = GOOD_ROOM) -> dict[int, int]:
    """Return how many messages of each pattern are kept of those that nothing is wrong with: by its share, and at least
    `GOOD_LEAST`, so that a seldom taken branch has something to compare with, too."""
    total = sum(counts.values())
    return {
        mask: max(GOOD_LEAST, room * counts[mask] // total) if place < GOOD_PATTERNS else 0
        for place, mask in enumerate(sorted(counts, key=lambda mask: (-counts[mask], mask)))
    }


def blank(rows: int, width: int) -> dict[str, npt.NDArray[Any]]:
    """Return the numbers of rows about which nothing is known yet."""
    return {
        **{name: np.full(rows, 0 if name in ("ids", "what") else -1, kind) for name, kind in _NUMBERS.items()},
        "emitter": np.full((rows, width), -1, np.int16),
        "seen": np.full((rows, width), NOWHERE, np.int32),
    }
