"""Small worlds written by hand: one emitter a node, its blocks and its report, and room to spoil each."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.blocks import id_hash
from tests.oracle.evidence import ALL_IDS, Record, World, cut
from tests.oracle.plan import END_MS, START_MS, START_S
from tests.oracle.wire import avro, column, signed64

Ids = Iterable[str]
DUE_MS = END_MS + 60_000


def document(*nodes: dict[str, Any], **spec: Any) -> dict[str, Any]:
    metadata = {"name": "clicks", "description": "by hand"}
    return {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": metadata, "spec": {"nodes": nodes, **spec}}


def uuid(node: str) -> bytes:
    return random.Random(node).randbytes(16)


@dataclass
class ByHand:
    """`trail` says which ids are at which checkpoint; every beacon of a checkpoint has the lag in `lags`, else 1 ms."""

    definition: dict[str, Any]
    trail: Mapping[str, Ids]
    lags: Mapping[str, float] = field(default_factory=dict)
    now_ms: int = DUE_MS
    until_ms: dict[str, int | None] = field(default_factory=dict)  # by checkpoint; None where nobody reports it
    tally_more: dict[str, int] = field(
        default_factory=dict
    )  # by checkpoint: beacons the tally claims beyond the blocks
    report: dict[str, dict[str, Any]] = field(default_factory=dict)  # by node: fields of its report
    appended_ms: dict[str, int] = field(default_factory=dict)  # by node: when its report is appended
    block: dict[str, dict[str, Any]] = field(default_factory=dict)  # by checkpoint: fields of its blocks
    extra_tallies: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # by node: checkpoint and window
    later_definitions: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    sample: int = ALL_IDS

    @property
    def nodes(self) -> list[str]:
        entries = cut(self.definition["spec"]["nodes"])
        return list(dict.fromkeys([e["name"] for e in entries] + [e["retries"] for e in entries if "retries" in e]))

    def world(self) -> World:
        beacons = [self.block_record(i, checkpoint) for i, checkpoint in enumerate(self.trail)]
        reports = [self.report_record(i, node) for i, node in enumerate(self.nodes)]
        definitions = ((0, self.definition), *self.later_definitions)
        return World(definitions, tuple(beacons), tuple(r for r in reports if r is not None), self.now_ms)

    def ids(self, checkpoint: str) -> list[str]:
        return [name for name in self.trail[checkpoint] if id_hash(name) % ALL_IDS < self.sample]

    def block_record(self, i: int, checkpoint: str) -> Record:
        ids = self.ids(checkpoint)
        entries = cut(self.definition["spec"]["nodes"])
        linked = {name for entry in entries for name in [*entry.get("to", []), entry.get("retries")]}
        first = checkpoint in [f"{entry['name']}.in" for entry in entries if entry["name"] not in linked]
        fields = {
            "pipeline": "clicks",
            "checkpoint": checkpoint,
            "emitter": uuid(checkpoint.split(".")[0]),
            "seq": i,
            "window_start": START_S,
            "partitions": 1,
            "sample": self.sample,
            "count": len(ids),
            "id_hash": column("Q", [id_hash(name) for name in ids]),
            "lag_ms": column("f", [self.lags.get(checkpoint, 1.0)] * len(ids)),
            "event_offset_ms": column("H", [1_000] * len(ids)) if first else None,
            **self.block.get(checkpoint, {}),
        }
        return Record(0, i, START_MS + 2_000, f"clicks/{START_S}".encode(), avro("beacon_block", fields))

    def report_record(self, i: int, node: str) -> Record | None:
        fields = self.report.get(node, {})
        tallies = [self.tally(c, START_S, self.ids(c)) for c in self.trail if c.split(".")[0] == node]
        tallies += [
            self.tally(checkpoint, window_s, ["x"]) for checkpoint, window_s in self.extra_tallies.get(node, [])
        ]
        lanes = [(f"{node}.in", f"into-{node}/0"), (f"{node}.out", "")]
        at_ms = self.appended_ms.get(node, self.now_ms)
        until = [(checkpoint, lane, self.until_ms.get(checkpoint, DUE_MS)) for checkpoint, lane in lanes]
        written = {
            "pipeline": "clicks",
            "node": node,
            "emitter": uuid(node),
            "host": "here/1",
            "seq": 1,
            "started_at": START_MS - 600_000,
            "sent_at": at_ms - 10,
            "closed": False,
            "final_through": START_S + 60,
            "progress": [{"checkpoint": c, "lane": lane, "until": ms} for c, lane, ms in until if ms is not None],
            "tallies": tallies,
            **fields,
        }
        return Record(0, i, at_ms, uuid(node), avro("emitter_report", written))

    def tally(self, checkpoint: str, window_s: int, ids: list[str]) -> dict[str, Any]:
        more = self.tally_more.get(checkpoint, 0) if window_s == START_S else 0
        return {
            "checkpoint": checkpoint,
            "window_start": window_s,
            "sample": self.sample,
            "beacons": len(ids) + more,
            "id_sum": signed64(sum(id_hash(name) for name in ids)),
            "dropped": 0,
            "lag_sketch": [],
            "ranges": [],
        }


def worked_case(**more: Any) -> ByHand:
    """docs/arithmetic.md's worked case: messages a..j; src -> mid -> snk."""
    trail: dict[str, Ids] = {
        "src.in": "abcdefghij",
        "src.out": "abcdefghij",
        "mid.in": "abcdefghi",
        "mid.out": "abcdefg",
        "mid.filtered": "h",
        "snk.in": "abcdef",
        "snk.out": "abcdef",
    }
    nodes: list[dict[str, Any]] = [{"name": "src", "to": ["mid"]}, {"name": "mid", "to": ["snk"]}, {"name": "snk"}]
    return ByHand(document(*nodes), **{"trail": trail, **more})
