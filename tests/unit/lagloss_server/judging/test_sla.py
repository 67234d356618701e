"""Late windows: a percentile above its target and a share on time below it are one statement."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss.wire.sketch import bin_value_ms
from lagloss_server.base.format import percentile as percentile_name
from lagloss_server.judging.sla import breaches, held_percentile
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.model.window import ListedWindow
from tests.oracle.by_hand import ByHand, document
from tests.oracle.plan import START_S
from tests.oracle.wire import column
from tests.support.in_memory import close_in_memory

_TRAIL: Final = ("src.in", "src.out", "snk.in", "snk.out")
PERCENTILES = st.sampled_from(["50", "95", "99"]) | st.decimals("0.001", 100, places=3).map(str)
LAGS = st.lists(st.integers(10_300, 10_500).map(lambda key: float(np.float32(bin_value_ms(key)))), min_size=1)


def closed(lags_ms: list[float], target: str = "5s") -> ListedWindow:
    """Return the window of messages that were delivered with these lags."""
    ids = [str(number) for number in range(len(lags_ms))]
    late = {"snk.out": {"lag_ms": column("f", lags_ms)}}
    nodes: list[dict[str, Any]] = [{"name": "src", "to": ["snk"]}, {"name": "snk"}]
    spec = {"sla": {"lag": {"target": target}}}
    case = ByHand(document(*nodes, **spec), dict.fromkeys(_TRAIL, ids), block=late)
    return ListedWindow.of(close_in_memory(case.world(), START_S).result, "closed", 1, None)


def at(percentile: str, target: str = "5s") -> Definition:
    head = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: clicks}\n"
    nodes = "nodes: [{name: src, to: [snk]}, {name: snk}]"
    return parse_definition(f"{head}spec: {{sla: {{lag: {{percentile: {percentile}, target: {target}}}}}, {nodes}}}")


@pytest.mark.parametrize("percentile", ["50.001", "94", "94.99999", "95", "95.00001", "99", "99.9", "100"])
def test_two_messages_of_which_one_took_a_minute_are_late_at_every_percentile_above_the_half(percentile: str) -> None:
    window = closed([1_000.0, 60_000.0])
    assert (window.verdict, window.on_time_share) == ("ok", 0.5)
    assert window.e2e_lag_ms.p50 == pytest.approx(1_000, rel=0.01)
    assert [getattr(window.e2e_lag_ms, name) for name in ("p95", "p99", "max")] == pytest.approx([60_000] * 3, rel=0.01)
    assert breaches(window, at(percentile))
    assert not breaches(window, at("50"))


@settings(max_examples=60, deadline=None)
@given(LAGS, PERCENTILES, st.integers(1, 30))
def test_a_window_is_late_when_fewer_than_its_percentile_are_on_time(
    lags_ms: list[float], percentile: str, target_s: int
) -> None:
    window = closed(lags_ms, f"{target_s}s")
    on_time = Fraction(sum(lag_ms <= target_s * 1_000 for lag_ms in lags_ms), len(lags_ms))
    assert window.on_time_share == float(on_time)
    assert breaches(window, at(percentile, f"{target_s}s")) == (on_time < Fraction(percentile) / 100)


def test_a_share_is_compared_with_the_percentile_as_it_is_written() -> None:
    window = closed([1_000.0] * 999 + [60_000.0])
    assert not breaches(window, at("99.9"))  # 99.9 / 100 is above 0.999
    assert breaches(window, at("99.91"))
    assert [at(percentile).spec.sla.lag.share for percentile in ("99.9", "7", "100")] == [0.999, 0.07, 1.0]


def test_a_percentile_is_named_and_held_as_itself_and_never_as_its_neighbour() -> None:
    found = {percentile: (percentile_name(percentile), held_percentile(percentile)) for percentile in (95.0, 94.99999)}
    assert found == {95.0: ("p95", "p95"), 94.99999: ("p94.99999", None)}
    assert [percentile_name(percentile) for percentile in (99.9, 100.0, 99.999999)] == ["p99.9", "p100", "p99.999999"]
