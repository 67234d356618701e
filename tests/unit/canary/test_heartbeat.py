"""The heartbeat, against a real HTTP server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from canary.heartbeat import CLOCK_OFF_S, EVERY_S, RETRY_S, SILENT_S, Heartbeat
from canary.metrics import CanaryMetrics
from canary.sender import boot_s
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
