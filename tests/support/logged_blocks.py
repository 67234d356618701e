"""Blocks and tallies of one window put where the SDK and the follower would put them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import Message, Producer

from lagloss.wire.format import (
    SAMPLE_ALL,
    BeaconBlock,
    OffsetRange,
    block_key,
    encode_block,
    hash_id,
    pack_ids,
    pack_ranges,
    partitions_of,
)
from lagloss.wire.traces import pack_traces
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

_seq = itertools.count()


@dataclass
class Logged:
    """One window of a pipeline with blocks in a topic. Its first checkpoint is `src.in`: blocks there name their ids,
    whose events are a second apart."""

    name: str
    start_s: int
    bootstrap: str
    topic: str
    store: Store
    partitions: int = 2

    def put(
        self,
        checkpoint: str,
        ids: Sequence[str],
        lag_ms: float,
        *,
        traces: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> list[OffsetRange]:
        """Blocks of one beacon an id, in the ids' partitions; where they lie. `traces`: of ids, 48 hex digits."""
        hashes = np.array([hash_id(name) for name in ids], np.uint64)
        partitions = fields.get("partitions", self.partitions)
        at = partitions_of(hashes, partitions)
        placed: list[OffsetRange] = []

        def note(error: Any, message: Message) -> None:
            assert error is None
            offset = message.offset() or 0
            placed.append(OffsetRange(message.partition() or 0, offset, offset))

        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for partition in np.unique(at).tolist():
            rows = np.flatnonzero(at == partition)
            lags = np.full(rows.size, lag_ms, np.float32)
            known = {"emitter": bytes(16), "seq": next(_seq), "partitions": partitions, **fields}
            block = BeaconBlock(
                pipeline=self.name,
                checkpoint=checkpoint,
                window_start=self.start_s,
                id_hash=hashes[rows],
                lag_ms=lags,
                **known,
            )
            if checkpoint == "src.in":
                block.message_ids = pack_ids(ids[row].encode() for row in rows.tolist())
                block.event_offset_ms = (1_000 * rows % 60_000).astype(np.uint16)
                contexts = b"".join(bytes.fromhex((traces or {}).get(ids[row], "00" * 24)) for row in rows.tolist())
                block.traces = pack_traces(np.frombuffer(contexts, np.uint8).reshape(-1, 24))
            key = block_key(self.name, self.start_s)
            producer.produce(self.topic, encode_block(block), key, partition=partition, on_delivery=note)
        assert producer.flush(20) == 0
        return placed

    def tell(
        self,
        checkpoint: str,
        ranges: Sequence[OffsetRange],
        sample: int = SAMPLE_ALL,
        *,
        beacons: int = 1,
        emitter: bytes = bytes(16),
    ) -> None:
        """A tally, as the follower would keep it."""
        row = {"pipeline": self.name, "window_start": self.start_s, "checkpoint": checkpoint, "replay": ""}
        counts = {"seq": 1, "sample": sample, "beacons": beacons, "payload_bytes": 0, "id_sum": 0, "dropped": 0}
        places = {"sketch": b"", "ranges": pack_ranges(ranges)}
        changed = {"changed_at": int(time.time() * 1000), "changed_basis": 1}
        who = {"emitter": emitter, "node": checkpoint.split(".")[0]}
        with self.store.engine.begin() as connection:
            ensure_days(connection, [self.start_s])
            connection.execute(
                tables.table_of(tables.TallyRow).insert().values(**row, **counts, **places, **changed, **who)
            )

    def tell_of_everything(self) -> None:
        """A tally whose ranges reach over all that is in the log now."""
        log = BeaconLog(self.bootstrap, self.topic)
        self.tell("src.dead", [OffsetRange(partition, 0, end - 1) for partition, end in log.ends().items()])
        log.close()
