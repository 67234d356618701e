"""Plans: the order, the set's hash, the rate, and the position after a kill, wherever it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.repair.lost import LostId
from lagloss_server.repair.plan import (
    LEAST_RATE,
    MAX_BATCH,
    PlannedMessage,
    batch_size,
    batches,
    default_rate,
    most_in_flight,
    order,
    resume,
    set_hash,
    without_planned,
)
from lagloss_server.repair.records import RecordPosition


def lost(number: int, window_s: int = 60) -> LostId:
    return LostId(window_s, number, f"id-{number}", "lost", 0.0)


def at(offset: int, partition: int = 0, topic: str = "orders") -> RecordPosition:
    return RecordPosition(topic, partition, offset, "orders")


def test_records_are_sent_in_the_order_in_which_they_stand_and_gone_ones_are_last() -> None:
    messages = [lost(number) for number in range(5)]
    records = {messages[0].key: at(9, 1), messages[2].key: at(3), messages[3].key: at(10), messages[4].key: at(2, 1)}
    plan = order(messages, records)
    assert [planned.message.id_hash for planned in plan] == [2, 3, 4, 0, 1]
    assert [planned.position for planned in plan] == [0, 1, 2, 3, 4]
    assert [planned.state for planned in plan] == ["planned"] * 4 + ["gone"]


def test_what_another_repair_has_is_left_out_and_positions_stay_dense() -> None:
    plan = order([lost(number) for number in range(4)], {lost(number).key: at(number) for number in range(4)})
    rest = without_planned(plan, {lost(1).key, (120, 2)})
    assert [(planned.position, planned.message.id_hash) for planned in rest] == [(0, 0), (1, 2), (2, 3)]


@given(st.permutations([lost(number, window) for number in range(4) for window in (60, 120)]))
def test_a_set_has_one_hash_whatever_its_order(messages: Sequence[LostId]) -> None:
    assert set_hash(messages) == set_hash(sorted(messages, key=lambda message: message.key))
    assert set_hash(messages) != set_hash(messages[1:])


@pytest.mark.parametrize(("of_topic", "rate"), [(0, LEAST_RATE), (400, LEAST_RATE), (5_000, 500)])
def test_a_tenth_of_the_topics_rate_is_sent_and_never_next_to_nothing(of_topic: float, rate: float) -> None:
    assert default_rate(of_topic) == rate


def test_transactions_last_about_a_second_and_some_records_can_be_on_their_way() -> None:
    assert [batch_size(rate) for rate in (0.1, 50, 1e6)] == [1, 50, MAX_BATCH]
    assert [most_in_flight(rate) for rate in (0.1, 50)] == [200, 1_500]


@dataclass
class World:
    """Kafka and PostgreSQL, as far as a repair writes them: each batch is marked, sent with the position in one
    transaction, and marked again. A kill can come between any two of these."""

    plan: list[PlannedMessage]
    stored: int = 0
    committed: int | None = None
    topic: list[int] = field(default_factory=list)
    forgets: bool = False

    def run(self, size: int, steps: int) -> bool:
        """Run until so many steps are done; return whether the repair came to its end."""
        kafka = None if self.forgets else self.committed
        sent = {self.plan[number].message.key for number in self.topic} if kafka is None else None
        position, self.plan = resume(self.plan, self.stored, kafka, sent)
        self.stored = position
        for batch in batches(self.plan, position, size):
            end = batch[-1].position + 1
            waiting = [planned.position for planned in batch if self.plan[planned.position].state == "planned"]
            for number in range(3):
                if not steps:
                    return False
                steps -= 1
                if number == 0:
                    self._mark(waiting, "sending")
                elif number == 1:
                    self.topic += waiting
                    self.committed = end
                else:
                    self._mark(waiting, "sent")
                    self.stored = end
        return True

    def _mark(self, positions: Sequence[int], state: str) -> None:
        for position in positions:
            self.plan[position] = replace(self.plan[position], state=state)  # type: ignore[arg-type]


@given(st.integers(0, 40), st.integers(0, 3), st.booleans(), st.lists(st.integers(0, 12), max_size=12), st.randoms())
def test_a_repair_that_is_killed_anywhere_sends_each_record_once(
    located: int, gone: int, forgets: bool, kills: Sequence[int], random: Random
) -> None:
    messages = [lost(number) for number in range(located + gone)]
    world = World(order(messages, {lost(number).key: at(number) for number in range(located)}))
    for steps in kills:
        world.forgets = forgets and random.random() < 0.5
        world.run(random.randint(1, 7), steps)  # each run can have a rate of its own
    assert world.run(5, 1_000)
    assert Counter(world.topic) == Counter(range(located))
    assert Counter(planned.state for planned in world.plan) == Counter({"sent": located, "gone": gone})


def test_what_came_meanwhile_is_passed_over_and_counts_as_not_sent() -> None:
    plan = order([lost(number) for number in range(3)], {lost(number).key: at(number) for number in range(3)})
    world = World([plan[0], replace(plan[1], state="arrived"), plan[2]])
    assert world.run(2, 4) is False
    assert world.run(2, 100)
    assert world.topic == [0, 2]
    assert [planned.state for planned in world.plan] == ["sent", "arrived", "sent"]
