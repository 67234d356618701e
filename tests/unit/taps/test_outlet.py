"""Taps that share an outlet: each hears of its own records, in its own thread."""

from __future__ import annotations

import threading

from lagloss.broker.topics import BEACONS
from lagloss.sdk.outlets.kafka import MemoryOutlet, Outgoing
from taps.outlet import SharedOutlet, TapOutlet

PATIENCE_S = 20.0


def test_each_tap_hears_of_its_own_records_in_its_own_thread() -> None:
    memory = MemoryOutlet()
    shared = SharedOutlet(memory)
    heard: dict[int, list[tuple[str, int | None]]] = {}

    def send(tap: int) -> None:
        outlet, mine = TapOutlet(shared), heard.setdefault(tap, [])
        for number in range(50):
            outlet.send(
                Outgoing(
                    BEACONS,
                    b"",
                    b"%d-%d" % (tap, number),
                    lambda partition, _: mine.append((threading.current_thread().name, partition)),
                    tap,
                )
            )
        while len(mine) < 50:
            outlet.poll(PATIENCE_S)

    threads = [threading.Thread(target=send, args=(tap,), name=f"tap-{tap}") for tap in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert heard == {tap: [(f"tap-{tap}", tap)] * 50 for tap in range(4)}
    assert sorted(memory.values(BEACONS)) == sorted(
        b"%d-%d" % (tap, number) for tap in range(4) for number in range(50)
    )


def test_partitions_are_asked_for_once_a_second_while_the_broker_is_away() -> None:
    memory = MemoryOutlet(down=True)
    shared = SharedOutlet(memory)
    assert TapOutlet(shared).partitions() is None
    memory.down = False
    assert TapOutlet(shared).partitions() is None
    shared._ask_at = 0.0
    assert TapOutlet(shared).partitions() == memory.partition_count
