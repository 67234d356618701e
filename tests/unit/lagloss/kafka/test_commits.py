"""Which offsets may be committed, and what keeps a message from being finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from lagloss import Emitter, MemoryOutlet
from lagloss.identity import Identity
from lagloss.kafka import commits
from lagloss.kafka.commits import COMPACT_AT, Commits, OffsetTracker, SafeOffsets
from lagloss.kafka.in_flight import InFlightMessage, current, current_identity, handling_now

PLACE = ("orders", 0)
IDENTITY = Identity("a", 1_700_000_000_000)


@pytest.fixture
def emitter() -> Iterator[Emitter]:
    with Emitter("orders", "enrich", outlet=MemoryOutlet) as made:
        yield made


@pytest.fixture
def finished() -> list[str]:
    return []


@pytest.fixture
def handling(emitter: Emitter, finished: list[str]) -> InFlightMessage:
    made = InFlightMessage(emitter, IDENTITY, is_redelivered=True, finished=lambda: finished.append("finished"))
    made.received()
    return made


def test_an_offset_is_passed_only_when_all_before_it_are_finished() -> None:
    tracker = OffsetTracker()
    five, six, eight = (tracker.taken(PLACE, offset) for offset in (5, 6, 8))
    six.done()
    eight.done()
    assert tracker.advance() == {}
    five.done()
    assert tracker.advance() == {PLACE: 9}
    assert tracker.advance() == {}


def test_what_finishes_after_its_partition_was_taken_away_is_not_committed() -> None:
    tracker = OffsetTracker()
    taken = tracker.taken(PLACE, 5)
    tracker.drop([PLACE])
    taken.done()
    assert tracker.advance() == {}


def test_offsets_that_wait_for_beacons_through_a_long_outage_take_little_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "MOST_WAITING", 3)
    log = MemoryOutlet(down=True)
    with Emitter("orders", "enrich", outlet=lambda: log, resumes=True) as emitter:
        offsets = SafeOffsets(emitter)
        for offset in range(10):
            emitter.received(f"m{offset}", 1_700_000_000_000)
            offsets.track((("orders", offset % 2)), offset).done()
            assert offsets.mark(at_once=True)
        assert len(offsets._unconfirmed) == 3
        assert offsets.confirmed() == {}
        log.down = False
        assert emitter.flush()
        assert offsets.confirmed() == {("orders", 0): 9, ("orders", 1): 10}


def test_what_is_read_again_after_a_seek_is_finished_anew() -> None:
    tracker = OffsetTracker()
    five, six, seven = (tracker.taken(PLACE, offset) for offset in (5, 6, 7))
    seven.done()
    tracker.rewind(PLACE, 6)
    six.done()
    five.done()
    assert tracker.advance() == {PLACE: 6}
    tracker.taken(PLACE, 6).done()
    assert tracker.advance() == {PLACE: 7}


class Committed:
    """Stands in for the client's own commit: keeps what is committed, and fails at first if told to."""

    def __init__(self, fails: int = 0) -> None:
        self.offsets: list[int] = []
        self._fails = fails

    def commit(self, _consumer: object, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self.offsets += [place.offset for place in offsets]
        if len(self.offsets) <= self._fails:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_a_commit_that_may_have_got_lost_is_made_again_while_the_partition_is_ours(
    emitter: Emitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Committed(fails=1)
    monkeypatch.setattr(commits, "Consumer", client)
    monkeypatch.setattr(commits, "AGAIN_S", 0)
    monkeypatch.setattr(commits, "MARK_EVERY_S", 0)
    ours = Commits(None, emitter)  # type: ignore[arg-type]
    ours._tracker.taken(PLACE, 5).done()
    ours.commit_confirmed()
    assert emitter.flush()
    ours.commit_confirmed()
    ours.commit_confirmed()
    assert client.offsets == [6, 6]
    ours.drop([TopicPartition(*PLACE)])
    ours.commit_confirmed()
    assert client.offsets == [6, 6]


@dataclass(frozen=True)
class At:
    """A message of a partition, as the client gives one; an end-of-partition message says where that ends."""

    at: int

    def topic(self) -> str:
        return PLACE[0]

    def partition(self) -> int:
        return PLACE[1]

    def offset(self) -> int:
        return self.at


@pytest.fixture
def tracked(emitter: Emitter, monkeypatch: pytest.MonkeyPatch) -> tuple[Commits, Committed]:
    """Commits at once, and what they committed."""
    client = Committed()
    monkeypatch.setattr(commits, "Consumer", client)
    monkeypatch.setattr(commits, "MARK_EVERY_S", 0)
    return Commits(None, emitter), client  # type: ignore[arg-type]


def test_the_end_of_a_partition_is_committed_with_the_markers_before_it(tracked: tuple[Commits, Committed]) -> None:
    ours, client = tracked
    ours.taken(At(5)).done()  # type: ignore[arg-type]
    ours.at_end(At(8))  # type: ignore[arg-type]  # 6 and 7 are markers
    ours.settle()
    assert client.offsets == [8]


def test_an_end_waits_for_the_records_before_it(tracked: tuple[Commits, Committed]) -> None:
    ours, client = tracked
    taken = ours.taken(At(5))  # type: ignore[arg-type]
    ours.at_end(At(7))  # type: ignore[arg-type]
    ours.settle()
    assert client.offsets == []
    taken.done()
    ours.settle()
    assert client.offsets == [7]


def test_the_end_of_an_empty_partition_and_one_that_is_told_again_commit_nothing_new(
    tracked: tuple[Commits, Committed],
) -> None:
    ours, client = tracked
    ours.at_end(At(0))  # type: ignore[arg-type]
    ours.settle()
    assert client.offsets == []
    for _ in range(2):
        ours.at_end(At(7))  # type: ignore[arg-type]
        ours.settle()
    assert set(client.offsets) == {7}
    ours.drop([TopicPartition(*PLACE)])
    ours.settle()
    assert set(client.offsets) == {7}


def test_a_record_that_never_finishes_holds_its_partition_back_and_not_the_memory() -> None:
    tracker = OffsetTracker()
    stuck = tracker.taken(PLACE, 0)
    for offset in range(1, 3 * COMPACT_AT):
        tracker.taken(PLACE, offset).done()
    assert tracker.advance() == {}
    assert len(tracker._waiting[PLACE]) <= COMPACT_AT
    stuck.done()
    assert tracker.advance() == {PLACE: 3 * COMPACT_AT}


def test_a_message_is_finished_once_it_is_handled_and_its_outputs_are_acknowledged(
    handling: InFlightMessage, finished: list[str]
) -> None:
    handling.add_output("mail")
    handling.end_handling()
    handling.end_handling()
    assert finished == []
    handling.acknowledged()
    assert finished == ["finished"]


def test_a_failed_output_keeps_its_message_unfinished_until_it_is_sent_again(
    handling: InFlightMessage, finished: list[str]
) -> None:
    handling.add_output("mail")
    handling.end_handling()
    handling.failed("mail")
    assert finished == []
    assert handling.add_output("mail")
    handling.withdraw_output("mail", replaced=True)  # the client's queue was full
    assert finished == []
    handling.add_output("mail")
    handling.acknowledged()
    assert finished == ["finished"]


def test_a_failed_output_of_a_message_that_is_dead_does_not_keep_it(
    handling: InFlightMessage, finished: list[str]
) -> None:
    handling.add_output("mail")
    handling.failed("mail")
    handling.discard_failed()
    assert finished == []
    handling.end_handling()
    assert finished == ["finished"]


def test_a_message_is_work_in_hand_until_it_is_finished(emitter: Emitter, handling: InFlightMessage) -> None:
    handling.add_output("mail")
    handling.end_handling()
    assert emitter._beacons.in_flight_since() is not None
    handling.acknowledged()
    assert emitter._beacons.in_flight_since() is None


def test_a_message_is_current_inside_the_block_and_at_its_own_node_only(
    emitter: Emitter, handling: InFlightMessage
) -> None:
    with Emitter("orders", "other", outlet=MemoryOutlet) as other, handling_now(handling):
        assert current(emitter) == (handling,)
        assert current(other) == ()
        assert current_identity() == IDENTITY
    assert current_identity() is None
