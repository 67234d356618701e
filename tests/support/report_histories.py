"""Reports of a few emitters that share lanes, as a producer without idempotence appends them: again, late, out of
order; and what must be known of them then, read slowly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from aggregator.reports.batch import ReportRecord
from lagloss.wire.format import EmitterReport, Progress, Tally, decode_report, encode_report
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.clock_skew import Skew

PIPELINE = "repeated"
CHECKPOINTS = frozenset(["mid.in", "mid.out"])
KNOWN = {PIPELINE: CHECKPOINTS}
START_S = 1_780_000_020
START_MS = START_S * 1000
EMITTERS = tuple(bytes([number]) * 16 for number in (1, 2, 3))
LANES = (("mid.in", "orders/0"), ("mid.in", "orders/1"), ("mid.out", ""))


class Appended(NamedTuple):
    """A report with the moment of its appending."""

    at_ms: int
    report: EmitterReport


class Known(NamedTuple):
    """All that reports leave behind."""

    emitters: dict[bytes, tuple[Any, ...]]
    lanes: dict[tuple[str, str, bytes], tuple[int, bytes]]
    tallies: dict[tuple[bytes, str, int], tuple[int, int]]


def account_of(report: EmitterReport, appended_ms: int, skew: Skew, inputs: Iterable[str]) -> tuple[Any, ...]:
    """What is known of an emitter, in a form that compares."""
    fields = (report.seq, report.host, report.started_at, report.sent_at, report.closed, report.final_through)
    return (*fields, report.resumes, report.unfinished, dict(report.labels), appended_ms, skew, sorted(inputs))


def in_order(rng: Random) -> list[Appended]:
    """The reports as their writers made them, each appended once."""
    found = []
    for emitter in EMITTERS:
        at_ms, count, beacons = START_MS + rng.randrange(60_000), rng.randint(1, 6), 0
        for seq in range(rng.choice([0, 1]), count + 1):
            beacons += rng.randint(0, 3)
            lanes = tuple(Progress(*lane, rng.randrange(START_MS)) for lane in LANES if rng.random() < 0.7)
            windows = [START_S + 60 * at for at in (0, 1) if rng.random() < 0.5]
            report = EmitterReport(
                PIPELINE, "mid", emitter, f"host-{seq}", seq, START_MS - seq, at_ms - rng.randint(-9_000, 9_000),
                seq == count and rng.random() < 0.5, START_S + rng.randrange(600), lanes,
                tuple(Tally("mid.in", window_s, beacons, seq, Sketch()) for window_s in windows),
                rng.random() < 0.5, {"version": str(seq)}, rng.random() < 0.3,
            )  # fmt: skip
            found.append(Appended(at_ms, report))
            at_ms += rng.randrange(40_000)
    return found


def repeated(rng: Random, reports: list[Appended]) -> list[Appended]:
    """Some of the reports once more, later, and a few of these with another content."""
    found = []
    for appended in reports:
        for _ in range(rng.choice([0, 0, 1, 2])):
            report = appended.report
            if rng.random() < 0.3:
                lanes = tuple(Progress(*lane, 0) for lane in LANES)
                report = replace(report, closed=not report.closed, host="other", progress=lanes, sent_at=1)
            found.append(Appended(appended.at_ms + rng.randint(1, 200_000), report))
    return found


def delayed(rng: Random, reports: list[Appended]) -> list[Appended]:
    """The same reports, some of them appended after later ones of their emitter."""
    return [Appended(at_ms + rng.choice([0, 0, 90_000]), report) for at_ms, report in reports]


def log_of(reports: Iterable[Appended]) -> list[ReportRecord]:
    """The reports as they lie in a topic of two partitions, by position; all of an emitter's in one of them."""
    ends = [0, 0]
    records = []
    for at_ms, report in sorted(reports, key=lambda appended: (appended.at_ms, appended.report.emitter[0] % 2)):
        partition = report.emitter[0] % 2
        records.append(ReportRecord(partition, ends[partition], at_ms, encode_report(report)))
        ends[partition] += 1
    return records


def batches(rng: Random, log: list[ReportRecord]) -> Iterator[list[ReportRecord]]:
    """The log as it is read: of each partition a part at a time."""
    left = [[record for record in log if record.partition == partition] for partition in (0, 1)]
    while any(left):
        sizes = [rng.randint(0, 4), rng.randint(0, 4)]
        yield [record for records, size in zip(left, sizes, strict=True) for record in records[:size]]
        left = [records[size:] for records, size in zip(left, sizes, strict=True)]


@dataclass(frozen=True)
class _Read:
    place: int
    record: ReportRecord
    report: EmitterReport

    def counts(self, log: list[_Read]) -> bool:
        """Whether no report before it has its seq or a higher one."""
        before = [each.report for each in log if each.place < self.place]
        return all(each.seq < self.report.seq for each in before if each.emitter == self.report.emitter)


def expected(log: list[ReportRecord]) -> Known:
    """What docs/wire-format.md says of a log: of one emitter the highest seq, between emitters the position."""
    every = [_Read(at, record, decode_report(record.value or b"")) for at, record in enumerate(log)]
    counting = [read for read in every if read.counts(every)]
    emitters = {}
    for emitter in {read.report.emitter for read in every}:
        mine = [read for read in counting if read.report.emitter == emitter]
        skew, before_ms = Skew(), 0
        for read in mine:
            report, settled = read.report, {"closed": read.report.closed, "unfinished": read.report.unfinished}
            skew = skew.merged(Skew.of(read.record.appended_ms, report.sent_at, before_ms, **settled))
            before_ms = report.sent_at
        inputs = {lane.lane for read in mine for lane in read.report.progress if lane.checkpoint == "mid.in"}
        newest = max(mine, key=lambda read: read.report.seq)
        emitters[emitter] = account_of(newest.report, newest.record.appended_ms, skew, inputs)
    lanes = {}
    for read in counting:  # so the last that names a lane is the last by position
        for progress in read.report.progress:
            holder = b"" if progress.lane else read.report.emitter
            lanes[progress.checkpoint, progress.lane, holder] = (progress.until, read.report.emitter)
    tallies = {}
    for read in sorted(every, key=lambda read: (-read.report.seq, read.place)):
        for tally in read.report.tallies:
            tallies.setdefault(
                (read.report.emitter, tally.checkpoint, tally.window_start), (read.report.seq, tally.beacons)
            )
    return Known(emitters, lanes, tallies)
