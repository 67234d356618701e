"""Whatever becomes of spans on their way (sampled, dropped, late, doubled, in any order), no window says that a message
is lost for certain, and what did come has its lag and is delivered.

The collector's own parsing, pairing and packing, and the aggregator's closing, in one process. The emitters even claim
what the collector's never do: complete accounts, and progress past all of it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.closing.window_store import Closing
from collector.batches import BeaconBatch, Numbered, Seen, pack, tallied
from collector.log_writer import LogPosition
from lagloss.wire.format import EmitterReport, Progress, encode_report
from tests.oracle.evidence import Record, World
from tests.oracle.oracle import judge
from tests.support.in_memory import close_in_memory
from tests.support.kafka_spans import INSTRUMENTATIONS, Instrumentation, TestSpan, consumed, produced
from tests.support.span_pairs import MAILER, MAILER_RECEIVES, SHOP, Pairs, text_of

WINDOW_S: Final = int(time.time()) // 60 * 60 - 1_800
PARTITIONS: Final = 4
UUIDS: Final = {"shop": b"s" * 16, "mailer": b"m" * 16}


@dataclass(frozen=True)
class Way:
    """What becomes of one message and its spans; times in ms since the window's start. `taken_ms`: None if the consumer
    never takes it."""

    produced_ms: int
    taken_ms: int | None
    produced_arrives: int
    """How often the exporter's span arrives: 0 if it is sampled out, or dropped."""
    taken_arrives: int


WAYS = st.builds(
    Way,
    st.integers(0, 59_000),
    st.none() | st.integers(1, 120_000),
    st.sampled_from([0, 1, 1, 1, 2]),
    st.sampled_from([0, 1, 1, 1, 2]),
)


@dataclass
class History:
    """Spans on their way to windows. `claims`: the emitters say that their accounts are complete."""

    instrumentation: Instrumentation
    ways: Sequence[Way]
    claims: bool

    def spans(self) -> list[TestSpan]:
        start_ms = WINDOW_S * 1000
        spans = []
        for number, way in enumerate(self.ways):
            began_ms = start_ms + way.produced_ms
            spans += [produced(self.instrumentation, number, began_ms)] * way.produced_arrives
            if way.taken_ms is not None:
                ended_ms = began_ms + way.taken_ms
                spans += [consumed(self.instrumentation, number, began_ms, ended_ms)] * way.taken_arrives
        return spans

    def pairs(self) -> list[Way]:
        """The messages whose spans of both sides came."""
        return [way for way in self.ways if way.produced_arrives and way.taken_arrives and way.taken_ms is not None]

    def world(self, spans: Sequence[TestSpan]) -> World:
        nodes = SHOP, MAILER if self.instrumentation.verb == "process" else MAILER_RECEIVES
        seen: dict[str, list[Seen]] = defaultdict(list)
        for paired in Pairs(*nodes).paired(*spans):
            seen[paired.node] += paired.seen
        now_ms = int(time.time() * 1000)
        beacons: list[Record] = []
        reports = []
        offsets = Counter[int]()
        for number, (node, messages) in enumerate(seen.items()):
            blocks = pack(BeaconBatch("orders", node, node == "shop", messages, Numbered(UUIDS[node], 1)), PARTITIONS)
            positions = []
            for block in blocks:
                position = LogPosition(block.partition, offsets[block.partition])
                offsets[block.partition] += 1
                positions.append(position)
                beacons.append(Record(position.partition, position.offset, now_ms, block.key, block.value))
            report = EmitterReport(
                "orders",
                node,
                UUIDS[node],
                "collector/1",
                1,
                WINDOW_S * 1000 - 600_000,
                now_ms,
                False,
                now_ms // 1000 if self.claims else 0,
                (Progress(f"{node}.in", "orders/0", now_ms), Progress(f"{node}.out", "", now_ms))
                if self.claims
                else (),
                tuple(tallied(node, blocks, positions)),
            )
            reports.append(Record(0, number, now_ms, UUIDS[node], encode_report(report)))
        return World(((0, yaml.safe_load(text_of(*nodes))),), tuple(beacons), tuple(reports), now_ms + 1_000)


def close(history: History, spans: Sequence[TestSpan]) -> tuple[World, Closing]:
    world = history.world(spans)
    return world, close_in_memory(world, WINDOW_S)


HISTORIES = st.builds(
    History, st.sampled_from(list(INSTRUMENTATIONS.values())), st.lists(WAYS, max_size=12), st.booleans()
)


@settings(max_examples=150, deadline=None)
@given(HISTORIES, st.randoms(use_true_random=False))
def test_what_spans_do_not_show_is_never_lost_for_certain(history: History, random: Any) -> None:
    spans = history.spans()
    random.shuffle(spans)
    world, closing = close(history, spans)
    window = closing.result
    assert window.lost is not None
    assert window.lost.min == 0
    assert all(lost.min == 0 for _, lost in window.losses)
    assert window.verdict == "unknown"
    came = [way for way in history.ways if way.produced_arrives]
    assert window.messages == len(came)
    assert window.delivered == len(history.pairs())
    assert window.pending is not None
    assert window.pending + window.lost.max == len(came) - len(history.pairs())
    assert sum(checkpoint.duplicates or 0 for checkpoint in window.checkpoints) == 0
    by_the_oracle, written = judge(world, WINDOW_S), window.document()
    for field in ("verdict", "messages", "delivered", "pending", "lost"):
        assert by_the_oracle[field] == written[field], field
    assert set(by_the_oracle["reasons"]) == set(written["reasons"])


@settings(max_examples=50, deadline=None)
@given(HISTORIES, st.randoms(use_true_random=False))
def test_the_lag_is_from_the_producer_s_start_to_the_end_of_the_consumer_s_span(history: History, random: Any) -> None:
    spans = history.spans()
    random.shuffle(spans)
    lags = close(history, spans)[1].result.e2e_lag_ms
    expected = sorted(way.taken_ms for way in history.pairs() if way.taken_ms is not None)
    if not expected:
        assert lags.p95 is None
    else:
        slowest = expected[-(-95 * len(expected) // 100) - 1]
        assert lags.p95 == pytest.approx(slowest, rel=0.02, abs=1)
