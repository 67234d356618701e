"""The heartbeat, against a real HTTP server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from canary.heartbeat import CLOCK_KNOWN_S, CLOCK_OFF_S, EVERY_S, RETRY_S, SILENT_S, VALID_S, Heartbeat
from canary.metrics import CanaryMetrics
from canary.sender import boot_s
from lagloss_server.net.http_answers import MAX_ANSWER_BYTES
from tests.fakes.http_receiver import HttpReceiver, Reply


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as receiver:
        yield receiver


def heartbeat(receiver: HttpReceiver) -> Heartbeat:
    return Heartbeat(f"{receiver.url}/ok", f"{receiver.url}/fail", CanaryMetrics())


def asked(receiver: HttpReceiver) -> list[str]:
    return [request.path for request in receiver.requests]


def test_the_url_is_fetched_once_a_minute_while_the_canary_is_right(receiver: HttpReceiver) -> None:
    beat = heartbeat(receiver)
    now_s = boot_s()
    for second in range(0, 181, 5):
        beat.say("", now_s + second)
        beat.turn(now_s + second)
    assert asked(receiver) == ["/ok"] * (1 + 180 // int(EVERY_S))


def test_nothing_is_fetched_before_the_witness_has_spoken_nor_by_a_stand_by(receiver: HttpReceiver) -> None:
    beat = heartbeat(receiver)
    for later_s in (0.0, EVERY_S, 2 * SILENT_S):
        beat.turn(boot_s() + later_s)
    beat.say(None)
    beat.turn(boot_s() + 2 * SILENT_S)
    assert asked(receiver) == []


def test_a_failure_is_said_once_at_once_with_its_reason_and_the_heart_beats_again_afterwards(
    receiver: HttpReceiver,
) -> None:
    beat = heartbeat(receiver)
    for problem in ("", "a minute was wrong: no result", "a minute was wrong: no result", "", "again"):
        beat.say(problem)
        beat.turn(boot_s())
    assert asked(receiver) == ["/ok", "/fail", "/fail"]  # the second good turn was within the same minute
    assert [request.body.decode() for request in receiver.requests[1:]] == ["a minute was wrong: no result", "again"]


def test_what_is_not_accepted_is_tried_again(receiver: HttpReceiver) -> None:
    beat = heartbeat(receiver)
    receiver.replies += [Reply(500), Reply(503)]
    now_s = boot_s()
    beat.say("why")
    for later_s in (0.0, 1.0, RETRY_S, 2 * RETRY_S, 3 * RETRY_S):
        beat.turn(now_s + later_s)
    assert asked(receiver) == ["/fail"] * 3


def test_a_witness_that_hangs_stops_the_heart_and_is_a_failure_later(receiver: HttpReceiver) -> None:
    beat = heartbeat(receiver)
    beat.say("")
    now_s = boot_s()
    for later_s in range(0, int(SILENT_S) + 10, 5):
        beat.turn(now_s + later_s)
    assert asked(receiver) == ["/ok", "/ok", "/fail"]
    assert b"the witness has said nothing" in receiver.requests[-1].body


def test_a_clock_that_is_wrong_by_the_receivers_stops_the_heart_until_it_is_right(receiver: HttpReceiver) -> None:
    beat, now_s = heartbeat(receiver), boot_s()
    for minute, ahead_s in enumerate((0.0, CLOCK_OFF_S / 2, -600.0, -600.0, -600.0, 0.0, 0.0, 0.0)):
        receiver.ahead_s = ahead_s
        beat.say("", now_s + minute * EVERY_S)
        beat.turn(now_s + minute * EVERY_S)
        beat.turn(now_s + minute * EVERY_S + 1.0)
    # the third beat meets the clock that is off; two looks at it later it is right again, and a minute later the heart
    # beats
    assert asked(receiver) == ["/ok", "/ok", "/ok", "/fail", "/", "/", "/", "/ok", "/ok"]
    assert receiver.requests[3].body == b"the clock of this host is +10 min off, by the heartbeat receiver's"


def test_a_word_is_right_only_while_it_holds(receiver: HttpReceiver) -> None:
    beat, now_s = heartbeat(receiver), boot_s()
    assert not beat.is_ok()
    for problem, age_s, is_ok in [("", 0.0, True), ("", VALID_S + 1.0, False), (None, 0.0, False), ("x", 0.0, False)]:
        beat.say(problem, now_s - age_s)
        assert beat.is_ok() == is_ok


def test_why_nothing_can_be_said_is_a_failure_once_the_last_word_does_not_hold(receiver: HttpReceiver) -> None:
    beat, now_s = heartbeat(receiver), boot_s()
    beat.say("", now_s)
    beat.note_trouble("waiting for PostgreSQL: refused")
    for later_s in range(0, int(VALID_S) + 10, 5):
        beat.turn(now_s + later_s)
    assert asked(receiver) == ["/ok", "/ok", "/fail"]
    assert receiver.requests[-1].body == b"waiting for PostgreSQL: refused"


def test_a_process_that_cannot_begin_says_so_after_a_while_and_a_stand_by_nothing(receiver: HttpReceiver) -> None:
    beat, now_s = heartbeat(receiver), boot_s()
    beat.note_trouble("waiting for PostgreSQL: refused")
    beat.say(None, now_s)
    beat.turn(now_s + 2 * SILENT_S)
    beat.note_trouble("waiting for PostgreSQL: refused")
    for later_s in range(0, int(SILENT_S) + 10, 5):
        beat.turn(now_s + 2 * SILENT_S + later_s)
    assert asked(receiver) == ["/fail"]


def test_a_pause_of_the_machine_is_no_silence_of_the_witness(receiver: HttpReceiver) -> None:
    beat, now_s = heartbeat(receiver), boot_s()
    beat.say("", now_s)
    beat.turn(now_s)
    awake_s = now_s + 3_600.0
    for later_s in range(0, int(2 * SILENT_S), 5):
        beat.turn(awake_s + later_s)
    assert asked(receiver) == ["/ok"]
    beat.say("", awake_s + 2 * SILENT_S)
    beat.turn(awake_s + 2 * SILENT_S)
    assert asked(receiver) == ["/ok", "/ok"]


def test_another_reason_is_said_and_the_same_with_other_numbers_is_not(receiver: HttpReceiver) -> None:
    beat = heartbeat(receiver)
    reasons = [
        "a minute was wrong: 1 of 5 lost messages not named: canary-01 at node store",
        "a minute was wrong: 2 of 3 lost messages not named: canary-02 at link app->relay",
        "a minute was wrong: no incident of loss/node/store; no notification",
        "no minute was found right for 4 min: not taken: topic x: a",
        "no minute was found right for 5 min: not taken: topic y: b",
        "a minute was wrong: 5 of 5 lost messages not named: canary-03 at node store",
    ]
    for reason in reasons:
        beat.say(reason)
        beat.turn(boot_s())
    assert [request.body.decode() for request in receiver.requests] == [reasons[0], reasons[2], reasons[3]]


@pytest.mark.parametrize("urls", [("/ok", "/fail"), ("", "/fail")])
def test_a_clock_is_compared_at_a_receiver_that_redirects_and_without_a_heartbeat(
    receiver: HttpReceiver, urls: tuple[str, str]
) -> None:
    elsewhere = Reply(302, headers={"location": "http://127.0.0.1:9/"})
    receiver.answer = lambda request: elsewhere if request.path == "/" else Reply()  # type: ignore[method-assign]
    beat = Heartbeat(*(url and receiver.url + url for url in urls), CanaryMetrics())
    now_s, receiver.ahead_s = boot_s(), -600.0
    beat.say("why", now_s)
    beat.turn(now_s)
    beat.say("", now_s)
    beat.turn(now_s + 1.0)
    assert asked(receiver) == ["/fail", "/", "/fail"]
    receiver.ahead_s = 0.0
    beat.say("", now_s + EVERY_S)
    beat.turn(now_s + EVERY_S + 2.0)
    assert asked(receiver)[3:] == ["/"]
    for later_s in (2 * EVERY_S, 3 * EVERY_S):
        beat.say("", now_s + later_s)
        beat.turn(now_s + later_s + 3.0)
    assert asked(receiver)[4:] == (["/ok"] * 2 if urls[0] else [])


def test_a_receiver_that_says_no_time_gets_a_heartbeat_now_and_then_by_a_clock_that_was_wrong(
    receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat, now_s = heartbeat(receiver), boot_s()
    monkeypatch.setattr(beat._client, "head", lambda *_, **__: httpx2.Response(404))
    receiver.ahead_s = -600.0
    minutes = int(CLOCK_KNOWN_S // EVERY_S) + 3
    for minute in range(minutes):
        beat.say("", now_s + minute * EVERY_S)
        beat.turn(now_s + minute * EVERY_S)
        beat.turn(now_s + minute * EVERY_S + 1.0)
    assert asked(receiver) == ["/ok", "/fail", "/ok", "/fail"]


def test_a_receiver_whose_answer_is_past_the_limit_has_failed(receiver: HttpReceiver) -> None:
    beat, now_s = heartbeat(receiver), boot_s()
    receiver.replies = [Reply(200, b"x" * MAX_ANSWER_BYTES), Reply(200, b"x" * (MAX_ANSWER_BYTES + 1))]
    for later_s in (0.0, EVERY_S, EVERY_S + RETRY_S):
        beat.say("", now_s + later_s)
        beat.turn(now_s + later_s)
    assert asked(receiver) == ["/ok"] * 3
    counts = [beat._metrics.heartbeats.labels("ok", outcome)._value.get() for outcome in ("sent", "failed")]
    assert counts == [2, 1]
