"""The oracle against what docs/arithmetic.md says by example, and rule by rule."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import fastavro.schema
import pytest

from tests.oracle.blocks import id_hash
from tests.oracle.by_hand import DUE_MS, ByHand, document, uuid, worked_case
from tests.oracle.evidence import ALL_IDS, Record, World, milliseconds
from tests.oracle.oracle import bin_key, bin_value, difference, judge, missing, quantile, wilson
from tests.oracle.plan import END_MS, START_MS, START_S
from tests.oracle.wire import column, schema

CHAIN: list[dict[str, Any]] = [{"name": "src", "to": ["mid"]}, {"name": "mid", "to": ["snk"]}, {"name": "snk"}]
HEADLINE = ("messages", "delivered", "filtered", "dead", "pending", "lost")


def judged(hand: ByHand) -> dict[str, Any]:
    return judge(hand.world(), START_S)


def row(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(r for r in rows if r.get("name", f"{r.get('from')}->{r.get('to')}") == name)


def gone(hand: ByHand) -> dict[str, tuple[str, list[str]]]:
    """Kind and places of every missing message, by its name."""
    found = missing(hand.world(), START_S)
    names = {id_hash(name): name for names in hand.trail.values() for name in names}
    return {names[h]: (found[h]["kind"], found[h]["places"]) for h in found}


# --- The worked case and the talk's table ----------------------------------------------------------------------------


def test_the_worked_case_is_judged_as_the_page_says() -> None:
    result = judged(worked_case())
    assert {k: result[k] for k in HEADLINE} == {
        "messages": 10,
        "delivered": 6,
        "filtered": 1,
        "dead": 0,
        "pending": 0,
        "lost": {"min": 3, "max": 3},
    }
    assert (result["verdict"], result["reasons"], result["proof"]) == ("loss", [], "beacons")
    assert result["loss_ratio"] == {"min": 0.3, "max": 0.3}
    assert result["on_time_share"] == pytest.approx(6 / 9)
    assert [c["name"] for c in result["checkpoints"]] == [
        "src.in", "src.out", "mid.in", "mid.out", "mid.filtered", "snk.in", "snk.out",
    ]  # fmt: skip
    assert [n["lost"]["min"] for n in result["nodes"]] == [0, 1, 0]
    assert [link["lost"]["max"] for link in result["links"]] == [1, 1]
    assert gone(worked_case()) == {
        "j": ("lost", ["link src->mid"]),
        "i": ("lost", ["node mid"]),
        "g": ("lost", ["link mid->snk"]),
    }
    assert difference(worked_case().world(), START_S, "mid.in", "snk.out") == {id_hash(name) for name in "ghi"}


def test_a_lane_that_stands_where_the_window_began_makes_the_message_on_its_link_pending() -> None:
    result = judged(worked_case(until_ms={"mid.in": START_MS}))
    assert (result["pending"], result["lost"]) == (1, {"min": 2, "max": 2})
    assert (result["reasons"], result["verdict"]) == (["pending"], "loss")


def test_a_hole_in_the_trail_changes_nothing() -> None:
    whole, holed = judged(worked_case()), worked_case()
    holed.trail = {**holed.trail, "mid.in": "acdefghi"}
    result = judged(holed)
    differing = {key for key in whole if whole[key] != result[key]}
    assert differing == {"checkpoints"}
    assert row(result["checkpoints"], "mid.in")["distinct"] == 8


def test_a_tally_that_says_more_than_was_read_makes_what_its_node_misses_perhaps_lost() -> None:
    result = judged(worked_case(tally_more={"mid.in": 1}))
    assert (result["lost"], result["verdict"], result["reasons"]) == ({"min": 1, "max": 3}, "loss", ["evidence:mid"])
    assert row(result["nodes"], "mid") | {"complete": True} != row(result["nodes"], "mid")


def test_the_talks_table() -> None:
    names = "ABCD"
    nodes: list[dict[str, Any]] = [
        {"name": n, **({"to": [names[i + 1]]} if i < 3 else {})} for i, n in enumerate(names)
    ]
    counts = dict(zip(names, (10, 9, 7, 5), strict=True))
    trail = {f"{n}.{side}": "abcdefghij"[: counts[n]] for n in names for side in ("in", "out")}
    result = judged(ByHand(document(*nodes), trail))
    loss = [0]
    for i in range(1, 4):
        before = row(result["nodes"], names[i - 1])["lost"]["min"]
        loss.append(before + row(result["links"], f"{names[i - 1]}->{names[i]}")["lost"]["min"])
    assert loss == [0, 1, 2, 2]
    assert (result["lost"], result["loss_ratio"]) == ({"min": 5, "max": 5}, {"min": 0.5, "max": 0.5})


def test_the_talks_lags() -> None:
    nodes: list[dict[str, Any]] = [{"name": "A", "to": ["B"]}, {"name": "B", "to": ["C"]}, {"name": "C"}]
    lags = {"A.in": 1.0, "A.out": 2.0, "B.in": 3.0, "B.out": 4.0, "C.in": 8.0, "C.out": 10.0}
    result = judged(ByHand(document(*nodes), dict.fromkeys(lags, "abc"), lags))
    assert [n["lag_in_p95_ms"] for n in result["nodes"]] == pytest.approx([1, 3, 8], rel=0.01)
    assert [n["lag_out_p95_ms"] for n in result["nodes"]] == pytest.approx([2, 4, 10], rel=0.01)
    assert [n["process_duration_p95_ms"] for n in result["nodes"]] == pytest.approx([1, 1, 2], abs=0.2)
    assert [link["queue_time_p95_ms"] for link in result["links"]] == pytest.approx([1, 4], abs=0.2)
    assert result["e2e_lag_ms"] == pytest.approx(dict.fromkeys(("p50", "p95", "p99", "max"), 10), rel=0.01)
    assert result["verdict"] == "ok"


# --- Format, definition, sketch --------------------------------------------------------------------------------------


def test_the_fingerprints_are_the_avro_specifications_rabin() -> None:
    empty = 0xC15D213AA4D7A795  # the specification's polynomial, which is also its fingerprint of nothing

    def rabin(text: bytes) -> int:
        value = empty
        for byte in text:
            value ^= byte
            for _ in range(8):
                value = (value >> 1) ^ (empty if value & 1 else 0)
        return value

    assert rabin(b'"null"') == 0x63DD24E7CC258F8A
    for name in ("beacon_block", "emitter_report"):
        marker, parsed = schema(name)
        canonical = fastavro.schema.to_parsing_canonical_form(parsed)
        assert marker == b"\xc3\x01" + rabin(canonical.encode()).to_bytes(8, "little")


@pytest.mark.parametrize(("text", "ms"), [("500ms", 500), ("60s", 60_000), ("15m", 900_000), ("1h", 3_600_000)])
def test_durations_are_read(text: str, ms: int) -> None:
    assert milliseconds(text) == ms


@pytest.mark.parametrize("lag", [0.0011, 0.5, 1.0, 7.25, 4_000.0, 9e6, -3.0, -5e5])
def test_a_bin_stands_for_its_lags_within_one_percent(lag: float) -> None:
    assert bin_value(bin_key(lag)) == pytest.approx(lag, rel=0.0101)


def test_lags_next_to_zero_share_the_bin_zero_and_one_ms_is_at_k_zero() -> None:
    assert [bin_key(lag) for lag in (0.0, 0.001, -0.001, 1.0, -1.0)] == [0, 0, 0, 10_000, -10_000]


def test_a_quantile_is_the_bin_of_rank_ceil_q_times_n() -> None:
    lags = [-100.0, 0.0, *map(float, range(1, 20))]
    assert quantile(lags, 0.0) == pytest.approx(-100, rel=0.01)
    assert quantile(lags, 0.95) == pytest.approx(18, rel=0.01)  # rank ceil(0.95 * 21) = 20
    assert quantile(lags[1:], 0.95) == pytest.approx(18, rel=0.01)  # rank 0.95 * 20 = 19
    assert quantile([1.0, 60_000.0], 0.95) == pytest.approx(60_000, rel=0.01)
    assert quantile([*map(float, range(1, 101))], 0.07) == pytest.approx(7, rel=0.01)  # in binary 0.07 * 100 > 7
    assert quantile([], 0.5) is None


def test_rows_follow_the_graph_and_then_the_document_with_retriers_last() -> None:
    nodes: list[dict[str, Any]] = [
        {"name": "r"},
        {"name": "z"},
        {"name": "b", "to": ["z"], "retries": "r"},
        {"name": "a", "to": ["z"]},
        {"name": "src", "to": ["a", "b"]},
    ]
    hand = ByHand(document(*nodes), {"src.in": "k"})
    hand.trail = dict.fromkeys(("r.dead", "r.out:b", "r.in", "z.out", "b.out", "b.out:r", "src.out:b", "src.in"), "k")
    result = judged(hand)
    assert [n["name"] for n in result["nodes"]] == ["src", "b", "a", "z", "r"]
    assert [(x["from"], x["to"]) for x in result["links"]] == [("src", "a"), ("src", "b"), ("b", "z"), ("a", "z")]
    in_order = "src.in src.out:b b.out b.out:r z.out r.in r.out:b r.dead"
    assert [c["name"] for c in result["checkpoints"]] == in_order.split()


# --- Rules 1 to 5: missing, overtaken, pending -----------------------------------------------------------------------

DIAMOND: list[dict[str, Any]] = [
    {"name": "src", "to": ["left", "right"]},
    {"name": "left", "to": ["join"]},
    {"name": "right", "to": ["join"]},
    {"name": "join"},
]
COPIED: list[dict[str, Any]] = [{**DIAMOND[0], "copy": "all"}, *DIAMOND[1:]]
RETRIED: list[dict[str, Any]] = [{"name": "src", "to": ["snk"]}, {"name": "snk", "retries": "again"}]


def test_a_route_whose_beacons_are_all_missing_is_no_loss_where_another_could_have_been_taken() -> None:
    trail = {"src.in": "ab", "src.out:left": "ab", "join.in": "a", "join.out": "a"}
    assert gone(ByHand(document(*DIAMOND), trail)) == {"b": ("lost", ["link src->left"])}


def test_below_copy_all_a_copy_is_lost_though_the_other_arrives() -> None:
    trail = {"src.in": "a", "src.out:left": "a", "src.out:right": "a", "right.in": "a", "right.out": "a"}
    hand = ByHand(document(*COPIED), {**trail, "join.in": "a", "join.out": "a"})
    assert gone(hand) == {"a": ("lost", ["link src->left"])}
    assert judged(hand)["delivered"] == 0


def test_a_message_can_be_missing_at_two_places_and_counts_once() -> None:
    trail = {"src.in": "a", "src.out:left": "a", "src.out:right": "a", "left.in": ""}
    hand = ByHand(document(*COPIED), trail, tally_more={"left.in": 1})
    result = judged(hand)
    assert gone(hand) == {"a": ("lost", ["link src->left", "link src->right"])}
    assert result["lost"] == {"min": 1, "max": 1}
    assert row(result["links"], "src->left")["lost"] == {"min": 0, "max": 1}
    assert row(result["links"], "src->right")["lost"] == {"min": 1, "max": 1}


@pytest.mark.parametrize(("past_ms", "kind"), [(5_000, "pending"), (5_001, "lost")])
def test_a_place_has_overtaken_a_message_once_it_is_more_than_5_s_past_last_seen(past_ms: int, kind: str) -> None:
    last_seen_ms = START_MS + 1_000 + 1
    assert gone(worked_case(until_ms={"mid.out": last_seen_ms + past_ms}))["i"][0] == kind


@pytest.mark.parametrize(("past_ms", "kind"), [(5_000, "pending"), (5_001, "lost")])
@pytest.mark.parametrize("after_ms", [-1_000, 0, 30_000])
def test_a_message_whose_times_were_supplied_is_overtaken_only_5_s_past_that(
    after_ms: int, past_ms: int, kind: str
) -> None:
    last_seen_ms = START_MS + 1_000 + 1
    surely_ms = last_seen_ms + max(0, after_ms)
    block = {"mid.in": {"supplied_at": last_seen_ms + after_ms}}
    assert gone(worked_case(until_ms={"mid.out": surely_ms + past_ms}, block=block))["i"][0] == kind


@pytest.mark.parametrize(("past_ms", "kind"), [(95_000, "pending"), (95_001, "lost")])
@pytest.mark.parametrize("off_ms", [90_000, -89_990])  # the others' reports take 10 ms
def test_a_clock_that_is_off_widens_that_by_as_much(off_ms: int, past_ms: int, kind: str) -> None:
    last_seen_ms = START_MS + 1_000 + 1
    for node in ("src", "mid", "snk"):
        hand = worked_case(until_ms={"mid.out": last_seen_ms + past_ms}, report={node: {"sent_at": DUE_MS - off_ms}})
        assert gone(hand)["i"][0] == kind
        assert judged(hand)["clock_skew_ms"] == 90_000


@pytest.mark.parametrize(("waited_ms", "kind"), [(900_000, "pending"), (900_001, "overdue")])
def test_pending_for_longer_than_max_wait_is_overdue_and_never_in_lost_min(waited_ms: int, kind: str) -> None:
    now_ms = START_MS + 1_000 + 1 + waited_ms
    hand = worked_case(until_ms={"mid.in": START_MS}, now_ms=now_ms)
    assert gone(hand)["j"] == (kind, ["link src->mid"])
    result = judged(hand)
    assert result["lost"] == {"min": 2, "max": 3 if kind == "overdue" else 2}
    assert row(result["links"], "src->mid")["lost"] == {"min": 0, "max": 1 if kind == "overdue" else 0}


def test_without_an_event_time_the_windows_end_stands_in() -> None:
    hand = worked_case(until_ms={"mid.in": END_MS + 5_001}, block={"src.in": {"event_offset_ms": None}})
    assert gone(hand)["j"][0] == "pending"
    hand.until_ms["mid.in"] = END_MS + 5_002
    assert gone(hand)["j"][0] == "lost"


def test_where_nobody_reports_progress_a_later_window_that_is_due_stands_in() -> None:
    silent = worked_case(until_ms={"mid.in": None}, now_ms=DUE_MS + 60_000)
    assert gone(silent)["j"][0] == "pending"
    silent.extra_tallies = {"mid": [("mid.in", START_S + 60)]}
    assert gone(silent)["j"][0] == "lost"
    silent.now_ms = DUE_MS + 59_999
    assert gone(silent)["j"][0] == "pending"


@pytest.mark.parametrize(
    ("lag_ms", "off_ms", "kind"), [(58_999, 0, "lost"), (59_000, 0, "pending"), (57_000, 2_000, "pending")]
)
def test_a_later_window_stands_in_only_for_what_was_last_seen_before_it_began(
    lag_ms: float, off_ms: int, kind: str
) -> None:
    hand = worked_case(until_ms={"mid.in": None}, now_ms=DUE_MS + 60_000, lags={"src.out": lag_ms})
    hand.extra_tallies = {"mid": [("mid.in", START_S + 60)]}
    hand.report = {"snk": {"sent_at": DUE_MS + 60_000 - off_ms}}
    assert gone(hand)["j"][0] == kind


def test_work_in_hand_of_a_closed_emitter_leaves_the_minimum() -> None:
    stuck = worked_case(until_ms={"mid.out": START_MS})
    assert gone(stuck)["i"][0] == "pending"
    stuck.report["mid"] = {"closed": True}
    assert gone(stuck)["i"][0] == "lost"


def test_a_message_handed_to_a_retrier_is_pending_there_then_overdue() -> None:
    trail = {"src.in": "ab", "src.out": "ab", "snk.in": "ab", "snk.out:again": "ab", "again.in": "a", "again.dead": "a"}
    hand = ByHand(document(*RETRIED), trail)
    assert gone(hand) == {"b": ("pending", ["retrier again"])}
    assert judged(hand)["dead"] == 1
    hand.now_ms += 3_600_000
    assert gone(hand)["b"][0] == "overdue"
    assert row(judged(hand)["nodes"], "again")["lost"] == {"min": 0, "max": 1}


def test_a_message_seen_by_a_shared_retrier_is_not_lost_by_a_hole_before_it() -> None:
    nodes: list[dict[str, Any]] = [
        {"name": "src", "to": ["snk"], "retries": "again"},
        {"name": "snk", "retries": "again"},
    ]
    assert gone(ByHand(document(*nodes), {"src.in": "a", "again.in": "a"})) == {"a": ("pending", ["retrier again"])}


# --- Rule 7: evidence ------------------------------------------------------------------------------------------------


def complete(hand: ByHand, node: str = "mid") -> bool:
    result = judged(hand)
    assert (f"evidence:{node}" in result["reasons"]) != row(result["nodes"], node)["complete"]
    return bool(row(result["nodes"], node)["complete"])


def test_evidence_needs_a_final_account_of_every_expected_emitter() -> None:
    assert complete(worked_case())
    assert not complete(worked_case(report={"mid": {"final_through": START_S}}))
    late = {"started_at": END_MS + 1, "final_through": START_S}  # older windows: expected for a tally only
    assert not complete(worked_case(report={"mid": late}))
    assert complete(worked_case(report={"mid": {**late, "final_through": START_S + 60}}))
    assert not complete(worked_case(report={"mid": {**late, "final_through": START_S + 60, "tallies": []}}))


@pytest.mark.parametrize(("sent_ms", "whole"), [(END_MS - 1, True), (END_MS, False)])
def test_a_closed_emitter_is_expected_up_to_its_end_included(sent_ms: int, whole: bool) -> None:
    hand = worked_case(report={"mid": {"closed": True, "sent_at": sent_ms, "final_through": START_S}})
    assert complete(hand) is whole


@pytest.mark.parametrize(
    ("last_ms", "whole"),
    [
        (DUE_MS - 60_000, True),  # not silent yet
        (DUE_MS - 60_001, False),
        (START_MS - 60_000, False),  # 60 s after its last report is still this window
    ],
)
def test_a_silent_emitter_spoils_the_windows_around_its_last_report(last_ms: int, whole: bool) -> None:
    assert complete(worked_case(appended_ms={"mid": last_ms})) is whole


@pytest.mark.parametrize(("last_ms", "reasons"), [(END_MS - 660_000, 1), (END_MS - 660_001, 0)])
def test_a_silent_emitter_is_expected_for_ten_more_minutes(last_ms: int, reasons: int) -> None:
    hand = worked_case(appended_ms={"src": last_ms}, report={"src": {"final_through": 0, "tallies": []}})
    hand.trail = {}
    assert judged(hand)["verdict"] == "unknown"
    other = Record(1, 9, DUE_MS, b"other", hand.report_record(0, "src").value.replace(uuid("src"), b"o" * 16))  # type: ignore[union-attr]
    both = World(hand.world().definitions, (), (*hand.world().reports, other), DUE_MS)
    assert judge(both, START_S)["reasons"] == ["evidence:src"]  # the other one is alive and not final


def test_a_silent_emitter_without_fresh_tallies_spoils_windows_from_the_one_of_its_last_report() -> None:
    for last_ms, whole in ((END_MS - 1, False), (END_MS, True)):
        account = {"tallies": [], "final_through": START_S + 60}
        assert complete(worked_case(appended_ms={"mid": last_ms}, report={"mid": account})) is whole


def test_dropped_beacons_quarantined_blocks_and_nobody_make_evidence_incomplete() -> None:
    hand = worked_case()
    dropped = {**hand.tally("mid.in", START_S, list("abcdefghi")), "dropped": 1}
    assert not complete(worked_case(report={"mid": {"tallies": [dropped]}}))
    assert not complete(worked_case(block={"mid.filtered": {"count": 2}}))
    assert not complete(worked_case(block={"mid.filtered": {"checkpoint": "mid.bogus"}}))
    assert complete(worked_case(block={"mid.filtered": {"pipeline": "another"}}, tally_more={"mid.filtered": -1}))
    assert not complete(worked_case(report={"mid": {"node": "ghost", "tallies": []}}))


def test_a_definition_changed_inside_the_window_spoils_what_differs_and_its_neighbours() -> None:
    nodes: list[dict[str, Any]] = [*CHAIN[:2], {"name": "snk", "to": ["more"]}, {"name": "more"}]
    long = document({"name": "src", "to": ["mid"]}, {"name": "mid", "to": ["snk"]}, *nodes[2:])
    for at_ms, reasons in (
        (START_MS, None),
        (START_MS + 1, ["evidence:mid", "evidence:snk", "version"]),
        (END_MS - 1, ["evidence:mid", "evidence:snk", "version"]),
        (END_MS, []),
    ):
        result = judged(worked_case(later_definitions=[(at_ms, long)]))
        assert reasons is None or result["reasons"] == reasons
        assert len(result["nodes"]) == (4 if at_ms == START_MS else 3)


# --- Rules 8 to 14 ---------------------------------------------------------------------------------------------------


def test_a_replay_recovers_a_loss_and_is_neither_duplicate_nor_lag() -> None:
    hand = worked_case()
    again = {"snk.in": "g", "snk.out": "g"}
    world = hand.world()
    other = ByHand(hand.definition, again, block={c: {"replay": "again", "seq": 90 + i} for i, c in enumerate(again)})
    records = tuple(Record(1, i, START_MS, r.key, r.value) for i, r in enumerate(other.world().beacons))
    result = judge(World(world.definitions, world.beacons + records, world.reports, DUE_MS), START_S)
    assert (result["delivered"], result["lost"]["max"]) == (7, 2)
    cell = row(result["checkpoints"], "snk.out")
    assert (cell["beacons"], cell["distinct"], cell["duplicates"], cell["replayed"]) == (6, 7, 0, 1)
    assert result["on_time_share"] == pytest.approx(6 / 9)


def test_copies_that_meet_again_and_what_comes_back_from_a_retrier_are_no_duplicates() -> None:
    twice = dict.fromkeys(("join.in", "join.out"), "aa")
    once = dict.fromkeys(("src.in", "src.out:left", "src.out:right", "left.in", "left.out", "right.in"), "a")
    for nodes, duplicates in ((COPIED, 0), (DIAMOND, 1)):
        result = judged(ByHand(document(*nodes), {**once, **twice}))
        assert row(result["checkpoints"], "join.in")["duplicates"] == duplicates
    loop = dict.fromkeys(("snk.out:again", "again.in", "again.out:snk"), "aa")
    hand = ByHand(document(*RETRIED), {"src.in": "a", "src.out": "aa", "snk.in": "aaaa", **loop, "snk.out": "a"})
    found = {c["name"]: c["duplicates"] for c in judged(hand)["checkpoints"] if c["duplicates"]}
    assert found == {"src.out": 1, "snk.in": 1}


def test_a_block_sent_twice_is_one_block() -> None:
    world = worked_case().world()
    again = tuple(Record(r.partition, r.offset + 100, r.timestamp_ms, r.key, r.value) for r in world.beacons)
    assert judge(World(world.definitions, world.beacons + again, world.reports, DUE_MS), START_S) == judged(
        worked_case()
    )


def test_the_verdict_is_ok_only_with_complete_evidence_of_the_first_node_and_idle_without_messages() -> None:
    everything = dict.fromkeys(("src.in", "src.out", "mid.in", "mid.out", "snk.in", "snk.out"), "ab")
    assert judged(worked_case(trail=everything))["verdict"] == "ok"
    assert judged(worked_case(trail=everything, report={"src": {"final_through": 0}}))["verdict"] == "unknown"
    idle = judged(worked_case(trail={}))
    assert (idle["verdict"], idle["loss_ratio"], idle["on_time_share"]) == ("idle", {"min": None, "max": None}, None)
    assert judged(worked_case(trail={}, report={"src": {"final_through": 0}}))["verdict"] == "unknown"
    closed = {"final_through": 0, "closed": True}
    assert judged(worked_case(trail={}, report={"src": closed}))["verdict"] == "idle"
    assert judged(worked_case(trail={}, report={"src": {**closed, "unfinished": True}}))["verdict"] == "unknown"


def test_an_id_that_was_not_at_the_first_checkpoint_is_unexplained_if_the_first_node_tells_all() -> None:
    changed = {"src.in": "ab", "src.out": "ab", "mid.in": "aB"}
    result = judged(worked_case(trail=changed))
    assert (result["messages"], result["unexplained"], result["reasons"]) == (3, 1, ["unexplained"])
    assert judged(worked_case(trail=changed, tally_more={"src.in": 1}))["unexplained"] == 0


def test_corrupted_is_where_no_checksum_of_one_end_is_one_of_the_other() -> None:
    everything = dict.fromkeys(("src.in", "src.out", "mid.in", "mid.out", "snk.in", "snk.out"), "abc")
    block = {"src.out": {"payload_crc": column("I", [1, 2, 3])}, "mid.in": {"payload_crc": column("I", [1, 9, 8])}}
    result = judged(worked_case(trail=everything, block=block))
    assert [link["corrupted"] for link in result["links"]] == [2, 0]
    assert (result["delivered"], result["verdict"]) == (3, "ok")


@pytest.mark.parametrize(("lag", "share"), [(5_000.0, 1.0), (5_000.001, 0.0)])
def test_on_time_means_within_the_target_included(lag: float, share: float) -> None:
    everything = dict.fromkeys(("src.in", "src.out", "mid.in", "mid.out", "snk.in", "snk.out"), "abc")
    assert judged(worked_case(trail=everything, lags={"snk.out": lag}))["on_time_share"] == share


def test_sampled_counts_are_scaled_and_the_loss_interval_is_widened() -> None:
    names = [f"m{i}" for i in range(60)]
    sampled = [name for name in names if id_hash(name) % ALL_IDS < 2**31]
    gone_ = sampled[:3]
    trail = dict.fromkeys(("src.in", "src.out", "mid.in", "mid.out"), names)
    trail |= {c: [n for n in names if n not in gone_] for c in ("snk.in", "snk.out")}
    result = judged(worked_case(trail=trail, sample=2**31))
    n = len(sampled)
    assert (result["messages"], result["delivered"]) == (2 * n, 2 * (n - 3))
    low, high = wilson(3, n, -1), wilson(3, n, +1)
    assert low < 3 / n < high
    assert (result["lost"]["min"], result["lost"]["max"]) == (int(low * n * 2), -int(-high * n * 2 // 1))
    assert row(result["links"], "mid->snk")["lost"] == result["lost"]
    assert row(result["nodes"], "src")["lost"]["min"] == 0
    assert row(result["nodes"], "src")["lost"]["max"] > 0
    assert result["reasons"] == ["sample"]


def test_wilson_agrees_with_a_published_interval() -> None:
    assert (wilson(0, 10, -1), wilson(10, 10, +1)) == (0.0, 1.0)
    assert (wilson(1, 10, -1), wilson(1, 10, +1)) == pytest.approx((0.0179, 0.4042), abs=1e-4)


# --- A dead process, a shared retrier, destinations ------------------------------------------------------------------

VENDORS: list[dict[str, Any]] = [
    {"name": "src", "to": ["ga", "fb"], "copy": "all"},
    {"name": "ga", "retries": "again"},
    {"name": "fb", "retries": "again"},
]
LAST_SEEN_MS = START_MS + 1_000 + 1


@pytest.mark.parametrize(
    ("silent_ms", "kind"), [(LAST_SEEN_MS - 65_000, "perhaps"), (LAST_SEEN_MS - 64_999, "pending")]
)
def test_the_work_in_hand_of_the_dead_holds_only_what_was_seen_before_its_last_report_and_65_s(
    silent_ms: int, kind: str
) -> None:
    report = {"mid": {"final_through": 0}}  # it fell silent before the window
    hand = worked_case(appended_ms={"mid": silent_ms}, until_ms={"mid.out": START_MS - 120_000}, report=report)
    assert gone(hand)["i"][0] == kind


def test_the_dead_may_hold_what_was_seen_before_they_died_however_late_its_times_were_supplied() -> None:
    report = {"mid": {"final_through": 0}}
    hand = worked_case(
        appended_ms={"mid": LAST_SEEN_MS - 64_999},
        until_ms={"mid.out": START_MS - 120_000},
        report=report,
        block={"mid.in": {"supplied_at": LAST_SEEN_MS + 30_000}},
    )
    assert gone(hand)["i"][0] == "pending"


@pytest.mark.parametrize(("supplied_ms", "kind"), [(None, "perhaps"), (LAST_SEEN_MS + 5_000, "pending")])
def test_the_dead_may_hold_what_came_in_before_the_time_that_it_names(supplied_ms: int | None, kind: str) -> None:
    named_ms = LAST_SEEN_MS + 9_999
    hand = worked_case(
        lags={"mid.in": 10_000.0},
        appended_ms={"mid": named_ms - 65_000},
        until_ms={"mid.out": START_MS - 120_000},
        report={"mid": {"final_through": 0}},
        block={"mid.in": {"supplied_at": supplied_ms}},
    )
    assert gone(hand)["i"][0] == kind


def test_a_silent_emitter_is_named_as_the_reason() -> None:
    result = judged(worked_case(appended_ms={"mid": START_MS}))
    assert result["crashes"] == [{"node": "mid", "emitter": str(UUID(bytes=uuid("mid")))}]
    assert result["reasons"] == ["crash:mid", "evidence:mid", "overdue"] or "crash:mid" in result["reasons"]


@pytest.mark.parametrize(("until_ms", "whole"), [(START_MS - 61_000, False), (START_MS - 1_000, True)])
def test_a_later_window_is_whole_once_the_lanes_of_the_dead_are_taken_over(until_ms: int, whole: bool) -> None:
    died_ms = START_MS - 121_000  # past that moment: start - 61 s
    account = {"tallies": [], "final_through": 0, "emitter": b"d" * 16}
    hand = worked_case(appended_ms={"mid": died_ms}, report={"mid": account}, until_ms={"mid.in": died_ms})
    alive = worked_case(until_ms={"mid.in": until_ms})
    world = hand.world()
    other = Record(1, 9, DUE_MS, uuid("mid"), alive.report_record(1, "mid").value)  # type: ignore[union-attr]
    result = judge(World(world.definitions, world.beacons, (*world.reports, other), DUE_MS), START_S)
    assert row(result["nodes"], "mid")["complete"] is whole


@pytest.mark.parametrize(("late_ms", "skew_ms"), [(60_000, 60_000), (60_001, 0)])
def test_a_closing_report_appended_long_after_it_was_sent_tells_nothing_about_clocks(
    late_ms: int, skew_ms: int
) -> None:
    account = {"closed": True, "sent_at": DUE_MS - late_ms}
    assert judged(worked_case(report={"mid": account}))["clock_skew_ms"] == skew_ms


def test_what_another_node_handed_to_a_shared_retrier_excuses_no_loss() -> None:
    routed = [{k: v for k, v in VENDORS[0].items() if k != "copy"}, *VENDORS[1:]]
    both = {"src.in": "a", "src.out:ga": "a", "src.out:fb": "a", "ga.in": "a", "fb.in": "a"}
    loop = {"fb.out:again": "a", "again.in": "a", "again.out:fb": "a", "fb.out": "a"}
    hand = ByHand(document(*routed), {**both, **loop})
    assert gone(hand) == {"a": ("lost", ["node ga"])}
    without_a_beacon = {name: ids for name, ids in loop.items() if name == "again.in"}
    assert gone(ByHand(document(*routed), {**both, **without_a_beacon})) == {"a": ("pending", ["retrier again"])}


def test_each_destination_counts_the_messages_that_are_due_there() -> None:
    trail = {
        "src.in": "abcd", "src.out:ga": "abcd", "src.out:fb": "abc",
        "ga.in": "abcd", "ga.out": "ab", "ga.filtered": "c",
        "fb.in": "ab", "fb.out": "a", "fb.out:again": "b",
    }  # fmt: skip
    result = judged(ByHand(document(*VENDORS), trail, lags={"fb.out": 6_000.0}))
    ga, fb = result["destinations"]
    assert (ga["name"], ga["due"], ga["delivered"], ga["filtered"]) == ("ga", 4, 2, 1)
    assert (fb["name"], ga["lost"]) == ("fb", {"min": 1, "max": 1})
    assert (fb["due"], fb["delivered"], fb["pending"], fb["lost"]) == (3, 1, 1, {"min": 1, "max": 1})
    assert (ga["on_time_share"], fb["on_time_share"]) == (2 / 3, 0.0)
    assert result["on_time_share"] == pytest.approx((2 + 0) / (3 + 3))
    assert result["e2e_lag_ms"]["p50"] == pytest.approx(1, rel=0.01)
    assert result["e2e_lag_ms"]["max"] == pytest.approx(6_000, rel=0.01)


@pytest.mark.parametrize(("own", "verdict"), [({}, "ok"), ({"fb": {"loss": {"max": 0.1}}}, "loss")])
def test_a_destination_with_targets_of_its_own_counts_for_the_verdict(own: dict[str, Any], verdict: str) -> None:
    everything = "abcdefgh"
    trail = dict.fromkeys(("src.in", "src.out:ga", "ga.in", "ga.out"), everything)
    trail |= {"src.out:fb": "ab", "fb.in": "a", "fb.out": "a"}
    routed = [{k: v for k, v in VENDORS[0].items() if k != "copy"}, *VENDORS[1:]]
    hand = ByHand(document(*routed, sla={"loss": {"max": 0.2}, "destinations": own}), trail)
    assert judged(hand)["verdict"] == verdict


# --- Several sources -------------------------------------------------------------------------------------------------

MERGED: list[dict[str, Any]] = [
    {"name": "web", "to": ["norm"]},
    {"name": "app", "to": ["norm"]},
    {"name": "norm"},
]


def merged(**trail: str) -> ByHand:
    """Messages a to d came in at web, e to h at app, and all went through, but for what `trail` says (web_in=...)."""
    whole = {"web.in": "abcd", "web.out": "abcd", "app.in": "efgh", "app.out": "efgh"}
    whole |= {"norm.in": "abcdefgh", "norm.out": "abcdefgh"}
    return ByHand(document(*MERGED), {**whole, **{name.replace("_", "."): ids for name, ids in trail.items()}})


def test_each_source_has_what_became_of_its_messages() -> None:
    result = judged(merged(norm_in="abcdefg", norm_out="abcdef"))
    assert (result["messages"], result["delivered"], result["lost"]) == (8, 6, {"min": 2, "max": 2})
    counts = {s["name"]: (s["messages"], s["delivered"], s["lost"]["min"], s["on_time_of"]) for s in result["sources"]}
    assert counts == {"web": (4, 4, 0, 4), "app": (4, 2, 2, 4)}


def test_a_message_whose_first_beacon_is_lost_counts_though_no_source_is_known_of_it() -> None:
    result = judged(merged(web_in="abc", web_out="abc"))
    assert (result["messages"], result["unexplained"], result["delivered"]) == (8, 1, 8)
    assert [s["messages"] for s in result["sources"]] == [3, 4]
    assert judged(merged(web_in="abc"))["sources"][0]["messages"] == 4, "web.out is behind web alone"


def test_the_verdict_is_ok_and_idle_only_if_every_source_says_so() -> None:
    whole = merged()
    whole.report["app"] = {"final_through": START_S}
    assert (judged(whole)["verdict"], judged(whole)["reasons"]) == ("unknown", ["evidence:app"])
    empty = merged(**dict.fromkeys(("web_in", "web_out", "app_in", "app_out", "norm_in", "norm_out"), ""))
    assert judged(empty)["verdict"] == "idle"
    empty.report["app"] = {"final_through": START_S}
    assert judged(empty)["verdict"] == "unknown"


def test_a_message_that_was_sent_to_two_sources_is_one_and_counts_at_both() -> None:
    result = judged(merged(app_in="defgh", app_out="defgh"))
    assert (result["messages"], [s["messages"] for s in result["sources"]]) == (8, [4, 5])


def test_a_pipeline_with_one_source_has_no_rows_of_sources() -> None:
    assert "sources" not in judged(worked_case())


# --- New ids ---------------------------------------------------------------------------------------------------------


def aggregated(contract: str = "aggregate", **trail: str) -> ByHand:
    """Messages a to d go into A and B, which are stored."""
    own = {"contract": contract} if contract else {}
    nodes = [{"name": "src", "to": ["agg"]}, {"name": "agg", "to": ["snk"], "ids": "new", **own}, {"name": "snk"}]
    whole = {"src.in": "abcd", "src.out": "abcd", "agg.in": "abcd", **({"agg.out": "abcd"} if contract else {})}
    whole |= {"agg-new.in": "AB", "agg-new.out": "AB", "snk.in": "AB", "snk.out": "AB"}
    changed = {name.replace("_new_", "-new.").replace("_", "."): ids for name, ids in trail.items()}
    return ByHand(document(*nodes), {**whole, **changed})


def test_each_side_of_a_cut_is_judged_by_itself_and_the_worst_is_the_pipelines_verdict() -> None:
    result = judged(aggregated(snk_in="A", snk_out="A"))
    assert (result["verdict"], result["messages"], result["lost"]["min"]) == ("loss", 6, 1)
    sides = {side["name"]: (side["verdict"], side["messages"], side["lost"]["min"]) for side in result["sides"]}
    assert sides == {"src": ("ok", 4, 0), "agg-new": ("loss", 2, 1)}


def test_an_input_that_went_into_no_output_is_lost_at_the_node_and_one_that_went_into_two_is_twice() -> None:
    result = judged(aggregated(agg_out="abc"))
    assert gone(aggregated(agg_out="abc")) == {"d": ("lost", ["node agg"])}
    assert [side["verdict"] for side in result["sides"]] == ["loss", "ok"]
    twice = row(judged(aggregated(agg_out="abcdd"))["checkpoints"], "agg.out")
    assert (twice["distinct"], twice["duplicates"]) == (4, 1)


def test_without_a_contract_an_input_is_delivered_where_it_is_taken_in() -> None:
    result = judged(aggregated(contract=""))
    assert (result["verdict"], [d["name"] for d in result["destinations"]]) == ("ok", ["agg", "snk"])
    assert [d["delivered"] for d in result["destinations"]] == [4, 2]
    assert gone(aggregated(contract="", agg_in="abc")) == {"d": ("lost", ["link src->agg"])}


def test_an_id_that_is_on_both_sides_is_a_message_of_each() -> None:
    same = dict.fromkeys(("agg_new_in", "agg_new_out", "snk_in"), "abcd")
    result = judged(aggregated(**same, snk_out="abc"))
    assert [(side["messages"], side["delivered"]) for side in result["sides"]] == [(4, 4), (4, 3)]
    assert (result["messages"], result["delivered"]) == (8, 7)


def test_a_side_without_messages_is_idle_only_if_its_own_sources_say_so() -> None:
    empty = dict.fromkeys(("agg_new_in", "agg_new_out", "snk_in", "snk_out"), "")
    assert judged(aggregated(**empty))["verdict"] == "ok"
    silent = aggregated(**empty)
    silent.report["agg-new"] = {"final_through": START_S}
    assert judged(silent)["verdict"] == "unknown"


def split_in_two(**trail: str | list[str]) -> dict[str, Any]:
    """Parents a and b, of which two children each are made; what `parents_not_whole` says."""
    nodes = [
        {"name": "src", "to": ["cut"]},
        {"name": "cut", "to": ["snk"], "ids": "new", "contract": "split"},
        {"name": "snk"},
    ]
    children = ["a#1/2", "a#2/2", "b#1/2", "b#2/2"]
    whole: dict[str, Any] = dict.fromkeys(("src.in", "src.out", "cut.in", "cut.out"), "ab")
    whole |= dict.fromkeys(("cut-new.in", "cut-new.out", "snk.in", "snk.out"), children)
    hand = ByHand(document(*nodes), {**whole, **{name.replace("_", "."): ids for name, ids in trail.items()}})
    names = b"".join(bytes([len(name)]) + name.encode() for name in hand.ids("cut-new.in"))
    hand.block["cut-new.in"] = {"message_ids": names}
    if "snk.tally" in hand.trail:
        hand.tally_more["snk.in"] = 1
    hand.trail = {name: ids for name, ids in hand.trail.items() if name != "snk.tally"}
    return dict(row(judged(hand)["sources"], "cut-new"))


def test_a_parent_is_not_whole_if_any_of_its_children_is_lost() -> None:
    assert split_in_two()["parents_not_whole"] == {"min": 0, "max": 0}
    assert split_in_two(snk_out=["a#1/2"])["parents_not_whole"] == {"min": 2, "max": 2}
    one = split_in_two(snk_out=["a#1/2", "a#2/2"])
    assert (one["lost"]["min"], one["parents_not_whole"]) == (2, {"min": 1, "max": 1})


def test_where_a_child_is_perhaps_lost_its_parent_is_perhaps_not_whole() -> None:
    found = split_in_two(snk_in=["a#1/2", "a#2/2", "b#1/2"], snk_out=["a#1/2", "a#2/2", "b#1/2"], snk_tally="")
    assert (found["lost"], found["parents_not_whole"]) == ({"min": 0, "max": 1}, {"min": 0, "max": 1})
