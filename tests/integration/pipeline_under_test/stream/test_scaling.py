"""The reference pipeline scales out under a backlog and in when there is none, and loses nothing by it."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from lagloss.broker.topics import create_topics
from pipeline_under_test.harness.ledger import LedgerReader
from pipeline_under_test.harness.policies import Rules
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.kafka.topics import PARTITIONS
from pipeline_under_test.stream.processes.runner import Runner
from pipeline_under_test.stream.processes.scaling import NotRated, Scaling
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import EVENT_NORM, SCALED
from pipeline_under_test.stream.truth import StreamTruth

QUICK = Rules(trend_s=5, quiet_s=6, cool_down_s=6)


def decisions(data_dir: Path, node: str) -> list[dict[str, Any]]:
    lines = (data_dir / "scaling.jsonl").read_text().splitlines()
    return [decision for line in lines if (decision := json.loads(line))["node"] == node]


@pytest.mark.slow
def test_a_node_that_waits_is_scaled_out_under_a_backlog_and_in_when_it_is_gone(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    settings = ReferenceSettings(
        data_dir=tmp_path, bootstrap=kafka_bootstrap, pipeline=f"clicks-{uuid.uuid4().hex[:8]}"
    )
    settings.injections().begin_anew([parse(f"wait:{EVENT_NORM}:5ms:1")])
    runner = Runner(settings, rate=300, minutes=None, settle_s=60, scaling=Scaling("queue-lag", rules=QUICK))
    most = 1
    for progress in runner.steps():
        processes = progress["observed"].get(EVENT_NORM, {"processes": 1})["processes"]
        most = max(most, processes)
        if progress["phase"] == "load" and processes > 1:
            runner.stop()
        if progress["phase"] == "settling" and processes == 1:
            runner.stop()
            runner.stop()
    out, *_, back = decisions(tmp_path, EVENT_NORM)
    assert most > 1
    assert (out["processes"], out["wanted"]) == (1, 2)
    assert out["backlog"] > 50
    assert "wait" in out["reason"]
    assert back["wanted"] == 1
    truth = StreamTruth()
    truth.add(LedgerReader(settings.ledger_dir).new_entries())
    windows = truth.documents()
    assert sum(window["delivered"] for window in windows) > 0
    assert [window["unaccounted"] for window in windows] == [[]] * len(windows)


def test_consumers_are_never_more_than_their_partitions_and_the_receiver_is_one() -> None:
    bounds = {node: Scaling(least=2, most=9).bounds(node) for node in (*SCALED, "receiver")}
    assert bounds.pop("receiver") == (1, 1)
    assert bounds.pop("col-service") == (2, 9)
    assert set(bounds.values()) == {(2, PARTITIONS)}


def test_scaling_by_ratings_asks_for_ratings(tmp_path: Path) -> None:
    with pytest.raises(NotRated, match="create them with `pipeline rate NODE`"):
        Runner(ReferenceSettings(data_dir=tmp_path, bootstrap="127.0.0.1:1"), 0, None, scaling=Scaling("rated"))


@pytest.mark.slow
def test_the_rating_of_a_node_that_waits_is_what_its_waiting_allows(kafka_bootstrap: str, tmp_path: Path) -> None:
    """10 ms an event: 100 events a second less what its own work takes, and half of that at the least."""
    create_topics(kafka_bootstrap)
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    ReferenceSettings(data_dir=tmp_path, bootstrap=kafka_bootstrap, pipeline=name).save()
    words = [sys.executable, "-m", "pipeline_under_test", "rate", EVENT_NORM, "--data-dir", str(tmp_path), "--json"]
    words += ["--fault", f"wait:{EVENT_NORM}:10ms:1", "--seconds", "5"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    rating = json.loads(ended.stdout)
    assert 50 <= rating[EVENT_NORM]["events_per_s"] <= 115
    assert rating[EVENT_NORM]["lag_target_s"] == 2
    assert json.loads((tmp_path / "ratings.json").read_text()) == rating
    assert "events/s" in ended.stderr
    left = AdminClient({"bootstrap.servers": kafka_bootstrap}).list_topics(timeout=10).topics
    assert not [topic for topic in left if topic.startswith(f"{name}-rating")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nobody"], "expected one of col-service, event-norm"),
        ([EVENT_NORM, "--lag-target", "2"], "expected a duration"),
    ],
    ids=["no such node", "no unit"],
)
def test_what_cannot_be_rated_is_said(words: list[str], says: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline_under_test", "rate", *words, "--data-dir", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert says in " ".join(ended.stderr.replace("│", " ").split())
