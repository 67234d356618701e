"""Sections of a report: of several destinations, of qualities, and of why messages were filtered or dead."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from msgspec import structs

from dashboard.reports import charts, render
from dashboard.reports.model import Report
from dashboard.reports.sections import sections
from lagloss.wire.format import SAMPLE_ALL
from lagloss.wire.sketch import Sketch
from lagloss_server.base import format as fmt
from lagloss_server.incidents.lost_afterwards import LostMinute, by_node
from lagloss_server.incidents.repairs import RepairRecord, _record, lost_before_repairs
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import Interval
from lagloss_server.runs.dag_runs import stats_of
from lagloss_server.sums.quality import quality_rows
from lagloss_server.sums.rollup import CheckpointSums, LinkSums, PartSums
from tests.support.incident_rows import NOON
from tests.support.report_figures import destination, incident, lag_by_hop, report, rollup
from tests.support.runs import JOB, NOON_S, failed_run
from tests.support.window_documents import chain

FAST = PartSums(900, 900, on_time=900, on_time_of=900, lags=Sketch.from_bins({10_250: 900}))
SLOW = PartSums(
    400, 300, dead=80, lost=Interval(10, 20), on_time=100, on_time_of=320, lags=Sketch.from_bins({10_460: 300})
)


def over(destinations: dict[str, PartSums], made: Report | None = None) -> Report:
    """All was well there in the range before."""
    made = made or report()
    each = tuple(destination(made, name, sums, FAST) for name, sums in destinations.items())
    return replace(made, destinations=each)


def test_each_destination_has_its_numbers() -> None:
    text = render(over({"conn-ga": FAST, "conn-fb": SLOW}), "md").decode()
    assert "was not lost: conn-ga 100 %, conn-fb 95 % – 97.5 %." in text
    rows = [re.sub(r"\]\([^)]*\)", "]", line) for line in text.splitlines() if line.startswith("| conn")]
    ga, fb = (row.split(" | ") for row in rows)
    assert ga[1:4] == ["? UNPROVEN", "≤ 1 % lost, ≥ 95 % in 5 s", "[100 %]"]
    assert ga[4:] == ["900", "0", "0", "at most 100 %", "100 %", "at most 100 %", "147 ms |"]
    assert fb[1:4] == ["✖ MISSED", "≤ 1 % lost, ≥ 95 % in 5 s", "[95 % – 97.5 %]"]
    assert fb[4:8] == ["400", "10–20", "80", "none, at least 250 % used"]
    assert fb[8:] == ["31.2 % – 34.4 %", "none, at least 1,312 % used", "9.8 s |"]


def test_reasons_come_with_those_that_are_not_known() -> None:
    made, beacons = report(), {"mid.filtered": CheckpointSums(beacons=30), "snk.dead": CheckpointSums(beacons=2)}
    reasons = {"mid": {"filtered": {"a | b\nc": 25}}, "snk": {"dead": {"unreadable": 2}}}
    total = structs.replace(made.whole.total, checkpoints=beacons, reasons=reasons)
    text = render(replace(made, whole=replace(made.whole, total=total)), "md").decode()
    section = text.split("## Why messages were filtered or dead-lettered")[1].split("##")[0]
    assert [line for line in section.splitlines() if line.startswith(("| mid", "| snk"))] == [
        "| mid | filtered | a \\| b c | 25 |",
        "| mid | filtered | unknown | 5 |",
        "| snk | dead | unreadable | 2 |",
    ]
    assert "Why messages" not in render(made, "md").decode()


def test_checkpoints_with_messages_out_of_order_have_their_number_and_share() -> None:
    made = report()
    checkpoints = {"mid.in": CheckpointSums(distinct=40), "mid.out": CheckpointSums(distinct=40, out_of_order=2)}
    total = structs.replace(made.whole.total, checkpoints=checkpoints)
    text = render(replace(made, whole=replace(made.whole, total=total)), "md").decode()
    section = text.split("## Out of order")[1].split("##")[0]
    assert [line for line in section.splitlines() if line.startswith("| mid")] == ["| mid.out | 2 | 5 % |"]
    assert "Out of order" not in render(made, "md").decode()


def test_jobs_and_their_tasks_have_their_rates_and_repairs() -> None:
    failed = failed_run()
    good = replace(failed_run(NOON_S + 3_600), state="success", run_id="r-2", failed_ms=None)
    made = replace(report(), jobs=(stats_of(JOB, [failed, good], NOON_S + 7_000),))
    text = render(made, "md", "http://dash").decode()
    section = text.split("## Jobs")[1].split("##")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith(("| [", "| task"))]
    job, spark, publish = rows
    assert job[0].startswith("[scores](http://dash/pipelines/chain/runs?zone=Europe/Berlin&from=")
    assert job[1:] == ["2", "50 %", "50 % (1 of 2)", "20 min", "10 min", "–", "1"]
    assert spark == ["task spark", "2", "100 %", "–", "–", "6 min", "–", "0"]
    assert publish == ["task publish", "2", "0 %", "–", "–", "–", "–", "2"]
    document = json.loads(render(made, "json"))["jobs"]
    assert [(each["dag"], each["success_rate"], each["in_time"]) for each in document] == [("scores", 0.5, 1)]
    assert "## Jobs" not in render(report(), "md").decode()


def with_quality() -> Report:
    made = report()
    total = structs.replace(
        made.whole.total,
        checkpoints={"snk.out": CheckpointSums(beacons=51, distinct=50, duplicates=1, counted=51)},
        checksums={"src->mid": LinkSums(2, 40)},
        staleness_ms={"snk.out": 400_000.0},
        worst={
            "staleness destination snk": (400_000.0, made.span.from_s),
            "corruption link src->mid": (2, made.span.from_s),
            "corruption destination snk": (2, made.span.from_s),
        },
    )
    return replace(made, quality=quality_rows(total, chain()))


def test_each_stage_and_destination_has_its_qualities_beside_their_targets() -> None:
    text = render(with_quality(), "md").decode().split("## Data quality")[1].split("##")[0]
    rows = {line.split(" | ")[0]: line.split(" | ")[1:] for line in text.splitlines() if line.startswith("| ")}
    assert rows["| link src → mid"][1].startswith("[✖ 2 of 40 (≤ 0 per minute)](/pipelines/chain?")
    assert (rows["| destination snk"][0], rows["| destination snk"][2]) == ("? unknown (≤ 1 %)", "✖ 1.96 % (≤ 1 %)")
    assert rows["| destination snk"][3].startswith("[✖ 6.7 min (≤ 5 min)](/pipelines/chain?")
    assert "Data quality" in render(with_quality(), "html").decode()
    assert "Data quality" not in render(report(), "md").decode()


def test_qualities_are_rows_of_the_csv_and_part_of_the_json_where_they_are_known() -> None:
    rows = list(csv.DictReader(io.StringIO(render(with_quality(), "csv").decode())))
    (there,) = [row for row in rows if row["what"] == "destination snk"]
    assert (there["duplicates"], there["duplicates_of"], there["staleness_ms"]) == ("1", "51", "400000.0")
    (node,) = [row for row in rows if row["what"] == "node mid"]
    assert (node["duplicates"], node["corrupted"], node["staleness_ms"]) == ("", "", "")
    found = json.loads(render(with_quality(), "json"))["quality"]
    assert [(row["kind"], row["name"]) for row in found][-1] == ("destination", "snk")
    assert found[-1]["staleness"]["verdict"] == "bad"


def test_budgets_are_drawn_over_what_is_known_of_a_range() -> None:
    made = report()
    whole = made.burn_down_range
    assert whole == TimeRange(made.span.from_s, made.burn_down[-1].at_s)
    nothing = (None,) * len(made.burn_down[0].left)
    last = len(made.burn_down) - 1
    over_the_last = tuple(
        point if at in (0, last - 1, last) else replace(point, left=nothing) for at, point in enumerate(made.burn_down)
    )
    late = replace(made, burn_down=over_the_last)
    assert late.burn_down_range == TimeRange(made.burn_down[-2].at_s, made.burn_down[-1].at_s)
    assert "Error budget left over time" in charts.burn_down(late)


def test_a_single_destination_has_no_section() -> None:
    assert "Destinations" not in render(over({"snk": FAST}), "md").decode()


def test_each_hop_has_its_part_of_the_lag_in_both_ranges() -> None:
    text = render(report(), "md").decode()
    assert "Shares are of the slowest path, to snk." in text
    rows = [line for line in text.splitlines() if line.startswith(("| arrival", "| queue", "| process"))]
    assert rows == [
        "| arrival at src | 20 ms | 20 % | 20 ms | 40 % |",
        "| queue src → mid | 60 ms | 60 % | 30 ms | 60 % |",
        "| process mid | 20 ms | 20 % | – | – |",
    ]


def test_incidents_have_their_time_to_repair_and_cause() -> None:
    def said(blame: dict[str, object] | None) -> str:
        one = incident()
        text = render(report("chain", "", replace(one, detail={**one.detail, "blame": blame})), "md").decode()
        return next(line for line in text.splitlines() if "| critical |" in line)

    assert "| 9 min | critical |" in said(None)
    assert "[not analysed](/incidents/" in said(None)
    assert "[Nothing stands out.](" in said({"of": "loss", "conclusion": "Nothing stands out.", "findings": []})
    assert "MTTR 9 min" in render(report("chain", "", incident()), "md").decode()


def test_lag_by_hop_is_left_out_where_no_lag_is_known() -> None:
    assert "Lag by hop" not in render(replace(report(), lag=lag_by_hop()), "md").decode()


def test_a_destination_is_judged_by_its_own_counts() -> None:
    total = structs.replace(rollup(), destinations={"snk": SLOW}).at("snk")
    assert (total.messages, total.lost_max, total.on_time_of, total.windows) == (400, 20, 320, 60)
    assert total.e2e_lags == SLOW.lags


def repair(number: int, before: dict[int, int], after: dict[int, int], state: str = "finished") -> RepairRecord:
    def losses(lost: dict[int, int]) -> dict[int, tuple[int, Interval]]:
        return {first_s + 60 * minute: (100, Interval(count, count)) for minute, count in lost.items()}

    sent, first_s = sum(before.values()), report().span.from_s
    statement = {"sent": sent, "arrived": sent, "missing": 0, "gone": 0} if state != "open" else None
    return RepairRecord(
        f"{number:04x}", "link src->mid", first_s, first_s + 180, state, None, NOON, "ann", losses(before),
        losses(after), statement,
    )  # fmt: skip


def test_repairs_stand_with_the_loss_before_and_the_loss_now() -> None:
    made = replace(report(), repairs=(repair(1, {0: 40, 1: 2}, {0: 0, 1: 2}), repair(2, {1: 2}, {1: 2}, "open")))
    (section,) = [section for section in sections(made) if section.title == "Repairs"]
    assert section.table is not None
    assert [[cell.text for cell in row][3:] for row in section.table.rows] == [
        ["finished", "42", "42", "42", "0", "2"],
        ["open", "2", fmt.NOTHING, fmt.NOTHING, fmt.NOTHING, "2"],
    ]
    assert made.document()["repairs"]["lost_before"] == {"min": 40, "max": 40}
    assert [listed["repair"] for listed in made.document()["repairs"]["list"]] == ["repair-0001", "repair-0002"]
    (objectives, *_) = sections(made)
    total = made.whole.total.lost
    said = f"Before repairs, {total.min + 40}–{total.max + 40} messages were lost, 40 more than now."
    assert said in objectives.sentences


def test_what_was_lost_before_repairs_is_what_the_first_repair_of_a_window_says() -> None:
    first_s = report().span.from_s
    records = [repair(1, {0: 40}, {0: 0}), repair(2, {0: 3, 1: 5}, {0: 0, 1: 1})]
    assert lost_before_repairs(records, first_s, first_s + 180) == Interval(44, 44)
    assert lost_before_repairs(records, first_s + 60, first_s + 180) == Interval(4, 4)
    assert lost_before_repairs([], 0, first_s) == Interval(0, 0)
    assert records[0].words == "repair-0001 at link src->mid: sent 40, arrived 40, gone 0; lost before 40, now 0"


def test_once_windows_are_pruned_what_arrived_says_what_is_lost_now() -> None:
    row: Any = SimpleNamespace(
        id="0001", place="link a->b", from_window=0, to_window=120, state="finished", stop_reason=None, created_at=NOON,
        created_by="ann", plan={"windows": [[0, 100, 40, 42], [60, 100, 3, 3]]},
        statement={"sent": 43, "arrived": 41, "arrived_by_window": [[0, 40], [60, 1]]},
    )  # fmt: skip
    pruned, kept = (_record(row, now) for now in ({}, {60: (100, Interval(3, 3))}))
    assert (pruned.lost_before, pruned.lost_after) == (Interval(43, 45), Interval(2, 4))
    assert lost_before_repairs([pruned], 0, 120) == Interval(41, 41)
    assert kept.lost_after == Interval(3, 5)


def test_a_report_without_repairs_has_no_section_of_them() -> None:
    assert "Repairs" not in [section.title for section in sections(report())]
    assert report().document()["repairs"] == {"lost_before": {"min": 0, "max": 0}, "list": []}


def test_what_is_lost_afterwards_stands_beside_loss_and_is_not_in_it() -> None:
    first_s = report().span.from_s
    minutes = [
        LostMinute(
            *(first_s + 60 * at, "snk", "snk.out", "table a.orders of shop", lost, accepted, None, None, None),
            *(60, sample, cause, 1_000 * first_s, 1_000 * first_s),
        )
        for at, lost, accepted, sample, cause in ((0, 3, 0, SAMPLE_ALL, "deleted"), (5, 4, 4, 1 << 30, "rewritten"))
    ]
    made = replace(report(), lost_afterwards=tuple(by_node(minutes)))
    (section,) = [section for section in sections(made) if section.title == "Lost afterwards"]
    assert section.table is not None
    assert [[cell.text for cell in row][3:] for row in section.table.rows] == [
        ["deleted or gone since the table was truncated or rewritten", "25 %", "7", "4"]
    ]
    document = made.document()
    assert (document["lost_afterwards"]["lost"], document["lost_afterwards"]["accepted"]) == (7, 4)
    assert document["lost_afterwards"]["list"][0]["tables"] == ["table a.orders of shop"]
    assert document["whole"] == report().document()["whole"]
    assert "Lost afterwards" not in [section.title for section in sections(report())]
