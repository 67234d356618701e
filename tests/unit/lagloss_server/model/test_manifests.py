"""Manifests: the pipelines of files and folders, all of them or none, with the defaults of their classes."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from lagloss.errors import UsageError
from lagloss_server.base.errors import BadDefinition, BadDefinitions
from lagloss_server.model.definition import as_document, parse_definition
from lagloss_server.model.manifests import DeclaredPipeline, read_manifests


def pipeline(name: str, labels: str = "", spec: str = "") -> str:
    return (
        f"apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n"
        f"spec:\n  nodes: [{{name: a, to: [b]}}, {{name: b}}]\n{spec}"
    )


def defaults(name: str, *classes: str) -> str:
    lines = "".join(f"  - {{{text}}}\n" for text in classes)
    return f"apiVersion: lagloss/v1\nkind: Defaults\nmetadata: {{name: {name}}}\nspec:\n{lines}"


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(declared: list[DeclaredPipeline]) -> list[str]:
    return [pipeline.name for pipeline in declared]


GOLD = "match: {tier: gold}, sla: {loss: {max: 0.001}, lag: {target: 30s}}"


def test_a_folder_is_read_with_all_folders_below_it_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path, b=pipeline("two"), a__z=pipeline("one"), c="---\n".join([pipeline("three"), pipeline("four")]))
    (tmp_path / "d.yml").write_text(pipeline("five"))
    (tmp_path / "README.md").write_text("no YAML: [")
    assert names(read_manifests([tmp_path])) == ["one", "two", "three", "four", "five"]


def test_a_file_is_read_whatever_its_name_and_once_though_its_folder_is_given_too(tmp_path: Path) -> None:
    write(tmp_path, a=pipeline("one"))
    (tmp_path / "two.txt").write_text(pipeline("two"))
    paths = [tmp_path / "two.txt", tmp_path, tmp_path / "a.yaml", tmp_path / "." / "a.yaml"]
    assert names(read_manifests(paths)) == ["two", "one"]


def test_a_mounted_config_map_is_read_once_and_hidden_folders_are_not(tmp_path: Path) -> None:
    write(tmp_path / "..2026_11_27", orders=pipeline("orders"))
    (tmp_path / "..data").symlink_to("..2026_11_27")
    (tmp_path / "orders.yaml").symlink_to("..data/orders.yaml")
    write(tmp_path / ".github" / "workflows", check="on: push")
    assert names(read_manifests([tmp_path])) == ["orders"]


def test_documents_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "---\n".join([pipeline("one"), pipeline("two")])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert names(read_manifests([Path("-")])) == ["one", "two"]


def test_empty_documents_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, a=f"---\n---\n# nothing\n---\n{pipeline('one')}---\n", b="# all of it is a comment\n")
    assert names(read_manifests([tmp_path])) == ["one"]


@pytest.mark.parametrize("text", ["", "# nothing\n", defaults("tiers", GOLD)])
def test_a_folder_without_a_pipeline_is_refused_since_pruning_would_delete_everything(
    tmp_path: Path, text: str
) -> None:
    write(tmp_path, a=text)
    with pytest.raises(UsageError, match=f"expected at least one pipeline in {tmp_path}, found none"):
        read_manifests([tmp_path])


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a=pipeline("one"), closed__b=pipeline("two"))
    scan = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root reads every folder
    with pytest.raises(BadDefinition, match=r"closed:1: expected a readable folder, found .*Permission denied"):
        read_manifests([tmp_path])


def test_all_errors_are_reported_each_with_file_document_and_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        a="---\n".join([pipeline("one"), pipeline("two", spec="  graze: 1m\n")]),
        b="a: [",
        c=pipeline("three", spec="  grace: soon\n"),
        d="kind: Deployment\n",
        e=defaults("tiers", "match: {tier: gold}, sla: {loss: {max: 2}}"),
    )
    with pytest.raises(BadDefinitions) as refused:
        read_manifests([tmp_path])
    first, *problems = str(refused.value).splitlines()
    assert first == "5 errors in definitions:"
    starts = [
        f"{tmp_path}/b.yaml:1: expected YAML",
        f"{tmp_path}/d.yaml:1: kind: expected 'Pipeline' or 'Defaults', found 'Deployment'",
        f"{tmp_path}/e.yaml:5: spec[0].sla.loss.max: expected a number less than or equal to 1",
        f"{tmp_path}/a.yaml:12: document 2: spec.graze: expected one of these keys",
        f"{tmp_path}/c.yaml:6: spec.grace: expected a duration",
    ]
    assert len(problems) == len(starts)
    for problem, start in zip(problems, starts, strict=True):
        assert problem.startswith(start)


@pytest.mark.parametrize(("text", "shown"), [("a: 1", "none"), ("kind: 5", "5"), ("kind: ''", "''")])
def test_a_document_without_a_kind_is_refused_with_those_there_are(tmp_path: Path, text: str, shown: str) -> None:
    write(tmp_path, a=text)
    with pytest.raises(BadDefinition, match=f":1: kind: expected 'Pipeline' or 'Defaults', found {shown}$"):
        read_manifests([tmp_path])


def test_a_document_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a="[a]")
    with pytest.raises(BadDefinition, match=":1: document: expected a mapping, found a list"):
        read_manifests([tmp_path])


def test_a_pipeline_that_occurs_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    write(tmp_path, a=pipeline("orders"), b="---\n".join([pipeline("one"), pipeline("orders")]))
    with pytest.raises(BadDefinition) as refused:
        read_manifests([tmp_path])
    place = f"{tmp_path}/b.yaml:9: document 2: metadata.name: "
    assert str(refused.value) == f"{place}expected each pipeline once, found orders at {tmp_path}/a.yaml:3 as well"


def test_defaults_that_occur_twice_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a=defaults("tiers", GOLD), b=defaults("tiers", GOLD), c=pipeline("orders"))
    with pytest.raises(BadDefinition, match=r"expected each defaults once, found tiers at .*a.yaml:3 as well"):
        read_manifests([tmp_path])


def test_a_pipeline_gets_the_defaults_of_its_class_wherever_they_are(tmp_path: Path) -> None:
    write(tmp_path, a=pipeline("orders", "tier: gold"), b=pipeline("clicks", "tier: silver"), z=defaults("tiers", GOLD))
    orders, clicks = read_manifests([tmp_path])
    assert (orders.definition.spec.sla.loss.max, orders.definition.spec.sla.lag.target) == (0.001, 30_000)
    assert orders.definition.spec.sla.lag.percentile == 95
    assert dict(orders.origins) == {
        ("spec", "sla", "loss", "max"): "tiers",
        ("spec", "sla", "lag", "target"): "tiers",
    }
    assert clicks.definition == parse_definition(pipeline("clicks", "tier: silver"))
    assert clicks.origins == {}


def test_what_a_pipeline_specifies_wins_key_by_key(tmp_path: Path) -> None:
    own = "  sla: {lag: {target: 2s, percentile: 99}}\n"
    write(tmp_path, a=pipeline("orders", "tier: gold", own), b=defaults("tiers", GOLD))
    (orders,) = read_manifests([tmp_path])
    sla = orders.definition.spec.sla
    assert (sla.loss.max, sla.lag.target, sla.lag.percentile) == (0.001, 2_000, 99)
    assert dict(orders.origins) == {("spec", "sla", "loss", "max"): "tiers"}


def test_of_several_classes_a_later_one_wins_and_an_empty_match_is_all_pipelines(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=defaults("a", "match: {}, sla: {loss: {max: 0.1}, lag: {target: 1m}}", GOLD),
        b=defaults("b", "match: {tier: gold, team: web}, sla: {loss: {max: 0.5}}"),
        c=pipeline("web", "tier: gold, team: web"),
        d=pipeline("gold", "tier: gold"),
        e=pipeline("other"),
    )
    targets = {
        declared.name: (declared.definition.spec.sla.loss.max, declared.definition.spec.sla.lag.target)
        for declared in read_manifests([tmp_path])
    }
    assert targets == {"web": (0.5, 30_000), "gold": (0.001, 30_000), "other": (0.1, 60_000)}


@pytest.mark.parametrize(
    ("default", "own", "expected"),
    [
        ("lag: {breaches: 1}", "", "lag: {breaches: 1}"),
        ("lag: {breaches: 1, severity: warning}", "lag: {breaches: 3}", "lag: {breaches: 3, severity: warning}"),
        ("lag: {breaches: 1}", "lag: {}", "lag: {breaches: 1}"),
        ("lag: {breaches: 1}", "lag: off", "lag: off"),
        ("lag: {breaches: 1}", "lag: on", "lag: on"),
        ("lag: off", "lag: {breaches: 3}", "lag: {breaches: 3}"),
        ("lag: off", "volume: off", "{lag: off, volume: off}"),
        ("lag: [{breaches: 1}]", "lag: [{at: node=a, target: 1s}]", "lag: [{at: node=a, target: 1s}]"),
        ("upstream: [x, y]", "upstream: [z]", "upstream: [z]"),
        ("upstream: [x, y]", "upstream: []", "upstream: []"),
    ],
)
def test_mappings_are_merged_and_everything_else_is_replaced(
    tmp_path: Path, default: str, own: str, expected: str
) -> None:
    spec = f"  alerts: {{{own}}}\n" if own else ""
    write(tmp_path, a=pipeline("orders", "tier: gold", spec), b=defaults("d", f"match: {{}}, alerts: {{{default}}}"))
    (orders,) = read_manifests([tmp_path])
    alerts = expected if expected.startswith("{") else f"{{{expected}}}"
    assert orders.definition == parse_definition(pipeline("orders", "tier: gold", f"  alerts: {alerts}\n"))


def test_a_definition_with_defaults_is_whole_so_that_it_is_read_again_without_them(tmp_path: Path) -> None:
    write(tmp_path, a=pipeline("orders", "tier: gold"), b=defaults("tiers", GOLD))
    (orders,) = read_manifests([tmp_path])
    assert as_document(orders.definition)["spec"]["sla"]["loss"] == {"max": 0.001}


def test_a_default_that_does_not_fit_a_pipeline_is_named(tmp_path: Path) -> None:
    text = defaults("tiers", "match: {}, alerts: {lag: {at: node=x, target: 1s}}")
    write(tmp_path, a=text, b=pipeline("orders"))
    with pytest.raises(BadDefinition) as refused:
        read_manifests([tmp_path])
    assert str(refused.value).startswith(f"{tmp_path}/b.yaml:4: spec.alerts.lag.at: expected ")
    assert str(refused.value).endswith("(from the defaults tiers)")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (defaults("tiers", "sla: {}"), "spec[0].match: expected a value, found none"),
        (defaults("tiers", "match: {tier: no}"), "YAML reads no as a boolean, so quote it: 'no'"),
        (defaults("tiers", "match: {kind: loss}"), "expected labels other than"),
        (defaults("tiers", "match: {}, grace: 1m"), "expected one of these keys: match, sla, alerts"),
        (defaults("tiers", "match: {}, sla: {lag: {target: 5}}"), "spec[0].sla.lag.target: expected a duration"),
        ("apiVersion: lagloss/v1\nkind: Defaults\nmetadata: {name: a}\nspec: []\n", "spec: expected at least 1 items"),
        ("apiVersion: lagloss/v2\nkind: Defaults\nmetadata: {name: a}\nspec: []\n", "apiVersion: expected"),
    ],
)
def test_defaults_are_checked_by_themselves(tmp_path: Path, text: str, problem: str) -> None:
    write(tmp_path, a=text, b=pipeline("orders"))
    with pytest.raises(BadDefinition) as refused:
        read_manifests([tmp_path])
    assert problem in str(refused.value)


@pytest.mark.parametrize(("labels", "shown"), [("", "none"), ("env: test", "env=test")])
def test_a_pipeline_without_the_label_that_pruning_is_limited_to_is_refused(
    tmp_path: Path, labels: str, shown: str
) -> None:
    write(tmp_path, a=pipeline("orders", "env: prod"), b=pipeline("clicks", labels))
    with pytest.raises(BadDefinition) as refused:
        read_manifests([tmp_path], ("env", "prod"))
    assert str(refused.value) == (
        f"{tmp_path}/b.yaml:3: metadata.labels: expected the label env=prod, which --prune is limited to, found {shown}"
    )


def test_a_schema_is_read_next_to_the_file_that_names_it(tmp_path: Path) -> None:
    tap = "{topic: t, id: $.id, eventTime: $.at, format: avro, schema: t.avsc}"
    text = pipeline("orders").replace("to: [b]", f"to: [b], taps: {{out: {tap}}}")
    write(tmp_path, below__a=text)
    (tmp_path / "below" / "t.avsc").write_text('"string"')
    (orders,) = read_manifests([tmp_path])
    assert orders.definition.taps[0].extraction.schema == '"string"'
