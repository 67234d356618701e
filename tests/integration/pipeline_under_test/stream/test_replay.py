"""Replays into the first inner topic: what they send again, what they leave, and what a crash in between does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline_under_test.harness.ledger import LedgerReader
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import EVENT_NORM, topic_of
from pipeline_under_test.stream.traffic.replay import replayed
from tests.support.event_topics import events_in, idle_pipeline, put


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> ReferenceSettings:
    return idle_pipeline(kafka_bootstrap, tmp_path)


def append(settings: ReferenceSettings, *names: str, **more: Any) -> float:
    """Puts events of long ago into the topic; the time after which later ones are appended, epoch seconds."""
    put(settings, topic_of(settings.pipeline, EVENT_NORM), [Event(name, 7, name.encode(), **more) for name in names])
    time.sleep(0.005)  # append times are whole milliseconds
    return time.time()


def found(settings: ReferenceSettings, replay: str) -> list[Event]:
    events = events_in(settings.bootstrap, topic_of(settings.pipeline, EVENT_NORM))
    return sorted((event for event in events if event.replay == replay), key=lambda event: event.id)


def test_what_was_appended_in_between_is_sent_again_unchanged_but_for_the_header(settings: ReferenceSettings) -> None:
    since = append(settings, "before")
    until = append(settings, *"abcde")
    append(settings, "after")
    summary = list(replayed(settings, "june", since, until))[-1]
    assert set(summary) == {"replay", "events", "seconds"}
    assert (summary["replay"], summary["events"]) == ("june", 5)
    assert found(settings, "june") == [Event(name, 7, name.encode(), replay="june") for name in "abcde"]
    noted = [entry for entry in LedgerReader(settings.ledger_dir).new_entries() if entry.fate == "replayed"]
    assert sorted(entry.id for entry in noted) == list("abcde")


def test_a_replay_is_not_replayed_and_ends_where_the_topic_ended_when_it_began(settings: ReferenceSettings) -> None:
    append(settings, "a")
    append(settings, "b", replay="june")
    for name in ("july", "august"):
        assert list(replayed(settings, name, 0, time.time() + 3600))[-1]["events"] == 1
        assert [event.id for event in found(settings, name)] == ["a"]


def test_a_time_when_nothing_was_appended_replays_nothing(settings: ReferenceSettings) -> None:
    until = append(settings, "a")
    assert list(replayed(settings, "june", until, until + 1))[-1]["events"] == 0
    assert list(replayed(settings, "june", 0, 1))[-1]["events"] == 0


def test_a_replay_that_is_killed_half_way_and_run_again_brings_back_everything(settings: ReferenceSettings) -> None:
    names = [f"e-{number:03d}" for number in range(150)]
    append(settings, *names)
    words = [sys.executable, "-m", "pipeline_under_test", "replay", "--data-dir", str(settings.data_dir)]
    words += ["--from", "-5m", "--name", "june"]
    with subprocess.Popen([*words, "--rate", "50"], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if json.loads(line)["events"] > 0:
                break
        killed.kill()
    half = len(found(settings, "june"))
    assert 0 < half < len(names)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["events"] == len(names)
    twice = Counter(event.id for event in found(settings, "june"))
    assert set(twice) == set(names)
    assert max(twice.values()) == 2


def test_a_replay_whose_end_is_before_its_beginning_is_refused(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pipeline_under_test", "replay", "--data-dir", str(tmp_path), "--from", "now"]
    refused = subprocess.run([*words, "--to", "-1h"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--from" in refused.stderr
