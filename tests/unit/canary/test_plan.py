"""The canary's plan of a minute."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.plan import ALERTING_PLACES, BURST_MS, HOUR_S, LOSING, MESSAGES, MINUTE_S, RARE, plan_of
from lagloss_server.extraction import Extractor, Records
from lagloss_server.model.canary import PLACE_TARGET, STORE, TARGET_LAG_MS
from lagloss_server.model.canary_definition import canary_definition

SECRETS = st.binary(min_size=32, max_size=32)
MINUTES = st.integers(0, 40_000_000).map(lambda minute: minute * MINUTE_S)
HOURS = st.integers(0, 600_000).map(lambda hour: hour * HOUR_S)


@given(SECRETS, MINUTES)
def test_a_plan_has_sixty_messages_with_ids_of_their_own_within_their_minute(secret: bytes, start_s: int) -> None:
    plan = plan_of(secret, start_s)

    assert len(plan.messages) == MESSAGES == len({message.id for message in plan.messages})
    assert [message.offset_ms for message in plan.messages] == sorted(message.offset_ms for message in plan.messages)
    assert all(0 < message.offset_ms + message.delay_ms < MINUTE_S * 1_000 for message in plan.messages)
    assert BURST_MS[0] <= plan.messages[0].offset_ms <= BURST_MS[1]


@given(SECRETS, MINUTES)
def test_the_same_secret_and_minute_give_the_same_plan(secret: bytes, start_s: int) -> None:
    assert plan_of(secret, start_s) == plan_of(secret, start_s)


@given(SECRETS, SECRETS, MINUTES)
def test_a_plan_cannot_be_made_with_another_secret(secret: bytes, other: bytes, start_s: int) -> None:
    if secret != other:
        ids, others = ({message.id for message in plan_of(key, start_s).messages} for key in (secret, other))
        assert not ids & others
        assert plan_of(secret, start_s).messages != plan_of(secret, start_s + MINUTE_S).messages


@given(SECRETS, MINUTES)
def test_each_minute_loses_enough_at_one_place_alone_for_its_alerting_rule(secret: bytes, start_s: int) -> None:
    plan = plan_of(secret, start_s)
    shares = {place: plan.lost_at[place] / MESSAGES for place in ALERTING_PLACES}

    assert [place for place, share in shares.items() if share > PLACE_TARGET] == [plan.breaching_place]
    assert set(plan.lost_at) <= set(LOSING)


@settings(max_examples=20)
@given(SECRETS, HOURS)
def test_each_hour_has_every_fault(secret: bytes, hour_s: int) -> None:
    faults = Counter(
        (message.fate, message.place)
        for start_s in range(hour_s, hour_s + HOUR_S, MINUTE_S)
        for message in plan_of(secret, start_s).messages
    )

    assert set(RARE) <= set(faults)
    assert {fate for fate, _ in faults} == {"delivered", "lost", "late", "doubled", "corrupted", "dead"}
    lost_at = {place.partition(" ")[0] for fate, place in faults if fate == "lost"}
    assert lost_at == {"link", "node"}


@given(SECRETS, MINUTES)
def test_counts_of_a_plan_add_up(secret: bytes, start_s: int) -> None:
    plan = plan_of(secret, start_s)

    assert plan.delivered + len(plan.lost) + plan.dead == MESSAGES
    assert all(message.delay_ms > TARGET_LAG_MS for message in plan.of_fate("late"))
    assert 0 < plan.on_time_share <= 1


def test_faults_are_where_the_definition_has_a_place() -> None:
    definition = canary_definition()
    places = {f"{place.kind} {place.name}" for place in definition.graph.places}

    assert set(LOSING) <= places
    assert {place for fate, place in RARE if fate in ("late", "doubled", "dead")} <= set(definition.graph.checkpoints)
    assert {place for fate, place in RARE if fate == "corrupted"} <= places


def test_the_tap_reads_what_the_sender_writes() -> None:
    (tap,) = canary_definition().taps
    at_ms = 1_795_250_400_123
    records = Records(np.array([at_ms + 40]), [b"canary-0f"], [str(at_ms).encode()], [None])

    extracted = Extractor(tap.extraction).extract(records)

    assert (extracted.ids, extracted.event_ms.tolist(), extracted.unreadable) == ([b"canary-0f"], [at_ms], {})


def test_where_a_table_is_named_it_is_the_end_of_the_pipeline() -> None:
    definition = canary_definition(has_table=True)
    (table,) = definition.table_taps

    assert (table.node, table.places, table.source) == (STORE, ("out",), "table public.lagloss_canary of canary")
    assert definition.graph.checkpoints == canary_definition().graph.checkpoints
    assert not canary_definition().table_taps
