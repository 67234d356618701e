"""The id x checkpoint matrix and the difference of a window, from a real log through the command line."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from sqlalchemy import select
from typer.testing import CliRunner

from lagloss.errors import EXIT_USAGE
from lagloss.wire.format import SAMPLE_ALL, OffsetRange, hash_id
from lagloss_server.base.errors import NotEnoughData, UnknownPipeline, UnknownWindow
from lagloss_server.cli.main import app
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.window_blocks import read_window
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.audit import AuditTrailRow
from lagloss_server.store.store import Store
from tests.conftest import Topics
from tests.support.logged_blocks import Logged
from tests.support.window_documents import document, store_missing, store_window

CHECKPOINTS = ["src.in", "src.out", "snk.in", "snk.out"]
IDS = [f"message-{at}" for at in range(10)]
LOST = IDS[::5]
THERE = [name for name in IDS if name not in LOST]
PARTITIONS = 2
LATER_MS = 70_000


class Seen(Logged):
    """A pipeline src -> snk with blocks in a topic of its own, and what the command line says of it."""

    def says(self, command: str, *options: str) -> Any:
        arguments = [command, self.name, "--window", rfc3339(self.start_s + 30), *options]
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0
        return json.loads(done.stdout) if "--json" in options else done.stdout

    def lags(self, *options: str) -> dict[str, dict[str, float]]:
        messages = self.says("matrix", "--json", *options)["messages"]
        return {message["message_id"]: message["checkpoints"] for message in messages}


@pytest.fixture
def seen(
    kafka_bootstrap: str,
    store: Store,
    database_url: str,
    topics: Callable[..., Topics],
    monkeypatch: pytest.MonkeyPatch,
) -> Seen:
    """Ten messages, of which two never came to the sink."""
    topic = topics(beacons_partitions=PARTITIONS).beacons
    found = Seen("matrix", int(time.time()) // 60 * 60 - 300, kafka_bootstrap, topic, store, PARTITIONS)
    nodes = "{nodes: [{name: src, to: [snk]}, {name: snk}]}"
    store.apply(parse_definition(f"apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {{name: matrix}}\nspec: {nodes}"))
    for checkpoint, ids, lag_ms in zip(CHECKPOINTS, (IDS, IDS, THERE, THERE), (5, 10, 20, 30), strict=True):
        found.tell(checkpoint, found.put(checkpoint, ids, lag_ms))
    monkeypatch.setenv("LAGLOSS_KAFKA_BOOTSTRAP", kafka_bootstrap)
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", database_url)
    monkeypatch.setattr("lagloss.broker.topics.BEACONS", topic)
    return found


def test_the_matrix_tells_lag_and_missing_places_of_each_message(seen: Seen) -> None:
    found = seen.says("matrix", "--json")
    assert (found["pipeline"], found["window_start"]) == (seen.name, rfc3339(seen.start_s))
    assert (found["checkpoints"], found["count"], "truncated" in found) == (CHECKPOINTS, 10, False)
    everywhere = {"src.in": 5.0, "src.out": 10.0, "snk.in": 20.0, "snk.out": 30.0}
    assert found["messages"] == [
        {
            "message_id": message_id,
            "event_time": rfc3339(seen.start_s + at),
            "checkpoints": {"src.in": 5.0, "src.out": 10.0} if message_id in LOST else everywhere,
            "missing_at": ["link src->snk"] if message_id in LOST else [],
        }
        for at, message_id in enumerate(IDS)
    ]


def test_only_what_is_missing_and_no_more_than_asked_for(seen: Seen) -> None:
    found = seen.says("matrix", "--only", "missing", "--json")
    assert [message["message_id"] for message in found["messages"]] == LOST
    found = seen.says("matrix", "--only", "missing", "--limit", "1", "--json")
    assert (found["count"], len(found["messages"]), found["truncated"]) == (2, 1, True)


def test_late_messages_come_worst_first_with_what_held_them(seen: Seen) -> None:
    slow = [f"slow-{at}" for at in range(3)]
    for checkpoint, lag_ms in zip(CHECKPOINTS, (5, 10, 30_000, 30_010), strict=True):
        seen.tell(checkpoint, seen.put(checkpoint, slow, lag_ms), emitter=b"slow".ljust(16))
    seen.tell("snk.out", seen.put("snk.out", ["slower"], 60_000), emitter=b"slower".ljust(16))
    found = seen.says("matrix", "--only", "late", "--json")
    assert [message["lag_ms"] for message in found["messages"]] == [60_000.0, 30_010.0, 30_010.0, 30_010.0]
    held = {(message["hop"], message["hop_ms"]) for message in found["messages"][1:]}
    assert held == {("link src->snk", 29_990.0)}
    assert "30 s, 30 s of it at link src->snk" in seen.says("matrix", "--only", "late")


def test_an_export_has_every_lost_message_and_is_noted_in_the_trail(seen: Seen, tmp_path: Path) -> None:
    document = json.loads(seen.says("export", "--what", "lost", "--format", "json"))
    assert (document["source"], document["truncated"]) == ("log", False)
    assert [message["message_id"] for message in document["messages"]] == LOST
    assert {(message["kind"], *message["places"]) for message in document["messages"]} == {("missing", "link src->snk")}
    assert {message["emitter"] for message in document["messages"]} == {"00" * 16}
    lines = list(csv.DictReader(io.StringIO(seen.says("export", "--what", "lost"), newline="")))
    assert [line["message_id"] for line in lines] == LOST
    out = tmp_path / "lost.parquet"
    seen.says("export", "--what", "lost", "--format", "parquet", "--out", str(out))
    assert parquet.read_table(out).column("message_id").to_pylist() == LOST
    with seen.store.engine.connect() as connection:
        actions = connection.execute(select(AuditTrailRow.action, AuditTrailRow.object)).all()
    assert [tuple(action) for action in actions if action.action.startswith("ids.")] == [
        ("ids.export", rfc3339(seen.start_s))
    ]


def test_without_the_log_an_export_has_what_the_closing_kept(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAGLOSS_KAFKA_BOOTSTRAP")
    definition = seen.store.pipeline(seen.name).definition
    lost = {"src->snk": (2, 2)}
    with seen.store.engine.begin() as connection:
        store_window(connection, document(definition, seen.start_s, verdict="loss", lost=lost), seen.start_s)
        store_missing(connection, seen.name, seen.start_s, LOST[0], kind="lost", place="link src->snk", last="src.out")
    arguments = ["export", seen.name, "--window", rfc3339(seen.start_s), "--what", "lost", "--format", "json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    found = json.loads(done.stdout)
    assert (found["source"], found["truncated"]) == ("closing", True)
    assert [(each["message_id"], each["kind"]) for each in found["messages"]] == [(LOST[0], "lost")]
    assert "more messages were affected than were stored" in done.stderr
    nowhere = ["export", seen.name, "--window", rfc3339(seen.start_s - 3_600)]
    with pytest.raises(UnknownWindow):
        CliRunner().invoke(app, nowhere, catch_exceptions=False)


def test_the_table_has_a_line_a_message_however_wide_it_is(seen: Seen) -> None:
    lines = seen.says("matrix", "--limit", "1").splitlines()
    assert lines[0].split() == ["message", *CHECKPOINTS, "missing", "at"]
    assert lines[1].split() == [IDS[0], "●", "5", "ms", "●", "10", "ms", "·", "·", "link", "src->snk"]
    assert lines[2] == f"10 messages of {seen.name}, window {rfc3339(seen.start_s)}, the first 1 shown"


def test_what_closing_counts_is_seen_and_what_it_sets_aside_is_not(seen: Seen) -> None:
    seen.put("snk.in", LOST, 70)  # of no tally, and sent twice
    seen.put("snk.in", LOST, 70)
    seen.put("snk.in", THERE, 1, replay="again")  # the live beacon stays the one that counts
    seen.put("snk.out", LOST, float("nan"))
    seen.put("snk.out", LOST, 80, sample=0)
    seen.put("elsewhere.in", IDS, 80)
    seen.tell_of_everything()
    assert seen.lags()[LOST[0]] == {"src.in": 5.0, "src.out": 10.0, "snk.in": 70.0}
    assert seen.lags()[THERE[0]] == {"src.in": 5.0, "src.out": 10.0, "snk.in": 20.0, "snk.out": 30.0}
    assert seen.says("diff", "--from", "src.in", "--to", "snk.in", "--json")["count"] == 0
    assert seen.says("diff", "--from", "src.in", "--to", "snk.out", "--json")["message_ids"] == LOST


def test_a_message_whose_name_nobody_told_is_shown_by_its_hash(seen: Seen) -> None:
    seen.tell("snk.dead", seen.put("snk.dead", ["stranger"], 50))
    assert seen.lags()[f"{hash_id('stranger'):016x}"] == {"snk.dead": 50.0}


def test_ids_above_the_lowest_sample_of_the_window_are_left_out(seen: Seen) -> None:
    half = SAMPLE_ALL // 2
    seen.tell("src.dead", [], sample=half)
    taken = {name for name in IDS if hash_id(name) % SAMPLE_ALL < half}
    assert 0 < len(taken) < len(IDS)
    assert set(seen.lags()) == taken
    found = seen.says("diff", "--from", "src.in", "--to", "snk.in", "--json")
    assert found["message_ids"] == sorted(taken & set(LOST))


def test_blocks_of_an_emitter_that_died_are_found_around_its_last_report(seen: Seen) -> None:
    seen.put("snk.in", LOST, 40)  # the sink has not told of these yet
    now_ms = int(time.time() * 1000)
    with seen.store.engine.begin() as connection:
        report = {"seq": 1, "host": "", "started_at": 0, "sent_at": now_ms, "appended_at": now_ms, "final_through": 0}
        row = {"pipeline": seen.name, "emitter": bytes(16), "node": "snk", "closed": False, **report}
        connection.execute(tables.table_of(tables.EmitterRow).insert().values(**row))
    log = BeaconLog(seen.bootstrap, seen.topic)
    found = [read_window(seen.store, log, seen.name, seen.start_s, now_ms + ms).ids("snk.in") for ms in (0, LATER_MS)]
    log.close()
    assert [ids.size for ids in found] == [len(THERE), len(IDS)]


def test_messages_are_shown_with_their_traces_where_they_are_known(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    traced, other = LOST[0], THERE[0]
    seen.put("src.in", [traced, "more"], 9, traces={traced: "0a" * 24})
    seen.put("src.in", [other, traced], 3, traces={other: "0b" * 24, traced: "0c" * 24})
    seen.tell_of_everything()
    monkeypatch.setenv("LAGLOSS_TRACE_URL", "https://traces.example/{trace_id}")
    first = {"trace_id": "0c" * 16, "span_id": "0c" * 8, "trace_url": f"https://traces.example/{'0c' * 16}"}
    rows = {row["message_id"]: row for row in seen.says("matrix", "--json")["messages"]}
    assert {name: row["trace_id"] for name, row in rows.items() if "trace_id" in row} == {
        traced: "0c" * 16,  # of the beacon with the smallest lag
        other: "0b" * 16,
    }
    assert {name: rows[traced][name] for name in first} == first
    assert seen.says("diff", "--from", "src.out", "--to", "snk.in", "--json")["traces"] == {traced: first}
    assert seen.says("diff", "--from", "src.out", "--to", "snk.in").splitlines()[1:] == LOST
    lines = [line.split() for line in seen.says("matrix").splitlines()[:-1]]
    assert lines[0][-1] == "trace"
    assert {line[0]: line[-1] for line in lines if line[-1] in ("0b" * 16, "0c" * 16)} == {
        traced: "0c" * 16,
        other: "0b" * 16,
    }


def test_errors_are_those_of_diff(seen: Seen) -> None:
    def run(*arguments: str) -> int:
        return CliRunner().invoke(app, ["matrix", *arguments], catch_exceptions=False).exit_code

    with pytest.raises(UnknownPipeline):
        run("nobody", "--window", "-5m")
    with pytest.raises(NotEnoughData, match="has no tallies for window"):
        run(seen.name, "--window", "-2h")
    assert run(seen.name, "--window", "-5m", "--only", "lost") == EXIT_USAGE
    seen.tell("src.dead", [OffsetRange(0, 1 << 40, 1 << 40)])
    with pytest.raises(NotEnoughData, match="no longer in the log"):
        run(seen.name, "--window", rfc3339(seen.start_s))
