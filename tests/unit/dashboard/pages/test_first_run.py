"""What readers see before the first pipeline, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.pages import first_run
from dashboard.pages.printing import html_of
from dashboard.queries.cluster_groups import ClusterGroups
from dashboard.request.current_user import LOCAL, Person, answer_for
from dashboard.request.grants import NOTHING
from dashboard.request.links import Address
from lagloss_server.groups.cluster_groups import GroupReading
from tests.support.group_rows import group


def drawn(monkeypatch: pytest.MonkeyPatch, *names: str, bootstrap: str = "broker:9092") -> str:
    readings = [GroupReading(0, group(name, [])) for name in names]
    monkeypatch.setattr(first_run, "read_groups", lambda *_: ClusterGroups(readings, [""], len(readings)))
    services = SimpleNamespace(settings=SimpleNamespace(kafka_bootstrap=bootstrap))
    visit: Any = SimpleNamespace(store=None, services=services, address=Address("/"))
    return html_of(first_run.first_run(visit))


def test_the_commands_are_those_of_this_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_for(LOCAL)
    said = drawn(monkeypatch, "mailer", "it's odd")
    assert "lagloss watches Kafka at broker:9092" in said
    assert '<a class="plain-anchor" href="/groups">2 consumer groups</a>' in said
    assert "export LAGLOSS_KAFKA_BOOTSTRAP=broker:9092\nlagloss tap discover --group mailer --group" in said
    assert "&#x27;it&#x27;&quot;&#x27;&quot;&#x27;s odd&#x27;" in said  # quoted for a shell
    assert "lagloss apply pipeline.yaml" in said


def test_without_groups_and_broker_they_still_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_for(LOCAL)
    said = drawn(monkeypatch, bootstrap="")
    assert "it knows no consumer group there yet" in said
    assert "LAGLOSS_KAFKA_BOOTSTRAP" not in said
    assert "lagloss tap discover &gt; pipeline.yaml" in said


def test_who_sees_only_some_pipelines_learns_nothing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_for(Person("vera", "viewer", granted=NOTHING))
    try:
        said = drawn(monkeypatch, "mailer")
    finally:
        answer_for(LOCAL)
    assert "No pipelines for your teams" in said
    assert "mailer" not in said
