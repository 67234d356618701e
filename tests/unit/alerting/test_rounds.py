from __future__ import annotations

from alerting.rounds import POLL_S, Rounds


def begun(*names: str) -> Rounds:
    rounds = Rounds()
    assert rounds.is_due(0)
    rounds.begin(names, 0)
    return rounds


def taken(rounds: Rounds) -> list[str]:
    found = []
    while (name := rounds.take()) is not None:
        found.append(name)
    return found


def test_all_have_their_turn_once_in_a_round_and_the_next_begins_when_it_is_time() -> None:
    rounds = begun("a", "b")
    assert taken(rounds) == ["a", "b"]
    assert rounds.ends()
    assert not rounds.ends()
    assert not rounds.is_due(POLL_S)
    assert rounds.is_due(POLL_S + 0.1)


def test_one_with_news_goes_before_the_rest_of_the_round_and_not_twice() -> None:
    rounds = begun("a", "b", "c")
    assert rounds.take() == "a"
    rounds.hear({"c"})
    assert taken(rounds) == ["c", "b"]


def test_one_that_was_taken_and_has_news_again_is_taken_again() -> None:
    rounds = begun("a")
    assert rounds.take() == "a"
    rounds.hear({"a"})
    assert rounds.has_more()
    assert taken(rounds) == ["a"]


def test_what_may_concern_any_lets_the_round_end_and_begins_the_next_at_once() -> None:
    rounds = begun("a", "b")
    assert rounds.take() == "a"
    rounds.hear({""})
    assert not rounds.is_due(1)
    assert taken(rounds) == ["b"]
    assert rounds.ends()
    assert rounds.is_due(1)
    rounds.begin(["a", "b"], 1)
    assert taken(rounds) == ["a", "b"]
    assert rounds.ends()
    assert not rounds.is_due(2)


def test_a_round_of_nobody_ends_too_since_the_last_pipeline_may_have_been_deleted() -> None:
    rounds = begun()
    assert rounds.take() is None
    assert rounds.ends()
