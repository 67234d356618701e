"""What a Spark task of the hourly job reports of its rows, and what the job says of its progress."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pyarrow as pa
import pytest

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import Progress, decode_block, decode_report, hash_id
from pipeline_under_test.batch.hourly import rows
from pipeline_under_test.batch.hourly.aggregate import ImportedLane

EVENT_MS = 1_795_579_200_000


def batch(*events: tuple[str, bool], replay: str | None = None) -> pa.RecordBatch:
    columns = zip(*((name, EVENT_MS, "autumn", 1.0, is_repeated, replay) for name, is_repeated in events), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, rows.ROWS, strict=True)]
    return pa.record_batch(arrays, schema=rows.ROWS)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryOutlet:
    log = MemoryOutlet()
    monkeypatch.setattr(rows, "Emitter", partial(Emitter, outlet=lambda: log))
    return log


def test_rows_are_reported_live_and_what_an_earlier_run_reported_as_a_replay(log: MemoryOutlet) -> None:
    batches = [batch(("a", False), ("b", True)), batch(("c", False)), batch(("d", False), ("e", True), replay="june")]
    (found,) = rows._report_batches("scores", "aggregate", "sent", "rerun", iter(batches))
    assert found.to_pydict() == {"reported": [5]}
    sent: Counter[tuple[str, str | None, int]] = Counter()
    for value in log.values(BEACONS):
        block = decode_block(value)
        sent.update((block.checkpoint, block.replay, each) for each in block.id_hash.tolist())
    assert sent == {
        ("aggregate.out", None, hash_id("a")): 1,
        ("aggregate.out", "rerun", hash_id("b")): 1,
        ("aggregate.out", None, hash_id("c")): 1,
        ("aggregate.out", "june", hash_id("d")): 1,
        ("aggregate.out", "rerun", hash_id("e")): 1,
    }
    last = decode_report(log.values(REPORTS)[-1])
    assert last.closed
    assert last.resumes


def test_a_task_whose_beacons_are_not_acknowledged_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CLOSE_S", 0.2)
    monkeypatch.setattr(rows, "Emitter", partial(Emitter, outlet=lambda: MemoryOutlet(down=True)))
    with pytest.raises(rows.BeaconsMissing):
        list(rows._report_batches("scores", "aggregate", "received", "rerun", [batch(("a", False))]))


def test_the_job_reports_when_the_oldest_event_was_imported_that_waits(log: MemoryOutlet) -> None:
    with Emitter("scores", "aggregate", outlet=lambda: log) as emitter:
        lane = ImportedLane("aggregate.in", EVENT_MS)
        emitter.follow(lane)
        assert emitter.flush()
        lane.until_ms += 1_000
    lanes = [lane for value in log.values(REPORTS) for lane in decode_report(value).progress if lane.lane]
    assert lanes[0] == Progress("aggregate.in", "event", EVENT_MS)
    assert lanes[-1] == Progress("aggregate.in", "event", EVENT_MS + 1_000)
