"""Two things a deployment brings, beside production and in it: a shadow that keeps dying, and a newer schema."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lagloss_server.model.definition import parse_definition
from pipeline_under_test.stream.events.schema import Schema, packaged, reader_of
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import (
    DEFINITION,
    EVENT_NORM,
    EVENT_ROUTER,
    NEXT,
    SHADOW,
    dead_topic,
    group_of,
    topic_of,
)
from tests.integration.pipeline_under_test.stream.test_reference_pipeline import (
    Beacons,
    Finished,
    read_beacons,
    run_pipeline,
)
from tests.support.event_topics import events_in

KILLS = 3


@dataclass
class Deployed:
    """A run that has ended, with a shadow that was killed and a producer one version ahead."""

    settings: ReferenceSettings
    ended: Finished
    shadow: Beacons
    ahead: Schema
    kills: int


@pytest.fixture(scope="module")
def deployed(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    data_dir = tmp_path_factory.mktemp("deployed")
    told = json.loads(packaged().text)
    told["fields"].append({"name": "campaign", "type": "string", "default": "none"})
    ahead = data_dir / "ahead.avsc"
    ahead.write_text(json.dumps(told))
    killed: set[int] = set()

    def kill_shadow(progress: dict[str, Any]) -> None:
        for pid in progress["pids"][SHADOW] if len(killed) < KILLS else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)

    pipeline = f"clicks-{uuid.uuid4().hex[:8]}"
    options = ["--shadow", "--schema", str(ahead), "--rate", "50", "--minutes", "0.5", "--settle", "0"]
    ended = run_pipeline(kafka_bootstrap, data_dir, options, kill_shadow, pipeline)
    settings = ReferenceSettings.load(data_dir)
    shadow = read_beacons(kafka_bootstrap, settings.shadow_settings().pipeline)
    return Deployed(settings, ended, shadow, Schema(ahead.read_text()), len(killed))


@pytest.mark.slow
def test_a_shadow_that_keeps_dying_changes_nothing_in_production(deployed: Deployed) -> None:
    assert deployed.kills == KILLS
    beacons, ended = deployed.ended.beacons, deployed.ended
    for node, nexts in NEXT.items():
        assert beacons.ids[f"{node}.in"] == beacons.exits(node)
        for name in [f"{node}.in", f"{node}.out", *(f"{node}.out:{to}" for to in nexts)]:
            assert beacons.counts[name] == len(beacons.ids[name]), f"duplicates at {name}"
        for to in nexts:
            assert beacons.out(node, to) == beacons.ids[f"{to}.in"]
    assert ended.total("messages") == len(beacons.ids["col-service.in"]) > 1_000
    assert sum(ended.total(what) for what in ("delivered", "filtered", "dead")) == ended.total("messages")


@pytest.mark.slow
def test_a_shadow_works_on_the_same_events_and_tells_of_them_under_a_name_of_its_own(deployed: Deployed) -> None:
    production, shadow = deployed.ended.beacons, deployed.shadow
    assert shadow.ids["event-norm.in"]
    assert shadow.ids["event-norm.in"] <= production.ids["event-norm.in"]
    assert shadow.ids["event-norm.in"] <= shadow.exits(EVENT_NORM)
    assert set(shadow.counts) <= {f"event-norm.{place}" for place in ("in", "out", "filtered", "dead")}
    delivers = topic_of(deployed.settings.shadow_settings().pipeline, EVENT_ROUTER)
    assert events_in(deployed.settings.bootstrap, delivers)


def test_the_shadow_s_definition_names_what_the_shadow_is() -> None:
    definition = parse_definition(DEFINITION.with_name("shadow.yaml").read_text())
    shadow = ReferenceSettings(data_dir=Path("data")).shadow_settings()
    assert definition.name == shadow.pipeline
    assert [(node.name, node.group) for node in definition.spec.nodes] == [
        (EVENT_NORM, group_of(shadow.pipeline, EVENT_NORM))
    ]


@pytest.mark.slow
def test_events_of_a_newer_producer_pass_older_nodes_and_are_all_delivered(deployed: Deployed) -> None:
    came_in = events_in(deployed.settings.bootstrap, topic_of(deployed.settings.pipeline, EVENT_NORM))
    assert {event.body[2:10] for event in came_in} == {deployed.ahead.fingerprint}
    assert deployed.ended.total("delivered") > 0
    older = reader_of(deployed.settings.bootstrap, deployed.settings.pipeline)
    for letter in events_in(deployed.settings.bootstrap, dead_topic(deployed.settings.pipeline)):
        assert older.decode(letter.body)["url"].startswith("https://["), "dead for another reason than its URL"


@pytest.mark.slow
def test_a_reader_that_has_never_seen_the_newer_schema_finds_it_in_its_topic(deployed: Deployed) -> None:
    came_in = events_in(deployed.settings.bootstrap, topic_of(deployed.settings.pipeline, EVENT_NORM))
    content = reader_of(deployed.settings.bootstrap, deployed.settings.pipeline).decode(came_in[0].body)
    assert "campaign" not in content
    assert content["url"].startswith("https://")
