"""Repairs of real pipelines, the repairer killed wherever it can be: what was lost is sent, and nothing else, once.

LAGLOSS_REPAIR_HISTORIES is how many random histories are lived through (2 by default), LAGLOSS_REPAIR_SEED the seed of
the first, LAGLOSS_REPAIR_MOST how many messages one loses at most, LAGLOSS_REPAIR_AT_ONCE how many go on side by side.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from lagloss_server.model.definition import parse_definition
from lagloss_server.repair.ledger import RepairLedger, RepairRequest, TakenOver
from lagloss_server.repair.records import TopicRecord
from lagloss_server.repair.sender import BatchRefused, OutgoingRecord, RepairSender
from tests.integration.lagloss_server.repair.conftest import World
from tests.support.closers import wait_until
from tests.support.repairs import (
    GONE,
    NOWHERE,
    PLACES,
    POINTS,
    Chain,
    Ended,
    TabledChain,
    TappedChain,
    committed,
    copy_topic,
    delete_records,
    make_topic,
)

COUNT = int(os.environ.get("LAGLOSS_REPAIR_HISTORIES", "2"))
FIRST_SEED = int(os.environ.get("LAGLOSS_REPAIR_SEED", "1"))
MOST = int(os.environ.get("LAGLOSS_REPAIR_MOST", "60"))
AT_ONCE = int(os.environ.get("LAGLOSS_REPAIR_AT_ONCE", "8"))
WINDOWS = 2


def test_the_position_is_committed_with_the_records_and_the_sender_before_is_shut_out(kafka_bootstrap: str) -> None:
    topic, repair_id = f"orders-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:16]
    make_topic(kafka_bootstrap, topic)
    record = TopicRecord(1, 0, int(time.time() * 1_000), b"k", None, [("lagloss-id", b"a")])

    def sender() -> RepairSender:
        return RepairSender(kafka_bootstrap, repair_id, f"repair-{repair_id}", topic)

    outgoing = OutgoingRecord(topic, record, list(record.headers), keeps_partition=True)
    with sender() as first:
        assert first.begin() is None
        first.send([outgoing, outgoing], 2)
        first.send([outgoing], 7)
        with sender() as second:
            assert second.begin() == 7
            with pytest.raises(TakenOver, match=repair_id):
                first.send([outgoing], 8)
            second.send([], 9)
    with sender() as third:
        assert third.begin() == 9
    assert len(committed(kafka_bootstrap, topic)) == 3


def test_a_record_that_the_topic_does_not_take_is_named_and_the_others_go_on(kafka_bootstrap: str) -> None:
    topic, repair_id = f"small-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:16]
    make_topic(kafka_bootstrap, topic, **{"max.message.bytes": "2000"})
    now_ms = int(time.time() * 1_000)
    values = (b"a", os.urandom(5_000), b"b" * 5_000, b"c")  # the third is small once it is compressed
    records = [
        OutgoingRecord(topic, TopicRecord(0, at, now_ms, None, value, []), [("lagloss-id", b"%d" % at)], True)
        for at, value in enumerate(values)
    ]
    with RepairSender(kafka_bootstrap, repair_id, f"repair-{repair_id}", topic) as sender:
        assert sender.begin() is None
        with pytest.raises(BatchRefused) as refused:
            sender.send(records, 4)
        assert list(refused.value.indexes) == [1]
        sender.send([record for at, record in enumerate(records) if at != 1], 4)
    assert [copy.value for copy in committed(kafka_bootstrap, topic)] == [b"a", b"b" * 5_000, b"c"]


def fates_of(random: Random, place: str, lost: int, prefix: str = "") -> dict[str, str]:
    """Messages that are lost at a place, some at others, and some that arrive."""
    fates = {f"{prefix}{place.replace(' ', '-')}-{number}": place for number in range(lost)}
    others = random.choices([NOWHERE, *PLACES], k=random.randint(5, 30))
    # of a minute in which nothing arrives, nodes that started afterwards say nothing
    others += [NOWHERE] * 10 * WINDOWS
    return fates | {f"{prefix}other-{number}": fate for number, fate in enumerate(others)}


def check(world: World, chain: Chain, place: str, ended: Ended) -> None:
    """The ledger's word on a repair that is over: sent = lost exactly, arrived = sent, 0 others, 0 twice."""
    lost, document = chain.lost_at(place), ended.document
    assert document is not None
    name = document["repair"]
    copies = committed(world.bootstrap, chain.input_of(place))
    originals = {copy.message_id: copy for copy in copies if copy.replay is None}
    sent = [copy for copy in copies if copy.replay == name]
    assert Counter(copy.message_id for copy in sent) == Counter(lost)
    assert [copy.content for copy in sent] == [originals[copy.message_id].content for copy in sent]
    assert {copy.replay for copy in copies} <= {None, name}
    for node in ("b", "c") if place in ("link a->b", "node b") else ("c",):
        received = {key[1]: count for key, count in chain.received.items() if key[0] == node and key[2] == name}
        assert received == dict.fromkeys(lost, 1)
    expected = {"sent": len(lost), "arrived": len(lost), "missing": [], "found": len(lost), "state": "finished"}
    assert {key: document[key] for key in expected} == expected
    assert document["arrived_meanwhile"] == 0


@pytest.mark.timeout(240)
def test_a_repair_sends_what_is_lost_at_the_place_and_states_that_it_arrived(world: World) -> None:
    place, random = "link a->b", Random(1)
    chain = world.chain("whole", fates_of(random, place, 25) | {"never-sent": GONE})
    try:
        chain.send(WINDOWS, random)
        chain.wait_for_losses(world.store, WINDOWS)
        lost = chain.lost_at(place)
        topic = chain.input_of(place)

        planned = world.repairer.run(chain.command(place, WINDOWS, "--dry-run"))
        assert planned.document is not None
        assert planned.code == 0
        expected = {"lost": len(lost) + 1, "found": len(lost), "gone": 1, "topic": topic, "gone_ids": ["never-sent"]}
        assert {key: planned.document[key] for key in expected} == expected
        assert (planned.document["repair"], planned.document["state"]) == (None, "planned")
        assert not any(copy.replay for copy in committed(world.bootstrap, topic))

        ended = world.repairer.run(chain.command(place, WINDOWS, "--rate", "1000"))
        assert ended.code == 4  # one is gone
        check(world, chain, place, ended)
        again = world.repairer.run(chain.command(place, WINDOWS))
        assert again.document is not None
        assert again.code == 4
        assert again.document["repair"] == ended.document["repair"]  # type: ignore[index]
        check(world, chain, place, again)

        behind = world.repairer.run(chain.command("node b", WINDOWS))
        assert behind.code == 0
        assert behind.document is not None
        assert behind.document["sent"] == behind.document["arrived"] == len(chain.lost_at("node b"))
    finally:
        chain.close()


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * COUNT)
def test_a_repairer_that_is_killed_anywhere_sends_each_record_once(world: World) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in [pool.submit(live, world, seed) for seed in range(FIRST_SEED, FIRST_SEED + COUNT)]:
            outcome.result()


def live(world: World, seed: int) -> None:
    """A history: losses at random places, one of which is repaired, with kills."""
    random = Random(seed)
    place = PLACES[seed % len(PLACES)]
    lost = max(1, round(MOST ** random.random()))
    chains = [world.chain(f"h{seed}", fates_of(random, place, lost, "p-"))]
    try:
        if seed % 2:  # another pipeline in the same topic
            other = fates_of(random, random.choice(PLACES), random.randint(1, 10), "q-")
            chains.append(world.chain(f"h{seed}-q", other, chains[0].topic))
        for chain in chains:
            chain.send(WINDOWS, random)
        for chain in chains:
            chain.wait_for_losses(world.store, WINDOWS)
        rate = str(random.choice((20, 200, 5_000)) if lost < 100 else 5_000)
        command = chains[0].command(place, WINDOWS, "--rate", rate)
        kills = [(random.choice(POINTS), random.randint(1, 3)) for _ in range(random.randint(1, 4))]
        ends = [world.repairer.run(command, point, nth) for point, nth in kills]
        print(seed, place, lost, rate, [(*kill, ended.code) for kill, ended in zip(kills, ends, strict=True)])
        assert {ended.code for ended in ends} <= {0, -9}
        ended = world.repairer.run(command)
        assert ended.code == 0, ended
        check(world, chains[0], place, ended)
        assert not any(key[2] for chain in chains[1:] for key in chain.received)
    finally:
        for chain in chains:
            chain.close()


@pytest.mark.timeout(240)
def test_records_of_tapped_services_are_found_by_the_taps_expressions(world: World) -> None:
    random, place = Random(3), "node b"
    fates = {f"lost-{number}": place for number in range(20)} | {f"fine-{number}": NOWHERE for number in range(15)}
    chain = world.chain("tapped", fates, kind=TappedChain)
    try:
        chain.send(WINDOWS, random)
        chain.wait_for_losses(world.store, WINDOWS)
        ended = world.repairer.run(chain.command(place, WINDOWS), "RepairSender.commit_transaction after")
        assert ended.code == -9
        ended = world.repairer.run(chain.command(place, WINDOWS))
        assert ended.code == 0, ended
        check(world, chain, place, ended)
    finally:
        chain.close()


@pytest.mark.timeout(240)
def test_rows_of_a_tapped_table_are_seen_to_arrive(world: World, module_database_url: str) -> None:
    random = Random(8)
    fates = dict.fromkeys((f"fine-{number}" for number in range(15)), NOWHERE)
    fates |= {f"lost-{number}-{place[-1]}": place for number in range(20) for place in ("node b", "node c")}
    chain = world.chain("tabled", fates, kind=TabledChain, url=module_database_url)
    try:
        chain.send(WINDOWS, random)
        chain.wait_for_losses(world.store, WINDOWS)
        for place in ("node c", "node b"):
            killed = world.repairer.run(chain.command(place, WINDOWS), "RepairSender.commit_transaction after")
            assert killed.code == -9
            ended = world.repairer.run(chain.command(place, WINDOWS))
            assert ended.code == 0, ended
            check(world, chain, place, ended)
    finally:
        chain.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_retention_has_taken_is_gone_unless_another_topic_has_it(world: World) -> None:
    random, place = Random(4), "node b"
    chain = world.chain("kept", {f"lost-{number}": place for number in range(5)}, kind=TappedChain)
    backup = f"{chain.pipeline}-backup"
    try:
        chain.send(WINDOWS, random)
        chain.wait_for_losses(world.store, WINDOWS)
        copy_topic(world.bootstrap, chain.topic, backup)
        delete_records(world.bootstrap, chain.topic)
        names = sorted(chain.fates)
        gone = world.repairer.run(chain.command(place, WINDOWS))
        assert gone.document is not None
        assert (gone.code, gone.document["gone"], sorted(gone.document["gone_ids"])) == (4, 5, names)
        ended = world.repairer.run([*chain.command(place, WINDOWS), "--from-topic", backup])
        assert ended.document is not None
        assert (ended.code, ended.document["sent"], ended.document["topic"]) == (0, 5, chain.topic)
        sent = committed(world.bootstrap, chain.topic)
        assert sorted(copy.message_id for copy in sent) == names
    finally:
        chain.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_retention_has_taken_is_found_in_the_dead_letter_queue_of_the_node(world: World) -> None:
    random, place = Random(7), "node b"
    fates = {f"lost-{number}": place for number in range(12)} | {f"fine-{number}": NOWHERE for number in range(5)}
    chain = world.chain("dead", fates, kind=TappedChain)
    try:
        chain.send(WINDOWS, random)
        chain.wait_for_losses(world.store, WINDOWS)
        originals = {copy.message_id: copy for copy in committed(world.bootstrap, chain.topic)}
        copy_topic(world.bootstrap, chain.topic, f"{chain.pipeline}-dead")
        delete_records(world.bootstrap, chain.topic)
        # its tap begins behind these records: else they were dead, not lost
        definition = chain.definition.replace(
            f"{chain.pipeline}-c}}}}", f"{chain.pipeline}-c}}, dead: {{topic: {chain.pipeline}-dead}}}}", 1
        )
        world.store.apply(parse_definition(definition.replace("lookback: 30m", "lookback: 1s")))
        killed = world.repairer.run(chain.command(place, WINDOWS), "RepairSender.commit_transaction after")
        assert killed.code == -9
        ended = world.repairer.run(chain.command(place, WINDOWS))
        assert ended.code == 0, ended
        assert ended.document is not None
        assert (ended.document["topic"], ended.document["sent"]) == (chain.topic, 12)
        sent = committed(world.bootstrap, chain.topic)
        assert Counter(copy.message_id for copy in sent) == Counter(chain.lost_at(place))
        assert all(
            (copy.key, copy.value) == (originals[copy.message_id].key, originals[copy.message_id].value)
            for copy in sent
        )
        assert {copy.replay for copy in sent} == {ended.document["repair"]}
    finally:
        chain.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_node_that_may_do_a_thing_twice_has_to_be_allowed(world: World) -> None:
    chain = world.chain("twice", {"lost": "link a->b", "fine": NOWHERE})
    world.store.apply(parse_definition(chain.definition.replace("name: c, idempotent: true", "name: c")))
    try:
        chain.send(1, Random(5))
        chain.wait_for_losses(world.store, 1)
        assert world.repairer.run(chain.command("link a->b", 1)) == Ended(2, None)
        assert world.repairer.run(chain.command("link a->b", 1, "--dry-run")).code == 0
        wrong = world.repairer.run(["repair", chain.pipeline, "--window", "-5m", "--at", "link:a->c"])
        assert wrong == Ended(2, None)
        ended = world.repairer.run(chain.command("link a->b", 1, "--i-know"))
        assert (ended.code, ended.document and ended.document["arrived"]) == (0, 1)
    finally:
        chain.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_repair_stops_when_told_and_goes_on_with_the_same_command(world: World) -> None:
    place = "link a->b"
    # without one that arrives, b and c, which started afterwards, say nothing of the window
    chain = world.chain("slow", {f"lost-{number}": place for number in range(12)} | {"fine": NOWHERE})
    try:
        chain.send(1, Random(6))
        chain.wait_for_losses(world.store, 1)
        waiting = world.repairer.start(chain.command(place, 1, "--rate", "1"))
        request = RepairRequest(chain.pipeline, place, chain.start_s, chain.start_s + 60, with_perhaps=False)
        ledger = RepairLedger(world.store.engine)
        wait_until(lambda: (stored := ledger.find(request)) and stored.position, 60, "for the first record")
        found = ledger.find(request)
        assert found is not None
        assert world.repairer.run(["repair", "--stop", found.name]).code == 0
        stopped = waiting()
        assert stopped.document is not None
        assert (stopped.code, stopped.document["state"]) == (1, "stopped")
        assert "stopped by" in stopped.document["stop_reason"]
        assert 0 < stopped.document["sent"] < 12
        ended = world.repairer.run(chain.command(place, 1, "--rate", "500"))
        assert ended.code == 0
        check(world, chain, place, ended)
    finally:
        chain.close()
