"""What a world says, read slowly: its definitions, its blocks and its reports.

The oracle's own reading of the page's "Wire format" and "Pipeline definition", with rule 7's terms on emitters. No code
is shared with `lagloss`. Times are epoch milliseconds where a name ends in `_ms`, epoch seconds where it ends in `_s`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.wire import decode

ALL_IDS: int = 2**32  # `sample` of a block that holds every id
WINDOW_S = 60
AHEAD_MS = 120_000  # a window further than this ahead of its arrival is bad input
SILENT_MS = 60_000
MINUTE_MS = 60_000
EXPECTED_AFTER_SILENCE_MS = 660_000  # 60 s after the last report, and 10 minutes more
STALE_MS = 60_000  # a closing report appended longer after it was sent measures no clock


@dataclass(frozen=True)
class Record:
    """One Kafka record, as consumed."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes


@dataclass(frozen=True)
class World:
    """All that lagloss can know when it judges; `beacons_start` holds low watermarks by partition. Reports that were
    appended before `whole_from_ms` may be lost."""

    definitions: tuple[tuple[int, dict[str, Any]], ...]  # (applied_at_ms, YAML document), oldest first
    beacons: tuple[Record, ...]
    reports: tuple[Record, ...]
    now_ms: int
    beacons_start: dict[int, int] = field(default_factory=dict)
    whole_from_ms: int = 0


# --- Pipeline definition ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Definition:
    """One version of a pipeline; `nodes` in topological order with ties by the document's order, retriers apart."""

    pipeline: str
    nodes: list[str]
    to: dict[str, list[str]]
    copies: set[str]  # nodes with `copy: all`
    retrier: dict[str, str]  # node -> the retrier it hands over to
    retriers: list[str]  # in the order in which the document's nodes name them
    entries: dict[str, dict[str, Any]]  # a node's own part of the document; a retrier may have none
    grace_ms: float
    max_wait_ms: float
    loss_max: float
    lag_target_ms: float
    objectives: dict[str, tuple[float, float]]  # delivering nodes with targets of their own: loss max, lag target in ms
    splits: set[str]  # sources whose ids carry those that they were split from
    takes_in: set[str]  # nodes that make new ids and say nothing of what became of those that they took in
    spanned: set[str]  # nodes that spans show, which are never complete

    @property
    def sources(self) -> list[str]:
        """The nodes without an incoming link: a message enters at one of them."""
        return [node for node in self.nodes if not self.before(node)]

    @property
    def entrances(self) -> list[str]:
        """The checkpoints at which messages enter."""
        return [f"{node}.in" for node in self.sources]

    @property
    def all_nodes(self) -> list[str]:
        return self.nodes + self.retriers

    def before(self, node: str) -> list[str]:
        return [n for n in self.nodes if node in self.to[n]]

    def users(self, retrier: str) -> list[str]:
        """The nodes that hand over to this retrier, in the document's order."""
        return [n for n in self.entries if self.retrier.get(n) == retrier]

    def out_for(self, node: str, following: str) -> str:
        """`N.out:M` instead of `N.out` where N has several next nodes."""
        return f"{node}.out:{following}" if len(self.to[node]) > 1 else f"{node}.out"

    def outs(self, node: str) -> list[str]:
        if node in self.takes_in:
            return []
        if node in self.retriers:
            return [f"{node}.out:{user}" for user in self.users(node)]
        outs = [self.out_for(node, following) for following in self.to[node]] or [f"{node}.out"]
        if node in self.retrier:
            outs.append(f"{node}.out:{self.retrier[node]}")
        return outs

    def exits(self, node: str) -> list[str]:
        if node in self.takes_in:
            return []
        if node in self.retriers:
            return [*self.outs(node), f"{node}.dead"]
        return [*self.outs(node), f"{node}.filtered", f"{node}.dead"]

    def checkpoints(self) -> list[str]:
        return [c for node in self.all_nodes for c in [f"{node}.in", *self.exits(node)]]

    def deliveries(self) -> list[str]:
        """The `out` of every node without next nodes; the `in` of one that only takes in."""
        ends = [node for node in self.nodes if not self.to[node]]
        return [f"{node}.in" if node in self.takes_in else f"{node}.out" for node in ends]

    def sides(self) -> list[list[str]]:
        """The nodes in groups between which no link and no retrier leads, each in the order of `all_nodes`."""
        groups: list[set[str]] = []
        for node in self.all_nodes:
            near = {node, *self.to.get(node, []), *([self.retrier[node]] if node in self.retrier else [])}
            touching = [group for group in groups if group & near]
            groups = [group for group in groups if not group & near] + [near.union(*touching)]
        found = [[node for node in self.all_nodes if node in group] for group in groups]
        return sorted(found, key=lambda nodes: self.all_nodes.index(nodes[0]))

    def ancestors(self, node: str) -> set[str]:
        """Every node above this one, itself not included."""
        found: set[str] = set()
        for before in self.before(node):
            found |= {before} | self.ancestors(before)
        return found

    def branches_copied(self, node: str) -> bool:
        return node in self.copies and len(self.to[node]) > 1

    def copied_above(self, node: str) -> bool:
        """Whether a branching node strictly above is declared `copy: all`."""
        return any(self.branches_copied(n) for n in self.ancestors(node))


def milliseconds(duration: str) -> float:
    """`500ms`, `5s`, `15m` or `1h` in milliseconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", duration)
    if match is None:
        raise ValueError(f"not a duration: {duration!r}")
    return float(match[1]) * {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[match[2]]


def topological(names: list[str], to: dict[str, list[str]]) -> list[str]:
    """Again and again the first name in the document whose predecessors are all placed."""
    placed: list[str] = []
    while len(placed) < len(names):
        placed.append(
            next(
                name
                for name in names
                if name not in placed and all(before in placed for before in names if name in to[before])
            )
        )
    return placed


def cut(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each node with `ids: new` as two: N, which takes the old ids in, and N-new, at which the new ones begin."""
    found: list[dict[str, Any]] = []
    for entry in nodes:
        if entry.get("ids") != "new":
            found.append(entry)
            continue
        spans = entry.get("spans", {})
        before = {key: value for key, value in entry.items() if key not in ("to", "copy", "spans")}
        found.append(before | {"spans": {place: span for place, span in spans.items() if place == "in"}})
        after = {key: entry[key] for key in ("to", "copy") if key in entry}
        after["spans"] = {place: span for place, span in spans.items() if place != "in"}
        found.append({"name": f"{entry['name']}-new", **after})
    return found


def read_definition(document: dict[str, Any]) -> Definition:
    spec = document["spec"]
    entries = {entry["name"]: entry for entry in cut(spec["nodes"])}
    retrier = {name: entry["retries"] for name, entry in entries.items() if "retries" in entry}
    retriers = list(dict.fromkeys(retrier.values()))
    names = [name for name in entries if name not in retriers]
    to = {name: list(entries[name].get("to", [])) for name in names}
    sla = spec.get("sla", {})
    return Definition(
        pipeline=document["metadata"]["name"],
        nodes=topological(names, to),
        to=to,
        copies={name for name in names if entries[name].get("copy") == "all"},
        retrier=retrier,
        retriers=retriers,
        entries=entries,
        grace_ms=milliseconds(spec.get("grace", "60s")),
        max_wait_ms=milliseconds(spec.get("maxWait", "15m")),
        loss_max=loss_max(sla),
        lag_target_ms=lag_target_ms(sla),
        objectives={
            node: (loss_max({**sla, **own}), lag_target_ms({**sla, **own}))
            for node, own in sla.get("destinations", {}).items()
        },
        splits={f"{name}-new" for name in names if entries[name].get("contract") == "split"},
        takes_in={name for name in names if "ids" in entries[name] and "contract" not in entries[name]},
        spanned={name for name in names if entries[name].get("spans")},
    )


def loss_max(sla: dict[str, Any]) -> float:
    return float(sla.get("loss", {}).get("max", 0.01))


def lag_target_ms(sla: dict[str, Any]) -> float:
    return milliseconds(sla.get("lag", {}).get("target", "5s"))


def in_force(world: World, window_start_s: int) -> Definition:
    """The version in force at the window's start; the first version holds for all windows before it, too."""
    document = world.definitions[0][1]
    for applied_at_ms, later in world.definitions:
        if applied_at_ms <= window_start_s * 1000:
            document = later
    return read_definition(document)


def newest_version(world: World) -> Definition:
    """The newest version, whose grace says which windows are due."""
    return read_definition(world.definitions[-1][1])


def next_checkpoints(d: Definition) -> dict[str, list[str]]:
    """The checkpoint graph: N.in -> exits of N, N.out -> M.in, N.out:R -> R.in; R.out:N -> N.in is left out."""
    edges: dict[str, list[str]] = {checkpoint: [] for checkpoint in d.checkpoints()}
    for node in d.all_nodes:
        edges[f"{node}.in"] += d.exits(node)
    for node in d.nodes:
        for following in d.to[node]:
            edges[d.out_for(node, following)].append(f"{following}.in")
        if node in d.retrier:
            edges[f"{node}.out:{d.retrier[node]}"].append(f"{d.retrier[node]}.in")
    return edges


def reachable(edges: dict[str, list[str]], starts: Iterable[str], without: str | None = None) -> set[str]:
    """Every checkpoint on a path from `starts`, themselves included, on paths that avoid `without`."""
    found: set[str] = set()
    waiting = [start for start in starts if start != without]
    while waiting:
        checkpoint = waiting.pop()
        if checkpoint not in found:
            found.add(checkpoint)
            waiting += [following for following in edges[checkpoint] if following != without]
    return found


# --- Blocks ----------------------------------------------------------------------------------------------------------


def ahead_or_crooked(window_start_s: int, arrived_ms: int) -> bool:
    """Bad input: a window more than 2 minutes ahead of its arrival, or one that is no multiple of 60."""
    return window_start_s * 1000 > arrived_ms + AHEAD_MS or window_start_s % WINDOW_S != 0


@dataclass(frozen=True)
class Beacon:
    id_hash: int
    lag_ms: float
    event_offset_ms: int | None
    crc: int | None
    replay: bool
    name: str | None = None
    out_of_order: bool = False
    supplied_at: int | None = None


def unpack(block: dict[str, Any]) -> list[Beacon] | None:
    """The block's beacons, or None where its count disagrees with one of its columns."""
    count = block["count"]
    widths = {"id_hash": 8, "lag_ms": 4, "event_offset_ms": 2, "payload_crc": 4}
    if count < 0 or any(block[c] is not None and len(block[c]) != count * width for c, width in widths.items()):
        return None
    if block["message_ids"] is not None and not names_match(block["message_ids"], count):
        return None
    late = block["out_of_order"]
    if late is not None and (not late or len(late) % 2):
        return None
    overtaken = struct.unpack(f"<{len(late or b'') // 2}H", late or b"")
    if list(overtaken) != sorted(set(overtaken) & set(range(count))):
        return None
    supplied = block["supplied_at"]
    if supplied is not None and not 0 <= supplied < 253_402_300_800_000:
        return None
    hashes = struct.unpack(f"<{count}Q", block["id_hash"])
    lags = struct.unpack(f"<{count}f", block["lag_ms"])
    offsets = [None] * count
    if block["event_offset_ms"] is not None:
        offsets = list(struct.unpack(f"<{count}H", block["event_offset_ms"]))
    crcs = [None] * count
    if block["payload_crc"] is not None:
        crcs = list(struct.unpack(f"<{count}I", block["payload_crc"]))
    replay = block["replay"] is not None
    names = read_names(block["message_ids"], count)
    columns = enumerate(zip(hashes, lags, offsets, crcs, names, strict=True))
    return [Beacon(h, lag, o, c, replay, name, at in overtaken, supplied) for at, (h, lag, o, c, name) in columns]


def read_names(column: bytes | None, count: int) -> list[str | None]:
    if column is None:
        return [None] * count
    names: list[str | None] = []
    while column:
        size = column[0]
        names.append(column[1 : 1 + size].decode())
        column = column[1 + size :]
    return names


def names_match(column: bytes, count: int) -> bool:
    """Whether the column is exactly `count` times a length byte and that many bytes."""
    position = 0
    for _ in range(count):
        if position >= len(column):
            return False
        position += 1 + column[position]
    return position == len(column)


@dataclass
class Block:
    emitter: bytes
    checkpoint: str
    replay: str | None
    sample: int
    beacons: list[Beacon]
    reason: str | None = None


def read_blocks(world: World, d: Definition, window_start_s: int) -> tuple[list[Block], set[str], dict[str, int]]:
    """The window's good blocks, each (emitter, seq) once, the nodes that had a block that cannot be counted, and the
    beacons of checkpoints that only another version has."""
    good: list[Block] = []
    quarantined: set[str] = set()
    strangers: dict[str, int] = {}
    elsewhere = {c for _, document in world.definitions for c in read_definition(document).checkpoints()}
    seen: set[tuple[bytes, int]] = set()
    for record in sorted(world.beacons, key=lambda r: (r.partition, r.offset)):
        block = decode("beacon_block", record.value)
        if record.offset < world.beacons_start.get(record.partition, 0) or block is None:
            continue
        if block["pipeline"] != d.pipeline or block["window_start"] != window_start_s:
            continue
        if record.key != f"{block['pipeline']}/{block['window_start']}".encode():
            continue
        if ahead_or_crooked(block["window_start"], record.timestamp_ms):
            continue
        node = block["checkpoint"].split(".")[0]
        beacons = unpack(block)
        if node in d.all_nodes and (beacons is None or block["checkpoint"] not in d.checkpoints()):
            quarantined.add(node)
        if beacons is None or block["checkpoint"] not in elsewhere or (block["emitter"], block["seq"]) in seen:
            continue
        seen.add((block["emitter"], block["seq"]))
        if block["checkpoint"] not in d.checkpoints():
            strangers[block["checkpoint"]] = strangers.get(block["checkpoint"], 0) + len(beacons)
        else:
            fields = (block[name] for name in ("emitter", "checkpoint", "replay", "sample"))
            good.append(Block(*fields, beacons, block["reason"]))
    return good, quarantined, strangers


# --- Reports ---------------------------------------------------------------------------------------------------------

TallyKey = tuple[str, int, str | None]  # checkpoint, window_start, replay


@dataclass
class Tally:
    report_seq: int
    changed_at_ms: int  # when the report that last changed its content was appended
    content: dict[str, Any]


@dataclass
class Emitter:
    """An emitter's newest state by report `seq`: one that arrives again or late changes nothing, but for tallies that
    no report with a higher `seq` has."""

    uuid: bytes
    node: str
    seq: int
    started_at_ms: int
    sent_at_ms: int
    closed: bool
    final_through_s: int
    last_append_ms: int
    resumes: bool
    unfinished: bool
    differences: list[tuple[int, int]]  # of every live report that counted: append time, append time - sent_at
    set_back: list[tuple[int, int]]  # those of them that were sent earlier, by the emitter's clock, than the one before
    inputs: set[tuple[str, str]]  # checkpoint and lane of every ordered input that it ever reported
    tallies: dict[TallyKey, Tally] = field(default_factory=dict)


@dataclass
class Lane:
    checkpoint: str
    name: str
    emitter: bytes | None  # whose work in hand it is; None for an ordered input
    until_ms: int
    reporter: bytes  # who reported the newest value


def follow(world: World, pipeline: str) -> tuple[dict[bytes, Emitter], list[Lane]]:
    """Every emitter's newest account, and the newest value of every lane, whoever reported it: of one emitter by `seq`,
    between emitters by position."""
    emitters: dict[bytes, Emitter] = {}
    lanes: dict[tuple[Any, ...], Lane] = {}
    for record in sorted(world.reports, key=lambda r: (r.timestamp_ms, r.partition, r.offset)):
        report = decode("emitter_report", record.value)
        if report is None or report["pipeline"] != pipeline:
            continue
        known = emitters.get(report["emitter"])
        is_newest = known is None or report["seq"] > known.seq
        if is_newest:
            keep_account(emitters, report, record.timestamp_ms)
        keep_tallies(emitters[report["emitter"]], report, record.timestamp_ms)
        for progress in report["progress"] if is_newest else []:
            in_hand = report["emitter"] if progress["lane"] == "" else None
            key = (progress["checkpoint"], progress["lane"], in_hand)
            lanes[key] = Lane(progress["checkpoint"], progress["lane"], in_hand, progress["until"], report["emitter"])
    return emitters, list(lanes.values())


def keep_account(emitters: dict[bytes, Emitter], report: dict[str, Any], appended_ms: int) -> None:
    known = emitters.get(report["emitter"])
    emitter = emitters[report["emitter"]] = Emitter(
        uuid=report["emitter"],
        node=report["node"],
        seq=report["seq"],
        started_at_ms=report["started_at"],
        sent_at_ms=report["sent_at"],
        closed=report["closed"],
        final_through_s=report["final_through"],
        last_append_ms=appended_ms,
        resumes=report["resumes"],
        unfinished=report["unfinished"],
        differences=[] if known is None else known.differences,
        set_back=[] if known is None else known.set_back,
        inputs=set() if known is None else known.inputs,
        tallies={} if known is None else known.tallies,
    )
    settled = report["unfinished"] or appended_ms - report["sent_at"] > STALE_MS
    if not (report["closed"] and settled):
        emitter.differences.append((appended_ms, appended_ms - report["sent_at"]))
        if known is not None and report["sent_at"] < known.sent_at_ms and not report["closed"]:
            emitter.set_back.append((appended_ms, appended_ms - report["sent_at"]))
    own = f"{report['node']}.in"
    emitter.inputs |= {(own, p["lane"]) for p in report["progress"] if p["checkpoint"] == own and p["lane"] != ""}


def keep_tallies(emitter: Emitter, report: dict[str, Any], appended_ms: int) -> None:
    """Each by the `seq` of its own report: later ones need not repeat what did not change."""
    for content in report["tallies"]:
        if ahead_or_crooked(content["window_start"], appended_ms):
            continue
        key = (content["checkpoint"], content["window_start"], content["replay"])
        old = emitter.tallies.get(key)
        if old is None or (report["seq"] > old.report_seq and content != old.content):
            emitter.tallies[key] = Tally(report["seq"], appended_ms, content)
        elif report["seq"] > old.report_seq:
            old.report_seq = report["seq"]


def skew_ms(emitter: Emitter) -> int:
    """Rule 4: the smallest difference in the two newest minutes of append time that have a live report of it; without
    any, 0."""
    newest = sorted({at_ms // MINUTE_MS for at_ms, _ in emitter.differences})[-2:]
    found = [difference_ms for at_ms, difference_ms in emitter.differences if at_ms // MINUTE_MS in newest]
    return min(found, default=0)


def readings_ms(emitter: Emitter, window_start_s: int) -> list[int]:
    """Rule 4: its skew, the smallest difference of every minute from the window's start on that is 5 s or more (from a
    minute before, if it is behind), and so much behind as a report shows before which its clock was set back, if its
    minute is at most two minutes earlier."""
    minutes = {at_ms // MINUTE_MS for at_ms, _ in emitter.differences if at_ms >= (window_start_s - 60) * 1000}
    smallest = {m: min(ms for at_ms, ms in emitter.differences if at_ms // MINUTE_MS == m) for m in minutes}
    found = [ms for minute, ms in smallest.items() if minute * 60 >= window_start_s or ms > 0]
    back = [ms for at_ms, ms in emitter.set_back if at_ms // MINUTE_MS * 60 + 120 >= window_start_s]
    return [skew_ms(emitter)] + [ms for ms in found if abs(ms) >= 5_000] + [ms for ms in back if ms >= 5_000]


def clock_matters(emitter: Emitter, window_start_s: int) -> bool:
    """Rule 4: it told of the window, or its last report, by its own clock or the broker's, is at most 60 s older."""
    heard_ms = [emitter.last_append_ms, emitter.sent_at_ms]
    return sent_tally(emitter, window_start_s) or any(at_ms + 60_000 >= window_start_s * 1000 for at_ms in heard_ms)


def is_silent(emitter: Emitter, now_ms: int) -> bool:
    """Rule 7: no report appended for 60 s, without `closed`."""
    return not emitter.closed and now_ms - emitter.last_append_ms > SILENT_MS


def ended_ms(emitter: Emitter) -> int:
    """Rule 4: the append time of its last report; if that closed, no later than it was sent, by the broker's clock."""
    sent_ms = emitter.sent_at_ms + skew_ms(emitter)
    return min(emitter.last_append_ms, sent_ms) if emitter.closed else emitter.last_append_ms


def mourned_ms(emitter: Emitter) -> int:
    """Rules 4 and 7: when the dead takes nothing in any more, the end of its account + 60 s."""
    return ended_ms(emitter) + SILENT_MS


def taken_over(emitter: Emitter, inputs: set[tuple[str, str]], lanes: list[Lane]) -> bool:
    """Rules 4 and 7: each of these inputs, at least one, is past that moment by the report of another."""
    newest = {(lane.checkpoint, lane.name): lane for lane in lanes if lane.emitter is None}
    return bool(inputs) and all(
        newest[key].reporter != emitter.uuid and newest[key].until_ms > mourned_ms(emitter) for key in inputs
    )


def is_alone(emitter: Emitter, lanes: list[Lane]) -> bool:
    """Rule 7: its node has no input lanes, or it observes: it has an input of its own, and does not resume."""
    into = [lane for lane in lanes if lane.checkpoint == f"{emitter.node}.in"]
    observes = not emitter.resumes and any(lane.emitter == emitter.uuid for lane in into)
    return observes or all(lane.emitter is not None for lane in into)


def may_be_cut_off(emitter: Emitter, window_start_s: int, now_ms: int, lanes: list[Lane], max_wait_ms: float) -> bool:
    """Rule 7: one that is alone, fell silent more than 60 s before the window, and up to maxWait before its end."""
    later = window_start_s * 1000 > mourned_ms(emitter)
    in_time = (window_start_s + WINDOW_S) * 1000 <= mourned_ms(emitter) + max_wait_ms
    return is_silent(emitter, now_ms) and later and in_time and is_alone(emitter, lanes)


def no_longer_expected(emitter: Emitter, window_start_s: int, now_ms: int, lanes: list[Lane]) -> bool:
    """Rule 7: in later windows a silent emitter is expected for 10 more minutes, then not; and not at all once every
    input lane that it reported, or of its node if it reported none, has been taken over."""
    if not is_silent(emitter, now_ms):
        return False
    later = window_start_s * 1000 > mourned_ms(emitter)
    end_ms = (window_start_s + WINDOW_S) * 1000
    gone = end_ms > emitter.last_append_ms + EXPECTED_AFTER_SILENCE_MS
    of_node = {(lane.checkpoint, lane.name) for lane in lanes if lane.emitter is None}
    inputs = emitter.inputs or {key for key in of_node if key[0] == f"{emitter.node}.in"}
    return gone or (later and not is_alone(emitter, lanes) and taken_over(emitter, inputs, lanes))


def sent_tally(emitter: Emitter, window_start_s: int) -> bool:
    return any(window == window_start_s for _, window, _ in emitter.tallies)


def is_expected(emitter: Emitter, window_start_s: int, now_ms: int, lanes: list[Lane]) -> bool:
    """Rule 7: in windows that end while the emitter lives, and in older ones that it sent a tally for."""
    end_ms = (window_start_s + WINDOW_S) * 1000
    if end_ms < emitter.started_at_ms:
        return sent_tally(emitter, window_start_s)
    if emitter.closed:
        return end_ms <= emitter.sent_at_ms
    return not no_longer_expected(emitter, window_start_s, now_ms, lanes)


def silence_spoils(emitter: Emitter, window_start_s: int, now_ms: int) -> bool:
    """Rule 7: incomplete for good from the oldest window it changed in its last 60 s, to 60 s after its last report."""
    if not is_silent(emitter, now_ms):
        return False
    last_ms = emitter.last_append_ms
    touched = [key[1] for key, tally in emitter.tallies.items() if tally.changed_at_ms >= last_ms - SILENT_MS]
    oldest_s = min(touched, default=last_ms // 60_000 * WINDOW_S)
    return window_start_s >= oldest_s and window_start_s * 1000 <= last_ms + SILENT_MS
