"""A report over several destinations has the numbers of each; one over a single destination says nothing twice."""

from __future__ import annotations

from dataclasses import replace

from dashboard.reports import render
from dashboard.reports.model import Report
from lagloss.wire.sketch import Sketch
from lagloss_server.rules.rollup import DestinationSums
from tests.support.report_figures import report

FAST = DestinationSums(Sketch.from_bins({10_250: 900}), 900, 900, on_time=900, on_time_of=900)
SLOW = DestinationSums(
    Sketch.from_bins({10_460: 300}), 400, 300, dead=80, lost_min=10, lost_max=20, on_time=100, on_time_of=320
)


def over(destinations: dict[str, DestinationSums]) -> Report:
    made = report()
    return replace(made, whole=replace(made.whole, total=replace(made.whole.total, destinations=destinations)))


def test_each_destination_has_its_numbers() -> None:
    text = render(over({"conn-ga": FAST, "conn-fb": SLOW}), "md").decode()
    rows = [line for line in text.splitlines() if line.startswith("| conn")]
    assert rows == [
        "| conn-ga | 900 | 900 | 0 % | 100 % | 147 ms |",
        "| conn-fb | 400 | 300 | 2.5 % – 5 % | 31.2 % | 9.8 s |",
    ]


def test_a_single_destination_has_no_section() -> None:
    assert "Destinations" not in render(over({"snk": FAST}), "md").decode()
