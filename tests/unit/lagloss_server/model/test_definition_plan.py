"""Plans and differences: what is shown to change is what would change, in the words of the definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.base.yaml_files import write_documents
from lagloss_server.model.definition import Definition, StoredPipeline, parse_definition
from lagloss_server.model.definition_diff import differences, written
from lagloss_server.model.definition_plan import ApplyPlan, plan
from lagloss_server.model.manifests import read_manifests

NODES = "nodes: [{name: a, to: [b, c]}, {name: b, group: g}, {name: c}]"
ORDERS = f"""apiVersion: lagloss/v1
kind: Pipeline
metadata: {{name: orders, labels: {{team: web}}}}
spec:
  {NODES}
  grace: 60s
  sla: {{loss: {{max: 0.01}}, lag: {{target: 5s}}}}
"""
TIERS = """apiVersion: lagloss/v1
kind: Defaults
metadata: {name: tiers}
spec:
  - {match: {team: web}, sla: {loss: {max: 0.002}, staleness: {max: 1m}}, alerts: {lag: [{at: node=b, target: 1s}]}}
"""


def definition(text: str = ORDERS, *replaced: tuple[str, str]) -> Definition:
    for before, after in replaced:
        assert before in text
        text = text.replace(before, after)
    return parse_definition(text)


def changed(before: str, after: str) -> list[str]:
    return [str(change) for change in differences(definition(), definition(ORDERS, (before, after)))]


def stored(*texts: str) -> list[StoredPipeline]:
    definitions = [parse_definition(text) for text in texts]
    return [StoredPipeline(definition.name, 3, 0, definition) for definition in definitions]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("grace: 60s", "grace: 1m"),
        ("grace: 60s", "maxWait: 900s"),
        ("max: 0.01", "max: 1.0e-2"),
        ("{target: 5s}", "{percentile: 95.0, target: 5000ms}"),
        ("grace: 60s", "grace: 60s\n  alerts: {lag: on, volume: [{below: 0.5}]}"),
        ("{name: c}", "{name: c, to: [], description: ''}"),
        ("labels: {team: web}", 'description: "", labels: {"team": \'web\'}'),
    ],
)
def test_another_spelling_is_no_change(before: str, after: str) -> None:
    assert changed(before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("max: 0.01", "max: 0.005", ["spec.sla.loss.max: 0.01 -> 0.005"]),
        ("grace: 60s", "grace: 90s", ["spec.grace: 1m -> 90s"]),
        ("team: web", "team: 'no'", ["metadata.labels.team: web -> 'no'"]),
        ("team: web", "team: web, tier: ''", ["metadata.labels.tier: + ''"]),
        ("labels: {team: web}", "labels: {}", ["metadata.labels: - {team: web}"]),
        ("to: [b, c]", "to: [c, b]", ["spec.nodes[a].to: order b, c -> c, b"]),
        ("group: g", "group: h", ["spec.nodes[b].group: g -> h"]),
        (", group: g", "", ["spec.nodes[b].group: - g"]),
        (
            NODES,
            "nodes: [{name: a, to: [b, d]}, {name: b, group: g}, {name: d, group: k}]",
            ["spec.nodes[a].to: +d -c", "spec.nodes[c]: - {name: c}", "spec.nodes[d]: + {name: d, group: k}"],
        ),
        (
            NODES,
            "nodes: [{name: b, group: g}, {name: a, to: [b, c]}, {name: c}]",
            ["spec.nodes: order a, b, c -> b, a, c"],
        ),
        ("grace: 60s", "jobs: [{dag: d}]", ["spec.jobs: + [{dag: d, span: 1h}]"]),
        (
            "grace: 60s",
            "alerts: {volume: off}",
            ["spec.alerts.volume: {below: 0.5, over: 15m, severity: warning} -> false"],
        ),
        (
            "grace: 60s",
            "alerts: {volume: [{below: 0.4}, {at: node=a}]}",
            [
                "spec.alerts.volume[pipeline].below: 0.5 -> 0.4",
                "spec.alerts.volume[node=a]: + {at: [node=a], below: 0.5, over: 15m, severity: warning}",
            ],
        ),
        (
            "{target: 5s}}",
            "{target: 5s}, staleness: {checkpoints: {b.in: 2m}}}",
            ["spec.sla.staleness.checkpoints: + {b.in: 2m}"],
        ),
        ("group: g", 'group: g, description: "\\e[31m"', ['spec.nodes[b].description: + "\\e[31m"']),
    ],
)
def test_a_change_is_shown_by_its_path_and_meaning(before: str, after: str, expected: list[str]) -> None:
    assert changed(before, after) == expected


NAMES = ["a", "b", "c", "d"]
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Definitions that are chains of nodes, with some of the other keys."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    links = zip(names, [*names[1:], None], strict=True)
    nodes: list[dict[str, Any]] = [
        {
            "name": name,
            **({"to": [after]} if after else {}),
            **draw(st.fixed_dictionaries({}, optional={"description": texts, "group": st.just(f"g.{name}")})),
        }
        for name, after in links
    ]
    durations = st.sampled_from(["0s", "1500ms", "60s", "1m", "2h", "1d"])
    rules = st.booleans() | st.fixed_dictionaries({}, optional={"breaches": st.integers(1, 3)})
    placed = st.lists(
        st.sampled_from(names).map(lambda name: {"at": f"node={name}", "target": "1s"}),
        unique_by=lambda entry: entry["at"],
    )
    optional = {
        "grace": durations,
        "sample": st.sampled_from([1, 1.0, 0.5]),
        "sla": st.fixed_dictionaries(
            {},
            optional={
                "loss": st.fixed_dictionaries({"max": st.sampled_from([0, 0.01, 1])}),
                "destinations": st.just({names[-1]: {}}) | st.just({}),
                "staleness": st.fixed_dictionaries({}, optional={"checkpoints": st.just({f"{names[0]}.in": "2m"})}),
            },
        ),
        "jobs": st.lists(st.sampled_from(["x", "y"]).map(lambda dag: {"dag": dag}), unique_by=lambda job: job["dag"]),
        "alerts": st.fixed_dictionaries({}, optional={"lag": rules | placed, "blind": rules, "volume": st.booleans()}),
    }
    metadata = {"name": "orders", "labels": draw(st.dictionaries(st.sampled_from(["team", "description"]), texts))}
    spec = {"nodes": draw(st.permutations(nodes)), **draw(st.fixed_dictionaries({}, optional=optional))}
    return {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": metadata, "spec": spec}


definitions = documents().map(Definition.model_validate)


@given(definitions)
def test_what_is_printed_is_read_again_as_the_same_definition(definition: Definition) -> None:
    text = write_documents([written(definition)])
    assert parse_definition(text) == definition
    assert Definition.model_validate(json.loads(json.dumps(written(definition)))) == definition
    assert yaml.safe_load(text) == written(definition)


@given(definitions, definitions)
def test_there_are_differences_if_and_only_if_applying_would_make_a_version(
    before: Definition, after: Definition
) -> None:
    changes = differences(before, after)
    assert bool(changes) == (before != after)
    assert differences(before, before) == []
    for change in changes:
        assert str(change).isprintable()
        assert change.before != change.after


def plan_of(folder: Path, *stored_: StoredPipeline, prune: tuple[str, str] | None = None, **texts: str) -> ApplyPlan:
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return plan(read_manifests([folder]), stored_, {}, prune)


def test_a_plan_has_each_pipeline_with_what_would_be_done(tmp_path: Path) -> None:
    new = ORDERS.replace("orders", "new").replace("team: web", "env: prod")
    changed_, same = (ORDERS.replace("orders", name) for name in ("clicks", "same"))
    planned = plan_of(
        tmp_path,
        *stored(changed_, same, ORDERS.replace("orders", "elsewhere")),
        a=new,
        b=changed_.replace("max: 0.01", "max: 0.005"),
        c=same.replace("60s", "1m"),
    )
    assert planned.lines() == [
        "create    new",
        "change    clicks (version 3)",
        "    spec.sla.loss.max: 0.01 -> 0.005",
        "unchanged same (version 3)",
        "1 to create, 1 to change, 0 to delete, 1 unchanged",
    ]
    assert planned.would_change
    assert planned.deleted == []


def test_pruning_deletes_what_is_not_declared_within_the_label_and_nothing_else(tmp_path: Path) -> None:
    others = {"gone": "team: web", "other-team": "team: shop", "no-label": "tier: web", "orders": "team: web"}
    known = stored(*(ORDERS.replace("orders", name).replace("team: web", label) for name, label in others.items()))
    planned = plan_of(tmp_path, *known, prune=("team", "web"), a=ORDERS)
    assert planned.deleted == ["gone"]
    assert planned.lines()[1:] == [
        "delete    gone (version 3)",
        "0 to create, 0 to change, 1 to delete, 1 unchanged",
    ]


def test_nothing_would_change_if_all_is_as_it_is_stored(tmp_path: Path) -> None:
    assert not plan_of(tmp_path, *stored(ORDERS), prune=("team", "web"), a=ORDERS).would_change


def test_a_plan_shows_which_values_come_from_which_defaults(tmp_path: Path) -> None:
    own = ORDERS.replace("sla: {loss: {max: 0.01}, lag: {target: 5s}}", "sla: {lag: {target: 5s}}")
    entry = "{at: [node=b], breaches: 2, of: 3, target: 1s, minMessages: 1, severity: critical}"
    planned = plan_of(tmp_path, *stored(ORDERS), a=own, b=TIERS)
    assert planned.lines() == [
        "change    orders (version 3)",
        "    spec.sla.loss.max: 0.01 -> 0.002 (from the defaults tiers)",
        "    spec.sla.staleness.max: 5m -> 1m (from the defaults tiers)",
        "    spec.alerts.lag[pipeline]: - {breaches: 2, of: 3, minMessages: 1, severity: critical}",
        f"    spec.alerts.lag[node=b]: + {entry} (from the defaults tiers)",
        "0 to create, 1 to change, 0 to delete, 0 unchanged",
    ]
    new = plan_of(tmp_path, a=own, b=TIERS)
    assert new.lines() == [
        "create    orders",
        "    spec.sla.loss.max: from the defaults tiers",
        "    spec.sla.staleness.max: from the defaults tiers",
        "    spec.alerts.lag: from the defaults tiers",
        "1 to create, 0 to change, 0 to delete, 0 unchanged",
    ]


def test_a_stored_definition_that_cannot_be_read_is_replaced_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(ORDERS)
    planned = plan(read_manifests([tmp_path]), [], {"orders": "unknown key spec.new"}, None)
    assert planned.lines()[0] == "change    orders: unknown key spec.new"
    assert planned.would_change


def test_the_document_of_a_plan_says_the_same(tmp_path: Path) -> None:
    gone = ORDERS.replace("orders", "gone")
    changed_ = ORDERS.replace("to: [b, c]", "to: [b]").replace(", {name: c}", "").replace("60s", "90s")
    planned = plan_of(tmp_path, *stored(ORDERS, gone), prune=("team", "web"), a=changed_)
    assert json.loads(planned.json()) == {
        "applied": False,
        "pipelines": [
            {
                "pipeline": "orders",
                "action": "change",
                "version": 3,
                "differences": [
                    {"path": "spec.nodes[a].to", "before": ["b", "c"], "after": ["b"]},
                    {"path": "spec.nodes[c]", "before": {"name": "c"}},
                    {"path": "spec.grace", "before": "1m", "after": "90s"},
                ],
                "defaults": {},
                "note": None,
            },
            {
                "pipeline": "gone",
                "action": "delete",
                "version": 3,
                "differences": [],
                "defaults": {},
                "note": None,
            },
        ],
    }


def test_what_was_done_is_reported_with_the_new_versions(tmp_path: Path) -> None:
    planned = plan_of(tmp_path, *stored(ORDERS.replace("orders", "gone")), prune=("team", "web"), a=ORDERS)
    done = planned.applied_as([1])
    assert (planned.applied, done.applied) == (False, True)
    assert done.outcome() == ["orders: version 1", "gone: deleted"]
