"""Lost, late, dead and corrupted messages one by one: as a closing kept them, as the log has them, and as files."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from lagloss.wire.format import hash_id
from lagloss.wire.traces import TraceContext
from lagloss_server.base.errors import NotebookMissing
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.judging.arithmetic import missing_places
from lagloss_server.judging.picked import SEEN_MS
from lagloss_server.model.place import Place
from lagloss_server.queries.export import WindowExport, file_name
from lagloss_server.queries.logged_messages import logged_messages
from lagloss_server.queries.named_messages import COLUMNS, KeptMessages, LocatedRecord, NamedMessage, of_kind
from lagloss_server.store.store import MissingMessage
from tests.support.faulty_worlds import START_S, FaultyWorld, Harm, faulty_world, presence_of

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


def kept_of(world: FaultyWorld) -> KeptMessages:
    """What a closing would keep, which takes every missing message for lost."""
    graph, facts = world.graph, world.facts
    missing = [
        MissingMessage(
            START_S,
            each.id_hash,
            each.name,
            "lost",
            [place.label for place in missing_places(graph, each.mask)],
            graph.names(each.mask)[-1],
            each.last_seen_ms,
            each.trace,
            each.emitter,
        )
        for each in facts.missing
    ]
    hosts = {process.emitter: process.host for process in world.processes}
    return KeptMessages(START_S, missing, facts.picked, hosts)


def by_id(messages: Any) -> dict[int, NamedMessage]:
    found = list(messages)
    assert len({each.id_hash for each in found}) == len(found)
    return {each.id_hash: each for each in found}


@pytest.mark.parametrize("harm", ["lost", "late", "dead"])
def test_the_log_has_every_message_that_a_closing_kept_and_says_the_same_of_it(harm: Harm) -> None:
    world = faulty_world("process", harm, 1)
    kept, presence = kept_of(world), presence_of(world)
    few, every = by_id(kept.named(harm)), by_id(logged_messages(presence, kept, harm))  # type: ignore[arg-type]
    assert few
    assert few.keys() <= every.keys()
    for id_hash, message in few.items():
        other = every[id_hash]
        for name in ("message_id", "kind", "places", "event_ms", "last_checkpoint", "hop", "reason", "emitter", "host"):
            assert getattr(message, name) == getattr(other, name), name
        assert message.last_seen_ms == pytest.approx(other.last_seen_ms, abs=SEEN_MS + 1)
        assert message.lag_ms == pytest.approx(other.lag_ms, abs=SEEN_MS + 1)


@pytest.mark.parametrize("harm", ["lost", "late", "dead"])
def test_the_log_names_exactly_those_that_were_harmed(harm: Harm) -> None:
    world = faulty_world("process", harm, 2)
    ends = {"late": lambda j: j.seen[-1].checkpoint.endswith(".out") and j.seen[-1].lag_ms > 5_000,
            "dead": lambda j: j.seen[-1].checkpoint.endswith(".dead"),
            "lost": lambda j: not j.seen or j.seen[-1].checkpoint.endswith(".in")}  # fmt: skip
    harmed = {
        hash_id(journey.message_id): journey for journey in world.journeys if ends[harm](journey) and journey.seen
    }
    found = by_id(logged_messages(presence_of(world), kept_of(world), harm))  # type: ignore[arg-type]
    if harm == "late":  # of those that go through to a destination
        harmed = {key: journey for key, journey in harmed.items() if journey.seen[-1].checkpoint in DELIVERED}
        lags = [each.lag_ms for each in found.values()]
        assert lags == sorted(lags, key=lambda lag: -(lag or 0))
    assert found.keys() >= harmed.keys()
    for id_hash, journey in harmed.items():
        assert found[id_hash].message_id == journey.message_id
        assert found[id_hash].emitter == journey.seen[-1].process.emitter
        assert found[id_hash].host == journey.seen[-1].process.host
    if harm != "lost":
        assert found.keys() == harmed.keys()


DELIVERED = ("ga.out", "fb.out", "tt.out")


def test_late_ones_come_worst_first_and_at_a_place_only_those_that_it_held() -> None:
    world = faulty_world("process", "late", 1)
    picked, node = world.facts.picked, world.fault.node
    late = of_kind(START_S, picked, "late")
    lags = [each.lag_ms or 0 for each in late]
    assert lags == sorted(lags, reverse=True)
    held = of_kind(START_S, picked, "late", graph=world.graph, place=Place("node", node))
    assert {each.id_hash for each in held} == {each.id_hash for each in late if each.hop == f"node {node}"}
    assert held
    at_ga = of_kind(START_S, picked, "late", graph=world.graph, place=Place("destination", "ga"), above_ms=5_000)
    assert {each.id_hash for each in at_ga} == {each.id_hash for each in late if each.last_checkpoint == "ga.out"}
    assert not of_kind(START_S, picked, "late", graph=world.graph, place=Place("checkpoint", "no.out"))


def test_dead_ones_at_a_place_are_those_that_died_there() -> None:
    world = faulty_world("vendor", "dead", 1)
    picked, vendor = world.facts.picked, world.fault.node
    for place in (
        Place("node", vendor),
        Place("destination", vendor),
        Place("checkpoint", f"{vendor}.dead"),
    ):
        found = of_kind(START_S, picked, "dead", graph=world.graph, place=place)
        assert found
        assert {(each.places, each.reason) for each in found} == {((f"node {vendor}",), "unreadable")}


def test_corrupted_ones_name_their_link() -> None:
    world = faulty_world("process", "corrupted", 1)
    found = of_kind(START_S, world.facts.picked, "corrupted")
    assert found
    assert {each.places[0] for each in found} <= {f"link {name}" for name in world.facts.corrupted}
    place = Place("link", found[0].places[0].removeprefix("link "))
    here = of_kind(START_S, world.facts.picked, "corrupted", graph=world.graph, place=place)
    assert {each.places for each in here} == {(str(place),)}


def test_a_kind_that_the_closing_did_not_name_follows_from_others_of_the_same_pattern_if_those_agree() -> None:
    world = faulty_world("process", "lost", 1)
    kept, presence = kept_of(world), presence_of(world)
    agreed = list(logged_messages(presence, replace(kept, missing=kept.missing[:50]), "lost"))
    assert sum(each.kind == "lost" for each in agreed) > 100
    assert {each.kind for each in agreed} <= {"lost", "missing"}  # a seldom pattern is not among the 50
    unsure = [replace(each, kind=("lost", "pending")[at % 2]) for at, each in enumerate(kept.missing)]
    found = by_id(logged_messages(presence, replace(kept, missing=unsure[:50]), "lost"))
    assert {each.kind for each in found.values()} == {"lost", "missing"}
    assert not found.keys() & {each.id_hash for each in unsure[:50] if each.kind == "pending"}


def test_what_was_kept_says_whether_there_is_more() -> None:
    kept = kept_of(faulty_world("process", "late", 1))
    many = len(kept.named("late"))
    assert replace(kept, counts={"late": many + 1}).is_truncated("late")
    assert not replace(kept, counts={"late": many}).is_truncated("late")
    assert replace(kept, counts={"dead": 1}).is_truncated("all")
    assert not replace(kept, counts={"dead": 1}).is_truncated("lost")


def test_where_a_record_is_follows_from_a_repair_or_from_an_id_that_is_its_position() -> None:
    kept = replace(kept_of(faulty_world("process", "late", 1)), origins=frozenset({"orders"}), records={})
    message = odd_message()
    assert kept.placed(message).record is None
    assert kept.placed(replace(message, message_id="orders/3/1841")).record == ("orders", 3, 1841)
    assert kept.placed(replace(message, message_id="others/3/1841")).record is None
    located = replace(kept, records={message.id_hash: LocatedRecord("orders", 1, 7)}).placed(message)
    assert [located.document()[name] for name in ("topic", "partition", "offset")] == ["orders", 1, 7]  # type: ignore[literal-required]
    assert located.cells()[-3:] == ["orders", 1, 7]


def odd_message() -> NamedMessage:
    odd = {"message_id": "=a\\x0ab", "id_hash": 255, "kind": "late", "places": ("link src->ses",)}
    times = {"event_ms": START_S * 1_000 + 250.0, "last_seen_ms": START_S * 1_000 + 9_250.0, "lag_ms": 9_000.0}
    return NamedMessage(
        window_start_s=START_S,
        last_checkpoint="ga.out",
        hop="link src->ses",
        hop_ms=8_000.0,
        emitter=bytes(16),
        host="h:1",
        trace=TRACE,
        **odd,  # type: ignore[arg-type]
        **times,
    )


def export(*messages: NamedMessage) -> WindowExport:
    return WindowExport("faulty", START_S, "late", "closing", messages, is_truncated=True, sample=1.0)


def test_csv_has_every_column_and_no_formula() -> None:
    head, row = csv.reader(io.StringIO("".join(export(odd_message()).texts("csv")), newline=""))
    assert tuple(head) == COLUMNS
    assert dict(zip(head, row, strict=True)) == {
        "message_id": "'=a\\x0ab", "id_hash": "00000000000000ff", "kind": "late", "places": "link src->ses",
        "event_time": "2026-05-28T20:27:00.250000Z", "last_checkpoint": "ga.out",
        "last_seen": "2026-05-28T20:27:09.250000Z", "lag_ms": "9000.0", "hop": "link src->ses", "hop_ms": "8000.0",
        "reason": "", "emitter": "00" * 16, "host": "h:1", **TRACE._asdict(),
        "topic": "", "partition": "", "offset": "",
    }  # fmt: skip


def test_json_has_the_ids_as_they_were_sent_and_says_where_they_are_from() -> None:
    document = json.loads(
        "".join(export(odd_message(), odd_message()).texts("json", TraceLinks("http://t/{trace_id}")))
    )
    assert (document["source"], document["truncated"], len(document["messages"])) == ("closing", True, 2)
    first = document["messages"][0]
    assert (first["message_id"], first["places"], first["reason"]) == ("=a\nb", ["link src->ses"], None)
    assert first["trace_url"] == f"http://t/{TRACE.trace_id}"
    assert [*first][: len(COLUMNS)] == list(COLUMNS)
    assert json.loads("".join(export().texts("json")))["messages"] == []


def test_parquet_has_the_same_with_types() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(export(odd_message()).parquet()))
    (row,) = table.to_pylist()
    assert tuple(table.column_names) == COLUMNS
    assert (row["message_id"], row["places"], row["lag_ms"]) == ("=a\nb", ["link src->ses"], 9_000.0)
    assert row["last_seen"].timestamp() == START_S + 9.25
    assert table.schema.metadata[b"what"] == b"late"
    assert parquet.read_table(io.BytesIO(export().parquet())).num_rows == 0


def test_without_pyarrow_parquet_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(NotebookMissing, match=r"lagloss-server\[notebook\]"):
        export().parquet()


def test_a_file_is_named_by_what_is_in_it() -> None:
    assert file_name("clicks", START_S, "lost", "parquet") == "clicks-2026-05-28T202700Z-lost.parquet"
