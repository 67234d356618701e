"""A pipeline's series, read from real rows and roll-ups that the aggregator's own code made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from aggregator.closing.window_store import mark_hours
from aggregator.maintenance import rollups
from aggregator.set_aside import SetAside
from dashboard.queries.annotations import MAX_INCIDENTS, read_happenings
from dashboard.queries.condition import Condition, Freshness, condition
from dashboard.queries.panels import read_panels
from dashboard.queries.series import MAX_BUCKETS, Series, bucket_s, read_series
from dashboard.request.shown_range import MAX_SPAN_S, ShownRange
from lagloss.wire.sketch import Sketch
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.alerting import IncidentChangeRow, IncidentRow
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import Rollup
from tests.support.incident_rows import store_incident
from tests.support.window_documents import CHAIN, chain, document, facts, store_window, window_of

MIDNIGHT = 1_795_219_200
HOUR = 3_600
DAY = 86_400
NOW = MIDNIGHT + 3 * DAY
CHAIN_LAGS = {"src.in": 1.0, "src.out": 2.0, "mid.in": 3.0, "mid.out": 4.0, "snk.in": 8.0, "snk.out": 10.0}


_moments = count(NOW * 1_000, 10_000_000)
"""Nothing is computed twice at the same moment."""


@pytest.fixture(scope="module")
def shared(module_database_url: str) -> Iterator[Store]:
    opened = Store(module_database_url)
    opened.apply(chain(), now_ms=MIDNIGHT * 1_000)
    yield opened
    opened.close()


@pytest.fixture
def store(shared: Store) -> Store:
    """The module's database, without what was stored of the pipeline."""
    with shared.engine.begin() as connection:
        for table in (
            tables.WindowRow,
            tables.RollupRow,
            tables.RollupDirtyRow,
            tables.EmitterRow,
            IncidentChangeRow,
            IncidentRow,
        ):
            connection.execute(delete(table))
    return shared


def fill(store: Store, minutes: list[int], *, roll_up: bool = True) -> dict[int, dict[str, Any]]:
    """Stores windows of growing lag, and rolls them up as the closer does; the documents by start."""
    stored = {}
    with store.engine.begin() as connection:
        for start in minutes:
            scale = 1 + start % 5_040 / 300
            lags = {name: scale * lag for name, lag in CHAIN_LAGS.items()}
            lost = {"mid": (2, 3)} if start % 420 == 0 else None
            window = document(chain(), start, lags_ms=lags, lost=lost, verdict="loss" if lost else "ok")
            store_window(connection, window, start, notify=False)
            stored[start] = window
        mark_hours(connection, [("chain", start) for start in minutes], 0)
    now_ms, left = next(_moments), int(roll_up)
    while left:  # days are marked when their hours are computed, and settle like these
        _, left = rollups.roll_up(store.engine, now_ms, SetAside(store.engine))
        now_ms += rollups.SETTLE_MS
    return stored


def read(store: Store, from_s: int, to_s: int, now_s: float = NOW) -> Series:
    return read_series(store, store.pipeline("chain"), ShownRange(from_s, to_s), now_s)


def oracle(windows: dict[int, dict[str, Any]], from_s: int, to_s: int) -> dict[str, Any]:
    """The sums of these minutes, slowly."""
    inside = [window for start, window in windows.items() if from_s <= start < to_s]
    sketches: dict[str, list[Sketch]] = defaultdict(list)
    for window in inside:
        for name, there in facts(window).checkpoints.items():
            sketches[name].append(there.lags)
    p95 = {name: Sketch.merged(found).quantile_ms(0.95) for name, found in sketches.items()}
    return {
        "messages": sum(window["messages"] for window in inside),
        "lost": [sum(window["lost"][side] for window in inside) for side in ("min", "max")],
        "e2e": Sketch.merged(facts(window).e2e_lags for window in inside).quantile_ms(0.95),
        "process mid": p95["mid.out"] - p95["mid.in"],
        "queue mid → snk": p95["snk.in"] - p95["mid.out"],
        "minutes": len(inside),
    }


def agrees(bucket: Any, wanted: dict[str, Any]) -> None:
    lags = {hop.label: value for hop, value in bucket.lags.hops.items()}
    assert bucket.messages == wanted["messages"]
    assert [bucket.lost.min, bucket.lost.max] == wanted["lost"]
    assert bucket.minutes == wanted["minutes"]
    assert bucket.e2e_ms.p95 == pytest.approx(wanted["e2e"])
    for label in ("process mid", "queue mid → snk"):
        assert lags[label] == pytest.approx(wanted[label])


@given(st.integers(1, MAX_SPAN_S // 60), st.integers(0, 30_000_000))
def test_a_span_has_at_most_1_440_buckets_of_the_shortest_length_that_allows_it(minutes: int, at: int) -> None:
    span = ShownRange(60 * at, 60 * (at + minutes))
    length_s = bucket_s(span)
    touched = len({start // length_s for start in range(span.from_s, span.to_s, 60)}) if minutes < 100_000 else 0
    assert length_s in (60, HOUR, DAY)
    assert touched <= MAX_BUCKETS
    assert (length_s == 60) == (minutes <= MAX_BUCKETS)


def test_minutes_are_told_as_their_windows_tell_them_and_gaps_stay_gaps(store: Store) -> None:
    minutes = [MIDNIGHT + 60 * minute for minute in (*range(10), *range(15, 30))]
    windows = fill(store, minutes)
    series = read(store, MIDNIGHT, MIDNIGHT + HOUR)
    assert [bucket.start_s for bucket in series.buckets] == minutes
    for bucket in series.buckets:
        assert bucket.e2e_ms.p95 == windows[bucket.start_s]["e2e_lag_ms"]["p95"]
        assert (bucket.history, bucket.verdict) == (False, windows[bucket.start_s]["verdict"])
    assert series.total is not None
    agrees(series.total, oracle(windows, MIDNIGHT, MIDNIGHT + HOUR))


def test_hours_and_days_and_totals_agree_with_merging_every_minute(store: Store) -> None:
    windows = fill(store, list(range(MIDNIGHT, MIDNIGHT + 2 * DAY, 1_200)))
    hours = read(store, MIDNIGHT, MIDNIGHT + 2 * DAY)
    assert (hours.bucket_s, len(hours.buckets)) == (HOUR, 48)
    for bucket in hours.buckets:
        agrees(bucket, oracle(windows, bucket.start_s, bucket.start_s + HOUR))
    days = read(store, MIDNIGHT - 100 * DAY, MIDNIGHT + 2 * DAY)
    assert (days.bucket_s, len(days.buckets)) == (DAY, 2)
    for bucket in days.buckets:
        agrees(bucket, oracle(windows, bucket.start_s, bucket.start_s + DAY))
    for series in (hours, days):
        assert series.total is not None
        agrees(series.total, oracle(windows, MIDNIGHT, MIDNIGHT + 2 * DAY))


def test_the_total_of_any_span_is_that_of_its_minutes(store: Store) -> None:
    windows = fill(store, list(range(MIDNIGHT, MIDNIGHT + 2 * DAY, 1_200)))

    @settings(max_examples=30)
    @given(st.integers(0, 2 * 24 * 60), st.integers(1, 2 * 24 * 60))
    def holds(first: int, length: int) -> None:
        from_s, to_s = MIDNIGHT + 60 * first, MIDNIGHT + 60 * (first + length)
        total = read(store, from_s, to_s).total
        assert (total is None) == (not any(from_s <= start < to_s for start in windows))
        if total is not None:
            agrees(total, oracle(windows, from_s, to_s))

    holds()


def test_the_newest_hours_are_summed_from_minutes_while_their_roll_ups_are_not_up_to_date(store: Store) -> None:
    """Of the hour that runs nothing is rolled up, and the roll-up of the one before does not know its last minutes."""
    windows = fill(store, list(range(MIDNIGHT, MIDNIGHT + 30 * HOUR, 600)))
    windows |= fill(store, [MIDNIGHT + 30 * HOUR, MIDNIGHT + 29 * HOUR + 60], roll_up=False)
    now_s = MIDNIGHT + 30 * HOUR + 300
    series = read(store, MIDNIGHT, MIDNIGHT + 31 * HOUR, now_s)
    assert [bucket.start_s for bucket in series.buckets] == [MIDNIGHT + HOUR * at for at in range(31)]
    for bucket in series.buckets:
        agrees(bucket, oracle(windows, bucket.start_s, bucket.start_s + HOUR))
    days = read(store, MIDNIGHT - 100 * DAY, MIDNIGHT + 31 * HOUR, now_s)
    agrees(days.buckets[-1], oracle(windows, MIDNIGHT + DAY, MIDNIGHT + 2 * DAY))


def test_a_window_that_was_revised_and_a_roll_up_computed_anew_are_read_again(store: Store) -> None:
    fill(store, [MIDNIGHT])
    assert read(store, MIDNIGHT, MIDNIGHT + 60).buckets[0].messages == 1_000
    with store.engine.begin() as connection:
        revised = document(chain(), MIDNIGHT, messages=77, lags_ms=CHAIN_LAGS, revision=2)
        store_window(connection, revised, MIDNIGHT, notify=False)
    assert read(store, MIDNIGHT, MIDNIGHT + 60).buckets[0].messages == 77
    assert read(store, MIDNIGHT, MIDNIGHT + 2 * DAY).buckets[0].messages == 1_000
    with store.engine.begin() as connection:
        anew = Rollup.of_window(window_of(revised), facts(revised))
        connection.execute(
            tables.table_of(tables.RollupRow).update().values(computed_at=NOW * 2_000, packed=anew.pack())
        )
    assert read(store, MIDNIGHT, MIDNIGHT + 2 * DAY).buckets[0].messages == 77


def test_nothing_is_told_of_a_span_without_windows_and_of_a_pipeline_that_is_not_there(store: Store) -> None:
    empty = read(store, MIDNIGHT, MIDNIGHT + DAY)
    assert (empty.buckets, empty.total) == ((), None)
    with pytest.raises(UnknownPipeline):
        read_panels(store, "nobody", ShownRange(MIDNIGHT, MIDNIGHT + 60), NOW)


def test_open_minutes_are_told_by_their_tallies(store: Store) -> None:
    start = NOW - 120
    with store.engine.begin() as connection:
        ensure_days(connection, [start])
        connection.execute(delete(tables.TallyRow))
        connection.execute(
            tables.table_of(tables.TallyRow).insert().values(
                pipeline="chain", window_start=start, emitter=b"e" * 16, checkpoint="src.in", replay="", node="src",
                seq=1, sample=1 << 32, beacons=7, payload_bytes=0, id_sum=0, dropped=0,
                sketch=Sketch.from_bins({10_000: 7}).to_bytes(),
                ranges=b"", changed_at=0, changed_basis=0,
            )
        )  # fmt: skip
    [bucket] = read(store, NOW - HOUR, NOW).buckets
    assert (bucket.verdict, bucket.messages, bucket.lost, bucket.loss_ratio) == ("open", 7, None, None)
    assert dict(bucket.seen) == {"src.in": 7}
    with store.engine.begin() as connection:
        connection.execute(delete(tables.TallyRow))


def test_what_happened_in_a_span_is_told_and_nothing_else(store: Store) -> None:
    opened = datetime.fromtimestamp(MIDNIGHT + HOUR, UTC)
    with store.engine.begin() as connection:
        within = store_incident(connection, opened_at=opened, resolved_at=opened.replace(minute=30))
        store_incident(connection, pipeline="other", opened_at=opened)
        # minutes from and to (None: still there), version; the first falls silent without saying so
        lives = [(0, 30, ""), (0, None, ""), (9, None, "1"), (30, None, "1"), (50, 80, "1"), (70, None, "2")]
        for number, (from_, to, version) in enumerate(lives):
            newest = (MIDNIGHT + 60 * (100 if to is None else to)) * 1_000
            connection.execute(
                tables.table_of(tables.EmitterRow).insert().values(
                    pipeline="chain", emitter=bytes([number]) * 16, node="mid", host="h", seq=1,
                    started_at=(MIDNIGHT + 60 * from_) * 1_000, sent_at=newest, closed=to == 80, final_through=0,
                    appended_at=newest, labels={"version": version} if version else {},
                )
            )  # fmt: skip
    found = read_happenings(store, "chain", ShownRange(MIDNIGHT, MIDNIGHT + 2 * HOUR))
    assert [incident.id for incident in found.incidents] == [within]
    assert [(deploy.text, deploy.kind) for deploy in found.deploys] == [
        ("version 1 of the definition applied", "definition"),
        ("2 processes of mid started", "start"),
        ("mid scaled out: 2 → 3 processes", "scale-out"),
        ("1 of 3 processes of mid restarted", "restart"),
        ("mid scaled out: 3 → 4 processes", "scale-out"),
        ("version 2 of mid: a process started", "version"),
        ("mid scaled in: 5 → 4 processes", "scale-in"),
    ]
    later = read_happenings(store, "chain", ShownRange(MIDNIGHT + 75 * 60, MIDNIGHT + 2 * HOUR))
    assert [deploy.text for deploy in later.deploys] == ["mid scaled in: 5 → 4 processes"], (
        "counted from before the span"
    )
    assert read_happenings(store, "chain", ShownRange(MIDNIGHT + 2 * HOUR, MIDNIGHT + 3 * HOUR)).incidents == ()


def test_of_many_incidents_the_critical_and_then_the_newest_are_told_and_the_rest_is_counted(store: Store) -> None:
    with store.engine.begin() as connection:
        by_minute = {
            minute: store_incident(
                connection,
                opened_at=datetime.fromtimestamp(MIDNIGHT + HOUR + 60 * minute, UTC),
                resolved_at=datetime.fromtimestamp(MIDNIGHT + 3 * HOUR, UTC),
                severity="critical" if minute % 10 == 0 else "warning",
            )
            for minute in range(MAX_INCIDENTS + 10)
        }
    found = read_happenings(store, "chain", ShownRange(MIDNIGHT, MIDNIGHT + 4 * HOUR))
    told = {incident.id for incident in found.incidents}
    assert (len(told), found.more_incidents, found.document()["more_incidents"]) == (MAX_INCIDENTS, 10, 10)
    left_out = {minute for minute, id_ in by_minute.items() if id_ not in told}
    assert left_out == set(range(1, 10)) | {11}
    starts = [incident.first_window_s for incident in found.incidents]
    assert starts == sorted(starts)
    few = read_happenings(store, "chain", ShownRange(MIDNIGHT, MIDNIGHT + HOUR))
    assert (len(few.incidents), few.more_incidents) == (3, 0)  # their first windows are three minutes before


def test_the_panels_know_what_was_promised_when(database_url: str) -> None:
    with closing(Store(database_url)) as store:
        store.apply(chain(), now_ms=MIDNIGHT * 1_000)
        stricter = parse_definition(CHAIN.replace("max: 0.01", "max: 0.001"))
        store.apply(stricter, now_ms=(MIDNIGHT + HOUR + 1) * 1_000)
        with store.engine.begin() as connection:
            store_window(connection, document(chain(), MIDNIGHT + HOUR), MIDNIGHT + HOUR, notify=False)
        found = read_panels(store, "chain", ShownRange(MIDNIGHT, MIDNIGHT + 2 * HOUR), NOW)
        assert [(period.from_s - MIDNIGHT, period.sla.loss.max) for period in found.sla_periods.parts] == [
            (0, 0.01),
            (HOUR + 60, 0.001),
        ]
        assert found.newest_sla.loss.max == 0.01
        assert found.stored.version == 2


def fresh(**known: Any) -> Freshness:
    all_: dict[str, Any] = {
        "newest_s": None, "verdict": None, "live_s": None, "reported_s": None, "emitters": 0, "reporting": 0,
    }  # fmt: skip
    return Freshness(**{**all_, **known})


@pytest.mark.parametrize(
    ("known", "has_windows", "ends_now", "wanted"),
    [
        ({}, False, True, Condition.BLIND),
        ({"emitters": 1, "reporting": 1}, False, True, Condition.NOT_CLOSED),
        ({"live_s": NOW - 60, "emitters": 1, "reporting": 1}, True, True, Condition.NOT_CLOSED),
        ({"live_s": NOW - 9_000, "emitters": 1, "reporting": 1}, True, True, Condition.STALE),
        ({"live_s": NOW - 9_000, "emitters": 1}, True, True, Condition.BLIND),
        ({"newest_s": NOW - 180, "verdict": "ok", "emitters": 1, "reporting": 1}, True, True, Condition.FINE),
        ({"newest_s": NOW - 180, "verdict": "idle"}, True, True, Condition.IDLE),
        ({"newest_s": NOW - 180, "verdict": "unknown", "emitters": 1}, True, True, Condition.BLIND),
        ({"newest_s": NOW - 9_000, "verdict": "ok", "emitters": 1}, True, True, Condition.BLIND),
        ({"newest_s": NOW - 9_000, "verdict": "ok", "reporting": 1}, True, True, Condition.STALE),
        ({"newest_s": NOW - 9_000, "verdict": "ok", "reporting": 1}, False, True, Condition.STALE),
        ({"newest_s": NOW - 180, "verdict": "ok", "reporting": 1}, False, False, Condition.NOTHING_IN_RANGE),
    ],
)
def test_why_there_is_nothing_or_how_old_it_is_is_told_apart(
    known: dict[str, Any], has_windows: bool, ends_now: bool, wanted: Condition
) -> None:
    assert condition(fresh(**known), 60_000, NOW, has_windows, ends_now=ends_now) == wanted
