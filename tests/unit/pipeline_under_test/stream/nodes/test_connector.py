"""What becomes of the events of a batch, whatever the vendor answers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import httpx2
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from pipeline_under_test.stream.event_faults import NO_FAULT
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.schema import SchemaReader, packaged
from pipeline_under_test.stream.nodes import connector
from pipeline_under_test.stream.nodes.connector import LOCAL_TRIES, Vendor, VendorAnswer, VendorOutlet
from pipeline_under_test.stream.nodes.decision import Pass
from pipeline_under_test.stream.nodes.loop import Loop
from pipeline_under_test.stream.nodes.worker import Job, OutboundEvent
from pipeline_under_test.stream.settings import ReferenceSettings, Retry

Word = Literal["take", "later", "never"]
BODY = packaged().encode({"url": "https://shop.example/cart", "kind": "click"})


class Ends:
    """Stands in for the loop: which end each parcel came to."""

    def __init__(self) -> None:
        self.of: dict[str, list[str]] = {}
        for way in ("delivered", "retry_later", "rejected", "refused"):
            setattr(self, way, self._note(way))

    def _note(self, way: str) -> Callable[..., None]:
        def note(parcel: OutboundEvent, *_reason: str) -> None:
            self.of.setdefault(parcel.event.id, []).append(way)

        return note


@dataclass
class Moody:
    """A vendor that has a word for each event and try; the last one goes on for ever."""

    words: Sequence[Sequence[Word]]
    url: str = "moody"
    tries: Counter[str] = field(default_factory=Counter)
    at_a_time: int = 0
    most_at_a_time: int = 0
    largest: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def post(self, events: Sequence[Event]) -> VendorAnswer:
        with self._lock:
            self.at_a_time += 1
            self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
            self.largest = max(self.largest, len(events))
            said = [self._word(event.id) for event in events]
            self.at_a_time -= 1
        if "never" in said:
            return VendorAnswer(failure="HTTP 400")
        taken = frozenset(place for place, word in enumerate(said) if word == "take")
        return VendorAnswer(taken, "HTTP 207, not accepted", may_pass=True)

    def _word(self, name: str) -> Word:
        words = self.words[int(name)]
        self.tries[name] += 1
        return words[min(self.tries[name], len(words)) - 1]


@pytest.fixture
def at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connector, "LINGER_S", 0)
        patch.setattr(connector, "FIRST_PAUSE_S", 0)
        yield


def parcel(event: Event) -> OutboundEvent:
    return OutboundEvent(Job(Message(), event, NO_FAULT, Pass(event)), event, None)


def ends_of(moody: Moody, tmp_path: Any, retry: Retry, batch: int = 3, parallel: int = 2) -> dict[str, list[str]]:
    ends = Ends()
    settings = ReferenceSettings(data_dir=tmp_path, batch=batch, parallel=parallel, retry=retry)
    outlet = VendorOutlet(settings, cast("Loop", ends), cast("Vendor", moody))
    for number in range(len(moody.words)):
        outlet.send(parcel(Event(str(number), 1, BODY)))
    deadline = time.monotonic() + 20
    while len(ends.of) < len(moody.words):
        assert time.monotonic() < deadline, f"still waiting, with {ends.of}"
        outlet.step()
    outlet.close()
    assert outlet._queued == 0
    return ends.of


WORDS = st.lists(st.lists(st.sampled_from(["take", "later", "never"]), min_size=1, max_size=4), min_size=1, max_size=12)


@pytest.mark.usefixtures("at_once")
@given(words=WORDS, retry=st.sampled_from(["global", "local"]))
def test_every_event_comes_to_one_end_and_to_the_right_one(words: list[list[Word]], retry: Retry) -> None:
    for word in words:
        if "never" in word:  # a vendor that will never take an event says so each time
            word[:] = ["never"]
    moody = Moody(words)
    ends = ends_of(moody, ".", retry)
    gave_up = "retry_later" if retry == "global" else "refused"
    for name, ways in ends.items():
        said = words[int(name)]
        if said == ["never"]:
            assert ways == ["rejected"]
        elif said[-1] == "take":
            assert ways in (["delivered"], [gave_up])
        else:
            assert ways in (["delivered"], [gave_up]) if "take" in said else ways == [gave_up]
        # A batch with an event that is to blame is taken apart, and its others begin anew.
        assert moody.tries[name] <= 2 * LOCAL_TRIES
    assert moody.largest <= 3
    assert moody.most_at_a_time <= 2


@pytest.mark.usefixtures("at_once")
def test_what_will_never_be_taken_is_not_tried_again_once_it_is_alone(tmp_path: Any) -> None:
    moody = Moody([["never"]])
    assert ends_of(moody, tmp_path, "global") == {"0": ["rejected"]}
    assert moody.tries == {"0": 1}


@pytest.mark.usefixtures("at_once")
def test_everything_is_tried_again_where_that_is_to_be_shown(tmp_path: Any) -> None:
    moody = Moody([["never"]])
    assert ends_of(moody, tmp_path, "everything") == {"0": ["retry_later"]}
    assert moody.tries == {"0": LOCAL_TRIES}


@pytest.mark.usefixtures("at_once")
def test_a_pause_that_is_too_long_to_wait_for_is_waited_for_elsewhere(tmp_path: Any) -> None:
    class Strict(Moody):
        def post(self, events: Sequence[Event]) -> VendorAnswer:
            return VendorAnswer(failure="HTTP 429", may_pass=True, pause_s=3600)

    assert ends_of(Strict([["later"]]), tmp_path, "global") == {"0": ["retry_later"]}


def answered(status: int, **more: Any) -> VendorAnswer:
    client = httpx2.Client(transport=httpx2.MockTransport(lambda _request: httpx2.Response(status, **more)))
    return Vendor("http://vendor", SchemaReader(packaged()), client).post([Event("a", 1, BODY), Event("b", 1, BODY)])


@pytest.mark.parametrize(
    ("more", "taken"),
    [
        ({"json": {"accepted": [1]}}, {1}),
        ({"json": {"accepted": [0, 7, -1]}}, {0}),
        ({"json": {}}, set()),
        ({"json": [0]}, set()),
        ({"json": {"accepted": 1}}, set()),
        ({"json": {"accepted": [{}]}}, set()),
        ({"text": "not JSON"}, set()),
    ],
    ids=["one", "places-that-are-not-there", "no-list", "a-list", "a-number", "not-a-place", "not-json"],
)
def test_of_a_batch_that_was_taken_in_part_what_the_vendor_does_not_name_is_sent_again(
    more: dict[str, Any], taken: set[int]
) -> None:
    answer = answered(207, **more)
    assert answer.taken == taken
    assert answer.may_pass


@pytest.mark.parametrize(
    ("status", "may_pass"), [(200, None), (202, None), (304, False), (400, False), (404, False), (408, True)]
)
def test_an_answer_says_whether_another_try_may_end_otherwise(status: int, may_pass: bool | None) -> None:
    answer = answered(status)
    assert answer.taken == ({0, 1} if may_pass is None else set())
    assert may_pass is None or answer.may_pass is may_pass


@pytest.mark.parametrize("status", [425, 429, 500, 503, 599])
def test_what_may_pass_waits_as_long_as_the_vendor_says(status: int) -> None:
    answer = answered(status, headers={"Retry-After": "7"})
    assert (answer.may_pass, answer.pause_s) == (True, 7.0)
