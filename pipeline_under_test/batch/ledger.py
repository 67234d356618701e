"""The ledger of the batch pipeline: what truly became of files and records, as lines of JSON that are synced to disk.

Each process appends to a file of its own; a line is written before what it records takes effect, so that a crash leaves
a line too many and never one too few. Nothing in here knows lagloss.

=============  =======================================================================================================
kind           facts
=============  =======================================================================================================
``landing``    a file is about to be stored: `attempt` (unique), `key`, `ids` and `times` (epoch ms) of its records,
               `notified` (whether queues hear of it)
``landed``     S3 has it: `attempt`, `file` (its id, BUCKET/KEY@VERSION), `file_ms` (its event time)
``fault``      a fault has hit: `fault`, and `file`, `key` or `node`
``received``   an importer has a file in hand: `node`, `file`, `tries` (this one included)
``writing``    a sink is about to be given a file: `node`, `file`, `rejected` (ids that are dead there), `dropped` (ids
               that it will not write)
``failed``     a try has failed: `node`, `file`, `reason`, `taken_in` (its records were read),
               `wrote` (a line `writing` went before, which did not come true), `last` (no further try)
``buried``     a file is in the dead-letter queue: `node`, `file`
``redriven``   the dead-letter queue's messages are on their way back: `node`
``expected``   a run of the DAG ought to process this hour: `hour` (epoch s), `run`
``aggregated`` the job has reported these records: `hour`, `ids`
=============  =======================================================================================================
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pipeline_under_test.harness.ledger import DurableFile, FollowedFile

Kind = Literal[
    "landing", "landed", "fault", "received", "writing", "failed", "buried", "redriven", "expected", "aggregated"
]
Fact = dict[str, Any]
"""A line: `kind`, `at_ms`, and the facts of its kind."""


class FactLedger(DurableFile):
    """A file of the ledger, for one process."""

    def write(self, kind: Kind, **facts: Any) -> None:
        """Append a fact, and return once it is on disk."""
        line = {"kind": kind, "at_ms": time.time_ns() // 1_000_000, **facts}
        self.append(json.dumps(line, separators=(",", ":")) + "\n")


def read_ledger(directory: Path) -> Iterator[Fact]:
    """Return all facts in a directory's files, in the order of their times. A torn last line is left out."""
    facts = [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in FollowedFile(path).new_lines()]
    yield from sorted(facts, key=lambda fact: fact["at_ms"])
