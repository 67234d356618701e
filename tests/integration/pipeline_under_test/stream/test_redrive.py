"""Letters out of the dead-letter queue: those asked for go back to their nodes, the others wait, none is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import CONN_FB, CONN_GA, EVENT_NORM, dead_topic, topic_of
from pipeline_under_test.stream.traffic import redrive
from pipeline_under_test.stream.traffic.redrive import Wanted, redriven
from tests.support.event_topics import events_in, idle_pipeline, put

NODES = (EVENT_NORM, CONN_GA, CONN_FB)


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> ReferenceSettings:
    return idle_pipeline(kafka_bootstrap, tmp_path)


def send_to_dlq(settings: ReferenceSettings, *letters: Event) -> None:
    put(settings, dead_topic(settings.pipeline), letters)


def letter(name: str, node: str, reason: str = "HTTP 400", **more: Any) -> Event:
    return Event(name, 7, name.encode(), tries=3, **more).set_aside(node, reason)


def run(settings: ReferenceSettings, wanted: Wanted | None = None) -> tuple[int, int]:
    """Redrives; how many events were sent back to nodes, and kept."""
    summary = list(redriven(settings, "r", wanted or Wanted()))[-1]
    assert set(summary) == {"redrive", "events", "kept", "seconds"}
    return summary["events"], summary["kept"]


def back_at(settings: ReferenceSettings, node: str) -> list[Event]:
    return events_in(settings.bootstrap, topic_of(settings.pipeline, node))


def names_back(settings: ReferenceSettings) -> Counter[str]:
    """How often each event went back to a node."""
    return Counter(event.id for node in NODES for event in back_at(settings, node))


def test_a_letter_goes_back_to_its_node_as_new_and_as_part_of_a_replay(settings: ReferenceSettings) -> None:
    send_to_dlq(settings, letter("a", CONN_GA), letter("b", EVENT_NORM, replay="june"))
    assert run(settings) == (2, 0)
    assert back_at(settings, CONN_GA) == [Event("a", 7, b"a", replay="r")]
    assert back_at(settings, EVENT_NORM) == [Event("b", 7, b"b", replay="june")]
    assert run(settings) == (0, 0)


def test_letters_that_are_not_asked_for_are_found_by_a_later_redrive_and_none_goes_back_twice(
    settings: ReferenceSettings,
) -> None:
    letters = [letter(f"{n}", NODES[n % 3], f"HTTP {400 + n % 2}") for n in range(60)]
    send_to_dlq(settings, *letters)
    assert run(settings, Wanted(CONN_GA, "401"))[0] == 10
    assert run(settings, Wanted(most=7))[0] == 7
    assert run(settings, Wanted(EVENT_NORM))[0] <= 20
    send_to_dlq(settings, letter("late", CONN_FB))
    run(settings, Wanted(CONN_FB))
    run(settings)
    assert names_back(settings) == Counter({event.id: 1 for event in [*letters, letter("late", CONN_FB)]})
    assert {event.id for event in back_at(settings, CONN_GA)} == {e.id for e in letters if e.back_to == CONN_GA}
    assert run(settings) == (0, 0)


def test_a_redrive_that_finds_nothing_moves_nothing(settings: ReferenceSettings) -> None:
    send_to_dlq(settings, letter("a", CONN_GA), letter("b", CONN_FB))
    before = events_in(settings.bootstrap, dead_topic(settings.pipeline))
    assert run(settings, Wanted(reason="no such reason")) == (0, 0)
    assert run(settings, Wanted(EVENT_NORM)) == (0, 0)
    assert events_in(settings.bootstrap, dead_topic(settings.pipeline)) == before


def test_a_letter_of_nobody_stays_as_it_is(settings: ReferenceSettings) -> None:
    send_to_dlq(
        settings, letter("a", "no-such-node"), letter("b", CONN_GA), Event("", 0, b"x").set_aside(CONN_GA, "no id")
    )
    assert run(settings)[0] == 1
    assert names_back(settings) == {"b": 1}
    queue = dead_topic(settings.pipeline)
    with redrive.OffsetRangeReader(settings.bootstrap, queue, redrive.redrive_group(settings.pipeline)) as waiting:
        left = [r for records in waiting.read(waiting.committed(), waiting.ends()) for r in records]
    assert sorted(record.value() or b"" for record in left) == [b"a", b"x"]


def test_a_redrive_that_is_killed_before_it_commits_leaves_letters_in_both_places_and_none_in_neither(
    settings: ReferenceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [letter(f"{n}", NODES[n % 3]) for n in range(30)]
    send_to_dlq(settings, *letters)
    with monkeypatch.context() as patch:
        patch.setattr(redrive, "_commit", lambda queue, tracker: None)
        assert run(settings, Wanted(CONN_GA))[0] == 10
    run(settings)
    found = names_back(settings)
    assert set(found) == {event.id for event in letters}
    assert all(found[event.id] >= 1 for event in letters)


def test_a_second_redrive_at_the_same_time_is_told_to_wait(settings: ReferenceSettings) -> None:
    words = [sys.executable, "-m", "pipeline_under_test", "redrive", "--data-dir", str(settings.data_dir)]
    with redrive._alone(settings):
        refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "wait for it" in refused.stderr
    send_to_dlq(settings, letter("a", CONN_GA))
    done = subprocess.run([*words, "--node", CONN_GA, "--reason", "400"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["events"] == 1
