"""Replay: events of the past go through the pipeline again, with their own ids and times, and say that they do.

They are read from the first inner topic and put at its end, with the header `lagloss-replay`. Every node passes it on,
and its beacons name the replay: so a message that was lost and now comes through is lost no more, while lags and
duplicates of its window stay what they were. Records that are part of a replay are not replayed again. So a replay that
was killed half-way does no harm, and none if it is run again: what is delivered twice is `replayed` twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import Message

from pipeline_under_test.harness.ledger import LedgerEntry
from pipeline_under_test.stream.events.event import Event, NoIdentity
from pipeline_under_test.stream.kafka.clients import ReliableProducer
from pipeline_under_test.stream.kafka.offset_range_reader import OffsetRangeReader
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import EVENT_NORM, topic_of

REPLAY: Final = "replay"
REPLAY_RATE: Final = 1000.0
"""Events a second: live events stand behind them in the same topic."""
POLL_S: Final = 0.05
PROGRESS_EVERY_S: Final = 1.0


def replayed(
    settings: ReferenceSettings, name: str, from_s: float, to_s: float, rate: float = REPLAY_RATE
) -> Iterator[dict[str, Any]]:
    """Replay what was appended from `from_s` up to `to_s` (epoch seconds; not later than now); gives progress about
    once a second, and at the end a summary.

    Raises:
        KafkaException: if the broker cannot be reached or refuses.
    """
    topic = topic_of(settings.pipeline, EVENT_NORM)
    began, sent, shown = time.monotonic(), 0, 0.0
    producer = ReliableProducer.of(settings.bootstrap, REPLAY)
    with (
        OffsetRangeReader(settings.bootstrap, topic, f"{topic}.{REPLAY}") as reader,
        settings.ledger_of(REPLAY) as ledger,
    ):
        batches = reader.read(reader.at(from_s), reader.at(to_s))
        while (records := next(batches, None)) is not None or producer.in_flight:
            events = [event for record in records or () if (event := _again(record, name)) is not None]
            ledger.write(LedgerEntry("replayed", event.id, event.event_time_ms) for event in events)
            for event in events:
                while not producer.ready or time.monotonic() < began + sent / rate:
                    producer.poll(POLL_S)
                producer.send(topic, event, lambda: None)
                sent += 1
            producer.poll(0.0 if events else POLL_S)
            if time.monotonic() >= shown + PROGRESS_EVERY_S:
                shown = time.monotonic()
                yield {"replay": name, "events": sent - producer.in_flight}
    yield {"replay": name, "events": sent, "seconds": round(time.monotonic() - began, 3)}


def _again(record: Message, name: str) -> Event | None:
    """Return the event as it is to be sent again; None for one without an identity, or part of a replay."""
    try:
        event = Event.from_record(record)
    except NoIdentity:
        return None
    return replace(event, replay=name) if event.replay is None else None
