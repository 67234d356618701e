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
from collections.abc import Collection, Iterable, Mapping, Sequence
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
"""Of messages that nothing is wrong with: about so many of a window in all, but of each pattern at least so many."""
GOOD_PATTERNS: Final = 40
"""So many patterns have that least: the first by their bits, an order that parts of a window have in common."""
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
_SIGHTINGS: Final[Mapping[str, type[np.generic]]] = {"emitter": np.int32, "seen": np.int32}
_CODES: Final[Mapping[str, str]] = {"emitter": "emitters", "link": "links", "reason": "reasons"}
"""Columns of numbers of texts, and where those are."""


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
    Of a part of a window, before it is `settled`, whether late and dead ones are wrong is open: `good` are those that
    are neither missing nor corrupted, `good_late` the late ones of them.
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
    good_late: Mapping[int, int] = field(default_factory=dict)
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
        """Return the messages of all parts of a window, whose ids are disjoint."""
        parts = [part for part in parts if part.totals or part.good]
        if not parts:
            return cls()
        texts = {name: tuple({text for part in parts for text in getattr(part, name)}) for name in _CODES.values()}
        rows = [part._renumbered(texts) for part in parts]
        totals, good, good_late = Counter[str](), Counter[int](), Counter[int]()
        for part in parts:
            totals.update(part.totals)
            good.update(part.good)
            good_late.update(part.good_late)
        return cls(
            **texts,
            checkpoints=parts[0].checkpoints,  # of the graph, as the hops: of all parts the same
            hops=parts[0].hops,
            names=tuple(name for part in parts for name in part.names),
            masks=tuple(mask for part in parts for mask in part.masks),
            numbers={name: np.concatenate([picked[name] for picked in rows]) for name in rows[0]},
            totals=totals,
            good=good,
            good_late=good_late,
            sample=min(part.sample for part in parts),
        )

    def settled(self, *, many_late: bool, dead: Collection[int]) -> PickedMessages:
        """Return what is kept of a whole window: the same whatever its parts were, and in whatever order they came.

        As many of each kind are kept as there is room for, the late ones only if there are `many_late` and the dead
        ones if they are of the patterns `dead`: else they count among those that nothing is wrong with, of which some
        are kept if there is anything to compare them with.
        """
        what = self["what"].copy()
        is_late = (self["lag_ms"] > 0) & many_late
        is_dead = np.array([mask in dead for mask in self.masks], bool)
        what[~is_late] &= ~np.uint8(LATE | LATEST)
        what[~is_dead] &= ~np.uint8(DEAD)
        totals = {**self.totals, "late": self.totals.get("late", 0) * many_late}
        if not dead:
            totals["dead"] = 0
        good = {mask: count - self.good_late.get(mask, 0) * many_late for mask, count in self.good.items()}
        good = {mask: count for mask, count in good.items() if count and mask not in dead}
        mixed = spread(self["ids"])
        order = np.argsort(mixed, kind="stable")
        for kind, room in ROOM.items():
            mine = order[(what[order] & kind) > 0]
            if kind == LATEST:
                mine = mine[np.argsort(-self["lag_ms"][mine], kind="stable")]
            what[mine[room:]] &= ~np.uint8(kind)
        limits = good_limits(good) if any(totals.values()) else {}
        within = mixed < np.array([limits.get(mask, 0) for mask in self.masks], np.uint64)
        what[~within | is_late | is_dead] &= ~np.uint8(GOOD)
        rows = np.flatnonzero(what)
        if not rows.size:
            return PickedMessages()
        rows = rows[np.argsort(self["ids"][rows], kind="stable")]
        numbers = {**{name: values[rows] for name, values in self.numbers.items()}, "what": what[rows]}
        for name, none in (("lag_ms", 0), ("hop", -1), ("hop_ms", -1)):
            numbers[name][~is_late[rows]] = none
        picked = replace(
            self,
            names=tuple(self.names[row] for row in rows.tolist()),
            masks=tuple(self.masks[row] for row in rows.tolist()),
            numbers=numbers,
            totals=totals,
            good=good,
            good_late={},
        )
        texts: dict[str, Any] = {
            name: tuple(sorted(getattr(self, name)[code] for code in np.unique(numbers[column]).tolist() if code >= 0))
            for column, name in _CODES.items()
        }
        return replace(picked, **texts, numbers=picked._renumbered(texts))

    def _renumbered(self, texts: Mapping[str, Sequence[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the numbers with codes for these texts, which hold all that rows refer to."""
        numbers = dict(self.numbers)
        for column, name in _CODES.items():
            places = {text: number for number, text in enumerate(texts[name])}
            codes = np.array([*(places.get(text, -1) for text in getattr(self, name)), -1], numbers[column].dtype)
            numbers[column] = codes[numbers[column]]
        return numbers

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


def good_limits(counts: Mapping[int, int], share: float = 1.0) -> dict[int, int]:
    """Return for each pattern below which `spread` those that nothing is wrong with are kept, of so many messages: some
    `GOOD_ROOM` of a window, and of each pattern at least some `GOOD_LEAST`, so that a seldom taken branch has something
    to compare with, too.

    A part with a `share` of the window's messages keeps all that the whole will: its limits are higher. Ids are hashes,
    so parts hold about their shares; the margins are more than six standard deviations.
    """
    total = sum(counts.values())
    room = GOOD_ROOM * min(1.0, 1.25 * share + 0.1)
    least = GOOD_LEAST * min(1.0, 1.25 * share + 0.6)
    lifted = set(sorted(mask for mask, count in counts.items() if count)[:GOOD_PATTERNS])
    shares = {
        mask: max(room / total, least / count if mask in lifted else 0.0) for mask, count in counts.items() if count
    }
    return {mask: min(int(share * 2**64), 2**64 - 1) for mask, share in shares.items()}


def blank(rows: int, width: int) -> dict[str, npt.NDArray[Any]]:
    """Return the numbers of rows about which nothing is known yet."""
    return {
        **{name: np.full(rows, 0 if name in ("ids", "what") else -1, kind) for name, kind in _NUMBERS.items()},
        "emitter": np.full((rows, width), -1, np.int32),
        "seen": np.full((rows, width), NOWHERE, np.int32),
    }
