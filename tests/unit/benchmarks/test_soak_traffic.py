"""The soak's traffic: tallies say what blocks hold, and where they are; faults are as injected."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import soak_traffic
from benchmarks.soak_traffic import FLUSH_S, SLOTS, Run, fault_of, pipeline_name
from lagloss.wire.format import BeaconBlock, EmitterReport, Tally, decode_block, decode_report

BEGINS_S = 1_780_000_020
MINUTES = 6
RUN = Run(pipelines=50, emitters=120, begins_s=BEGINS_S, minutes=MINUTES)


class Log:
    """Keeps what is produced, as a producer would send it."""

    def __init__(self, _settings: object) -> None:
        self.blocks: list[tuple[int, int, BeaconBlock]] = []
        self.reports: list[EmitterReport] = []
        self._ends = Counter[int]()
        self._waiting: list[Callable[[], None]] = []

    def produce(
        self, topic: str, value: bytes, _key: bytes, partition: int = 0, on_delivery: Callable[..., None] | None = None
    ) -> None:
        if on_delivery is None:
            self.reports.append(decode_report(value))
            return
        offset = self._ends[partition]
        self._ends[partition] += 2  # others send, too
        self.blocks.append((partition, offset, decode_block(value)))
        acknowledged = SimpleNamespace(partition=lambda: partition, offset=lambda: offset)
        self._waiting.append(lambda: on_delivery(None, acknowledged))

    def flush(self, _timeout_s: float) -> None:
        for acknowledge in self._waiting:
            acknowledge()
        self._waiting.clear()

    def poll(self, _timeout_s: float) -> None:
        pass


@pytest.fixture(scope="module")
def log() -> Log:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(soak_traffic, "Producer", Log)
        sender: Any = soak_traffic._Sender("", RUN)
        for flush in range(int(MINUTES * 60 / FLUSH_S)):
            for slot in range(SLOTS):
                sender._flush(sender._slots[slot], flush, BEGINS_S + (flush + slot / SLOTS) * FLUSH_S)
    found: Log = sender._producer
    return found


def test_the_newest_tallies_say_what_the_blocks_hold(log: Log) -> None:
    newest: dict[tuple[bytes, str, int], Tally] = {}
    for report in log.reports:
        newest |= {(report.emitter, tally.checkpoint, tally.window_start): tally for tally in report.tallies}
    held = Counter[tuple[bytes, str, int]]()
    for partition, offset, block in log.blocks:
        key = block.emitter, block.checkpoint, block.window_start
        held[key] += block.count
        assert any(place.partition == partition and place.first <= offset <= place.last for place in newest[key].ranges)
    assert {key: tally.beacons for key, tally in newest.items()} == dict(held)
    assert all(tally.lag_sketch.count == tally.beacons for tally in newest.values())


def test_messages_are_missing_only_where_a_fault_says_so(log: Log) -> None:
    ids: dict[tuple[str, str, int], set[int]] = {}
    for _, _, block in log.blocks:
        ids.setdefault((block.pipeline, block.checkpoint, block.window_start), set()).update(block.id_hash.tolist())
    for number in range(RUN.pipelines):
        name = pipeline_name(number)
        for start_s in RUN.judged:
            sent, arrived = (ids.get((name, checkpoint, start_s), set()) for checkpoint in ("node-0.in", "node-1.out"))
            outcome = RUN.outcome(number, start_s)
            if outcome is not None:
                assert (len(sent), len(sent - arrived)) == (outcome.messages, outcome.lost)
                assert (outcome.verdict == "loss") == (outcome.lost / max(outcome.messages, 1) > 0.01)


def test_one_pipeline_in_ten_has_a_fault() -> None:
    assert sum(bool(fault_of(number)) for number in range(RUN.pipelines)) == RUN.pipelines / 10
