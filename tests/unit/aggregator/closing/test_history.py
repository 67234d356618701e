"""Which windows were filled in afterwards: such a window pages nobody."""

from __future__ import annotations

from aggregator.closing.judge import is_history
from lagloss_server.judging.evidence import EmitterState, Evidence, TallyState

START_S = 1_795_250_400
END_MS = (START_S + 60) * 1_000


def emitter(name: bytes, started_at: int) -> EmitterState:
    return EmitterState(name, "src", started_at, started_at, False, 0, started_at, START_S)


def evidence(emitters: dict[bytes, int], told: str = "") -> Evidence:
    states = [emitter(name, started_at) for name, started_at in emitters.items()]
    tallies = [TallyState(bytes([letter]), "src", "src.in", None, 1, 0) for letter in told.encode()]
    return Evidence(START_S, END_MS + 600_000, states, tallies)


def test_a_window_that_only_later_emitters_told_of_is_history() -> None:
    assert is_history(evidence({b"a": END_MS + 1, b"b": END_MS - 1}, "a"))
    assert not is_history(evidence({b"a": END_MS + 1, b"b": END_MS - 1}, "ab"))
    assert not is_history(evidence({b"a": END_MS}, "a"))


def test_a_window_whose_blocks_were_read_ahead_of_their_tallies_is_history_if_all_emitters_came_later() -> None:
    assert is_history(evidence({b"a": END_MS + 1, b"b": END_MS + 2}))
    assert not is_history(evidence({b"a": END_MS + 1, b"b": END_MS - 2}))


def test_a_window_of_a_pipeline_without_emitters_is_none() -> None:
    assert not is_history(evidence({}))
