"""The schemas that events were written with, in a compacted topic: fingerprint in hex -> schema as JSON."""

from __future__ import annotations

import time
from typing import Final

from pipeline_under_test.stream.events.schema import Schema, SchemaReader, packaged
from pipeline_under_test.stream.events.table_topic import TableTopic
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import schemas_topic

WAIT_S: Final = 5.0
"""How long a reader waits for a schema that it has not seen: it is written before the first event that needs it."""
LOOK_EVERY_S: Final = 0.05


class SchemaTopic:
    """Finds schemas by fingerprint, and makes one known."""

    def __init__(self, bootstrap: str, pipeline: str) -> None:
        self._table = TableTopic(bootstrap, schemas_topic(pipeline))
        self._schemas: dict[bytes, Schema] = {}

    def find(self, fingerprint: bytes) -> Schema | None:
        """Return the schema with this fingerprint; None if it was not published within WAIT_S."""
        deadline = time.monotonic() + WAIT_S
        while fingerprint not in self._schemas:
            for _, text in self._table.changes():
                if text is not None:
                    schema = Schema(text.decode())
                    self._schemas[schema.fingerprint] = schema
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_EVERY_S)
        return self._schemas.get(fingerprint)

    def publish(self, schema: Schema) -> None:
        """Publish a schema. Call it before the first event that is written with it."""
        self._table.write(schema.fingerprint.hex(), schema.text.encode())


def reader_of(settings: ReferenceSettings) -> SchemaReader:
    """Read events of this pipeline as the packaged schema has them, whatever schema they were written with."""
    return SchemaReader(packaged(), SchemaTopic(settings.bootstrap, settings.pipeline).find)
