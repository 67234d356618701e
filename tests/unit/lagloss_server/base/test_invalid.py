"""Errors of documents: the place that was written, what was expected there, and no word of the machinery."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from alerting.config import AlertingFile
from collector.cloud_events import BATCHED, read_events
from collector.definitions import parsed
from collector.intake import report_of_json
from collector.models import read_batch
from collector.openlineage import read_event
from collector.task_runs import read_reports
from dashboard.access.policy import AccessFile
from dashboard.reports.schedule.file import ReportsFile
from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.yaml_files import parse_yaml, write_documents
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.net.problem_details import Problem

ROOT = Path(__file__).resolve().parents[4]
TAP = {"topic": "orders", "id": ["$.shop", "$.id"], "eventTime": "$.at", "where": '$.a == "b"', "format": "avro"}
DEFINITION: dict[str, Any] = {
    "apiVersion": "lagloss/v1",
    "kind": "Pipeline",
    "metadata": {"name": "orders", "description": "x", "labels": {"team": "web"}},
    "spec": {
        "nodes": [
            {"name": "shop", "to": ["enrich"], "taps": {"out": {**TAP, "schema": "{}", "cluster": "eu"}}},
            {"name": "enrich", "to": ["sink"], "retries": "again", "taps": {"in": {"group": "g"}, "out": "beacons"}},
            {"name": "sink", "taps": {"in": {"group": "s", "topic": "t", "id": "key", "eventTime": "$.b"}}},
            {"name": "again", "group": "r"},
        ],
        "sample": 0.5,
        "order": "key",
        "sla": {
            "loss": {"max": 0.01},
            "lag": {"percentile": 95, "target": "5s"},
            "staleness": {"max": "5m", "checkpoints": {"enrich.out": "2m"}},
            "destinations": {"sink": {"loss": {"max": 0.1}}},
        },
        "jobs": [{"dag": "d", "span": "1h", "deadline": "20m", "node": "enrich"}],
    },
}


def file_of(path: str) -> Any:
    """An example with all that stands in it as comments."""
    text = (ROOT / path).read_text("utf-8")
    return yaml.safe_load(re.sub("^#(?! )|^#(?=  )", "", text, flags=re.MULTILINE))


def definition_with_rules() -> Any:
    *_, rules = [
        text
        for text in re.findall(
            r"^```yaml\n(.*?)^```$", (ROOT / "docs/alerting.md").read_text(), re.MULTILINE | re.DOTALL
        )
        if "alerts:" in text
    ]
    alerts = yaml.safe_load(rules)["spec"]["alerts"]
    alerts |= {"lag": alerts["lag"][:1], "upstream": ["another"]}  # the others are of other places
    spec = {**DEFINITION["spec"], "alerts": alerts}
    return {**DEFINITION, "spec": spec}


DOCUMENTS: dict[str, tuple[type[BaseModel], Any]] = {
    "definition": (Definition, DEFINITION),
    "rules": (Definition, definition_with_rules()),
    "alerting file": (AlertingFile, file_of("examples/alerting.yaml")),
    "reports file": (ReportsFile, file_of("examples/reports.yaml")),
    "access file": (AccessFile, file_of("examples/access.yaml")),
}
ODD: list[Any] = [
    None,
    True,
    5,
    -1,
    2.5,
    "",
    "odd",
    "a.b c",
    [],
    {},
    [[]],
    [{}],
    {"odd": 1},
    ["a", 1],
    {"a": {"b": []}},
]
ODD += [datetime(2026, 11, 26, tzinfo=UTC), float("nan"), "x" * 400, 10**30]


@cache
def class_names() -> frozenset[str]:
    """The classes of everything that validates, as pydantic would name them."""

    def below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
        for each in model.__subclasses__():
            yield each
            yield from below(each)

    found = {each.__name__.lstrip("_") for each in below(BaseModel)}
    # words that are words of the files, too: kinds, and the rules' names
    return frozenset(name for name in found if re.search(r"[a-z][A-Z]", name))


def paths(part: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [path, *(found for step, value in inner for found in paths(value, (*path, step)))]


def mutated(document: Any, rng: random.Random) -> tuple[Any, tuple[Any, ...]]:
    """A copy with one thing changed, and the path of it."""
    document = copy.deepcopy(document)
    *above, last = path = rng.choice(paths(document)[1:])
    part = document
    for step in above:
        part = part[step]
    kind = rng.choice(["other", "missing", "unknown", "renamed"])
    if kind == "missing":
        del part[last]
    elif kind == "unknown" and isinstance(part[last], dict):
        part[last][rng.choice(["odd", "odd key", 5, "str", "x" * 300])] = rng.choice(ODD)
    elif kind == "renamed" and isinstance(part, dict):
        part[f"{last}x"] = part.pop(last)
    else:
        part[last] = copy.deepcopy(rng.choice(ODD))
    return document, tuple(path)


def assert_is_said_plainly(text: str) -> None:
    assert "expected" in text, text
    assert not re.search(
        r"function-|tagged-union|is-instance|lax-or|nullable|pydantic|<class|<[a-z_.]+ object", text
    ), text
    assert not re.search(r"\b(str|int|float|bool|list|tuple|dict|set|literal|union|constrained-\w+)\[", text), text
    assert not re.search(r"Input should|Value error|instance of|errors\.pydantic", text), text
    assert not (set(re.findall(r"\w+", text)) & class_names()), text


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_documents_are_valid_as_they_stand(name: str) -> None:
    model, document = DOCUMENTS[name]
    parse_yaml(model, write_documents([document]), "file")


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=200)
@given(rng=st.randoms(use_true_random=False))
def test_whatever_is_wrong_with_a_file_is_said_by_what_was_written(name: str, rng: random.Random) -> None:
    model, document = DOCUMENTS[name]
    changed, _ = mutated(document, rng)
    try:
        parse_yaml(model, write_documents([changed]), "file")
    except BadDefinition as error:
        text = str(error)
    else:
        return
    assert_is_said_plainly(text)
    written = re.sub(r"\[.*?\]|\..*", "", text.split(": ", 2)[1])  # the first step of the path
    assert written in {"document", *document, *changed}, text


BEACON = {
    "checkpoint": "in",
    "message_id": "m",
    "event_time": 1,
    "observed_at": "x",
    "reason": "r",
    "traceparent": None,
}
RUN = {"dag": "d", "run_id": "r", "due_at": 1, "run": {"state": "success", "at": 1, "started_at": 2}}
TALLY = {"checkpoint": "a.in", "window_start": 60, "beacons": 1, "id_sum": 1, "lag_sketch": [{"key": 1, "count": 1}]}
REPORT = {
    "pipeline": "p",
    "node": "a",
    "emitter": "0" * 32,
    "seq": 1,
    "started_at": 1,
    "sent_at": 1,
    "tallies": [TALLY],
}
AIRFLOW = {"dag": {"dag_id": "d"}, "dagRun": {"run_id": "r", "run_after": "2026-11-26T12:00:00Z"}}
BODIES = {
    "beacons": (read_batch, {"pipeline": "p", "node": "n", "emitter": "0" * 32, "seq": 1, "beacons": [BEACON]}),
    "task runs": (read_reports, {"reports": [RUN, {**RUN, "task": {"task": "t", "state": "failed", "at": 1}}]}),
    "report": (report_of_json, REPORT),
    "lineage": (
        read_event,
        {"eventType": "FAIL", "eventTime": "2026-11-26T12:00:00Z", "run": {"facets": {"airflow": AIRFLOW}}},
    ),
    "definition": (parsed, DEFINITION),
    "events": (
        lambda body: read_events(body, BATCHED),
        [{"specversion": "1.0", "id": "1", "source": "/pipelines/p/nodes/n", "type": "lagloss.in", "subject": "m"}],
    ),
}


@pytest.mark.parametrize("name", BODIES)
@settings(max_examples=200)
@given(rng=st.randoms(use_true_random=False))
def test_whatever_is_wrong_with_a_body_is_said_by_what_was_sent(name: str, rng: random.Random) -> None:
    read, document = BODIES[name]
    changed, _ = mutated(document, rng)
    try:
        read(json.dumps(changed, default=str).encode())  # type: ignore[operator]
    except Problem as problem:
        if problem.document.detail.startswith("Invalid JSON"):
            return
        assert_is_said_plainly(f"{problem.document.field}: {problem.document.detail}")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"taps": {"out": {"topic": 5}}}, "spec.nodes[0].taps.out.topic: expected text, found 5"),
        (
            {"taps": {"out": {"topic": "a b"}}},
            "spec.nodes[0].taps.out.topic: expected a topic name of 1 to 249 letters",
        ),
        ({"taps": {"out": {}}}, "spec.nodes[0].taps.out: expected a `topic`, a `group` or a `connector`"),
        (
            {"taps": {"out": "beacon"}},
            "spec.nodes[0].taps.out: expected a mapping, or 'beacons' or 'commit', found 'beacon'",
        ),
        (
            {"taps": {"out": {"topics": "a"}}},
            "spec.nodes[0].taps.out.topics: expected one of these keys: topic, group,",
        ),
        ({"taps": {"out:b.c": {"topic": "a"}}}, "spec.nodes[0].taps['out:b.c']: expected one of in, out, out:NODE,"),
        ({"group": False}, "spec.nodes[0].group: expected text, found false"),
        ({"to": "b"}, "spec.nodes[0].to: expected a list, found text"),
    ],
)
def test_a_tap_that_is_wrong_is_named_as_it_was_written(changed: dict[str, Any], expected: str) -> None:
    document = {**DEFINITION, "spec": {"nodes": [{"name": "a", **changed}]}}
    with pytest.raises(BadDefinition) as refused:
        parse_definition(json.dumps(document), "orders.yaml")
    assert str(refused.value).startswith(f"orders.yaml:1: {expected}")


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ("sla: {loss: {max: yes}}", "spec.sla.loss.max"),
        ("sla: {lag: {target: 5s, percentile: on}}", "spec.sla.lag.percentile"),
        ("alerts: {uncertainLoss: {max: true, over: 1h}}", "spec.alerts.uncertainLoss.max"),
    ],
)
def test_a_truth_value_is_no_number(spec: str, place: str) -> None:
    text = f"apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {{name: p}}\nspec:\n  nodes: [{{name: a}}]\n  {spec}\n"
    with pytest.raises(BadDefinition, match=f"{place}: expected a number, found true"):
        parse_yaml(Definition, text, "file")
