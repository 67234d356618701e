from __future__ import annotations

from alerting.rounds import AT_ONCE, POLL_S, Rounds


def begun(*names: str) -> Rounds:
    rounds = Rounds()
    assert rounds.is_due(0)
    rounds.begin(names, 0)
    return rounds


def test_all_have_their_turn_once_in_a_round_and_the_next_begins_when_it_is_time() -> None:
    rounds = begun("a", "b")
    assert rounds.take() == {"a": (), "b": ()}
    assert rounds.ends()
    assert not rounds.ends()
    assert not rounds.is_due(POLL_S)
    assert rounds.is_due(POLL_S + 0.1)


def test_those_with_news_go_before_the_rest_of_the_round_and_not_twice() -> None:
    names = [f"p{number:03}" for number in range(AT_ONCE + 2)]
    rounds = begun(*names)
    rounds.hear({names[-1]: {60, 120}, "z": {60}})
    rounds.hear({names[-1]: {180}})
    assert rounds.take() == {names[-1]: {60, 120, 180}, "z": {60}}
    assert rounds.take() == dict.fromkeys(names[:AT_ONCE], ())
    assert rounds.take() == dict.fromkeys(names[AT_ONCE:-1], ())
    assert not rounds.has_more()


def test_one_whose_news_need_an_evaluation_goes_first_and_has_had_its_turn_then() -> None:
    rounds = begun("a", "b", "d")
    rounds.hear({"b": {60}, "c": {60}})
    rounds.put_later(["d"])
    rounds.put_first(["b"])
    assert (rounds.take_one(), rounds.take_one()) == ("b", None), "c is looked at before d is evaluated"
    assert rounds.take() == {"c": {60}}
    assert rounds.take_one() == "d"
    assert rounds.take() == {"a": ()}


def test_a_round_does_not_end_before_those_found_in_it_are_evaluated() -> None:
    rounds = begun("a")
    rounds.take()
    rounds.put_later(["a"])
    assert not rounds.ends()
    assert rounds.take_one() == "a"
    assert rounds.ends()


def test_one_that_was_taken_and_has_news_again_is_taken_again() -> None:
    rounds = begun("a")
    rounds.take()
    rounds.hear({"a": {60}})
    assert rounds.has_more()
    assert rounds.take() == {"a": {60}}


def test_it_is_behind_while_there_is_news_of_more_than_are_looked_at_together() -> None:
    rounds = begun()
    rounds.hear({f"p{number}": {60} for number in range(AT_ONCE + 1)})
    assert rounds.is_behind()
    rounds.take()
    assert not rounds.is_behind()


def test_what_may_concern_any_lets_the_round_end_and_begins_the_next_at_once() -> None:
    rounds = begun("a", "b")
    rounds.hear({"": set()})
    assert not rounds.is_due(1)
    assert rounds.take().keys() == {"a", "b"}
    assert rounds.ends()
    assert rounds.is_due(1)
    rounds.begin(["a", "b"], 1)
    assert rounds.take().keys() == {"a", "b"}
    assert rounds.ends()
    assert not rounds.is_due(2)


def test_a_round_of_nobody_ends_too_since_the_last_pipeline_may_have_been_deleted() -> None:
    rounds = begun()
    assert (rounds.take_one(), rounds.take()) == (None, {})
    assert rounds.ends()
