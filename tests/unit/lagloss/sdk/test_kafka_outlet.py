"""The producer of an emitter: a record that the client has forgotten is sent by another client."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lagloss.broker.topics import BEACONS
from lagloss.sdk.outlets import kafka
from lagloss.sdk.outlets.kafka import STUCK_S, KafkaOutlet, Outgoing


class Client:
    """A client that forgets some records, and acknowledges the others at the next poll."""

    made: list[Client]
    forgets: frozenset[bytes]

    def __init__(self, _config: dict[str, Any]) -> None:
        self.sent: list[bytes] = []
        self._waiting: list[Callable[[None, Any], None]] = []
        self.made.append(self)

    def produce(self, _topic: str, *, value: bytes, on_delivery: Callable[[None, Any], None], **_: object) -> None:
        self.sent.append(value)
        if value not in self.forgets:
            self._waiting.append(on_delivery)

    def poll(self, _timeout_s: float) -> None:
        waiting, self._waiting = self._waiting, []
        for acknowledge in waiting:
            acknowledge(None, SimpleNamespace(partition=lambda: 0, offset=lambda: 0))

    def purge(self) -> None:
        pass


def test_a_record_that_is_forgotten_while_later_ones_are_acknowledged_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr(Client, "forgets", frozenset({b"lost"}), raising=False)
    monkeypatch.setattr(kafka, "Producer", Client)
    now = 1_000.0
    monkeypatch.setattr(kafka.time, "monotonic", lambda: now)
    done: list[str] = []
    outlet = KafkaOutlet("localhost:1")

    def send(name: str) -> None:
        outlet.send(Outgoing(BEACONS, b"", name.encode(), lambda *_: done.append(name)))
        outlet.poll(0)

    send("lost")
    now += STUCK_S
    send("next")
    outlet.poll(0)
    assert len(Client.made) == 1, "it may still come"
    now += 1
    send("later")
    monkeypatch.setattr(Client, "forgets", frozenset())
    for _ in range(3):
        outlet.poll(0)
    assert [client.sent for client in Client.made] == [[b"lost", b"next", b"later"], [b"lost"]]
    assert done == ["next", "later", "lost"]
