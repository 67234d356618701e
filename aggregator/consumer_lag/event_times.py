"""Event times of waiting records whose topic is tapped: by the expression that the tap's definition has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import structlog
from confluent_kafka import Message

from lagloss.broker.headers import headers_of
from lagloss.broker.partition_bounds import Key
from lagloss_server.extraction import Extraction, Extractor, Records
from lagloss_server.net.schema_registry import registry_of

log = structlog.get_logger()

NO_EXPRESSIONS: Final[Mapping[str, Extraction]] = MappingProxyType({})


class RecordPlace(NamedTuple):
    key: Key
    offset: int


class EventTimes:
    """Reader of event times of one cluster's records. Used by one thread."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._extractors: dict[str, tuple[Extraction, Extractor | None]] = {}
        """None: the expression cannot be used, which was logged."""

    def follow(self, expressions: Mapping[str, Extraction]) -> None:
        """Use these expressions, by topic, from now on."""
        for topic in self._extractors.keys() - expressions.keys():
            del self._extractors[topic]
        for topic, extraction in expressions.items():
            if topic not in self._extractors or self._extractors[topic][0] != extraction:
                self._extractors[topic] = extraction, self._extractor(topic, extraction)

    def read(self, messages: Mapping[RecordPlace, Message]) -> dict[RecordPlace, int]:
        """Return the event times (epoch ms) that the expressions find, by place."""
        by_topic: defaultdict[str, list[RecordPlace]] = defaultdict(list)
        for place in messages:
            if place.key[0] in self._extractors:
                by_topic[place.key[0]].append(place)
        return {
            place: time_ms
            for topic, places in by_topic.items()
            for place, time_ms in self._times(topic, places, [messages[place] for place in places]).items()
        }

    def _times(self, topic: str, places: list[RecordPlace], messages: list[Message]) -> dict[RecordPlace, int]:
        _, extractor = self._extractors[topic]
        if extractor is None:
            return {}
        records = Records(
            np.array([message.timestamp()[1] for message in messages], np.int64),
            [message.key() for message in messages],
            [message.value() for message in messages],
            [headers_of(message) for message in messages],
            np.array([place.key[1] for place in places], np.int64),
            np.array([place.offset for place in places], np.int64),
        )
        try:
            extracted = extractor.extract(records)
        except Exception as error:  # the registry is away, say: the record's own timestamp stands in
            log.warning("event times unreadable", cluster=self._cluster, topic=topic, error=str(error))
            return {}
        return {
            places[row]: round(time_ms)
            for row, time_ms in zip(extracted.rows.tolist(), extracted.event_ms.tolist(), strict=True)
        }

    def _extractor(self, topic: str, extraction: Extraction) -> Extractor | None:
        try:
            return Extractor(extraction, registry_of(self._cluster))
        except Exception as error:  # its definition was accepted: a compiler that is missing here, say
            log.warning("tap expression unusable", cluster=self._cluster, topic=topic, error=str(error))
            return None
