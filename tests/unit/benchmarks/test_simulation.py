"""The simulation: more load never needs less, more machines are never busier, and at the sizes that were measured it
says what was measured."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchmarks
from benchmarks.simulation import COSTS, SCENES, Cluster, Costs, Load, Scene, hours, level_after, read_s, stores, uses

loads = st.builds(
    Load,
    emitters=st.integers(1, 200_000),
    beacons_per_s=st.floats(1.0, 2e8),
    pipelines=st.integers(1, 50_000),
    read_share=st.floats(0.0, 1.0),
)


def busy(load: Load, cluster: Cluster) -> dict[str, float]:
    return {use.resource: use.busy for use in uses(load, cluster)}


@given(loads, st.integers(1, 10))
def test_a_larger_load_needs_no_less_of_anything(load: Load, factor: int) -> None:
    small, large = busy(load, Cluster()), busy(load.times(factor), Cluster())
    assert all(large[name] >= small[name] * 0.999 for name in small)
    few, many = stores(load, Cluster()), stores(load.times(factor), Cluster())
    assert all(many[name] >= few[name] * 0.999 for name in few)


@given(loads, st.sampled_from(["executor_cores", "followers", "closers", "brokers", "database_cores", "alerters"]))
def test_more_of_a_part_makes_nothing_but_copies_busier(load: Load, part: str) -> None:
    more = dataclasses.replace(Cluster(), **{part: 4})
    before, after = busy(load, Cluster()), busy(load, more)
    assert all(after[name] <= before[name] for name in before)


def test_following_ten_thousand_emitters_takes_what_was_measured() -> None:
    load = Load(10_000, 10_000 * 500.0, 40)
    found = busy(load, Cluster(database_cores=1))
    assert found["following reports (1 thread)"] == pytest.approx(0.63 + 0.25, rel=0.3)


@pytest.mark.parametrize(("beacons", "measured_s"), [(9_896_458, 1.18), (98_963_286, 6.66)])
def test_a_read_takes_what_was_measured(beacons: int, measured_s: float) -> None:
    load = Load(10, beacons / 60, 1, read_share=1.0)
    assert read_s(load, Cluster(executor_cores=2), 1) == pytest.approx(measured_s, rel=0.1)


@pytest.mark.parametrize(("share", "measured_s"), [(0.0, 10.9), (1.0, 34.2)])
def test_a_minute_of_ten_thousand_pipelines_is_closed_in_what_was_measured(share: float, measured_s: float) -> None:
    load = Load(20_000, 10_000 * 4.0, 10_000, read_share=share)
    assert busy(load, Cluster())["closing (1 thread)"] * 60 == pytest.approx(measured_s, rel=0.1)


def test_an_hour_without_a_fault_is_level_throughout() -> None:
    assert level_after(hours(Load(1_000, 1e6, 200), Cluster(), Scene("calm"), 60), 3) == 0


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_more_closers_are_level_no_later(scene: Scene) -> None:
    load, cluster = Load(5_000, 1e6, 10_000, read_share=0.5), Cluster(executor_cores=8)
    one, two = (
        level_after(hours(load, dataclasses.replace(cluster, closers=closers), scene), scene.ends) for closers in (1, 2)
    )
    assert two is not None
    assert one is None or two <= one


def test_what_can_not_keep_up_is_never_level() -> None:
    load = Load(30_000, 30_000 * 500.0, 200)
    assert level_after(hours(load, Cluster(), Scene("calm"), 60), 3) is None


def test_each_cost_names_the_benchmark_that_measures_it() -> None:
    folder = Path(benchmarks.__file__).parent
    sources = {each.name: each.metadata["benchmark"] for each in dataclasses.fields(Costs)}
    assert [name for name, benchmark in sources.items() if not (folder / f"{benchmark}.py").exists()] == []
    assert all(getattr(COSTS, name) > 0 for name in sources)
