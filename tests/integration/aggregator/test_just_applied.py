"""Records of a definition that was applied a moment ago: none is bad, though no window has been closed since."""

from __future__ import annotations

import time
import uuid

import pytest
from pyspark.sql import SparkSession

from aggregator import quarantine
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.sdk.emitter import Emitter
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.store import Store
from tests.support.closers import driven

HEAD = "apiVersion: lagloss/v1, kind: Pipeline, metadata: {{name: {name}}}"


def apply(store: Store, name: str, nodes: str) -> None:
    store.apply(parse_definition(f"{{{HEAD.format(name=name)}, spec: {{nodes: [{nodes}]}}}}"))


def send(bootstrap: str, name: str, node: str, *, to: str | None = None) -> None:
    """One message through a node whose emitter starts now."""
    emitter = Emitter(name, node, bootstrap, first=True)
    emitter.received("m-1", int(time.time() * 1000))
    emitter.sent("m-1", int(time.time() * 1000), to=to)
    emitter.close()


@pytest.mark.parametrize("closes", [False, True], ids=["stray blocks are audited", "the window is closed"])
def test_what_is_sent_right_after_apply_is_known(
    spark: SparkSession, kafka_bootstrap: str, store: Store, *, closes: bool
) -> None:
    """The closer has looked at the definitions before they were applied, and does not look again."""
    create_topics(kafka_bootstrap)
    old, new = (f"applied-{uuid.uuid4().hex[:8]}" for _ in range(2))
    apply(store, old, "{name: src}")
    with driven(spark, kafka_bootstrap, store, BEACONS, REPORTS) as parts:
        parts.follow_all()  # what other tests left in these topics
        parts.closer.reads.audit()
        with store.engine.connect() as connection:
            before = quarantine.counts(connection)
        send(kafka_bootstrap, old, "src")
        apply(store, old, "{name: src, to: [a, b]}, {name: a}, {name: b}")
        apply(store, new, "{name: src}")
        send(kafka_bootstrap, old, "src", to="a")
        send(kafka_bootstrap, old, "b")
        send(kafka_bootstrap, new, "src")
        parts.follow_all(refresh=False)
        assert set(parts.watch.versions) == {old}
        assert len(parts.watch.versions[old]) == 1
        now_ms = int(time.time() * 1000)
        if closes:
            minutes = range(now_ms // 60_000 * 60 - 60, now_ms // 1000 + 1, 60)
            parts.closer.close_windows([(old, minute) for minute in minutes], now_ms, "requested")
        parts.closer.reads.audit()
        with store.engine.connect() as connection:
            assert quarantine.counts(connection) == before
        parts.watch.refresh()
        assert set(parts.watch.versions) == {old, new}


def test_names_that_no_definition_has_cost_one_look_a_batch(
    spark: SparkSession, kafka_bootstrap: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topics(kafka_bootstrap)
    looks = []
    count = store.count_changes
    monkeypatch.setattr(store, "count_changes", lambda: looks.append(time.monotonic()) or count())
    with driven(spark, kafka_bootstrap, store, BEACONS, REPORTS) as parts:
        parts.follow_all()
        looks.clear()
        started = time.monotonic()
        for _ in range(50):
            send(kafka_bootstrap, f"nobodys-{uuid.uuid4().hex[:8]}", "src")
        parts.follow_all(refresh=False)
        assert 0 < len(looks) <= 2 + (time.monotonic() - started) / 2
