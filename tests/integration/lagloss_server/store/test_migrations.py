"""The migrations and the models tell the same tables, and what is in them goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import alembic.command
import alembic.config
import numpy as np
import pytest
from sqlalchemy import insert, select, text, update

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from alerting.incidents.routing import ReceiverRoute
from lagloss.errors import EXIT_UNREACHABLE
from lagloss.wire.format import OffsetRange, pack_ranges
from lagloss.wire.sketch import Sketch
from lagloss_server.errors import TablesBehind, TablesUnknown
from lagloss_server.model.alert_rules import Alerts
from lagloss_server.model.definition import as_document, parse_definition
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Tap
from lagloss_server.rules.facts import CheckpointFacts, WindowFacts
from lagloss_server.rules.rollup import Rollup
from lagloss_server.store.migrate import demand_newest, migrate, revisions
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.alerting import OutboxMessageRow
from lagloss_server.store.store import Store
from taps.plan import EndMark, Mark, OffsetSpan, TapPlan
from tests.support.alerting_world import START, close_windows, only_loss, rows
from tests.support.incident_rows import store_incident
from tests.support.tap_rows import store_tap
from tests.support.window_documents import CHAIN

MIGRATE = "import sys; from lagloss_server.store.migrate import migrate; migrate(sys.argv[1])"
RELEASED = "0015"
"""The revision of the tables of version 0.1."""
INCIDENT = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")


def config(database_url: str) -> alembic.config.Config:
    found = alembic.config.Config()
    found.set_main_option("script_location", str(Path(__file__).parents[4] / "migrations"))
    found.attributes["url"] = database_url
    return found


def test_migrations_lead_to_the_models_tables(database_url: str, store: Store) -> None:
    with store.engine.begin() as connection:
        ensure_days(connection, [1_780_000_020])  # day partitions are no difference
    alembic.command.check(config(database_url))


def test_the_way_down_and_up_again_works(database_url: str, store: Store) -> None:
    alembic.command.downgrade(config(database_url), "base")
    with store.engine.connect() as connection:
        left = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars()
        assert set(left) == {"alembic_version"}
    alembic.command.upgrade(config(database_url), "head")
    alembic.command.check(config(database_url))


def test_a_definition_that_no_version_reads_stands_in_no_migrations_way(database_url: str, store: Store) -> None:
    """It is as it was one step down, and further, and up again; and all others are read."""
    store.apply(only_loss())
    odd = ["[]", '"x"', "5", "{}", '{"spec": []}', '{"spec": {"alerts": [], "nodes": ["a"], "sla": 5}}']
    odd += ['{"spec": {"nodes": [], "futureField": 1}}', '{"spec": {"nodes": {}, "alerts": 7}}', "[" * 900 + "]" * 900]
    rows_of = text("SELECT name, definition::text AS definition FROM pipeline WHERE version = 7 ORDER BY name")
    with store.engine.begin() as connection:
        for number, document in enumerate(odd):
            values = {"name": f"odd-{number}", "definition": document}
            connection.execute(text("INSERT INTO pipeline VALUES (:name, 7, 0, CAST(:definition AS jsonb))"), values)
        before = connection.execute(rows_of).all()
    for revision in ("-1", RELEASED):
        alembic.command.downgrade(config(database_url), revision)
        alembic.command.upgrade(config(database_url), "head")
        with store.engine.connect() as connection:
            assert connection.execute(rows_of).all() == before
    found = store.versions()
    assert [each.name for each in found] == ["chain"]
    assert len(found.unreadable) == len(odd)


def test_an_incident_that_is_open_when_the_tables_change_goes_on(database_url: str, store: Store) -> None:
    """As the first version of alerting left it, which knew no notes, labels or severities."""
    alembic.command.downgrade(config(database_url), "0007")
    told = {
        "version": 1,
        "type": "incident.opened",
        "summary": "chain: 4.00% of messages lost",
        "since": None,
        "incident": {"id": str(INCIDENT), "pipeline": "chain", "rule": "loss", "state": "open"},
        "breach": {"what": "loss_ratio", "value": 0.04, "worst": 0.04, "target": 0.01},
        "where": [{"kind": "link", "name": "src->mid", "lost": 40, "share": 1.0}],
        "examples": [],
        "links": {"dashboard": None},
    }
    with store.engine.begin() as connection:
        detail = {"breaches": {str(START): 0.04}, "target": 0.01}
        connection.execute(
            text(
                "INSERT INTO incident (id, pipeline, rule, state, opened_at, first_window, last_window, worst_ratio, "
                "detail) VALUES (:id, 'chain', 'loss', 'open', now(), :start, :start, 0.04, :detail)"
            ),
            {"id": INCIDENT, "start": START, "detail": json.dumps(detail)},
        )
        connection.execute(
            text(
                "INSERT INTO outbox (incident_id, change, body, created_at, sent_at) "
                "VALUES (:id, 'opened', :body, now(), now())"
            ),
            {"id": INCIDENT, "body": json.dumps(told)},
        )
    alembic.command.upgrade(config(database_url), "head")
    store.apply(only_loss())
    close_windows(store, "LL")
    evaluator = Evaluator(store, Notifier([ReceiverRoute((), ("webhook",))]))
    assert [evaluator.evaluate(pipeline) for pipeline in store.pipelines()] == [["loss updated"]]
    close_windows(store, "ooo", first=2)
    assert [evaluator.evaluate(pipeline) for pipeline in store.pipelines()] == [["loss resolved"]]
    assert [row.action for row in rows(store, OutboxMessageRow)] == ["trigger", "update", "resolve"]


def test_rollups_of_before_get_their_new_columns_from_what_is_packed_in_them(database_url: str, store: Store) -> None:
    lags = Sketch.of(np.array([100.0] * 95 + [900.0] * 5))
    counts = {"windows": 60, "messages": 100, "delivered": 93, "pending": 2, "on_time": 90, "on_time_of": 95}
    before = Rollup(verdicts={"loss": 1, "ok": 57, "unknown": 2}, **counts, e2e_lags=lags)
    insert = text(
        "INSERT INTO rollup (pipeline, period, start, windows, messages, lost_min, lost_max, computed_at, packed) "
        "VALUES ('chain', 'hour', :start, 60, 100, 0, 0, 0, :packed)"
    )
    with store.engine.begin() as connection:
        for start in (0, 3_600):
            connection.execute(insert, {"start": start, "packed": before.pack()})
    alembic.command.downgrade(config(database_url), "0008")
    alembic.command.upgrade(config(database_url), "head")
    expected = before.headline()
    with store.engine.connect() as connection:
        after = connection.execute(select(tables.table_of(tables.RollupRow))).all()
    assert len(after) == 2
    for row in after:
        assert {name: getattr(row, name) for name in expected} == expected


def test_what_withheld_incidents_before_is_known_by_kind_and_name_and_reads_the_same_on_the_way_down(
    database_url: str, store: Store
) -> None:
    sentences = {
        "silence 0f by ann: by bob: it is\nknown": ("silence", "0f", "ann: by bob", "it is\nknown"),
        "maintenance nightly: disks: all\nof them": ("maintenance", "nightly", None, "disks: all\nof them"),
        "inhibited: lag is open and tells of it": ("rule", "lag", None, None),
        "inhibited: orders, which this pipeline follows, is blind": ("upstream", "orders", None, None),
        None: (None, None, None, None),
    }
    with store.engine.begin() as connection:
        for number in range(len(sentences)):
            store_incident(connection, id_=UUID(int=number), rule=f"rule-{number}")
    alembic.command.downgrade(config(database_url), "0014")
    sentence = text("SELECT withheld FROM incident ORDER BY id")
    with store.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO silence (id, matchers, reason, author, starts_at, ends_at) VALUES "
                "('0f', '[]', E'it is\\nknown', 'ann: by bob', now(), now())"
            )
        )
        for number, withheld in enumerate(sentences):
            update = text("UPDATE incident SET withheld = :withheld WHERE id = :id")
            connection.execute(update, {"id": UUID(int=number), "withheld": withheld})
    alembic.command.upgrade(config(database_url), "head")
    columns = "withheld_kind, withheld_ref, withheld_by, withheld_reason"
    with store.engine.connect() as connection:
        found = connection.execute(text(f"SELECT {columns} FROM incident ORDER BY id")).all()
    assert [tuple(row) for row in found] == list(sentences.values())
    alembic.command.downgrade(config(database_url), "0014")
    with store.engine.connect() as connection:
        assert list(connection.execute(sentence).scalars()) == list(sentences)


def test_tables_of_another_version_are_refused_with_what_to_do(database_url: str, store: Store) -> None:
    demand_newest(store.engine)
    newest = revisions()[0]
    alembic.command.downgrade(config(database_url), "-1")
    with pytest.raises(TablesBehind, match=rf"needs {newest}. Run `python -m lagloss_server.ops.prepare`"):
        demand_newest(store.engine)
    alembic.command.upgrade(config(database_url), "head")
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(
        TablesUnknown, match=f"revision 9999, which a newer lagloss made; this one knows up to {newest}"
    ):
        demand_newest(store.engine)
    with pytest.raises(TablesUnknown):
        migrate(database_url)


@pytest.mark.parametrize("service", ["aggregator", "collector", "dashboard"])
def test_a_service_ends_where_the_tables_are_of_a_newer_version(
    service: str, database_url: str, store: Store, kafka_bootstrap: str, tmp_path: Path
) -> None:
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    environment = {
        **os.environ,
        "LAGLOSS_DATABASE_URL": database_url,
        "LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "LAGLOSS_DATA_DIR": str(tmp_path),
        "LAGLOSS_METRICS_PORT": "0",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", service], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, "which a newer lagloss made" in done.stderr) == (EXIT_UNREACHABLE, True), done.stderr


def test_of_four_that_migrate_at_once_each_finds_the_newest_tables(database_url: str, store: Store) -> None:
    alembic.command.downgrade(config(database_url), "base")
    with ThreadPoolExecutor(4) as pool:
        processes = [
            pool.submit(
                subprocess.run,
                [sys.executable, "-c", MIGRATE, database_url],
                capture_output=True, text=True, timeout=120, check=False,
            )
            for _ in range(4)
        ]  # fmt: skip
    assert [(done.result().returncode, done.result().stderr) for done in processes] == [(0, "")] * 4
    demand_newest(store.engine)


def test_definitions_that_were_stored_with_the_old_defaults_have_the_rules_that_are_on_now(
    database_url: str, store: Store
) -> None:
    """As version 0.1 stored what a definition left out, beside a rule that its owner had written."""
    old = {
        "loss": {"breaches": 2, "of": 3, "atOnce": 0.05, "minMessages": 500, "ticketOver": "3600000ms",
                 "severity": "critical"},
        "duplicates": False, "deadLetters": {"max": 0.2, "breaches": 2, "of": 3, "minMessages": 500,
                                             "severity": "critical"},
    }  # fmt: skip
    alembic.command.downgrade(config(database_url), "0019")
    document = as_document(parse_definition(CHAIN))
    document["spec"]["alerts"] = old
    del document["spec"]["sla"]["staleness"]
    with store.engine.begin() as connection:
        connection.execute(
            text("INSERT INTO pipeline (name, version, applied_at, definition) VALUES ('chain', 1, 0, :document)"),
            {"document": json.dumps(document)},
        )
    alembic.command.upgrade(config(database_url), "head")
    alerts = store.pipeline("chain").definition.spec.alerts
    assert (alerts.loss, alerts.duplicates, alerts.volume) == (Alerts().loss, Alerts().duplicates, Alerts().volume)
    (dead,) = alerts.dead_letters
    assert (dead.max, dead.breaches, dead.severity) == (0.2, 2, "critical")
    alembic.command.downgrade(config(database_url), "0019")
    with store.engine.connect() as connection:
        stored = connection.execute(text("SELECT definition FROM pipeline")).scalar_one()
    assert not {"uncertainLoss", "filtered", "volume", "corruption"} & stored["spec"]["alerts"].keys()
    alembic.command.upgrade(config(database_url), "head")


def test_tallies_are_packed_and_unpacked(database_url: str, store: Store) -> None:
    """Migration 0029, both ways."""
    alembic.command.downgrade(config(database_url), "0028")
    sketch = Sketch.from_bins({-12_000: 1, 0: 3, 9_000: 63, 10_500: 64, 10_501: 1 << 40})
    ranges = [OffsetRange(0, 0, 63), OffsetRange(65_535, 64, (1 << 62) + 1)]
    row = {
        "pipeline": "chain",
        "window_start": START,
        "emitter": b"e" * 16,
        "replay": "",
        "node": "src",
        "seq": 1,
        "sample": 1,
        "beacons": 1,
        "payload_bytes": 0,
        "id_sum": 1,
        "dropped": 0,
        "changed_at": 1,
        "changed_basis": 1,
    }
    columns = [*row, "checkpoint", "sketch", "ranges"]
    insert = text(f"INSERT INTO tally ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})")
    read = text("SELECT sketch, ranges FROM tally ORDER BY checkpoint")
    lowest = text("SELECT lowest_bin FROM tally ORDER BY checkpoint")
    with store.engine.begin() as connection:
        ensure_days(connection, [START])
        places = [[place.partition, place.first, place.last] for place in ranges]
        full = {"checkpoint": "src.in", "sketch": json.dumps(sketch.pack()), "ranges": json.dumps(places)}
        empty = {"checkpoint": "src.out", "sketch": "[[], []]", "ranges": "[]"}
        connection.execute(insert, [{**row, **full}, {**row, **empty}])
    alembic.command.upgrade(config(database_url), "head")
    with store.engine.connect() as connection:
        found = [tuple(map(bytes, each)) for each in connection.execute(read)]
        assert list(connection.execute(lowest).scalars()) == [-12_000, None]
    assert found == [(sketch.to_bytes(), pack_ranges(ranges)), (b"", b"")]
    alembic.command.downgrade(config(database_url), "0028")
    with store.engine.connect() as connection:
        again = [tuple(each) for each in connection.execute(read)]
    assert again == [(sketch.pack(), places), ([[], []], [])]
    alembic.command.upgrade(config(database_url), "head")


def test_results_of_before_are_read_as_they_were_and_packed_ones_go_back(database_url: str, store: Store) -> None:
    """Migration 0031, both ways."""
    store.apply(only_loss())
    close_windows(store, "oL")
    window, revision = tables.WindowRow, tables.WindowRevisionRow

    def results() -> list[tuple[Any, ...]]:
        with store.engine.connect() as connection:
            kept = connection.execute(select(window.document, window.facts).order_by(window.window_start)).all()
            earlier = connection.execute(select(revision.document).order_by(revision.window_start)).scalars().all()
        packed = [WindowFacts.unpack(row.facts).pack() for row in kept]
        return list(zip([row.document for row in kept], packed, earlier, strict=True))

    def stored(columns: str, table: str = "window", by: str = "window_start") -> list[tuple[Any, ...]]:
        with store.engine.connect() as connection:
            asked = text(f'SELECT {columns} FROM "{table}" ORDER BY {by}')
            return [tuple(row) for row in connection.execute(asked)]

    facts = WindowFacts(
        checkpoints={"src.in": CheckpointFacts(3, 0, 3, 0, Sketch.of(np.array([1.0, 5.0, 5.0])))},
        arrivals=(Sketch.of(np.array([7.0])),),
        durations={"node src": Sketch.of(np.array([1.0, 900.0]))},
        read={(b"e" * 16, "src.in", None): 3},
    )
    with store.engine.begin() as connection:
        connection.execute(update(window).values(facts=facts.pack()))
        for start, document in connection.execute(select(window.window_start, window.document)).all():
            earlier = {**document, "messages": 1}
            row = {"pipeline": "chain", "window_start": start, "revision": 1, "closed_at": 1, "document": earlier}
            connection.execute(insert(revision).values(**row))
        rollup = Rollup.of_window(document, facts).pack()
        counts = dict.fromkeys(("windows", "messages", "lost_min", "lost_max", "computed_at"), 1)
        row = {"pipeline": "chain", "period": "hour", "start": 3_600, **counts, "packed": rollup}
        connection.execute(insert(tables.RollupRow).values(**row))
    before = results()
    assert [(document["verdict"], earlier["messages"]) for document, _, earlier in before] == [("ok", 1), ("loss", 1)]
    alembic.command.downgrade(config(database_url), "0030")
    as_json, earlier = stored("document, facts"), stored("document", "window_history")
    assert [(document, earlier) for document, _, earlier in before] == [
        (document, earlier) for (document, _), (earlier,) in zip(as_json, earlier, strict=True)
    ]
    (found,) = store.rollups("chain", "hour", 0, 7_200).values()
    assert (stored("packed", "rollup", "start")[0][0][:1], found.pack()) == (b"x", rollup)
    assert {json.loads(zlib.decompress(packed))["read"][0][0] for _, packed in as_json} == {(b"e" * 16).hex()}
    alembic.command.upgrade(config(database_url), "head")
    assert set(stored("document")) == {(None,)}
    assert results() == before
    with store.engine.begin() as connection:
        connection.execute(update(window).values(document={"messages": 2}))
    assert [document for document, _, _ in results()] == [{"messages": 2}] * 2


def test_plans_of_taps_keep_their_marks(database_url: str, store: Store) -> None:
    extraction = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
    plan = TapPlan(7, 1_000, 8, 1, commits={1: (Mark(9, 900),)})
    spans = {
        None: OffsetSpan(0, 5, 9, ends=(EndMark(4, 10, 10), EndMark(9, 20, 20))),
        "copier": OffsetSpan(0, 5, 9, commits=(Mark(9, 15),)),
    }
    with store.engine.begin() as connection:
        for group, span in spans.items():
            tap = Tap("p", "a", "", "t", group, ("out",), extraction, first=False)
            store_tap(connection, tap, since_ms=0, through_ms=0, plan=replace(plan, spans=(span,)).document())
    alembic.command.downgrade(config(database_url), "0032")
    with store.engine.connect() as connection:
        before = connection.execute(text("SELECT plan->'spans'->0->'marks' FROM tap ORDER BY 1")).scalars().all()
    assert before == [[[9, 15]], [[4, 10], [9, 20]]]
    alembic.command.upgrade(config(database_url), "head")
    with store.engine.connect() as connection:
        stored = connection.execute(text("SELECT tap->>'group', plan FROM tap")).all()
    assert {group: TapPlan.of(document) for group, document in stored} == {
        group: replace(plan, spans=(span,)) for group, span in spans.items()
    }
